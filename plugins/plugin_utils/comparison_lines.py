# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A comparison as lines for a person: its plan, each start as it begins and ends, the result."""

from __future__ import annotations

import math
from typing import Any

from . import comparison_verdict, comparisons, shares, summary


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    if whole < 5400:
        return f"{whole / 60:.0f} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _label(document: dict[str, Any], start: dict[str, Any]) -> str:
    total = len(comparisons.planned(document))
    return f"start {start['number']} of at most {total} (block {start['block']}, arm {start['arm']})"


def _left(document: dict[str, Any]) -> str:
    """How long it may still take, by the starts that are done."""
    each = comparisons.mean_seconds(document["starts"])
    if each is None:
        return "time left is known after the first start"
    left = comparisons.remaining(document)
    done = comparisons.complete_blocks(document)
    block = min((one for one in document["looks"] if one > done), default=max(document["looks"]))
    until = sum(one["block"] <= block for one in left)
    text = f"about {duration(each * until)} to the look at {block} blocks"
    return text if until == len(left) else f"{text}, {duration(each * len(left))} at most"


def begins(document: dict[str, Any], start: dict[str, Any]) -> str:
    """The line before a start."""
    spent = comparisons.spent_seconds(document)
    past = f"{duration(spent)} so far, " if spent else ""
    return f"{_label(document, start)}: {past}{_left(document)}"


def ended(document: dict[str, Any], start: dict[str, Any]) -> str:
    """The line after a start: its rate, and where the comparison stands."""
    text = f"start {start['number']}: {start['arm']} {start['value']:.1f} tok/s"
    if start["ready_s"] is not None:
        text += f", ready in {start['ready_s']:.1f} s"
    if start["accept_length"]:
        text += f", accept length {start['accept_length']:.2f}"
    notes = [*start["weak"], *start["notes"]]
    text += f" ({'; '.join(notes)})" if notes else ""
    standing = [one for one in comparison_verdict.judge(document)["pairs"] if one["ratio"] is not None]
    return text + "".join(f"; {one['arm']} so far {ratio(one, _TELLING)}" for one in standing)


#: With fewer blocks an interval at this confidence is so wide that it says nothing of a comparison that goes on.
_TELLING = 3


def ratio(pair: dict[str, Any], least_blocks: int = 0) -> str:
    """A pair's ratio as a change in percent, with its interval from ``least_blocks`` blocks on."""
    text = summary.percent(pair["ratio"])
    known = pair["ratio_low"] is not None and pair["ratio_high"] is not None
    if known and pair["blocks"] >= least_blocks:
        text += f" ({summary.percent(pair['ratio_low'])} to {summary.percent(pair['ratio_high'])})"
    return f"{text} over {summary.count(pair['blocks'], 'block')}"


def plan(document: dict[str, Any], fate: str) -> list[str]:
    """The plan: what is compared with what, in which order, until when. ``fate``: whether it is new or goes on."""
    base = comparisons.reference(document)
    first = " ".join("".join(f"{arm} " for arm in block).strip() + "," for block in document["blocks"][:3])
    looks = ", ".join(map(str, document["looks"]))
    return [
        f"arms        {base} (the reference), {', '.join(one['name'] for one in document['arms'][1:])}",
        f"order       {first} ...",
        f"looks       after {looks} blocks; over once decided, with a tolerance of {100 * document['tolerance']:g} %",
        f"comparison  {document['id']}: {fate}",
    ]


def result(document: dict[str, Any], path: str) -> list[str]:
    """The summary of a comparison, whether or not it is over."""
    found = document["result"] or comparison_verdict.judge(document)
    base = found["reference"]
    rows = [("arm", f"{_arm(document, one['name'])}{' (the reference)' if one['name'] == base else ''}")
            for one in document["arms"]]  # fmt: skip
    for one in found["pairs"]:
        rows.append(("verdict", _verdict(document, one, base)))
        rows += [("", reason) for reason in one["reasons"]]
        if one["mde"] is not None:
            rows.append(
                ("MDE", f"{shares.percent(one['mde'])} %: smaller true differences are found less than 4 times in 5")
            )
    if found["drift"]:
        drift = found["drift"]
        value, low, high = (shares.percent(drift[name], signed=True) for name in ("per_block", "low", "high"))
        rows.append(("drift", f"{value} % a block ({low} to {high}), p {drift['p']:.2g}: {drift['note']}"))
    rows += [("note", note) for note in _notes(document)]
    spent = comparisons.spent_seconds(document)
    state = {"running": "unfinished", "refused": "refused: see the differences"}.get(
        document["state"], document["state"]
    )
    rows.append(("starts", f"{len(document['starts'])} in {duration(spent)}, {state}"))
    rows.append(("result", path))
    return [f"{label:<9} {text}" for label, text in rows]


def _arm(document: dict[str, Any], name: str) -> str:
    own = [one for one in document["starts"] if one["arm"] == name]
    if not own:
        return f"{name}: not started yet"
    # The geometric mean: what the ratio is made of.
    value = math.exp(sum(comparisons.log_rate(one) for one in own) / len(own))
    text = f"{name}: {value:.1f} tok/s, {summary.count(len(own), 'start')}"
    lengths = [one["accept_length"] for one in own if one["accept_length"]]
    return text + (f", accept length {sum(lengths) / len(lengths):.2f}" if lengths else "")


def _verdict(document: dict[str, Any], pair: dict[str, Any], base: str) -> str:
    text = f"{pair['arm']} against {base}: {pair['verdict'].upper()}"
    if pair["ratio"] is None:
        return text
    text += f" {ratio(pair)}"
    return text + (f" at {100 * pair['confidence']:.1f} % confidence" if pair["confidence"] is not None else "")


def _notes(document: dict[str, Any]) -> list[str]:
    """What was noted of starts, each sentence once, with how many starts of which arm it is of."""
    found: dict[str, dict[str, int]] = {}
    for one in document["starts"]:
        for note in one["notes"]:
            counts = found.setdefault(note, {})
            counts[one["arm"]] = counts.get(one["arm"], 0) + 1
    return [
        f"{note}: {', '.join(summary.count(number, 'start') + ' of ' + arm for arm, number in sorted(counts.items()))}"
        for note, counts in found.items()
    ]
