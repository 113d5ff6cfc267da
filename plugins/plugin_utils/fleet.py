# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where every server of every host stands: its newest record, its history, and how it compares with its like."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import comparisons, explanations, index, lookup, outliers, records, verdict

Row = dict[str, Any]
Record = dict[str, Any]

SCHEMA = 1
_TOLD_CHANGES = 10  # that are explained, newest first: each reads two records
_TOLD_DIFFERENCES = 3


@dataclass
class Change:
    """A point in a history from which on something is another: the declaration, the state, or the rate alone."""

    kind: str  # declaration, state, drift
    record: str  # the first one after it
    at: str
    text: str


@dataclass
class Entry:
    """One server of one host."""

    row: Row  # what exports say of it: numbers and words, no nested values
    record: Record
    path: str
    history: list[Row]  # of the index, same workload, oldest first
    changes: list[Change] = field(default_factory=list)
    outlier: list[str] = field(default_factory=list)  # how it differs from the group's median host
    attention: list[str] = field(default_factory=list)


@dataclass
class Group:
    """Servers that answer the same question on hosts that are said to be alike."""

    name: str
    entries: list[Entry]
    median: float  # tok/s


@dataclass
class Fleet:
    """All of it, and what could not be read."""

    entries: list[Entry]
    groups: list[Group]
    warnings: list[str]


def survey(records_dir: str, url: str = "", host: str = "", group: str = "") -> Fleet:
    """What the records say today. ``host``, ``group``: only this host, only hosts that share this group's baselines.

    Raises RecordError when nothing fits, HistoryError when the index does not work.
    """
    history = index.open_index(records_dir, url)
    warnings = history.refresh()
    found: dict[tuple[str, str], list[Row]] = {}
    where = {"host": host} if host else {}
    aside: dict[str, set[str]] = {}
    for row in history.rows(headlines=True, source="groundstate", **where):
        if row["host"] not in aside:
            aside[row["host"]] = of_comparisons(records_dir, row["host"], warnings)
        if row["id"] not in aside[row["host"]]:
            found.setdefault((row["host"], row["server"]), []).append(row)
    entries, standings = [], lookup.Standings()
    for rows in found.values():
        try:
            with records.read_as_it_is(f"record {rows[-1]['path']} in {records_dir}"):
                entry = _entry(records_dir, rows, standings, warnings)
        except records.RecordError as error:
            warnings.append(str(error))
            continue
        if entry is not None and (not group or entry.row["group"] == group):
            entries.append(entry)
    if not entries:
        raise records.RecordError(_nothing(records_dir, host, group))
    groups = _groups(entries)
    for entry in entries:
        entry.attention = _attention(entry)
    return Fleet(entries, groups, sorted(set(warnings)))


def _nothing(records_dir: str, host: str, group: str) -> str:
    if host or group:
        whose = f"host {host!r}" if host else f"group {group!r}"
        return f"{records_dir} has no record of {whose}; 'groundstate history' lists all"
    return f"{records_dir} has no records; deploy_baseline.yml writes the first, --records names another folder"


def of_comparisons(records_dir: str, host: str, warnings: list[str]) -> set[str]:
    """Ids of a host's records that are starts of a comparison: other declarations, tried on purpose.

    ``warnings``: gets a sentence for each comparison that cannot be read.
    """
    found = comparisons.documents(records_dir, host, warnings)
    return {one["record"] for document in found for one in document["starts"]}


def _entry(records_dir: str, rows: list[Row], standings: lookup.Standings, warnings: list[str]) -> Entry | None:
    newest = rows[-1]
    record = records.read_record(records_dir, newest["host"], newest["id"])
    if record is None:
        return None
    alike = [
        row
        for row in rows
        if (row["workload_hash"], row["concurrency"]) == (newest["workload_hash"], newest["concurrency"])
    ]
    shown, problems = lookup.with_standing(records_dir, record, standings)
    warnings += problems
    told, ready = record["verdict"], record["ready"]
    row = {
        "host": newest["host"],
        "server": newest["server"],
        "group": record.get("group") or newest["host"],
        "engine": newest["engine"],
        "model": newest["model"],
        "profile": record.get("profile") or "",
        **{name: newest[name] for name in ("prompt_tokens", "output_tokens", "concurrency", "measured_at")},
        "record": newest["id"],
        "state_hash": newest["state_hash"],
        **{name: newest[name] for name in ("decode_tok_s", "decode_low", "decode_high", "output_tok_s")},
        **{name: newest[name] for name in ("ttft_s", "tpot_s", "requests", "failed")},
        "ready_s": float(ready["elapsed_s"]) if ready.get("elapsed_s") is not None else None,
        "proof": record["proof"].get("verdict") or "off",
        **{name: told.get(name) for name in ("verdict", "ratio", "ratio_low", "ratio_high", "mde")},
        "in_baseline": shown["in_baseline"],
        "baseline_starts": shown["baseline"]["starts"],
        "outlier": False,
        "group_z": None,
    }
    changes = changes_of(records_dir, alike)
    return Entry(row, shown, records.record_path(records_dir, newest["host"], newest["id"]), alike, changes)


