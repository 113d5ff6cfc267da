# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether speculation pays: from the starts of a comparison of kind ``speculation``, whose first arm has none.

Every figure is computed block by block, from the two starts of a block, and then averaged over the blocks as a log,
with Student's t: the block is the unit of statistics. All of T = L / rate, L* = T / t_b and the speed-up are products
and quotients, so that their logs are sums of what was measured in the block: nothing is linearised, and that a start
with a longer accept length is also a faster one stays in. What is derived from L or from L* alone (the acceptance; the
needed acceptance, the ceiling) is monotone in it, so the ends of its interval give the ends of theirs. What a start
counts by itself (acceptance at a position, tokens per chunk) is averaged over the arm's starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..module_utils import speculation, stats
from ..module_utils.engines import get_engine
from . import comparison_verdict, comparisons, speculation_traps

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Side:
    """One start of a block: ln of its rate, and its tokens per cycle (None: the engine does not tell)."""

    log_rate: float
    accept_length: float | None


def sides(document: Mapping[str, Any], records: Mapping[str, Record]) -> list[dict[str, Side]]:
    """Of each usable block: arm -> its start. ``records``: id -> record of every start."""
    return [
        {arm: Side(comparisons.log_rate(one), accept_length(records[one["record"]])) for arm, one in block.items()}
        for block in comparison_verdict.usable_starts(document)
    ]


def accept_length(record: Record) -> float | None:
    """Tokens per cycle of a start's headline level."""
    told = level(record).get("speculation") or {}
    value = told.get("accept_length")
    return value if isinstance(value, (int, float)) and value > 0 else None


def level(record: Record) -> dict[str, Any]:
    """The level of the headline."""
    found: dict[str, Any] = record["measurement"]["levels"][0]
    return found


def analyse(document: Mapping[str, Any], records: Mapping[str, Record]) -> dict[str, Any]:
    """The ``speculation`` of a comparison: base step, and for every other arm what it yields, in seconds and shares."""
    base = comparisons.reference(document)
    blocks = sides(document, records)
    confidence = 1.0 - comparison_verdict.alpha(document)
    step = _interval([-block[base].log_rate for block in blocks], confidence)
    names = [arm["name"] for arm in document["arms"]]
    return {
        "base": base,
        "base_step_s": step["value"],
        "base_step_interval_s": [step["low"], step["high"]],
        "blocks": len(blocks),
        "confidence": confidence,
        "concurrency": _concurrency(records),
        "configurations": [_configuration(document, records, blocks, arm, confidence) for arm in names if arm != base],
    }


def _concurrency(records: Mapping[str, Record]) -> int | None:
    return next((level(record)["concurrency"] for record in records.values()), None)


def _interval(logs: Sequence[float | None], confidence: float) -> dict[str, float | None]:
    """Value and interval of the mean log over the blocks of which it is known; None where it is of none."""
    known = [one for one in logs if one is not None]
    if not known:
        return {"value": None, "low": None, "high": None}
    found = stats.mean_interval(known, confidence)
    return {
        name: None if value is None else math.exp(value)
        for name, value in (("value", found.mean), ("low", found.low), ("high", found.high))
    }


def _configuration(
    document: Mapping[str, Any],
    records: Mapping[str, Record],
    blocks: Sequence[Mapping[str, Side]],
    arm: str,
    confidence: float,
) -> dict[str, Any]:
    base = comparisons.reference(document)
    own = [records[one["record"]] for one in document["starts"] if one["arm"] == arm]
    drafts = depth(document, arm, own)

    def over(figure: Callable[[float, float, float], float]) -> dict[str, float | None]:
        """Of each block ``figure(ln L, ln rate, ln base rate)``."""
        rows = [(block[arm].accept_length, block[arm].log_rate, block[base].log_rate) for block in blocks]
        return _interval([figure(math.log(row[0]), row[1], row[2]) if row[0] else None for row in rows], confidence)

    length = over(lambda tokens, _rate, _base: tokens)
    cycle = over(lambda tokens, rate, _base: tokens - rate)
    needed = over(lambda tokens, rate, base_rate: tokens - rate + base_rate)
    speedup = _interval([block[arm].log_rate - block[base].log_rate for block in blocks], confidence)
    verdict = judge(speedup, document["tolerance"])
    idle = speculation_traps.nothing_drafted(own)
    each = positions(own, confidence)
    chunks = _interval(
        [math.log(one) if (one := level(record).get("tokens_per_chunk")) else None for record in own], confidence
    )
    found: dict[str, Any] = {
        "arm": arm,
        "drafts": drafts,
        "accept_length": length,
        "accept_length_source": _told(own, "source"),
        "accept_length_note": _told(own, "note"),
        "tokens_per_chunk": chunks["value"],
        "tokens_per_chunk_interval": [chunks["low"], chunks["high"]],
        "acceptance_per_position": [one["value"] for one in each],
        "acceptance_per_position_intervals": [[one["low"], one["high"]] for one in each],
        "cycle_s": cycle,
        "break_even": needed,
        "speedup": speedup,
        **_of_drafts(None if idle else drafts, length, needed),
        "verdict": verdict,
        "verdict_note": None,
        "would_pay_if": [],
    }
    if verdict == "does not pay" and speedup["value"]:
        found["verdict_note"] = speculation.below_tolerance(speedup["value"], document["tolerance"])
    # One that looks faster and is not sure needs more blocks, nothing else.
    slower = speedup["value"] is not None and speedup["value"] <= 1.0
    if idle and verdict != "pays":
        found["would_pay_if"] = [speculation_traps.to_draft(document, arm)]
    elif slower and length["value"] and cycle["value"] and needed["value"]:
        base_step = cycle["value"] / needed["value"]
        found["would_pay_if"] = speculation.changes(length["value"], cycle["value"], base_step, drafts)
    found["traps"] = speculation_traps.find(document, found, own, _of_arm(document, records, base))
    return found


