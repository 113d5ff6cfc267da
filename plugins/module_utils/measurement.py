# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The result of a measurement: its document, its identity, its short form. Pure: samples in, values out."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

from . import files, speculation_window, stats
from .endpoint import Sample
from .load import Level, Repeat, Run, count_errors
from .sampling import Sampler, summarise

SCHEMA = 1
CONFIDENCE = 0.95
HEADLINE = "decode_tok_s"
INTERVAL_OVER = "repeats within one start"
#: What was done about prefix caches. A chat template begins every prompt alike; how much of it a cache served is told
#: by ``cached_tokens``.
PREFIX_CACHE = {
    "defeat": "defeated by unique prompts",
    "flush": "emptied before each wave",
    "keep": "kept: every repeat sends the same prompts",
}


def new_id(when: float) -> str:
    """A name for a measurement: UTC time and six random hex digits."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(when)) + "-" + os.urandom(3).hex()


def identity(start_id: str, declaration_hash: str, workload: dict[str, Any], state_hash: str) -> str:
    """What a measurement speaks for; as long as it is the same, measuring again would ask the same question."""
    return files.digest(
        {
            "start_id": start_id,
            "declaration_hash": declaration_hash,
            "workload": workload,
            "state_hash": state_hash,
        }
    )


def _told(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: list[float | None]) -> float | None:
    known = _told(values)
    return stats.mean(known) if known else None


def _percentiles(values: list[float]) -> dict[str, float | None]:
    return {f"p{q}": stats.percentile(values, q) for q in (50, 90, 99)}


def summarise_repeat(repeat: Repeat) -> dict[str, Any]:
    """Means over the good requests of a repeat; the total rate counts from its first request to its last token."""
    good = [one for one in repeat.samples if one.ok]
    total = None
    if good:
        span = max(one.last_token_at for one in good) - min(one.sent_at for one in repeat.samples)
        total = sum(one.tokens or 0 for one in good) / span
    return {
        "decode_tok_s": _mean([one.decode_tok_s for one in good]),
        "output_tok_s": total,
        "ttft_s": _mean([one.ttft_s for one in good]),
        "tpot_s": _mean([one.tpot_s for one in good]),
        "e2e_s": _mean([one.e2e_s for one in good]),
        "ok": len(good),
    }


def _over_repeats(repeats: list[dict[str, Any]], name: str) -> stats.Interval:
    """Mean and t interval of a value of each repeat. None of them can be negative, so no interval reaches below 0."""
    found = stats.mean_interval(_told([repeat[name] for repeat in repeats]), CONFIDENCE)
    return found if found.low is None else replace(found, low=max(0.0, found.low))


def _latency(repeats: list[dict[str, Any]], samples: list[Sample], name: str) -> dict[str, Any]:
    """Mean and interval over repeats, percentiles over requests."""
    found = _over_repeats(repeats, name)
    values = _told([getattr(one, name) for one in samples])
    return {"mean": found.mean, "low": found.low, "high": found.high, "n": found.n, **_percentiles(values)}


def summarise_level(repeats: list[Repeat]) -> dict[str, Any]:
    """One concurrency: its repeats, intervals over them, percentiles over all good requests."""
    rows = [summarise_repeat(repeat) for repeat in repeats]
    samples = [one for repeat in repeats for one in repeat.samples]
    good = [one for one in samples if one.ok]
    gaps = [gap for one in good for gap in one.gaps]
    chunks = sum(one.chunks for one in good)
    cached = _told([one.cached_tokens for one in good])
    lengths = _told([one.prompt_tokens for one in good])
    return {
        "concurrency": repeats[0].concurrency,
        "requests": len(samples),
        "ok": len(good),
        "errors": count_errors(samples),
        "repeats": rows,
        "ttft_s": _latency(rows, good, "ttft_s"),
        "tpot_s": _latency(rows, good, "tpot_s"),
        "e2e_s": _latency(rows, good, "e2e_s"),
        "chunk_gap_s": {"mean": _mean(list(gaps)), "n": len(gaps), **_percentiles(gaps)},
        "tokens_per_chunk": sum(one.tokens or 0 for one in good) / chunks if chunks else None,
        "prompt_tokens": {"min": min(lengths), "max": max(lengths)} if lengths else None,
        "cached_tokens": sum(cached) if cached else None,
        "repetition": {
            name: _mean([one.repetition[place] for one in good]) for place, name in enumerate(("prompts", "answers"))
        },
        "decode_tok_s": _over_repeats(rows, "decode_tok_s").as_dict(),
        "output_tok_s": _over_repeats(rows, "output_tok_s").as_dict(),
    }


def _level(level: Level, repeats: list[Repeat], sampler: Sampler) -> dict[str, Any]:
    """A level with what was observed around it: warm-up, the server's metrics, speculation, the machine."""
    good = [one for repeat in repeats for one in repeat.samples if one.ok]
    metrics = level.metrics or {}
    return {
        **summarise_level(repeats),
        "warmup": level.warmup,
        "server_metrics": level.metrics,
        "speculation": speculation_window.window(
            metrics.get("delta") or {},
            (metrics.get("after") or {}).get("accept_length"),
            [one.speculation for one in good if one.speculation],
            sum(one.tokens or 0 for one in good),
            len(good),
        ),
        "machine": summarise(sampler.rows, level.began, level.ended),
    }


