# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A record as a table that a person reads."""

from __future__ import annotations

from typing import Any


def _interval(value: float, low: float | None, high: float | None, unit: str, scale: float = 1.0) -> str:
    text = f"{value * scale:.1f} {unit}"
    if low is not None and high is not None:
        text += f" ({low * scale:.1f} to {high * scale:.1f})"
    return text


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


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
        f"{workload['prompt_tokens']} -> {workload['output_tokens']} tokens, {level['concurrency']} at a time, "
        f"{level['ok']} of {level['requests']} requests ok"
        + (f", {errors} failed: {', '.join(sorted(level['errors']))}" if errors else "")
    )


def _proof(record: dict[str, Any]) -> str:
    proof = record.get("proof") or {}
    if not proof:
        return "not asked for"
    profile, workers = record.get("profile") or "?", len(proof.get("workers") or [])
    text = f"{proof.get('verdict', 'unknown')}, profile {profile}, {workers} worker(s)"
    why = proof.get("why") or []
    reasons = [why] if isinstance(why, str) else list(why)
    return text + (f": {reasons[0]}" if reasons and proof.get("verdict") != "proved" else "")


def _verdict(record: dict[str, Any]) -> list[tuple[str, str]]:
    verdict = record["verdict"]
    rows = []
    if verdict["baseline_value"] is not None:
        starts = verdict["baseline_starts"]
        rows.append(
            ("baseline", f"{verdict['baseline_value']:.1f} {verdict['unit']} over {starts} start{'s' * (starts != 1)}")
        )
    if verdict["verdict"] == "first":
        text = "first measurement of this declaration: it is now the provisional baseline"
        if not record.get("in_baseline"):
            text = "first measurement of this declaration, but no baseline: " + "; ".join(record["refused"])
        elif verdict["reasons"]:
            text += "; " + "; ".join(verdict["reasons"])
    else:
        text = verdict["verdict"].upper()
        if verdict["ratio"] is not None:
            text += f" {_percent(verdict['ratio'])}"
            if verdict["ratio_low"] is not None:
                text += f" ({_percent(verdict['ratio_low'])} to {_percent(verdict['ratio_high'])})"
        if verdict["reasons"]:
            text += ": " + "; ".join(verdict["reasons"])
    rows.append(("verdict", text))
    if verdict["detectable"] is not None:
        rows.append(("", f"as many starts again could show a change of {100 * verdict['detectable']:.1f} %"))
    for index, line in enumerate(verdict["explanations"][:3]):
        rows.append(("changed" if index == 0 else "", line))
    more = len(verdict["explanations"]) - 3
    if more > 0:
        rows.append(("", f"... and {more} more differences in the record"))
    return rows


def lines(record: dict[str, Any], path: str, reused: bool) -> list[str]:
    """The summary of one host's record, one string a line, labels in a column."""
    measurement = record["measurement"]
    headline, level = measurement["headline"], measurement["levels"][0]
    ttft, tpot = level["ttft_s"], level["tpot_s"]
    rate = _interval(headline["value"], headline["low"], headline["high"], headline["unit"])
    rows = [
        ("server", _server(record)),
        ("workload", _workload(measurement)),
        ("decode", f"{rate}, {headline['n']} repeats within one start"),
        ("TTFT", _interval(ttft["mean"], ttft.get("low"), ttft.get("high"), "ms", 1000.0)),
        ("TPOT", _interval(tpot["mean"], tpot.get("low"), tpot.get("high"), "ms", 1000.0)),
        ("proof", _proof(record)),
        *_verdict(record),
        ("record", path + (" (nothing changed since: not measured again)" if reused else "")),
    ]
    return [f"{label:<9} {text}" for label, text in rows]
