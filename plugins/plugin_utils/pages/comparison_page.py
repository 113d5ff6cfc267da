# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The page of one comparison: what it decided, and everything that a reader may want to doubt it with."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import jinja2
import yaml

from ...module_utils import files, stats
from ...module_utils.fingerprint import under_load
from .. import comparisons, explanations, records, shares, speculation_lines, verdict
from . import charts, html, words

Document = dict[str, Any]

# What is shown of a start's machine: key of under_load.summary, key of the document, title.
_LOAD = (
    ("clock_sm", "sm_clock_mhz", "SM clock, MHz"),
    ("clock_memory", "memory_clock_mhz", "memory clock, MHz"),
    ("power", "power_w", "power of a GPU, W"),
    ("temperature", "temperature_c", "hottest GPU, °C"),
    ("utilisation", "utilisation", "GPU utilisation, %"),
    ("cpu_mhz", "cpu_mhz", "CPU clock, MHz"),
    ("load", "load", "load average of the host"),
)

_STATES = {"running": "not finished", "exhausted": "all planned starts are done"}


def _state(document: Document) -> str:
    if document["state"] == "exhausted" and comparisons.remaining(document):
        return "ended early: too few blocks can be used"
    return _STATES.get(document["state"], document["state"])


def of(records_dir: str, host: str, identifier: str) -> str:
    """The page of a comparison by its id. Raises RecordError when there is none, PageError when it is damaged."""
    document = comparisons.read(records_dir, host, identifier)
    if document is None:
        where = comparisons.path(records_dir, host, identifier)
        raise records.RecordError(f"there is no comparison {where}; compare.yml makes one")

    def record(one: str) -> dict[str, Any] | None:
        try:
            return records.read_record(records_dir, host, one)
        except records.RecordError:
            return None  # the page then has what the document kept of it

    return page(document, record)


def page(document: Document, record: Callable[[str], dict[str, Any] | None]) -> str:
    """The page of a document. ``record``: a record of the host by its id, None for one that is gone.

    Raises PageError when the document is damaged.
    """
    try:
        return _page(document, record)
    except (LookupError, TypeError, AttributeError, ValueError, jinja2.UndefinedError) as error:
        told = f"comparison {document.get('id')!r} is damaged ({error!r}); move its folder away"
        raise html.PageError(told) from error


def _page(document: Document, record: Callable[[str], dict[str, Any] | None]) -> str:
    document = _complete(document)
    starts = document["starts"]
    kept = {one["number"]: _whole(record(one["record"])) for one in starts if one["record"]}
    drawn = {
        "starts": _starts_chart(document),
        "ratio": _ratio_chart(document),
        "speculation": _speculation_chart(document),
    }
    load = _load_charts(document, kept)
    shown = [one for one in [*drawn.values(), *load] if one]
    return html.render(
        "comparison.html.j2",
        document=document,
        headline=headline(document),
        state=_state(document),
        starts=starts,
        planned=len(comparisons.planned(document)),
        arms=[_arm(one, starts) for one in document["arms"]],
        result=document["result"],
        speculation=document["speculation"],
        fingerprints=_fingerprints(document, kept),
        charts=shown,
        load=load,
        specifications=charts.specifications(shown) if shown else {},
        **{f"{name}_chart": one for name, one in drawn.items()},
    )


def _whole(record: dict[str, Any] | None) -> dict[str, Any] | None:
    """A record if the page can be made from it; None for a damaged one, as for one that is gone."""
    if record is None:
        return None
    try:
        under_load.summary(record["measurement"], record["fingerprints"])
        explanations.between(record, record)
        verdict.state(record)
    except (LookupError, TypeError, AttributeError, ValueError):
        return None
    return record


# What may be missing of a start, a pair, a configuration: what it was not asked for, or is not known yet.
_START = dict.fromkeys(("record", "value", "ready_s", "finished_at", "seconds", "accept_length", "gpu"))
_LISTS: dict[str, Any] = {"repeats": (), "weak": (), "notes": ()}
_PAIR = dict.fromkeys(("ratio", "ratio_low", "ratio_high", "confidence", "blocks", "mde", "reasons"))
_CONFIGURATION = dict.fromkeys(("verdict_note", "drafts", "ceiling", "would_pay_if", "traps"))
# Figures whose interval stands beside them in the document, and within them on the page.
_BESIDE = ("acceptance", "needed_acceptance", "ceiling", "tokens_per_chunk")
_MEASURED = dict.fromkeys(("value", "low", "high"))


