# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The arithmetic of a rollout: which hosts come in which batch, and whether a batch lets the next one begin. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

#: What can become of a host. All but the first are what the gate counts.
PASSED, SLOWER, UNPROVED, FAILED, UNREACHABLE = "passed", "slower", "unproved", "failed", "unreachable"
BAD = (SLOWER, UNPROVED, FAILED, UNREACHABLE)
#: After a rollback: the declaration before is proved again, or it is not.
ROLLED_BACK, NOT_ROLLED_BACK = "rolled_back", "rollback_failed"

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class Amount:
    """A number of hosts, or a share of them."""

    number: int = 0
    share: Fraction | None = None  # 0 to 1

    def of(self, size: int) -> int:
        """Hosts of ``size``, rounded down."""
        return self.number if self.share is None else math.floor(self.share * size)


def amount(raw: Any, name: str) -> Amount:
    """A number (3, "3") or a share ("10%"; 0.1 is the same). Raises ValueError naming the variable."""
    text = str(raw).strip()
    percent = _PERCENT.fullmatch(text)
    if percent and Fraction(percent[1]) <= 100:
        return Amount(share=Fraction(percent[1]) / 100)
    if not isinstance(raw, bool):
        if text.isascii() and text.isdigit():
            return Amount(number=int(text))
        if re.fullmatch(r"0?\.\d+", text):
            return Amount(share=Fraction(text))
    raise ValueError(f"{name}: {raw!r} is neither a number of hosts (3) nor a share of them (10%)")


def units(hosts: Sequence[str], together: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Hosts that have to be deployed at the same time, in the order of ``hosts``.

    ``together``: host -> all hosts of the server that it is a part of. Raises ValueError when a rollout has only some
    of them.
    """
    found: list[list[str]] = []
    placed: set[str] = set()
    for host in hosts:
        if host in placed:
            continue
        others = set(together.get(host) or ()) | {host}
        missing = sorted(others - set(hosts))
        if missing:
            raise ValueError(
                f"{host} serves together with {', '.join(missing)}, which this rollout lacks: name all in --limit"
            )
        found.append([one for one in hosts if one in others])
        placed |= others
    return found


def batches(parts: Iterable[Sequence[str]], canaries: Collection[str], sizes: Sequence[Amount]) -> list[list[str]]:
    """The batches: canaries first, then the others by size; the last size repeats.

    ``parts``: see :func:`units`; one is never divided, and one with a canary is a canary. A share is one of all hosts,
    as with Ansible's ``serial``; every batch has a host at least. Without sizes all others are one batch.
    """
    waiting: list[Sequence[str]] = []
    first: list[str] = []
    total = 0
    for part in parts:
        total += len(part)
        if set(part) & set(canaries):
            first += part
        else:
            waiting.append(part)
    found = [first] if first else []
    number = 0
    while waiting:
        wanted = max(1, sizes[min(number, len(sizes) - 1)].of(total)) if sizes else total
        batch: list[str] = []
        while waiting and len(batch) < wanted:
            batch += waiting.pop(0)
        found.append(batch)
        number += 1
    return found


@dataclass(frozen=True)
class Gate:
    """What a batch came to. ``bad``: host -> what became of it; ``allowed``: how many of them may be."""

    size: int
    bad: dict[str, str]
    allowed: int
    stop: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def gate(outcomes: Mapping[str, str], limit: Amount) -> Gate:
    """Whether more hosts of a batch than allowed are not as they should be.

    A host that never told what became of it counts as unreachable ("").
    """
    bad = {host: outcome or UNREACHABLE for host, outcome in outcomes.items() if outcome != PASSED}
    allowed = limit.of(len(outcomes))
    return Gate(len(outcomes), bad, allowed, len(bad) > allowed)


# --- one host ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of a host, and why where it did not pass."""

    outcome: str
    why: list[str]


def judge(
    error: str,
    unreachable: bool,
    proof: Mapping[str, Any],
    proof_failed: bool,
    verdicts: Iterable[Mapping[str, Any]],
    max_drop: float,
) -> Outcome:
    """What became of a host.

    ``error``: the message of the task that failed, "" when none did. ``proof``: what the proof returned, {} when none
    was asked for. ``verdicts``: those of its measurement, against its baseline and against the declaration before.
    ``max_drop``: share of the rate before that it may lose although too few starts are known for a verdict.
    """
    if unreachable:
        return Outcome(UNREACHABLE, [error or "it did not answer"])
    if error and not proof_failed:
        return Outcome(FAILED, [error])
    seen = proof.get("verdict")
    if proof_failed or (seen is not None and seen != "proved"):
        why = proof.get("why") or [error or "no proof was given"]
        return Outcome(UNPROVED, [f"{seen or 'unknown'}: {one}" for one in ([why] if isinstance(why, str) else why)])
    slow = [text for verdict in verdicts if (text := slower(verdict, max_drop))]
    return Outcome(SLOWER, slow) if slow else Outcome(PASSED, [])


def slower(verdict: Mapping[str, Any], max_drop: float) -> str:
    """Why a verdict says that a host is too slow; "" when it does not."""
    ratio = verdict.get("ratio")
    if ratio is None or verdict.get("baseline_value") is None:
        return ""
    drop = 100 * (1 - ratio)
    against = f"{drop:.1f} % below {verdict['baseline_value']:.1f} {verdict.get('unit') or 'tok/s'}"
    if verdict.get("verdict") == "slower":
        return f"{against}, its {verdict.get('what') or 'baseline'}"
    if 1 - ratio > max_drop:
        return f"{against}, its {verdict.get('what') or 'baseline'}: more than {100 * max_drop:g} % (rollout_max_drop)"
    return ""
