# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the starts of a comparison say: a verdict for each arm against the reference, and the drift of the machine.

Several looks at one run, and several arms in it, are several chances of a false alarm: each interval is made at
alpha / (looks * pairs), so that in all at most 5 of 100 comparisons of equal arms call one of them changed. Verdicts
are given at the planned looks only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..module_utils import paired, stats
from . import comparisons, verdict

#: Blocks that are thought of when it is told how many would decide.
MOST_BLOCKS = 40
NOTABLE = 0.05  # p-value below which a drift is told


def alpha(document: dict[str, Any]) -> float:
    """The share of false alarms that one interval of this comparison may have."""
    return verdict.ALPHA / (len(document["looks"]) * max(1, len(document["arms"]) - 1))


def usable_starts(document: Mapping[str, Any]) -> list[dict[str, dict[str, Any]]]:
    """Of each complete block without a weak start: arm -> its start."""
    found = []
    for number in range(1, comparisons.complete_blocks(document) + 1):
        block = [one for one in document["starts"] if one["block"] == number]
        if not any(one.get("weak") for one in block):
            found.append({one["arm"]: one for one in block})
    return found


def usable_blocks(document: dict[str, Any]) -> list[dict[str, float]]:
    """Of each usable block: arm -> ln of its rate."""
    return [{arm: comparisons.log_rate(one) for arm, one in block.items()} for block in usable_starts(document)]


def pair(document: dict[str, Any], arm: str) -> paired.Pair | None:
    """An arm against the reference by the blocks so far; None while there is none."""
    base = comparisons.reference(document)
    differences = [block[arm] - block[base] for block in usable_blocks(document)]
    return paired.pair(differences, alpha(document)) if differences else None


def judge(document: dict[str, Any]) -> dict[str, Any]:
    """The ``result`` of the starts so far. It changes nothing; :func:`look` does."""
    base = comparisons.reference(document)
    others = [one["name"] for one in document["arms"] if one["name"] != base]
    return {
        "reference": base,
        "blocks": comparisons.complete_blocks(document),
        "pairs": [_told(document, arm) for arm in others],
        "drift": drift(document),
    }


def look(document: dict[str, Any]) -> bool:
    """At a planned look, judge and set ``result`` and ``state``; whether the comparison is over."""
    done = comparisons.complete_blocks(document)
    if document["state"] in comparisons.FINISHED:
        return True
    if done not in document["looks"] or document["state"] == "refused":
        return False
    document["result"] = judge(document)
    too_few = len(usable_blocks(document)) < comparisons.LEAST_BLOCKS
    if too_few:
        for one in document["result"]["pairs"]:
            one["reasons"].append(_too_few(document))
    if all(_decided(document, one["arm"]) for one in document["result"]["pairs"]):
        document["state"] = "decided"
    elif too_few or done == max(document["looks"]):
        document["state"] = "exhausted"
    return document["state"] in comparisons.FINISHED


def pays(low: float, high: float, tolerance: float) -> str:
    """What an interval of the speed-up says of speculation: ``pays``, ``does not pay`` or ``inconclusive``.

    As fast as without is not worth its memory: only what is surely faster by more than the tolerance pays.
    """
    if low > 1.0 + tolerance:
        return "pays"
    return "does not pay" if high <= 1.0 + tolerance else "inconclusive"


def _answer(document: Mapping[str, Any], low: float, high: float) -> str:
    """What an interval of the log ratio says to the question of this comparison."""
    if document["kind"] == "speculation":
        return pays(math.exp(low), math.exp(high), document["tolerance"])
    return verdict.position(low, high, document["tolerance"])


def _decided(document: dict[str, Any], arm: str) -> bool:
    seen = pair(document, arm)
    if seen is None or seen.low is None or seen.high is None:
        return False
    return _answer(document, seen.low, seen.high) != "inconclusive"