def _of_arm(document: Mapping[str, Any], records: Mapping[str, Record], arm: str) -> list[Record]:
    return [records[one["record"]] for one in document["starts"] if one["arm"] == arm]


def judge(speedup: Mapping[str, float | None], tolerance: float) -> str:
    """``pays`` when it is surely faster by more than the tolerance, ``does not pay`` when it surely is not."""
    low, high = speedup["low"], speedup["high"]
    if low is None or high is None:
        return "inconclusive"
    return comparison_verdict.pays(low, high, tolerance)


def _of_drafts(
    drafts: int | None, length: Mapping[str, float | None], needed: Mapping[str, float | None]
) -> dict[str, Any]:
    """What takes the number of drafts to be known (None: it is not, or nothing was drafted).

    The ends of an interval change places in the ceiling; one of the needed acceptance is also None when no acceptance
    reaches it.
    """
    found: dict[str, Any] = {
        "acceptance": None,
        "acceptance_interval": [None, None],
        "needed_acceptance": None,
        "needed_acceptance_interval": [None, None],
        "ceiling": None,
        "ceiling_interval": [None, None],
    }
    value, measured = needed["value"], length["value"]
    if drafts is None or value is None or measured is None:
        return found
    ends = [needed["low"], needed["high"]]
    found["acceptance"] = speculation.needed_acceptance(measured, drafts)
    if found["acceptance"] is not None:
        found["acceptance_interval"] = [
            # Luck may take an end beyond what a cycle can give; an acceptance is 1 at most.
            None if end is None else speculation.needed_acceptance(min(end, drafts + 1.0), drafts)
            for end in (length["low"], length["high"])
        ]
    found["needed_acceptance"] = speculation.needed_acceptance(value, drafts)
    found["needed_acceptance_interval"] = [
        None if end is None else speculation.needed_acceptance(end, drafts) for end in ends
    ]
    found["ceiling"] = speculation.ceiling(drafts, value)
    found["ceiling_interval"] = [None if end is None else speculation.ceiling(drafts, end) for end in ends[::-1]]
    return found


def depth(document: Mapping[str, Any], arm: str, own: Sequence[Record]) -> int | None:
    """Drafted tokens that a cycle of this arm can accept: as declared, as the engine made of it, or as counted."""
    entry = next(one for one in document["arms"] if one["name"] == arm)
    declared = (entry["declared"].get("llm_server") or {}).get("speculation") or {}
    for record in own:
        engine = get_engine(record["measurement"]["server"]["engine"])
        resolved = (entry.get("resolved") or {}).get("engine_arguments") or {}
        found = engine.draft_depth(declared, resolved)
        return found or max(map(len, _counted(own)), default=0) or None
    return None


def _counted(own: Sequence[Record]) -> list[list[float | None]]:
    """Of each start the acceptance at each position."""
    return [(level(record).get("speculation") or {}).get("acceptance_per_position") or [] for record in own]


def positions(own: Sequence[Record], confidence: float) -> list[dict[str, float | None]]:
    """p_i, as means over the starts that tell it, with their intervals. A share may be 0 and has no log: as it is."""
    told = _counted(own)
    return [
        _share([one[place] for one in told if place < len(one)], confidence)
        for place in range(max(map(len, told), default=0))
    ]


def _share(values: Sequence[float | None], confidence: float) -> dict[str, float | None]:
    """Mean and interval of shares, which lie between 0 and 1."""
    found = stats.mean_interval([one for one in values if one is not None], confidence)
    ends = [None if end is None else min(1.0, max(0.0, end)) for end in (found.low, found.high)]
    return {"value": found.mean, "low": ends[0], "high": ends[1]}


def _told(own: Sequence[Record], name: str) -> str | None:
    """Where the accept length comes from (``source``), or what is known to be wrong with it (``note``)."""
    told = {(level(record).get("speculation") or {}).get(name) for record in own} - {None}
    return "; ".join(sorted(str(one) for one in told)) or None
