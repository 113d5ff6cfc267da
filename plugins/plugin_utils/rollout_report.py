# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a rollout shows in the end: hosts that are unlike their group and why, the change of each group, a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..module_utils import stats
from .outliers import median_host, outliers, unlike
from .rollout_plan import PASSED

Record = dict[str, Any]
Entry = Mapping[str, Any]

_SHOWN = 3


# --- groups ------------------------------------------------------------------------------------------


def group_of(record: Record) -> str:
    """The group that a host is compared in: its ``baseline_group``, else the hosts with the same key and GPUs."""
    if record.get("group") and record["group"] != record["host"]:
        return str(record["group"])
    names = [str(one.get("name")) for one in _gpus(record)]
    return " ".join([f"{record['measurement']['server']['name']} {record.get('key')}", *_counted(names)])


def _gpus(record: Record) -> list[dict[str, Any]]:
    sections = (record["fingerprints"].get("before") or {}).get("sections") or {}
    return (sections.get("hardware") or {}).get("gpus") or []


def _counted(names: Sequence[str]) -> list[str]:
    return [f"{names.count(name)}x {name}" for name in sorted(set(names))]


def groups(records: Mapping[str, Record], before: Mapping[str, float], tolerance: float) -> list[dict[str, Any]]:
    """One entry a group: its rates, how they changed, and its outliers with what differs from the median host.

    ``records``: host -> its record of this rollout. ``before``: host -> its rate before, where it can be compared.
    """
    members: dict[str, dict[str, Record]] = {}
    for host, record in records.items():
        members.setdefault(group_of(record), {})[host] = record
    return [_group(name, inside, before, tolerance) for name, inside in sorted(members.items())]


def _group(name: str, inside: Mapping[str, Record], before: Mapping[str, float], tolerance: float) -> dict[str, Any]:
    rates = {host: record["measurement"]["headline"]["value"] for host, record in inside.items()}
    middle = median_host(rates)
    found = []
    for host, (z, share) in outliers(rates, tolerance).items():
        differs = unlike(inside[middle], inside[host])
        found.append({"host": host, "z": z, "share": share, "than": middle, "differences": differs})
    return {
        "group": name,
        "hosts": sorted(rates),
        "median": statistics.median(rates.values()),
        "low": min(rates.values()),
        "high": max(rates.values()),
        "change": change({host: (before[host], rates[host]) for host in rates if host in before}),
        "outliers": sorted(found, key=lambda one: one["z"]),
    }


def change(pairs: Mapping[str, tuple[float, float]]) -> dict[str, Any] | None:
    """How the rates of hosts changed together (new / before), each host compared with itself; None without any.

    The interval is that of the mean log ratio over hosts; None for a single host.
    """
    if not pairs:
        return None
    seen = stats.mean_interval([math.log(new / old) for old, new in pairs.values()])
    bounds = [None if one is None else math.exp(one) for one in (seen.mean, seen.low, seen.high)]
    return {"hosts": len(pairs), "ratio": bounds[0], "ratio_low": bounds[1], "ratio_high": bounds[2]}


# --- what is shown -----------------------------------------------------------------------------------


def outlier_line(one: Mapping[str, Any]) -> str:
    """Such as "host7: 12 % below its group (z -8.1); GPU 0 pcie width: x8 instead of x16"."""
    where = "below" if one["share"] < 0 else "above"
    text = f"{one['host']}: {abs(100 * one['share']):.1f} % {where} its group (z {one['z']:.1f}); "
    told = one["differences"]
    if not told:
        return text + f"nothing that is looked at differs from {one['than']}, its median host"
    more = f"; {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return text + "; ".join(told[:_SHOWN]) + more


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def group_line(one: Mapping[str, Any]) -> str:
    """The rates of a group in a line."""
    text = f"{one['group']}: median {one['median']:.1f} tok/s ({one['low']:.1f} to {one['high']:.1f}) on "
    text += f"{len(one['hosts'])} host{'s' * (len(one['hosts']) != 1)}"
    moved = one["change"]
    if moved:
        text += f"; {_percent(moved['ratio'])} against before"
        if moved["ratio_low"] is not None:
            text += f" ({_percent(moved['ratio_low'])} to {_percent(moved['ratio_high'])})"
    return text


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns; the last column is as long as it is."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


HEADER = ("host", "batch", "outcome", "tok/s", "before", "change", "proof", "why")


def row(host: str, entry: Entry) -> tuple[str, ...]:
    """One host in the table."""
    value, before = entry.get("value"), (entry.get("before") or {}).get("value") if entry.get("against") else None
    batch = entry.get("batch")
    why = [one for one in (entry.get("rolled_back"), *(entry.get("why") or [])) if one]
    return (
        host,
        "-" if batch is None else str(batch + 1),
        str(entry.get("outcome") or "waits"),
        "-" if value is None else f"{value:.1f}",
        "-" if before is None else f"{before:.1f}",
        _percent((entry.get("against") or {}).get("ratio")) or "-",
        str(entry.get("proof") or "-"),
        first_line("; ".join(why)),
    )


def first_line(text: str, longest: int = 160) -> str:
    """The first line of a message, cut; all of it is in the file of the rollout."""
    line = (text.strip().splitlines() or [""])[0]
    return line if len(line) <= longest else line[: longest - 3] + "..."


def lines(state: Mapping[str, Any], report: Mapping[str, Any]) -> list[str]:
    """The whole report for a person."""
    hosts: Mapping[str, Entry] = state["hosts"]
    order = sorted(hosts, key=lambda host: (hosts[host].get("batch") is None, hosts[host].get("batch") or 0, host))
    found = table([HEADER, *(row(host, hosts[host]) for host in order)])
    told: list[tuple[str, Callable[[Any], str], list[Any]]] = [
        ("Groups", group_line, list(report["groups"])),
        ("Outliers", outlier_line, [one for group in report["groups"] for one in group["outliers"]]),
    ]
    for title, render, items in told:
        if items:
            found += ["", f"{title}:", *(f"  {render(one)}" for one in items)]
    if report["drained"]:
        found += ["", f"Still drained: {', '.join(report['drained'])}"]
    return found


def drained(hosts: Mapping[str, Entry]) -> list[str]:
    """Hosts that a hook took out of service and none put back."""
    return sorted(host for host, entry in hosts.items() if entry.get("drained"))


def counts(hosts: Mapping[str, Entry]) -> str:
    """ "10 passed, 1 failed, 1 waiting"."""
    names = [str(entry.get("outcome") or "waiting") for entry in hosts.values()]
    kinds = sorted(set(names), key=lambda name: (name != PASSED, name))
    return ", ".join(f"{names.count(kind)} {kind.replace('_', ' ')}" for kind in kinds)
