# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""When speculative decoding pays: formulas over measured numbers. docs/speculation.md derives and uses them.

A *cycle* is one pass of the target model with what belongs to it: drafting, verifying, sampling, scheduling. It gives
L tokens: those of the draft that were accepted and one of the target's own. With the decode rate of one stream and t_b,
the time that a token takes without speculation:

    T  = L / rate      time of a cycle, measured from outside, so that nothing of it is left out
    L* = T / t_b       break-even: with fewer tokens a cycle it is slower than no speculation
    speed-up = L / L*  (= rate * t_b)

Leviathan et al. 2023 (arXiv:2211.17192) give the speed-up as (1 - a^(k+1)) / ((1 - a)(k c + 1)); they assume that
verifying k + 1 tokens takes as long as one step of the target does. Where it does not, T has to be measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

#: Below it the draft is as good as never accepted, which no working draft is: it is not the one for this model.
MISCONFIGURED = 1.05
#: Share of the rate that does not matter, as the role compare has it by default (``compare_tolerance``).
TOLERANCE = 0.02


def cycle_s(accept_length: float, rate: float) -> float:
    """T in seconds, from tokens a cycle and tokens a second of one stream (both above 0)."""
    return accept_length / rate


def break_even_length(cycle: float, base_step: float) -> float:
    """L* from the time of a cycle and of a step without speculation, in the same unit."""
    return cycle / base_step


def accept_length(acceptance: float, drafts: int) -> float:
    """L of a chain of ``drafts`` tokens, each accepted with this probability when all before it were.

    1 + p + p^2 + ... + p^k: a token counts only when those before it were accepted (Leviathan et al. 2023, their
    equation 1; EAGLE's n-alpha are such conditional acceptances).
    """
    return math.fsum(acceptance**position for position in range(drafts + 1))


def needed_acceptance(length: float, drafts: int) -> float | None:
    """The p with which :func:`accept_length` comes to ``length``; None above ``drafts`` + 1, which no p reaches.

    The sum grows with p, so bisection finds it.
    """
    if length > drafts + 1:
        return None
    low, high = 0.0, 1.0
    if length <= 1.0:
        return low
    while high - low > 1e-12:
        middle = 0.5 * (low + high)
        if accept_length(middle, drafts) < length:
            low = middle
        else:
            high = middle
    return high


def ceiling(drafts: int, break_even: float) -> float:
    """The speed-up if every drafted token were accepted, at the same time of a cycle."""
    return (drafts + 1) / break_even


def endless_length(acceptance: float) -> float:
    """L of a draft without end, 1 / (1 - p): what longer drafts can come to at this acceptance, even if free."""
    return math.inf if acceptance >= 1.0 else 1.0 / (1.0 - acceptance)


def conditional(accepted_at: Sequence[float], drafts: float) -> list[float | None]:
    """p_i from the number of cycles in which position i was accepted (first: 1) and of those that drafted at all.

    Engines count position i whenever it was accepted, out of all drafts; of those that got so far it is a_i / a_(i-1).
    None from the first position that nothing got to.
    """
    found: list[float | None] = []
    before = drafts
    for count in accepted_at:
        found.append(min(1.0, count / before) if before > 0 else None)
        before = count
    return found


def below_tolerance(speedup: float, tolerance: float) -> str | None:
    """What is to be said of a speed-up that is none worth a draft's memory though it is no loss; None of any other."""
    if not 1.0 <= speedup <= 1.0 + tolerance:
        return None
    return f"it gains less than the tolerance of {100 * tolerance:g} %" if tolerance else "it gains nothing"


def _figure(value: float, digits: int) -> str:
    """A number with so many digits after the point; with two that count where these would hide it."""
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 10.0 ** (1 - digits) else f"{value:.2g}"


def changes(length: float, cycle: float, base_step: float, drafts: int | None) -> list[str]:
    """What would have to be otherwise for speculation to pay, as sentences; none where it pays as it is. Times in
    seconds.

    ``drafts``: tokens that a cycle can accept at most; None where that is not known.
    """
    needed = break_even_length(cycle, base_step)
    if length >= needed:
        return []
    allowed = length * base_step
    times = [_figure(1000 * one, 1) for one in (allowed, cycle)]
    if times[0] == times[1]:
        return [f"next to nothing: within rounding, a cycle of {times[1]} ms at this accept length is break-even"]
    found = []
    least = needed_acceptance(needed, drafts) if drafts else None
    if drafts and least is None:
        found.append(
            f"no draft of {drafts} can pay at this cycle: accepted in full it gives {drafts + 1} tokens, "
            f"and {needed:.2f} are needed"
        )
    elif drafts and least is not None:
        seen = needed_acceptance(length, drafts) or 0.0
        text = (
            f"a better draft: acceptance {least:.3f} at each of {drafts} positions instead of {seen:.3f} "
            f"(accept length {needed:.2f} instead of {length:.2f})"
        )
        reach = endless_length(seen)
        if reach <= needed:
            text += f"; a longer one of this acceptance cannot do it: endless and free, it gives {reach:.2f} tokens"
        found.append(text)
    else:
        found.append(f"a better draft: accept length {needed:.2f} instead of {length:.2f}")
    found.append(
        f"a cheaper cycle: {times[0]} ms instead of {times[1]} ms at this accept length "
        f"({100 * (1 - allowed / cycle):.0f} % less)"
    )
    return found


