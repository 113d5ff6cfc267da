# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The page of a fleet, or of one host: where each server stands, how it came there, what explains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...module_utils import files, stats
from .. import outliers, summary
from ..fleet import Change, Entry, Fleet, Group
from . import charts, html, words

_LANES = 5  # that hosts with about the same rate are spread over
_CALM = charts.Look("as it was", "var(--c1)")
_ASKING = charts.Look("asks for attention", "var(--bad)", "diamond")
_WITHIN = charts.Look("within the group", "var(--c1)")
_APART = charts.Look("outlier", "var(--bad)", "diamond")
_BASELINE = charts.Look("in the baseline", "var(--c1)")
_COMPARED = charts.Look("compared with it", "var(--c2)", "diamond")
_CHANGES = {"declaration": "var(--c4)", "state": "var(--soft)", "drift": "var(--bad)"}
_VERDICTS = ("slower", "faster", "same", "inconclusive", "incomparable", "first")

# Key of a window of samples, as the benchmark takes them -> what it is called.
_TELEMETRY = {
    "sm_mhz": "SM clock, MHz",
    "memory_mhz": "memory clock, MHz",
    "power_w": "power, W",
    "temperature_c": "temperature, °C",
    "utilisation": "utilisation, %",
    "memory_mib": "memory, MiB",
    "cpu_mhz": "CPU clock, MHz",
    "load1": "load average",
}


def page(fleet: Fleet, title: str, made_at: str) -> str:
    """The page of a survey. ``title``: of whom it is. ``made_at``: time in UTC, for the reader."""
    entries = sorted(fleet.entries, key=lambda one: (not one.attention, one.row["host"], one.row["server"]))
    timeline = _timeline(fleet.entries)
    groups = [(group, _distribution(group)) for group in fleet.groups]
    sections = [_entry(one) for one in entries]
    drawn = [one for one in [timeline, *(chart for _group, chart in groups)] if one]
    drawn += [chart for part in sections for chart in (part["history"], part["phases"]) if chart]
    return html.render(
        "fleet.html.j2",
        title=title,
        made_at=made_at,
        answer=_answer(entries),
        entries=entries,
        timeline=timeline,
        groups=groups,
        sections=sections,
        alone=len(entries) == 1,
        enough=outliers.ENOUGH_HOSTS,
        warnings=fleet.warnings,
        charts=drawn,
        specifications=charts.specifications(drawn) if drawn else {},
    )


def _answer(entries: Sequence[Entry]) -> dict[str, str]:
    """What there is to say of all of them, first."""
    asking = [one for one in entries if one.attention]
    counted: dict[str, int] = {}
    for one in entries:
        counted[one.row["verdict"] or "no verdict"] = counted.get(one.row["verdict"] or "no verdict", 0) + 1
    ordered = sorted(counted, key=lambda word: _VERDICTS.index(word) if word in _VERDICTS else len(_VERDICTS))
    told = ", ".join(f"{counted[word]} {word}" for word in ordered)
    servers = words.count(len(entries), "server")
    if not asking:
        return {"tone": "good", "text": f"Nothing asks for attention. {servers}: {told}."}
    named = "; ".join(f"{one.row['host']}: {', '.join(one.attention)}" for one in asking[:5])
    more = f"; and {len(asking) - 5} more" if len(asking) > 5 else ""
    return {"tone": "bad", "text": f"{len(asking)} of {servers} ask for attention: {named}{more}. All: {told}."}


def _timeline(entries: Sequence[Entry]) -> charts.Chart | None:
    """All servers in one chart: how far each rate lay from its server's own median."""
    rows = []
    for number, entry in enumerate(entries):
        rates = [row["decode_tok_s"] for row in entry.history if row["decode_tok_s"]]
        if not rates:
            continue
        middle = stats.percentile(rates, 50.0) or 1.0
        for row in entry.history:
            if row["decode_tok_s"] and row["measured_at"]:
                rows.append(
                    {
                        "line": number,
                        "host": row["host"],
                        "server": row["server"],
                        "at": row["measured_at"],
                        "when": words.moment(row["measured_at"]),
                        "rate": row["decode_tok_s"],
                        "change": 100 * (row["decode_tok_s"] / middle - 1),
                        "verdict": row["verdict"],
                        **(_ASKING if entry.attention else _CALM).row,
                    }
                )
    if len(entries) < 2 or not rows:
        return None
    furthest = max(abs(row["change"]) for row in rows)
    return charts.chart(
        "fleet",
        "Every record, as its distance from the median of its own server",
        f"{len(rows)} records of {len(entries)} servers; the furthest lies {furthest:.1f} % from its server's median",
        legend=(_CALM, _ASKING),
        records=rows,
        zero=[{"change": 0}],
    )