def _complete(document: Document) -> Document:
    """The document with all that may be missing as None, so that the page need not ask."""
    result, speculation = document.get("result"), document.get("speculation")
    if result:
        result = {"drift": None, **result, "pairs": [{**_PAIR, **one} for one in result["pairs"]]}
        if result["drift"]:
            result["drift"] = {"low": None, "high": None, "note": "", **result["drift"]}
    if speculation:
        configurations = []
        for one in speculation["configurations"]:
            measured = ("accept_length", "cycle_s", "break_even", "speedup")
            told = {name: {**_MEASURED, **(one.get(name) or {})} for name in measured}
            ends = speculation_lines.needed_ends({**_CONFIGURATION, **one, **told})
            told |= {name: speculation_lines.measured(one, name) for name in _BESIDE}
            more = {"needed_ends": ends, "positions": speculation_lines.positions(one)}
            configurations.append({**_CONFIGURATION, **one, **told, **more})
        low, high = speculation.get("base_step_interval_s") or (None, None)
        step = {"value": speculation.get("base_step_s"), "low": low, "high": high}
        more = {"base_step": step, "configurations": configurations}
        speculation = {"confidence": None, **speculation, **more}
    return {
        **document,
        "title": document.get("title") or document["id"],
        "starts": [{**_START, **_LISTS, **one} for one in document["starts"]],
        "differences": document.get("differences") or [],
        "result": result,
        "speculation": speculation,
    }


def headline(document: Document) -> list[dict[str, str]]:
    """The answer first: a sentence for each arm that was compared, with its verdict; or how far it has come."""
    speculation, result = document["speculation"], document["result"]
    if speculation and speculation["configurations"]:
        return [_pays(one) for one in speculation["configurations"]]
    if result and result["pairs"]:
        return [_decided(one, result["reference"], document["tolerance"]) for one in result["pairs"]]
    done, planned = len(document["starts"]), len(comparisons.planned(document))
    state = document["state"]
    if state == "refused":
        text = "The arms differ by more than was declared, so nothing was measured. The differences are below."
    else:
        text = f"Nothing is decided yet: {words.count(done, 'start')} of {planned} planned."
    return [{"verdict": state, "text": text}]


def _decided(pair: Document, reference: str, tolerance: float) -> dict[str, str]:
    arm, word = pair["arm"], pair["verdict"]
    within = words.change_interval(pair["ratio_low"], pair["ratio_high"])
    measured = words.change(pair["ratio"]) + (f" ({within})" if within else "")
    text = {
        "faster": f"{arm} is faster than {reference}: {measured}.",
        "slower": f"{arm} is slower than {reference}: {measured}.",
        "same": f"{arm} is as fast as {reference}, within {words.percent(tolerance)}: {measured}.",
    }.get(word, f"{arm} against {reference}: {measured} is not decided at a tolerance of {words.percent(tolerance)}.")
    if word == "inconclusive" and pair["reasons"]:
        reason = pair["reasons"][-1]  # what it would take; before it stand the blocks that are left out
        text += f" {reason[0].upper()}{reason[1:]}."
    return {"verdict": word, "text": text}


def _pays(one: Document) -> dict[str, str]:
    length, needed = one["accept_length"], one["break_even"]
    word = one["verdict"]
    measured = f"accept length {words.number(length['value'])}, break-even {words.number(needed['value'])}"
    speed = words.number(one["speedup"]["value"])
    note = f": {one['verdict_note']}" if one["verdict_note"] else ""
    text = {
        "pays": f"{one['arm']} pays: {measured}, {speed} times as fast.",
        "does not pay": f"{one['arm']} does not pay: {measured}, {speed} times as fast{note}.",
    }.get(word, f"Whether {one['arm']} pays is not decided: {measured}.")
    return {"verdict": word, "text": text}


def _middle(rates: list[float]) -> float:
    """The geometric mean: what ratios of arms are made of. Raises ValueError for a rate that is not above 0."""
    return math.exp(stats.mean(stats.log_rates(rates)))


def _arm(arm: Document, starts: list[Document]) -> Document:
    mine = [one for one in starts if one["arm"] == arm["name"]]
    values = [one["value"] for one in mine if one["value"]]
    declared = arm.get("declared") or {}
    return {
        "name": arm["name"],
        "starts": len(mine),
        "mean": _middle(values) if values else None,
        "least": min(values, default=None),
        "most": max(values, default=None),
        # The first start of all compiles kernels and reads cold files: of a few starts, a mean would be about that.
        "ready_s": statistics.median(ready) if (ready := [one["ready_s"] for one in mine if one["ready_s"]]) else None,
        "declared": yaml.safe_dump(declared, sort_keys=True, allow_unicode=True).strip() if declared else "",
    }


def _looks(document: Document) -> dict[str, charts.Look]:
    """How each arm looks, in every chart of the page."""
    return charts.looks(arm["name"] for arm in document["arms"])


_VERDICT_COLOURS = {"faster": "var(--good)", "same": "var(--c1)", "slower": "var(--bad)"}


