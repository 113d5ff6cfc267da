# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A record as a table that a person reads."""

from __future__ import annotations

from typing import Any

from . import shares

SHOWN = 3  # explanations in a summary


def _interval(value: float, low: float | None, high: float | None, unit: str, scale: float = 1.0) -> str:
    digits = 2 if abs(value * scale) < 10 else 1
    text = f"{value * scale:.{digits}f} {unit}"
    if low is not None and high is not None:
        text += f" ({low * scale:.{digits}f} to {high * scale:.{digits}f})"
    return text


def count(number: int, noun: str) -> str:
    """A number with its noun in the right form."""
    return f"{number} {noun}{'s' * (number != 1)}"


def percent(ratio: float) -> str:
    """A ratio as a change in percent."""
    return f"{shares.percent(ratio - 1, signed=True)} %"


def _server(record: dict[str, Any]) -> str:
    server = record["measurement"]["server"]
    text = f"{server['name']}: {server['engine']}, {server['served_model_name']}, {server['base_url']}"
    ready = record.get("ready") or {}
    timed = [one for one in ready.get("phases") or [] if one.get("seconds") is not None]
    phases = ", ".join(f"{one['name']} {one['seconds']:.1f}" for one in timed)
    if ready.get("elapsed_s") is not None:
        text += f"; ready in {ready['elapsed_s']:.1f} s" + (f" ({phases})" if phases else "")
    return text


def _workload(measurement: dict[str, Any]) -> str:
    workload = measurement["workload"]
    level = measurement["levels"][0]
    errors = sum(level.get("errors", {}).values())
    return (
        f"{_prompt_tokens(measurement)} -> {workload['output_tokens']} tokens, {level['concurrency']} at a time, "
        f"{level['ok']} of {level['requests']} requests ok"
        + (f", {errors} failed: {', '.join(sorted(level['errors']))}" if errors else "")
    )


def _prompt_tokens(measurement: dict[str, Any]) -> str:
    """What was declared, when the server counted just that; else what it counted."""
    declared = str(measurement["workload"]["prompt_tokens"])
    prompts, seen = measurement.get("prompts") or {}, measurement["levels"][0].get("prompt_tokens")
    if prompts.get("exact") is not False and prompts.get("method") != "file":
        return declared
    if not seen:
        return f"about {declared}" if prompts.get("exact") is False else "the file's"
    told = str(seen["min"]) if seen["min"] == seen["max"] else f"{seen['min']} to {seen['max']}"
    return told if prompts.get("method") == "file" else f"{told} (declared: {declared})"


def _proof(record: dict[str, Any]) -> str:
    proof = record.get("proof") or {}
    if not proof:
        return "not asked for"
    profile, workers = record.get("profile") or "?", len(proof.get("workers") or [])
    text = f"{proof.get('verdict', 'unknown')}, profile {profile}, {count(workers, 'worker')}"
    why = proof.get("why") or []
    reasons = [why] if isinstance(why, str) else list(why)
    return text + (f": {reasons[0]}" if reasons and proof.get("verdict") != "proved" else "")


def _baseline(verdict: dict[str, Any], standing: dict[str, Any]) -> list[tuple[str, str]]:
    if verdict["baseline_value"] is None:
        return []
    starts = verdict["baseline_starts"]
    value = _interval(verdict["baseline_value"], verdict["baseline_low"], verdict["baseline_high"], verdict["unit"])
    text = f"{value}, {count(starts, 'start')}"
    if standing["starts"] != starts:
        text += f" when this was compared; {standing['starts']} now"
    return [("baseline", text + (", provisional: accept at least 3 starts" if standing["provisional"] else ""))]


def _ratio(verdict: dict[str, Any]) -> str:
    if verdict["ratio"] is None:
        return ""
    text = f" {percent(verdict['ratio'])}"
    if verdict["ratio_low"] is not None:
        text += f" ({percent(verdict['ratio_low'])} to {percent(verdict['ratio_high'])}"
        text += " if starts did not differ)" if verdict["basis"] == "repeats" else ")"
    return text


