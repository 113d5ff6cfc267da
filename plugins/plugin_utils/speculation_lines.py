# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The ``speculation`` of a comparison as lines for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lines(found: Mapping[str, Any]) -> list[str]:
    """The summary: the base's step, then of every configuration its verdict, figures, conditions and traps."""
    rows: list[tuple[str, str]] = []
    if found["base_step_s"] is not None:
        low, high = found["base_step_interval_s"]
        step = interval({"value": found["base_step_s"], "low": low, "high": high}, "ms", 1000.0)
        rows.append(("base", f"{found['base']}: {step} a token, {1 / found['base_step_s']:.1f} tok/s"))
    for one in found["configurations"]:
        rows += _configuration(one)
    if found["confidence"] is not None and found["blocks"] > 1:
        rows.append(("intervals", f"{100 * found['confidence']:.1f} %, over {found['blocks']} blocks"))
    return [f"{label:<11} {text}" for label, text in rows]


def interval(found: Mapping[str, Any], unit: str = "", scale: float = 1.0, digits: int = 2) -> str:
    """A value with its interval, where there is one."""
    if found["value"] is None:
        return "unknown"
    space = " " if unit and unit != "x" else ""
    text = f"{scale * found['value']:.{digits}f}{space}{unit}"
    if found["low"] is None or found["high"] is None:
        return text
    return f"{text} ({scale * found['low']:.{digits}f} to {scale * found['high']:.{digits}f})"


def measured(one: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A figure of a configuration whose interval stands beside it, as value, low and high; None for what is not there.

    Comparisons of older versions have fewer intervals.
    """
    low, high = one.get(f"{name}_interval") or (None, None)
    return {"value": one.get(name), "low": low, "high": high}


def positions(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The acceptance at each position, as value, low and high."""
    values = one.get("acceptance_per_position") or []
    ends = one.get("acceptance_per_position_intervals") or [(None, None)] * len(values)
    return [{"value": value, "low": low, "high": high} for value, (low, high) in zip(values, ends)]


def needed_ends(one: Mapping[str, Any]) -> str:
    """The interval of the needed acceptance, of which an end may be out of reach; "" where it is not known."""
    ends = measured(one, "needed_acceptance")
    if one["break_even"]["low"] is None or one["ceiling"] is None or ends["low"] is ends["high"] is None:
        return ""
    low, high = ("out of reach" if ends[name] is None else f"{ends[name]:.3f}" for name in ("low", "high"))
    return f"{low} to {high}"


def _configuration(one: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [(one["arm"], f"{one['verdict'].upper()}: speed-up {interval(one['speedup'], 'x')}")]
    if one.get("verdict_note"):
        rows.append(("", one["verdict_note"]))
    if one["accept_length"]["value"] is not None:
        rows += [
            (
                "",
                f"accept length {interval(one['accept_length'])} tokens a cycle (from: {one['accept_length_source']})",
            ),
            ("", f"cycle {interval(one['cycle_s'], 'ms', 1000.0)}; break-even {interval(one['break_even'])}"),
        ]
    if one["acceptance"] is not None:
        needed = one["needed_acceptance"]
        told = "what break-even needs is out of reach" if needed is None else f"break-even needs {needed:.3f}"
        ends = needed_ends(one)
        rows.append(
            (
                "",
                f"acceptance {interval(measured(one, 'acceptance'), digits=3)} at each of {one['drafts']} positions, "
                f"{told}{f' ({ends})' if ends else ''}; ceiling {interval(measured(one, 'ceiling'), 'x')}",
            )
        )
    if any(value is not None for value in one["acceptance_per_position"]):
        each = ", ".join("-" if share["value"] is None else interval(share) for share in positions(one))
        rows.append(("", f"acceptance by position, of those that got there: {each}"))
    if one["tokens_per_chunk"] is not None:
        rows.append(("", f"{interval(measured(one, 'tokens_per_chunk'))} tokens a chunk of the stream"))
    rows += [("it needs" if not index else "or", text) for index, text in enumerate(one["would_pay_if"])]
    return rows + [("trap", f"{trap['name']}: {trap['text']}") for trap in one["traps"]]