def changes_of(records_dir: str, history: Sequence[Row]) -> list[Change]:
    """The change points of a history (rows of one workload, oldest first), newest last."""
    found: list[Change] = []
    segment: list[Row] = []
    borders: list[tuple[str, Row, Row]] = []
    for row in history:
        if segment and (kind := _differs(segment[-1], row)):
            found += _drift(segment)
            borders.append((kind, segment[-1], row))
            segment = []
        segment.append(row)
    found += _drift(segment)
    for number, (kind, old, new) in enumerate(borders):
        explained = number >= len(borders) - _TOLD_CHANGES
        text = _difference(records_dir, old, new) if explained else "see the records"
        found.append(Change(kind, new["id"], new["measured_at"] or "", text))
    return sorted(found, key=lambda one: one.record)


def _differs(old: Row, new: Row) -> str:
    if old["baseline_key"] != new["baseline_key"]:
        return "declaration"
    return "state" if old["state_hash"] != new["state_hash"] else ""


def _drift(segment: list[Row]) -> list[Change]:
    found = verdict.drift(segment) if segment else None
    if found is None:
        return []
    at = next((row["measured_at"] for row in segment if row["id"] == found["since"]), None)
    text = f"{100 * found['change']:+.1f} % since here, while nothing in the state changed (CUSUM)"
    return [Change("drift", found["since"], at or "", text)]


def _difference(records_dir: str, old: Row, new: Row) -> str:
    try:
        pair = [records.read_record(records_dir, row["host"], row["id"]) for row in (old, new)]
        if pair[0] is None or pair[1] is None:
            return "one of the records is gone"
        told = explanations.between(pair[0], pair[1])
    except records.RecordError:
        return "one of the records cannot be read"
    more = len(told) - _TOLD_DIFFERENCES
    text = "; ".join(told[:_TOLD_DIFFERENCES]) or "nothing that has a name"
    return text + (f"; and {more} more" if more > 0 else "")


def _groups(entries: list[Entry]) -> list[Group]:
    """Groups of two hosts and more, each with its outliers marked."""
    members: dict[tuple[Any, ...], list[Entry]] = {}
    shared: dict[str, set[str]] = {}
    for entry in entries:
        shared.setdefault(entry.row["group"], set()).add(entry.row["host"])
    for entry in entries:
        row = entry.row
        if not row["decode_tok_s"]:
            continue
        # A host that shares its baselines with no other is compared with all of those.
        pool = row["group"] if len(shared[row["group"]]) > 1 else ""
        question = tuple(row[name] for name in ("engine", "model", "prompt_tokens", "output_tokens", "concurrency"))
        members.setdefault((pool, *question), []).append(entry)
    groups = []
    for (pool, engine, model, asked, given, streams), alike in members.items():
        if len({one.row["host"] for one in alike}) < 2:
            continue
        name = f"{engine}, {model}, {asked} -> {given} tokens, {streams} at a time"
        groups.append(_group(f"{pool}: {name}" if pool else name, alike))
    return sorted(groups, key=lambda one: one.name)


def _group(name: str, alike: list[Entry]) -> Group:
    named = {f"{one.row['host']}/{one.row['server']}": one for one in alike}
    rates = {key: float(one.row["decode_tok_s"]) for key, one in named.items()}
    scores, usual = outliers.robust_z(rates), named[outliers.median_host(rates)]
    # What does not matter between two starts does not matter between two hosts.
    apart = outliers.outliers(rates, max(one.record["verdict"].get("tolerance") or 0.0 for one in alike))
    for key, one in named.items():
        one.row["group_z"] = scores.get(key)
        if key in apart:
            one.row["outlier"] = True
            one.outlier = outliers.unlike(usual.record, one.record)
    return Group(name, alike, statistics.median(rates.values()))


def _attention(entry: Entry) -> list[str]:
    """Why a person should look at it, in a few words each."""
    row, found = entry.row, []
    if row["verdict"] == "slower":
        found.append("slower than its baseline" + (f" ({100 * (row['ratio'] - 1):+.1f} %)" if row["ratio"] else ""))
    if row["proof"] == "contradicted":
        found.append("its profile is not in force")
    if row["outlier"]:
        found.append("apart from its group")
    if row["failed"]:
        found.append(f"{row['failed']} of {row['requests']} requests failed")
    drift = entry.record["verdict"].get("drift")
    if drift:
        found.append(f"drifts ({100 * drift['change']:+.1f} %)")
    return found