def _distribution(group: Group) -> charts.Chart:
    rows = []
    for place, one in enumerate(sorted(group.entries, key=lambda one: one.row["decode_tok_s"])):
        rate = one.row["decode_tok_s"]
        rows.append(
            {
                "host": one.row["host"],
                "rate": rate,
                "lane": place % _LANES,
                "change": 100 * (rate / group.median - 1),
                **(_APART if one.row["outlier"] else _WITHIN).row,
                "kind": (_APART if one.row["outlier"] else _WITHIN).label,
            }
        )
    apart = [row["host"] for row in rows if row["kind"] == "outlier"]
    return charts.chart(
        "distribution",
        group.name,
        f"{len(rows)} hosts from {words.number(rows[0]['rate'])} to {words.number(rows[-1]['rate'], 'tok/s')}, median "
        f"{words.number(group.median)}; outliers: {', '.join(apart) or 'none'}",
        hosts=rows,
        median=[{"rate": group.median}],
    )


def _entry(entry: Entry) -> dict[str, Any]:
    """What the section of one server shows."""
    measured, proof = entry.record["measurement"], entry.record["proof"]
    unknown = (entry.record["fingerprints"].get("before") or {}).get("unknown") or {}
    return {
        "entry": entry,
        "summary": summary.rows(entry.record, f"{entry.row['host']}/{entry.row['record']}.json", False),
        "explanations": entry.record["verdict"].get("explanations") or [],
        "history": _history(entry),
        "phases": _phases(entry),
        "telemetry": telemetry(measured["levels"][0].get("machine") or {}),
        "proof": [str(line) for line in proof.get("table") or []],
        "unknown": sorted(unknown.items()),
    }


def _history(entry: Entry) -> charts.Chart | None:
    borders = {change.record for change in entry.changes if change.kind != "drift"}
    rows, segment = [], 0
    for row in entry.history:
        segment += row["id"] in borders
        if row["decode_tok_s"] and row["measured_at"]:
            rows.append(
                {
                    "at": row["measured_at"],
                    "when": words.moment(row["measured_at"]),
                    "rate": row["decode_tok_s"],
                    "low": row["decode_low"],
                    "high": row["decode_high"],
                    "verdict": row["verdict"],
                    "state": (row["state_hash"] or "")[:8],
                    "record": row["id"],
                    **(_BASELINE if row["in_baseline"] else _COMPARED).row,
                    "segment": segment,
                }
            )
    if not rows:
        return None
    marked = [change for change in entry.changes if change.at]
    return charts.chart(
        "history",
        "Rate of every record, with the interval within its start; dashed: change points",
        f"{words.count(len(rows), 'record')} from {words.number(min(row['rate'] for row in rows))} to "
        f"{words.number(max(row['rate'] for row in rows), 'tok/s')}; {words.count(len(marked), 'change point')}",
        legend=(_BASELINE, _COMPARED),
        records=rows,
        changes=[_marked(change) for change in marked],
    )


def _marked(change: Change) -> dict[str, str]:
    look = {"kind": change.kind, "colour": _CHANGES[change.kind]}
    return {**look, "at": change.at, "when": words.moment(change.at), "text": change.text}


def _phases(entry: Entry) -> charts.Chart | None:
    rows, begin = [], 0.0
    for phase in entry.record["ready"].get("phases") or []:
        seconds = phase.get("seconds")
        if not files.is_number(seconds):
            continue
        at = phase.get("at_s")
        begin = float(at) if files.is_number(at) else begin
        rows.append(
            {
                "name": phase.get("name"),
                "from": begin,
                "to": begin + seconds,
                "seconds": seconds,
                "was": phase.get("was_s"),
                "note": phase.get("note") or "",
            }
        )
        begin += seconds
    if not rows:
        return None
    total = math.fsum(row["seconds"] for row in rows)
    longest = max(rows, key=lambda row: row["seconds"])
    return charts.chart(
        "phases",
        "Phases of the start",
        f"{len(rows)} phases, {words.number(total, 's')} in all; the longest is {longest['name']} with "
        f"{words.number(longest['seconds'], 's')}",
        height=20 * len(rows),
        phases=rows,
    )


def telemetry(machine: dict[str, Any]) -> list[dict[str, Any]]:
    """What was sampled while the headline was measured: a row for each thing, of each GPU and of the host."""
    found = []
    places = [(f"GPU {gpu.get('index')}", gpu) for gpu in machine.get("gpus") or []]
    for place, window in [*places, ("host", machine.get("host") or {})]:
        for key, name in _TELEMETRY.items():
            seen = window.get(key)
            if isinstance(seen, dict) and files.is_number(seen.get("median")):
                found.append({"place": place, "name": name, **{one: seen.get(one) for one in ("min", "median", "max")}})
        for reason, share in sorted((window.get("reasons") or {}).items()):
            told = f"clocks held down: {reason.replace('_', ' ')}, share of the time"
            found.append({"place": place, "name": told, "min": None, "median": share, "max": None})
    return found