def _starts_chart(document: Document) -> charts.Chart | None:
    starts = [one for one in document["starts"] if files.is_number(one["value"])]
    if not starts:
        return None
    arms = _looks(document)
    rows = [
        {
            "number": one["number"],
            "arm": one["arm"],
            **arms[one["arm"]].row,
            "block": one["block"],
            "rate": one["value"],
            "ready": one["ready_s"],
            "finished": words.moment(one["finished_at"]),
            "record": one["record"],
        }
        for one in starts
    ]
    numbers: dict[int, list[int]] = {}
    for one in starts:
        numbers.setdefault(one["block"], []).append(one["number"])
    shaded = sorted(numbers.items())[::2]
    means = [
        {"arm": name, **look.row, "mean": _middle(values)}
        for name, look in arms.items()
        if (values := [one["value"] for one in starts if one["arm"] == name])
    ]
    return charts.chart(
        "starts",
        "Every start, in the order in which they ran",
        f"Rate of {len(starts)} starts in time order, by arm: "
        + ", ".join(f"{one['arm']} {words.number(one['mean'], 'tok/s')} on average" for one in means),
        legend=arms.values(),
        starts=rows,
        means=means,
        blocks=[{"from": min(of) - 0.5, "to": max(of) + 0.5} for _block, of in shaded],
        repeats=[
            {"number": one["number"], **arms[one["arm"]].row, "rate": rate} for one in starts for rate in one["repeats"]
        ],
    )


def _ratio_chart(document: Document) -> charts.Chart | None:
    pairs = [one for one in (document["result"] or {"pairs": []})["pairs"] if files.is_number(one["ratio"])]
    if not pairs:
        return None
    rows = []
    for one in pairs:
        low, high = one["ratio_low"], one["ratio_high"]
        rows.append(
            {
                "arm": one["arm"],
                "verdict": one["verdict"],
                "colour": _VERDICT_COLOURS.get(one["verdict"], "var(--open)"),
                "change": 100 * (one["ratio"] - 1),
                "low": None if low is None else 100 * (low - 1),
                # What is told as being beyond would leave no room for the tolerance beside it.
                "high": None if high is None else 100 * min(high - 1, shares.MOST),
            }
        )
    share = 100 * document["tolerance"]
    reference = document["result"]["reference"]
    return charts.chart(
        "ratio",
        f"Against {reference}, with the interval",
        "; ".join(f"{one['arm']} {one['change']:+.1f} %" for one in rows) + f" against {reference}",
        height=44 * len(rows),
        pairs=rows,
        tolerance=[{"low": -share, "high": share, "zero": 0}],
    )


def _speculation_chart(document: Document) -> charts.Chart | None:
    rows: list[charts.Row] = []
    quantities = charts.looks(("accept length", "break-even"))
    for one in (document["speculation"] or {"configurations": []})["configurations"]:
        for look, told in zip(quantities.values(), (one["accept_length"], one["break_even"])):
            if files.is_number(told["value"]):
                known = {key: told[key] for key in _MEASURED}
                rows.append({"arm": one["arm"], "quantity": look.label, **look.row, **known})
    if not rows:
        return None
    return charts.chart(
        "speculation",
        "Accept length against what is needed to break even",
        "; ".join(f"{row['arm']}: {row['quantity']} {words.number(row['value'])}" for row in rows),
        legend=quantities.values(),
        height=24 * len(rows) + 12,
        quantities=rows,
    )


def _load_charts(document: Document, kept: dict[int, dict[str, Any] | None]) -> list[charts.Chart]:
    """One chart for each thing that was seen under load: from the records, or else what the document kept of them."""
    starts, arms = document["starts"], _looks(document)
    seen: dict[int, dict[str, Any]] = {}
    for one in starts:
        told, record = one["gpu"] or {}, kept.get(one["number"])
        found = {key: told[theirs] for key, theirs, _title in _LOAD if files.is_number(told.get(theirs))}
        if record is not None:
            found = {**found, **under_load.summary(record["measurement"], record["fingerprints"])}
        seen[one["number"]] = found
    drawn = []
    for key, _theirs, title in _LOAD:
        rows = [
            {"number": one["number"], "arm": one["arm"], **arms[one["arm"]].row, "value": seen[one["number"]][key]}
            for one in starts
            if files.is_number(seen[one["number"]].get(key))
        ]
        if rows:
            values = [row["value"] for row in rows]
            drawn.append(
                charts.chart(
                    "load",
                    title,
                    f"{title}: from {words.number(min(values))} to {words.number(max(values))} over {len(rows)} starts",
                    starts=rows,
                )
            )
    return drawn


def _fingerprints(document: Document, kept: dict[int, dict[str, Any] | None]) -> list[Document]:
    """What differs between the first starts of the reference and of each arm, and what changed within an arm."""
    first: dict[str, dict[str, Any]] = {}
    found = []
    for one in document["starts"]:
        record = kept.get(one["number"])
        if record is None:
            continue
        if one["arm"] not in first:
            first[one["arm"]] = record
            continue
        old, new = first[one["arm"]], record
        if verdict.state(old) != verdict.state(new):
            found.append(
                {
                    "title": f"{one['arm']}: start {one['number']} against its first start",
                    "lines": explanations.between(old, new) or ["the state differs, but nothing that has a name"],
                    "unwanted": True,
                }
            )
    names = [arm["name"] for arm in document["arms"]]
    reference = comparisons.reference(document)
    if reference in first:
        for name in names:
            if name != reference and name in first:
                lines = explanations.between(first[reference], first[name])
                found.append({"title": f"{name} against {reference}", "lines": lines, "unwanted": False})
    return sorted(found, key=lambda one: one["unwanted"])
