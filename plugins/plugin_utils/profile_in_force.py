# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the proof of the NCCL profile means for a comparison: refuted, it stops it; not given, it is noted.

Whether a start goes on without proof is the choice of ``nccl_profile_proof``. Whether arms can be told apart by a
profile that was not in force is not.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..module_utils.proof import CONTRADICTED, PROVED, UNKNOWN

#: Its name in the table of differences, and so for compare_allow.
WHAT = "NCCL profile in force"
_VARIABLES = ("nccl_profile_name", "nccl_profiles", "nccl_profile_places")
_OFF = "off"
#: The worst first.
_ORDER = (CONTRADICTED, UNKNOWN, _OFF, PROVED)


def verdict(record: Mapping[str, Any]) -> str | None:
    """What the proof of a start said; None where there is none."""
    found = (record.get("proof") or {}).get("verdict")
    return str(found) if found else None


def differs(arms: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the arms, each by its final variables, have different profiles or put them into different places."""
    seen = [{name: one.get(name) for name in _VARIABLES} for one in arms]
    return any(one != seen[0] for one in seen)


def note(record: Mapping[str, Any], differing: bool) -> str:
    """A sentence on a start whose profile is not proved; "" when nothing has to be said."""
    told = verdict(record)
    if told == CONTRADICTED:
        return "NCCL profile contradicted: it was not in force"
    if told == PROVED or not differing:
        return ""
    why = "nccl_profile_proof is off" if told == _OFF else "the proof could not tell"
    return f"NCCL profile not proved ({why}), and the arms differ in it"


def rows(
    base: str,
    others: Sequence[str],
    starts: Sequence[Mapping[str, Any]],
    whys: Mapping[int, str],
    allow: Sequence[str],
) -> list[dict[str, Any]]:
    """A row of the table of differences for each arm that has, or whose reference has, a start that was refuted.

    ``starts``: of the document; ``whys``: number of a refuted one -> what the proof said.
    """
    found = []
    for arm in others:
        refuted = [one for one in starts if one["arm"] in (base, arm) and one.get("proof") == CONTRADICTED]
        if not refuted:
            continue
        first = refuted[0]
        why = f"start {first['number']}: {whys.get(first['number']) or 'see its record'}"
        accepted = next((one for one in allow if fnmatch.fnmatchcase(WHAT, one)), None)
        if accepted is not None:
            why = f"accepted by compare_allow: {accepted}; {why}"
        reference, value = (_worst(one for one in starts if one["arm"] == name) for name in (base, arm))
        row = {"arm": arm, "what": WHAT, "reference": reference, "value": value}
        found.append({**row, "declared": accepted is not None, "why": why})
    return found


def _worst(starts: Iterable[Mapping[str, Any]]) -> str:
    told = {one.get("proof") or UNKNOWN for one in starts}
    return next((one for one in _ORDER if one in told), "not known")