def _told(document: dict[str, Any], arm: str) -> dict[str, Any]:
    seen = pair(document, arm)
    row: dict[str, Any] = {"arm": arm, "verdict": "inconclusive", "ratio": None, "ratio_low": None, "ratio_high": None}
    row.update({"confidence": None, "blocks": 0, "mde": None, "reasons": _left_out(document)})
    if seen is None:
        row["reasons"].append("no block with usable starts of both arms")
        return row
    row.update({"ratio": math.exp(seen.value), "blocks": seen.blocks})
    if seen.low is None or seen.high is None or seen.sd is None or seen.mde is None:
        row["reasons"].append("one block says nothing of how much blocks differ")
        return row
    row.update({"ratio_low": math.exp(seen.low), "ratio_high": math.exp(seen.high)})
    row.update({"confidence": 1.0 - alpha(document), "mde": stats.as_fraction(seen.mde)})
    row["verdict"] = verdict.position(seen.low, seen.high, document["tolerance"])
    answer = _answer(document, seen.low, seen.high)
    if answer == "inconclusive":
        row["reasons"].append(_needed(document, seen))
    elif row["verdict"] == "inconclusive":  # of speculation: slower or as fast, and both answer the question
        row["reasons"].append(f"that it {answer} is decided: it is surely not faster by more than the tolerance")
    return row


def _left_out(document: dict[str, Any]) -> list[str]:
    """Which starts make their block no evidence: a sentence for each arm and reason."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in document["starts"]:
        if one.get("weak"):
            found.setdefault((one["arm"], "; ".join(one["weak"])), []).append(one)
    told = []
    for (arm, why), starts in found.items():
        blocks, numbers = (", ".join(str(one[name]) for one in starts) for name in ("block", "number"))
        if len(starts) == 1:
            told.append(f"block {blocks} is left out, start {numbers} of {arm}: {why}")
        else:
            told.append(f"blocks {blocks} are left out, starts {numbers} of {arm}: {why}")
    return told


def _too_few(document: dict[str, Any]) -> str:
    """Why the starts end at a look that has nothing to judge: the next ones would hardly be others."""
    usable, done = len(usable_blocks(document)), comparisons.complete_blocks(document)
    return (
        f"the starts end here: {usable or 'none'} of {done} blocks can be used, and a verdict takes "
        f"{comparisons.LEAST_BLOCKS}; see to what makes the others unusable, then compare anew: -e compare_anew=true"
    )


def _needed(document: dict[str, Any], seen: paired.Pair) -> str:
    """How many blocks would decide, at the difference and spread seen."""
    spread, level = seen.sd or 0.0, alpha(document)
    text = f"the differences of the blocks spread by {100 * spread:.1f} %"
    for blocks in range(seen.blocks + 1, MOST_BLOCKS + 1):
        half = paired.half_width(spread, blocks, level)
        if _answer(document, seen.value - half, seen.value + half) != "inconclusive":
            return f"{text}: about {blocks} blocks would decide, if the difference stays as it is"
    return f"{text}: more than {MOST_BLOCKS} blocks would be needed, or a larger tolerance than the difference"


def drift(document: dict[str, Any]) -> dict[str, Any] | None:
    """How the rate of all arms moved from block to block, as a share; None while there are too few starts."""
    usable = [one for one in document["starts"] if not one.get("weak")]
    found = paired.drift([(one["arm"], float(one["number"]), comparisons.log_rate(one)) for one in usable])
    if found is None:
        return None
    each = len(document["arms"])
    value, low, high = (stats.as_fraction(each * one) for one in (found.value, found.low, found.high))
    note = "no drift is seen"
    if found.p < NOTABLE:
        moved = "fell" if value < 0 else "rose"
        note = (
            f"the rate {moved} by {100 * abs(value):.1f} % from block to block, whatever the arm: the machine changed "
            "while it was compared; the order of the starts balances it"
        )
    return {"per_block": value, "low": low, "high": high, "p": found.p, "note": note}