def _refuse(
    base_step_ms: float, rate: float, length: float, drafts: int, verify_ms: float | None, tolerance: float
) -> None:
    numbers = {"base_step_ms": base_step_ms, "rate": rate, "verify_ms": 1.0 if verify_ms is None else verify_ms}
    for name, value in numbers.items():
        if not 1e-9 < value < 1e9:
            raise ValueError(f"{name}: {value:g} is not a number above 0 and below 1e9")
    if not 0.0 <= tolerance < 1.0:
        raise ValueError(f"tolerance: {tolerance:g} is no share of a rate: 0.02 means 2 %")
    if not 1 <= drafts <= 1024:
        raise ValueError(f"drafts: {drafts} is not a number of drafted tokens from 1 to 1024")
    if not 1.0 <= length <= drafts + 1:
        raise ValueError(
            f"accept_length: {length:g} is not between 1 (nothing accepted) and {drafts + 1} (all {drafts} drafted "
            "tokens and the target's own); it counts the target's own token"
        )


def calculate(
    base_step_ms: float,
    rate: float,
    accept_length: float,
    drafts: int,
    verify_ms: float | None = None,
    tolerance: float = TOLERANCE,
) -> dict[str, Any]:
    """Everything that follows from numbers that somebody measured; no interval, since none was given.

    ``base_step_ms``: time per token without speculation; ``rate``: tokens a second of one stream with it;
    ``accept_length``: tokens a cycle, the target's own included; ``drafts``: drafted tokens of a cycle (SGLang's
    speculative_num_draft_tokens counts the root of the tree as well: one more); ``verify_ms``: what verifying is said
    to take, to see how much of the cycle it explains; ``tolerance``: share of the rate that does not matter. As in a
    comparison, only what is faster by more than that pays: as fast as without is not worth the memory of a draft.
    Raises ValueError for what cannot be.
    """
    _refuse(base_step_ms, rate, accept_length, drafts, verify_ms, tolerance)
    length = accept_length
    cycle, base_step = cycle_s(length, rate), base_step_ms / 1000.0
    needed = break_even_length(cycle, base_step)
    speedup = length / needed
    seen = needed_acceptance(length, drafts) or 0.0
    verify = None
    if verify_ms is not None:
        verify_s = verify_ms / 1000.0
        verify = {
            "verify_ms": verify_ms,
            "rest_ms": 1000.0 * (cycle - verify_s),
            "share": verify_s / cycle,
            "break_even_without_rest": verify_s / base_step,
            "rate_without_rest": length / verify_s,
        }
    return {
        "cycle_ms": 1000.0 * cycle,
        "break_even": needed,
        "speedup": speedup,
        "acceptance": seen,
        "needed_acceptance": needed_acceptance(needed, drafts),
        "ceiling": ceiling(drafts, needed),
        "verify": verify,
        "tolerance": tolerance,
        "verdict": "pays" if speedup > 1.0 + tolerance else "does not pay",
        "verdict_note": below_tolerance(speedup, tolerance),
        "would_pay_if": changes(length, cycle, base_step, drafts),
    }


def lines(found: dict[str, Any], drafts: int) -> list[str]:
    """The result of :func:`calculate` for a person."""
    needed, verify = found["needed_acceptance"], found["verify"]
    told = "more than 1: out of reach" if needed is None else f"{needed:.3f}"
    rows = [
        ("cycle", f"{_figure(found['cycle_ms'], 1)} ms (accept length / rate)"),
        ("break-even", f"accept length {_figure(found['break_even'], 2)} (cycle / base step)"),
        ("acceptance", f"{found['acceptance']:.3f} at each of {drafts} positions; break-even needs {told}"),
        ("speed-up", f"{_figure(found['speedup'], 2)}x; if everything were accepted {_figure(found['ceiling'], 2)}x"),
    ]
    if verify is not None and verify["rest_ms"] < 0:
        rows.append(
            ("verify", f"{verify['verify_ms']:g} ms do not fit into the cycle: one of these numbers is not of this run")
        )
    elif verify is not None:
        rows.append(
            (
                "verify",
                f"{verify['verify_ms']:g} ms of the cycle ({100 * verify['share']:.0f} %), "
                f"{_figure(verify['rest_ms'], 1)} ms are drafting and overhead; without them it would be "
                f"{verify['rate_without_rest']:.0f} tok/s and "
                f"break-even {_figure(verify['break_even_without_rest'], 2)}",
            )
        )
    note = found["verdict_note"]
    rows.append(("verdict", f"{found['verdict']}: {note}" if note else found["verdict"]))
    rows += [("it needs" if not index else "or", one) for index, one in enumerate(found["would_pay_if"])]
    return [f"{label:<11} {text}" for label, text in rows]
