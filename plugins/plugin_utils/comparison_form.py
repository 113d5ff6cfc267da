# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a comparison that was read has the form of one: a disk, a person or another program may have changed it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ..module_utils import files

Check = Callable[[Any], bool]

STATES = ("running", "refused", "decided", "exhausted")
TIME = "%Y-%m-%dT%H:%M:%SZ"


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _rate(value: Any) -> bool:
    # Beyond these there is no server, and what is made of a rate would leave the range of numbers.
    return files.is_number(value) and 1e-9 < value < 1e12


def _dict(value: Any) -> bool:
    return isinstance(value, dict)


def _moment(value: Any) -> bool:
    try:
        return bool(time.strptime(value, TIME))
    except (TypeError, ValueError):
        return False


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _each(check: Check, least: int = 0) -> Check:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(check, value))


def _of(parts: Mapping[str, Check]) -> Check:
    return lambda value: not _wrong(value, parts)


def _wrong(value: Any, parts: Mapping[str, Check]) -> list[str]:
    """The keys that are not there or not of their form; all of them of what is no dictionary."""
    if not isinstance(value, dict):
        return list(parts)
    needed = [name for name in parts if name not in value and name not in _NEWER]
    return needed + [name for name, check in parts.items() if name in value and not check(value[name])]


#: Documents from before do not have these.
_NEWER = ("proof",)
_PLACE: dict[str, Check] = {"number": _count, "block": _count, "position": _count, "arm": _text}
_START: dict[str, Check] = {
    **_PLACE,
    "seconds": files.is_number,  # 0, once also less, when the clock was set back meanwhile
    "record": _text,
    "value": _rate,
    "repeats": _each(_rate),
    "ready_s": _or_none(files.is_number),
    "finished_at": _text,
    "accept_length": _or_none(files.is_number),
    "gpu": _or_none(_dict),
    "state_hash": _or_none(_text),
    "proof": _or_none(_text),
    "weak": _texts,
    "notes": _texts,
}
_NUMBER = _or_none(files.is_number)
_PAIR: dict[str, Check] = {
    "arm": _text,
    "verdict": _text,
    **dict.fromkeys(("ratio", "ratio_low", "ratio_high", "confidence", "mde"), _NUMBER),
    "blocks": _count,
    "reasons": _texts,
}
_DRIFT: dict[str, Check] = {**dict.fromkeys(("per_block", "low", "high", "p"), files.is_number), "note": _text}
_RESULT: dict[str, Check] = {
    "reference": _text,
    "blocks": _count,
    "pairs": _each(_of(_PAIR)),
    "drift": _or_none(_of(_DRIFT)),
}
_ROW: dict[str, Check] = {
    "arm": _text,
    "what": _text,
    "reference": lambda value: True,
    "value": lambda value: True,
    "declared": lambda value: isinstance(value, bool),
    "why": _text,
}
_DOCUMENT: dict[str, Check] = {
    "id": _text,
    "host": _text,
    "kind": _text,
    "title": _text,
    "created_at": _moment,
    "declaration": _dict,
    "declaration_hash": _text,
    "tolerance": lambda value: files.is_number(value) and 0.0 <= value < 1.0,
    "looks": _each(lambda value: _count(value) and value > 0, 1),
    "arms": _each(_of({"name": _text, "declared": _dict, "resolved": _or_none(_dict)}), 1),
    "differences": _each(_of(_ROW)),
    "blocks": _each(_texts, 1),
    "starts": _each(_of(_START)),
    "state": lambda value: value in STATES,
    "result": _or_none(_of(_RESULT)),
    "speculation": _or_none(_dict),
    "left": _or_none(_text),
}


def wrong(document: Mapping[str, Any], is_id: Callable[[str], bool]) -> list[str]:
    """The parts of a document that nothing can be made of; [] when it is whole.

    ``is_id``: whether a text is the id of a record.
    """
    found = _wrong(document, _DOCUMENT)
    if found:
        return found
    names = [one["name"] for one in document["arms"]]
    if len(set(names)) < len(names):
        found.append("arms")
    declared = document["declaration"].get("arms")
    if not _each(_of({"name": _text, "variables": _dict}))(declared) or [one["name"] for one in declared] != names:
        found.append("declaration")
    # The declaration is what a comparison is found by: what was edited in it, or beside it, would go on as the same.
    if not _is_digest(document["declaration_hash"], document["declaration"]):
        found.append("declaration_hash")
    found += [name for name in ("tolerance", "looks") if document["declaration"].get(name) != document[name]]
    looks, blocks = document["looks"], document["blocks"]
    if looks != sorted(set(looks)) and "looks" not in found:
        found.append("looks")
    if len(blocks) != looks[-1] or any(sorted(one) != sorted(names) for one in blocks):
        found.append("blocks")
    elif not _starts_fit(document["starts"], blocks) or not all(is_id(one["record"]) for one in document["starts"]):
        found.append("starts")
    if any(one["arm"] not in names for one in document["differences"]):
        found.append("differences")
    result = document["result"]
    if result and ({one["arm"] for one in result["pairs"]} | {result["reference"]}) - set(names):
        found.append("result")
    return found


def _is_digest(told: str, value: Any) -> bool:
    try:
        return files.digest(value) == told
    except ValueError:  # NaN and such, of which no comparison was made
        return False


def _starts_fit(starts: list[dict[str, Any]], blocks: list[list[str]]) -> bool:
    """Whether each start has a place of its own in the plan, and they are in its order."""
    numbers = [one["number"] for one in starts]
    if numbers != sorted(set(numbers)):
        return False
    for one in starts:
        block, position = one["block"], one["position"]
        if not 1 <= block <= len(blocks) or not 1 <= position <= len(blocks[0]):
            return False
        if one["number"] != (block - 1) * len(blocks[0]) + position or blocks[block - 1][position - 1] != one["arm"]:
            return False
    return True


def start(found: Any) -> bool:
    """Whether a start of a document, as it was made from a record, has the form of one."""
    return not _wrong(found, _START)
