# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A record, and the difference of two, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import explanations, summary, verdict

Record = dict[str, Any]

# Heading -> (key of a level, unit, scale).
_RATES = (
    ("decode", "decode_tok_s", "tok/s", 1.0),
    ("output", "output_tok_s", "tok/s", 1.0),
    ("TTFT", "ttft_s", "ms", 1000.0),
    ("TPOT", "tpot_s", "ms", 1000.0),
)


def show(record: Record, path: str) -> list[str]:
    """A record as :func:`.lookup.with_standing` gives it: its summary, every explanation, phases, what is unknown."""
    lines = [f"{record['host']}: record {record['id']}", ""]
    lines += summary.lines(record, path, False)
    told = record["verdict"].get("explanations") or []
    if len(told) > summary.SHOWN:
        lines += ["", "what changed since the baseline, likeliest first"]
        lines += [f"  {line}" for line in told]
    levels = record["measurement"]["levels"]
    if len(levels) > 1:
        lines += ["", "every level of concurrency", *_indented(_levels(levels))]
    unknown = (record["fingerprints"].get("before") or {}).get("unknown") or {}
    if unknown:
        lines += ["", "what could not be read of its state"]
        lines += _indented(table([[name, str(why)] for name, why in sorted(unknown.items())]))
    return lines


def diff(old: Record, new: Record) -> list[str]:
    """From the first record to the second: rates, the state's differences, and whether the two may be compared."""
    lines = [f"{_name(old)} -> {_name(new)}", ""]
    same_level = _level(old), _level(new)
    rows = [["", "first", "second", "change"]]
    for label, key, unit, scale in _RATES:
        values = [(level.get(key) or {}).get("mean") for level in same_level]
        rows.append([f"{label}, {unit}", *(_number(value, scale) for value in values), _change(*values)])
    ready = [one["ready"].get("elapsed_s") for one in (old, new)]
    rows.append(["ready, s", *(_number(value, 1.0) for value in ready), _change(*ready)])
    lines += table(rows, right=(1, 2, 3))
    lines.append("")
    lines += _words(old, new)
    told = explanations.between(old, new)
    if told:
        lines += ["", "what changed, likeliest first", *(f"  {line}" for line in told)]
    else:
        lines += ["", "nothing that is looked at changed: state, clocks, limits and load"]
    return lines


def _words(old: Record, new: Record) -> list[str]:
    rows = []
    for label, read in _COMPARED:
        first, second = read(old), read(new)
        rows.append([label, first if first == second else f"{first} -> {second}"])
    if old.get("key") != new.get("key"):
        rows.append(["compare", "other declarations (arguments, model or workload): no verdict between these two"])
    elif verdict.state(old) == verdict.state(new):
        rows.append(["compare", "same declaration, same state"])
    else:
        rows.append(["compare", "same declaration, in another state"])
    return table(rows)


_COMPARED: tuple[tuple[str, Callable[[Record], str]], ...] = (
    ("server", lambda one: "{name}, {engine}, {served_model_name}".format_map(one["measurement"]["server"])),
    ("workload", lambda one: _workload(one["measurement"]["workload"])),
    ("profile", lambda one: f"{one.get('profile') or 'none'}, {one['proof'].get('verdict') or 'proof off'}"),
    ("verdict", lambda one: str(one["verdict"].get("verdict"))),
    ("state", lambda one: (verdict.state(one) or "unknown")[:12]),
)


def _workload(workload: dict[str, Any]) -> str:
    streams = ", ".join(map(str, workload.get("concurrency") or []))
    return f"{workload.get('prompt_tokens')} -> {workload.get('output_tokens')} tokens, {streams} at a time"


def _name(record: Record) -> str:
    return f"{record['host']}/{record['id']}"


def _level(record: Record) -> dict[str, Any]:
    """The level that the verdict speaks of."""
    first: dict[str, Any] = record["measurement"]["levels"][0]
    wanted = record["measurement"]["headline"].get("concurrency")
    return next((one for one in record["measurement"]["levels"] if one.get("concurrency") == wanted), first)


def _levels(levels: Sequence[dict[str, Any]]) -> list[str]:
    rows = [["streams", *(f"{label}, {unit}" for label, _key, unit, _scale in _RATES)]]
    for level in levels:
        means = [_number((level.get(key) or {}).get("mean"), scale) for _label, key, _unit, scale in _RATES]
        rows.append([str(level.get("concurrency")), *means])
    return table(rows, right=range(len(rows[0])))


def _number(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{scale * value:.{1 if abs(scale * value) >= 10 else 2}f}"


def _change(old: float | None, new: float | None) -> str:
    return f"{100 * (new / old - 1):+.1f} %" if old and new else "-"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def table(rows: Sequence[Sequence[str]], right: Sequence[int] | range = ()) -> list[str]:
    """Rows of as many cells, in columns; ``right``: the columns that stand to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
