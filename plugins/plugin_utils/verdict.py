# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The verdict on one new measurement: same, faster, slower, inconclusive, incomparable, or the first of its kind.

The unit of statistics is the *start*: repeats within one start share its luck and say nothing about another start.
With y = ln(rate) of a start, n baseline starts with mean m and standard deviation s, one new start lies within

    m +- t(0.975, n-1) * s * sqrt(1 + 1/n)

in 95 of 100 cases if nothing changed (prediction interval). The ratio new/baseline is therefore known up to that width:
wholly below -delta is slower, wholly above +delta faster, wholly within +-delta the same, anything else inconclusive.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from ..module_utils import stats
from .records import ENOUGH_STARTS

CONFIDENCE = 0.95
MAX_STARTS = 20


@dataclass
class Verdict:
    """A verdict with what it rests on. Ratios are new/baseline (1.02: 2 % faster)."""

    verdict: str  # same, faster, slower, inconclusive, incomparable, first
    reasons: list[str]
    tolerance: float
    value: float
    unit: str
    baseline_value: float | None = None
    baseline_starts: int = 0
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    detectable: float | None = None  # smallest change (share) that as many starts again could show, 5 % / 80 %
    starts_needed: int | None = None  # starts on each side that would decide, at the spread and difference seen
    explanations: list[str] = field(default_factory=list)  # differences of the fingerprints, likeliest first

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def by_start(records: list[dict[str, Any]]) -> dict[str, float]:
    """One rate per start: the geometric mean of its measurements' headlines."""
    logs: dict[str, list[float]] = {}
    for record in records:
        measurement = record["measurement"]
        logs.setdefault(measurement["server"]["start_id"], []).append(math.log(measurement["headline"]["value"]))
    return {start: math.exp(sum(values) / len(values)) for start, values in logs.items()}


def refusals(measurement: dict[str, Any]) -> list[str]:
    """Why a measurement cannot become a baseline; [] when it can."""
    if (measurement.get("client") or {}).get("limited"):
        return ["the client, not the server, was the limit (see measurement.client)"]
    return []


def weaknesses(measurement: dict[str, Any]) -> list[str]:
    """Why a measurement cannot decide anything; [] when nothing speaks against it."""
    reasons = refusals(measurement)
    if (measurement.get("warmup") or {}).get("steady") is False:
        reasons.append("the server was not steady after the warm-up (see measurement.warmup; is the machine busy?)")
    return reasons


def decide(
    measurement: dict[str, Any],
    baseline: list[dict[str, Any]],
    tolerance: float,
    explanations: list[str],
    incomparable: list[str] | None = None,
) -> Verdict:
    """Compare a measurement with the records of its baseline.

    ``tolerance``: share of the rate that does not matter (0.02: 2 %). ``explanations``: differences of the
    fingerprints in words. ``incomparable``: reasons why another declaration's baseline must not be used, when there is
    no baseline for this one. Rates must be > 0.
    """
    headline = measurement["headline"]
    found = Verdict("first", [], tolerance, headline["value"], headline["unit"], explanations=explanations)
    if incomparable:
        found.verdict, found.reasons = "incomparable", incomparable
        return found
    starts = by_start(baseline)
    found.baseline_starts = len(starts)
    if not starts:
        found.reasons = weaknesses(measurement)
        return found
    logs = [math.log(value) for value in starts.values()]
    interval = stats.mean_interval(logs, CONFIDENCE)
    found.baseline_value = math.exp(interval.mean)
    found.ratio = headline["value"] / found.baseline_value
    weak = weaknesses(measurement)
    if measurement["server"]["start_id"] in starts:
        weak.append(
            "it is the very start that the baseline was measured on: repeats of one start say nothing about another"
        )
    if len(starts) < 2:
        weak.append("the baseline has one start, so the spread between starts is unknown; accept at least 3 starts")
        found.starts_needed = ENOUGH_STARTS
    if weak:
        found.verdict, found.reasons = "inconclusive", weak
        return found
    half = stats.t_quantile(0.5 + CONFIDENCE / 2, interval.n - 1) * interval.sd * math.sqrt(1 + 1 / interval.n)
    low, high = math.log(found.ratio) - half, math.log(found.ratio) + half
    found.ratio_low, found.ratio_high = math.exp(low), math.exp(high)
    found.detectable = stats.mde(interval.sd, interval.n)
    found.verdict = _position(low, high, tolerance)
    if found.verdict == "inconclusive":
        spread = f"the spread between starts is {100 * interval.sd:.1f} %"
        found.starts_needed = _starts_to_decide(math.log(found.ratio), interval.sd, tolerance)
        need = f"about {found.starts_needed}" if found.starts_needed else f"more than {MAX_STARTS}"
        found.reasons = [f"{spread}: it takes {need} starts on each side to decide, if the difference stays as it is"]
    elif len(starts) < ENOUGH_STARTS:
        found.reasons = [f"the baseline is provisional ({len(starts)} starts)"]
    return found


def _position(low: float, high: float, tolerance: float) -> str:
    """Where an interval of the log ratio lies against the tolerance."""
    below, above = math.log(1 - tolerance), math.log(1 + tolerance)
    if high < below:
        return "slower"
    if low > above:
        return "faster"
    return "same" if low >= below and high <= above else "inconclusive"


def _starts_to_decide(difference: float, sd: float, tolerance: float) -> int | None:
    """Smallest n <= MAX_STARTS at which n against n starts (two-sample t) would decide this very difference."""
    for n in range(2, MAX_STARTS + 1):
        half = stats.t_quantile(0.5 + CONFIDENCE / 2, 2 * n - 2) * sd * math.sqrt(2 / n)
        if _position(difference - half, difference + half, tolerance) != "inconclusive":
            return n
    return None