def build(
    run: Run,
    workload: dict[str, Any],
    server: dict[str, Any],
    interpreter: dict[str, str],
    sampler: Sampler,
    measurement: str,
    identity_hash: str,
    started: float,
    duration_s: float,
) -> dict[str, Any]:
    """The whole document (schema 1). ``started`` is seconds since 1970."""
    levels = []
    requests = []
    for level in run.levels:
        concurrency = level.concurrency
        repeats = [one for one in run.repeats if one.concurrency == concurrency]
        levels.append(_level(level, repeats, sampler))
        for repeat in repeats:
            for index, sample in enumerate(repeat.samples):
                place = {"concurrency": concurrency, "repeat": repeat.index, "index": index}
                requests.append({**place, **sample.as_row(run.began)})
    rate = levels[0][HEADLINE]
    lengths = [level["prompt_tokens"] for level in levels if level["prompt_tokens"]]
    wanted = workload["prompt_tokens"]
    return {
        "schema": SCHEMA,
        "id": measurement,
        "identity": identity_hash,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "duration_s": duration_s,
        "measuring_s": run.seconds,
        "server": server,
        "workload": workload,
        "workload_hash": files.digest(workload),
        "prompts": {
            **run.prompts,
            # The lengths of a file's prompts were not asked for: nothing to be exact about.
            "exact": None
            if workload["prompts_file"]
            else bool(lengths) and all(one["min"] == one["max"] == wanted for one in lengths),
        },
        "prefix_cache": PREFIX_CACHE[workload["prefix_cache"]],
        "levels": levels,
        "warmup": run.warmup,
        "client": {**run.client, **interpreter},
        "sampling": sampler.about(),
        "headline": {
            "metric": HEADLINE,
            "unit": "tok/s",
            "concurrency": levels[0]["concurrency"],
            "value": rate["mean"],
            "low": rate["low"],
            "high": rate["high"],
            "n": rate["n"],
            "confidence": CONFIDENCE,
            "interval_over": INTERVAL_OVER,
        },
        "requests": requests,
    }


def short(measurement: dict[str, Any]) -> dict[str, Any]:
    """The facts of a measurement: what other tools and later runs want at a glance."""
    headline, server, level = measurement["headline"], measurement["server"], measurement["levels"][0]
    return {
        "metric": headline["metric"],
        "unit": headline["unit"],
        "value": headline["value"],
        "low": headline["low"],
        "high": headline["high"],
        "n": headline["n"],
        "confidence": headline["confidence"],
        "interval_over": headline["interval_over"],
        "concurrency": headline["concurrency"],
        "ttft_s": level["ttft_s"]["mean"],
        "tpot_s": level["tpot_s"]["mean"],
        "output_tok_s": level["output_tok_s"]["mean"],
        "server": server["name"],
        "engine": server["engine"],
        "model": server["served_model_name"],
        "base_url": server["base_url"],
        "start_id": server["start_id"],
        "declaration_hash": server["declaration_hash"],
        "workload_hash": measurement["workload_hash"],
        "measurement_id": measurement["id"],
        "measured_at": measurement["started_at"],
        "client_limited": measurement["client"]["limited"],
        "steady": measurement["warmup"]["steady"],
    }


def usable(found: Any) -> bool:
    """Whether a value that was read from a file is a measurement of this schema, with all that is asked of it later."""
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return False
    try:
        facts = short(found)
    except (KeyError, IndexError, TypeError):
        return False
    return (
        files.is_number(facts["value"])
        and facts["value"] > 0
        and isinstance(found.get("identity"), str)
        and isinstance(found.get("workload"), dict)
        and all(map(_usable_level, found["levels"]))
    )


def _usable_level(level: Any) -> bool:
    """Whether the repeats of a level, which verdicts are made of, are numbers; None: no request of it was good."""
    repeats = level.get("repeats", []) if isinstance(level, dict) else None
    return isinstance(repeats, list) and all(
        isinstance(one, dict)
        and all(value is None or (files.is_number(value) and value >= 0) for value in one.values())
        for one in repeats
    )
