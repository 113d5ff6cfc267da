# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Results of other tools, read into rows of our history: vllm bench serve, sglang.bench_serving, aiperf, guidellm.

Their words differ. What is read as ``tpot_s`` is (E2E - TTFT) / (n - 1) in all of them: guidellm and aiperf call its
mean over requests "inter token latency" (guidellm's own "time per output token" includes the time to first token). The
decode rate is 1 / TPOT. An imported result is history, never a baseline: nothing is known of the state of its host.
"""

from __future__ import annotations

import calendar
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..module_utils import files
from . import columns

SCHEMA = 1
_YEAR_9999 = 253402300799  # its end, in seconds since 1970


class ForeignError(Exception):
    """A file is no result that can be imported; the message says which and why."""


def parse(text: str, name: str, modified: float) -> list[dict[str, Any]]:
    """The results in the text of a file (``name`` for messages, ``modified``: its time, when it tells none).

    JSON, or JSON lines. Raises ForeignError when there is none that is known.
    """
    results: list[dict[str, Any]] = []
    for document in _documents(text, name):
        reader = next((read for fits, read in READERS if fits(document)), None)
        if reader is None:
            raise ForeignError(
                f"{name} is no result of vllm bench serve, sglang.bench_serving, aiperf or guidellm that is known here"
            )
        try:
            results += [_finished(found, document, modified) for found in reader(document)]
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ForeignError(f"{name} lacks what its tool usually writes: {type(error).__name__} {error}") from error
    if not results:
        raise ForeignError(f"{name} holds no result: was the run cancelled?")
    return results


def _documents(text: str, name: str) -> Iterator[dict[str, Any]]:
    try:
        whole = json.loads(text)
        documents = whole if isinstance(whole, list) else [whole]
    except (ValueError, RecursionError):
        try:
            documents = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise ForeignError(f"{name} is neither JSON nor JSON lines: {error}") from error
    if not documents or not all(isinstance(one, dict) for one in documents):
        raise ForeignError(f"{name} holds no JSON object")
    return iter(documents)


def _finished(found: dict[str, Any], document: dict[str, Any], modified: float) -> dict[str, Any]:
    """With schema and an id that is the same whenever the same result is imported."""
    when = found.pop("when")
    when = modified if when is None else when
    if not 0 <= when <= _YEAR_9999:
        raise ValueError(f"a time of measurement ({when} s since 1970 is none)")
    for level in found["levels"]:
        row = {"model": found["model"], "engine": found["engine"], **level}
        wrong = columns.misfits(row) + [name for name, value in level.items() if value is not None and value < 0]
        if wrong:
            raise ValueError(", ".join(f"{name} ({str(row[name])[:40]!r} is none)" for name in wrong))
    # Some tools write Infinity (a request rate without limit): no JSON of ours, but part of what is told apart.
    digest = files.digest(json.dumps([document, found], sort_keys=True, default=str))
    return {
        "schema": SCHEMA,
        "id": f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(when))}-{digest[:6]}",
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)),
        **found,
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if not milliseconds else milliseconds / 1000.0


def _level(concurrency: Any, ttft_ms: Any, tpot_ms: Any, output_tok_s: Any, done: Any, failed: Any) -> dict[str, Any]:
    tpot = _seconds(tpot_ms)
    return {
        "concurrency": int(concurrency or 0),  # 0: the tool did not limit it
        "ttft_s": _seconds(ttft_ms),
        "tpot_s": tpot,
        "decode_tok_s": 1.0 / tpot if tpot else None,
        "output_tok_s": float(output_tok_s),
        "requests": int(done) + int(failed or 0),
        "failed": int(failed or 0),
    }


def _stamp(text: Any, pattern: str) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(str(text), pattern)))
    except ValueError:
        return None


def _iso(text: Any) -> float | None:
    """Seconds of "2026-11-29T17:00:00.123Z" or with an offset that is zero; None for anything else."""
    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", str(text))
    return _stamp(match.group(1), "%Y-%m-%dT%H:%M:%S") if match else None


def _serving_level(document: dict[str, Any]) -> dict[str, Any]:
    """The one level of a result of vLLM's or SGLang's benchmark, whose common ancestor gave the numbers their names."""
    level = _level(
        document.get("max_concurrency"),
        document["mean_ttft_ms"],
        document["mean_tpot_ms"],
        document["output_throughput"],
        document["completed"],
        document.get("failed"),
    )
    level.update(_lengths(document["total_input_tokens"], document["total_output_tokens"], document["completed"]))
    return level


# --- vllm bench serve ----------------------------------------------------------------------------------


def _is_vllm(document: dict[str, Any]) -> bool:
    return {"mean_ttft_ms", "mean_tpot_ms", "output_throughput", "model_id"} <= set(document)


def _vllm(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    level = _serving_level(document)
    # The Python client writes local time without a zone: as good as it gets.
    when = _iso(document.get("date")) or _stamp(document.get("date"), "%Y%m%d-%H%M%S")
    yield {"source": "vllm bench serve", "model": document["model_id"], "engine": None, "when": when, "levels": [level]}


def _lengths(prompts: Any, outputs: Any, requests: Any) -> dict[str, int]:
    if not requests:
        return {}
    return {"prompt_tokens": round(prompts / requests), "output_tokens": round(outputs / requests)}


# --- sglang.bench_serving ------------------------------------------------------------------------------


def _is_sglang(document: dict[str, Any]) -> bool:
    return {"mean_ttft_ms", "mean_tpot_ms", "output_throughput", "backend", "completed"} <= set(document)


def _sglang(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    level = _serving_level(document)
    told = document.get("server_info") or {}
    model = document.get("model_id") or told.get("served_model_name") or told.get("model_path") or document.get("model")
    engine = "sglang" if str(document["backend"]).startswith("sglang") else None
    yield {"source": "sglang.bench_serving", "model": model, "engine": engine, "when": None, "levels": [level]}


# --- aiperf --------------------------------------------------------------------------------------------


def _is_aiperf(document: dict[str, Any]) -> bool:
    return "output_token_throughput" in _aiperf_metrics(document) and "input_config" in document


def _aiperf_metrics(document: dict[str, Any]) -> dict[str, Any]:
    """The metrics lie at the top, or below "records" as older versions wrote them."""
    return document["records"] if isinstance(document.get("records"), dict) else document


def _aiperf(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    metrics = _aiperf_metrics(document)

    def mean(name: str) -> float | None:
        return (metrics.get(name) or {}).get("avg")

    config = document["input_config"]
    level = _level(
        _find(config, "concurrency"),
        mean("time_to_first_token"),
        mean("inter_token_latency"),
        mean("output_token_throughput"),
        mean("request_count"),
        mean("error_request_count"),
    )
    level.update(
        prompt_tokens=_rounded(mean("input_sequence_length")), output_tokens=_rounded(mean("output_sequence_length"))
    )
    named = _find(config, "model_names") or [one["name"] for one in (config.get("models") or {}).get("items") or []]
    yield {
        "source": "aiperf",
        "model": ", ".join(named) or None,
        "engine": None,
        "when": _iso(document.get("start_time")),
        "levels": [level],
    }


def _find(node: Any, name: str) -> Any:
    """The first value of this name anywhere in a configuration: where it lies differs between versions."""
    if isinstance(node, dict):
        if node.get(name) is not None:
            return node[name]
        node = list(node.values())
    if isinstance(node, list):
        return next((found for found in (_find(one, name) for one in node) if found is not None), None)
    return None


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


# --- guidellm ------------------------------------------------------------------------------------------


def _is_guidellm(document: dict[str, Any]) -> bool:
    return isinstance(document.get("benchmarks"), list) and "metadata" in document


def _guidellm(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One result for each of its benchmarks: they are different loads."""
    for one in document["benchmarks"]:
        metrics = one["metrics"]

        def mean(name: str, metrics: dict[str, Any] = metrics) -> float | None:
            return ((metrics.get(name) or {}).get("successful") or {}).get("mean")

        totals = metrics["request_totals"]
        level = _level(
            _find(one.get("config"), "streams") or _find(one, "max_concurrency"),
            mean("time_to_first_token_ms"),
            mean("inter_token_latency_ms"),
            mean("output_tokens_per_second"),
            totals["successful"],
            totals.get("errored"),
        )
        level.update(
            prompt_tokens=_rounded(mean("prompt_token_count")), output_tokens=_rounded(mean("output_token_count"))
        )
        model = _find(document.get("args"), "model") or _find(one.get("config"), "model")
        yield {
            "source": "guidellm",
            "model": model if isinstance(model, str) else None,
            "engine": None,
            "when": one.get("start_time") if isinstance(one.get("start_time"), (int, float)) else None,
            "levels": [level],
        }


Fits = Callable[[dict[str, Any]], bool]
Reader = Callable[[dict[str, Any]], Iterator[dict[str, Any]]]

#: The first that fits reads it: vllm's result is like sglang's, which also writes ``backend``.
READERS: tuple[tuple[Fits, Reader], ...] = (
    (_is_guidellm, _guidellm),
    (_is_aiperf, _aiperf),
    (_is_vllm, _vllm),
    (_is_sglang, _sglang),
)