def _first(record: dict[str, Any]) -> str:
    if not record.get("in_baseline"):
        return "first measurement of this declaration, but no baseline: " + "; ".join(record["refused"])
    reasons = "".join(f"; {reason}" for reason in record["verdict"]["reasons"])
    return "first measurement of this declaration: it is now the provisional baseline" + reasons


def _mde(verdict: dict[str, Any]) -> list[tuple[str, str]]:
    """The smallest difference that this comparison finds reliably; that it found none means little below it."""
    if verdict["mde"] is None:
        return []
    text = f"{shares.percent(verdict['mde'])} %: true differences from here on are found in 80 of 100 such comparisons"
    if verdict["basis"] == "repeats":
        text = f"at least {shares.percent(verdict['mde'])} %: how much starts differ is not known yet"
    return [("MDE", text)]


def _drift(verdict: dict[str, Any]) -> list[tuple[str, str]]:
    found = verdict["drift"]
    if not found:
        return []
    change = f"{100 * found['change']:+.1f} %"
    return [("drift", f"{change} since record {found['since']}, while nothing in the state changed (CUSUM)")]


def _verdict(record: dict[str, Any]) -> list[tuple[str, str]]:
    verdict = record["verdict"]
    if verdict["verdict"] == "first":
        text = _first(record)
    else:
        reasons = "; ".join(verdict["reasons"])
        text = verdict["verdict"].upper() + _ratio(verdict) + (f": {reasons}" if reasons else "")
    rows = [*_baseline(verdict, record["baseline"]), ("verdict", text), *_mde(verdict), *_drift(verdict)]
    changed = [one for one in verdict["metrics"] if one["changed"]]
    if changed:
        told = ", ".join(f"{one['metric']} at {one['concurrency']} {percent(one['ratio'])}" for one in changed)
        rows.append(("also", f"changed: {told}"))
    return rows + _explanations(record)


def _explanations(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The likeliest; where there is none, that is an answer too, if the fingerprints were there to compare."""
    verdict = record["verdict"]
    told = verdict["explanations"]
    compared = verdict["baseline_value"] is not None and (record.get("fingerprints") or {}).get("before")
    if not told and compared:
        return [("changed", "nothing that is looked at: state, clocks, limits and load are as they were")]
    rows = [("changed" if index == 0 else "", line) for index, line in enumerate(told[:SHOWN])]
    more = len(told) - SHOWN
    if more > 0:
        rows.append(("", f"... and {count(more, 'more difference')} in the record"))
    return rows


def lines(record: dict[str, Any], path: str, reused: bool) -> list[str]:
    """The summary of one host's record, one string a line, labels in a column."""
    return [f"{label:<9} {text}" for label, text in rows(record, path, reused)]


def rows(record: dict[str, Any], path: str, reused: bool) -> list[tuple[str, str]]:
    """The same as pairs of label ("" where a line goes on) and text."""
    measurement = record["measurement"]
    headline, level = measurement["headline"], measurement["levels"][0]
    ttft, tpot = level["ttft_s"], level["tpot_s"]
    rate = _interval(headline["value"], headline["low"], headline["high"], headline["unit"])
    return [
        ("server", _server(record)),
        ("workload", _workload(measurement)),
        ("decode", f"{rate}, {count(headline['n'], 'repeat')} within one start"),
        ("TTFT", _interval(ttft["mean"], ttft.get("low"), ttft.get("high"), "ms", 1000.0)),
        ("TPOT", _interval(tpot["mean"], tpot.get("low"), tpot.get("high"), "ms", 1000.0)),
        ("proof", _proof(record)),
        *_verdict(record),
        ("record", path + (" (nothing changed since: not measured again)" if reused else "")),
    ]
