# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How starts of a server compare with its baseline: docs/statistics.md says why it is done like this.

The unit of statistics is the *start*: repeats within one start share its luck and say nothing about another start. With
y = ln(rate), n baseline starts, k new ones and their pooled standard deviation s, the difference is known within

    d +- t(1 - alpha/2, n+k-2) * s * sqrt(1/n + 1/k)

(for one new start: the prediction interval of the baseline). Wholly below -delta is slower, wholly above +delta faster,
wholly within +-delta the same, anything else inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..module_utils import comparison, stats
from ..module_utils.fingerprint import under_load
from . import starts
from .records import ENOUGH_STARTS

ALPHA = 0.05
MAX_STARTS = 20
#: Numbers of new starts at which a verdict is given. Looking more often needs a stricter look each time.
LOOKS = (1,)
CONCLUSIVE = ("same", "faster", "slower")


@dataclass
class Verdict:
    """A verdict with what it rests on. Ratios are new/baseline (1.02: 2 % faster)."""

    verdict: str  # same, faster, slower, inconclusive, incomparable, first
    reasons: list[str]
    tolerance: float
    value: float
    unit: str
    baseline_value: float | None = None
    baseline_low: float | None = None
    baseline_high: float | None = None
    baseline_starts: int = 0
    new_starts: int = 1
    looks: list[int] = field(default_factory=lambda: list(LOOKS))
    confidence: float | None = None  # of the interval of the ratio: stricter where several looks are planned
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    basis: str = "none"  # what the interval rests on: starts; repeats (a lower bound of the truth); none
    method: str = "none"  # t, bootstrap, none
    mde: float | None = None  # minimal detectable effect (share) of this comparison, power 80 %
    starts_needed: int | None = None  # further new starts that would decide, at the spread and difference seen
    metrics: list[dict[str, Any]] = field(default_factory=list)  # all but the headline, p-values by Holm
    drift: dict[str, Any] | None = None  # what the CUSUM over the starts of this very state found
    explanations: list[str] = field(default_factory=list)  # differences of the fingerprints, likeliest first

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_looks(looks: Sequence[int], of: str = "new starts") -> None:
    """Raises ValueError unless these are numbers of what is counted, ``of``, in ascending order."""
    if not looks or min(looks) < 1 or list(looks) != sorted(set(looks)):
        raise ValueError(f"{list(looks)} is no plan: name numbers of {of}, ascending, such as [3, 5, 8]")


def check_tolerance(tolerance: float) -> None:
    """Raises ValueError unless it is a share."""
    if not 0.0 <= tolerance < 1.0:
        raise ValueError(f"{tolerance} is no share of a rate: 0.02 means 2 %")


def read_tolerance(given: object) -> float:
    """A tolerance as a person gave it, with ``-e`` as text, too. Raises ValueError unless it is a share."""
    try:
        if isinstance(given, bool) or not isinstance(given, (int, float, str)):
            raise ValueError
        tolerance = float(given)
    except ValueError:
        raise ValueError(f"{given!s} is no number: give the share of a rate as one, 0.02 for 2 %") from None
    check_tolerance(tolerance)
    return tolerance


def refusals(measurement: dict[str, Any]) -> list[str]:
    """Why a measurement cannot become a baseline; [] when it can."""
    if (measurement.get("client") or {}).get("limited"):
        return ["the client, not the server, was the limit (see measurement.client)"]
    return []


def weaknesses(record: dict[str, Any]) -> list[str]:
    """Why a record's measurement cannot be compared; [] when nothing speaks against it."""
    measurement = record["measurement"]
    reasons = refusals(measurement)
    if (measurement.get("warmup") or {}).get("steady") is False:
        reasons.append("the server was not steady after the warm-up (see measurement.warmup; is the machine busy?)")
    return reasons + under_load.throttled(measurement, record.get("fingerprints"))


def arm(earlier: Sequence[dict[str, Any]], looks: Sequence[int]) -> list[dict[str, Any]]:
    """Of earlier records of the same state (oldest first): those that the present plan of looks still collects.

    A plan ends with a conclusive verdict or its last look; another plan collects starts of its own. So nobody can go on
    until the dice fall right.
    """
    found: list[dict[str, Any]] = []
    for record in reversed(earlier):
        told = record["verdict"]
        ended = told.get("verdict") in CONCLUSIVE or told.get("new_starts", 1) >= max(looks)
        if ended or told.get("looks") != list(looks):
            break
        # One that could not be compared spoils no other, and is no start of the plan.
        if told.get("verdict") == "inconclusive" and not weaknesses(record):
            found.append(record)
    return found[::-1]


def decide(
    record: dict[str, Any],
    baseline: list[dict[str, Any]],
    tolerance: float,
    explanations: list[str],
    incomparable: list[str] | None = None,
    earlier: Sequence[dict[str, Any]] = (),
    looks: Sequence[int] = LOOKS,
) -> Verdict:
    """Compare a record (its ``measurement`` and ``host``) with the records of its baseline.

    ``tolerance``: share of the rate that does not matter (0.02: 2 %). ``explanations``: differences of the
    fingerprints in words. ``incomparable``: reasons why another declaration's baseline must not be used, when there is
    no baseline for this one. ``earlier``: records of the same declaration and state since, oldest first. ``looks``: see
    :func:`arm`. Rates must be > 0.
    """
    measurement = record["measurement"]
    headline = measurement["headline"]
    found = Verdict(
        "first", [], tolerance, headline["value"], headline["unit"], looks=list(looks), explanations=explanations
    )
    if incomparable:
        found.verdict, found.reasons = "incomparable", incomparable
        return found
    old = starts.headlines(baseline)
    found.baseline_starts = len(old)
    weak = weaknesses(record)
    if not old:
        found.reasons = weak
        return found
    again = starts.name(record) in old
    collected = [one for one in arm(earlier, looks) if starts.name(one) not in old]
    group = [record] if again or weak else [*collected, record]
    new = starts.headlines(group)
    found.new_starts = len(new)
    _compare(found, list(old.values()), list(new.values()))
    if again:
        found.verdict = "inconclusive"
        found.reasons = [_same_start(record, baseline), *weak]
    elif weak:
        found.verdict, found.reasons = "incomparable", weak
    elif found.basis != "starts":
        found.verdict, found.starts_needed = "inconclusive", ENOUGH_STARTS - len(old)
        found.reasons = [
            "the baseline has one start, so how much starts differ is unknown: it needs "
            f"{found.starts_needed} more starts in the baseline (baseline_accept)"
        ]
    elif found.new_starts not in looks:
        after = min(look for look in looks if look > found.new_starts)
        found.verdict, found.starts_needed = "inconclusive", after - found.new_starts
        found.reasons = [_planned(found.new_starts, after)]
        # Not a planned look: to show the interval would be one.
        found.ratio_low = found.ratio_high = found.confidence = None
    else:
        _judge(found)
        found.metrics = _metrics(measurement, baseline, group)
    return found


def _same_start(record: dict[str, Any], baseline: list[dict[str, Any]]) -> str:
    """Why a start that is part of the baseline decides nothing; and what to do when something changed meanwhile."""
    text = "it is the very start that the baseline was measured on: its repeats say nothing about another"
    states = {state(one) for one in baseline if starts.name(one) == starts.name(record)}
    if state(record) not in states:
        text += (
            ", and a change while a server runs may show only in the next one (reset_gpus.yml ends it, deploy again)"
        )
    return text


def state(record: dict[str, Any]) -> str | None:
    """Hash of the state that a record was measured in."""
    found: str | None = (record["fingerprints"].get("before") or {}).get("state_hash")
    return found


def _planned(seen: int, after: int) -> str:
    return f"{_starts(seen)} so far, the next planned look is at {after}: needs {after - seen} more"


def _starts(number: int) -> str:
    return f"{number} start" if number == 1 else f"{number} starts"


def _compare(found: Verdict, old: comparison.Clusters, new: comparison.Clusters) -> None:
    """Fill in everything that is computed, whatever the verdict will be."""
    alpha = ALPHA / len(found.looks)
    base = comparison.interval(old, ALPHA)
    if base.mean is None:
        raise ValueError("a baseline without a measured rate cannot be compared with")
    found.baseline_value = math.exp(base.mean)
    if base.low is not None and base.high is not None:
        found.baseline_low, found.baseline_high = math.exp(base.low), math.exp(base.high)
    seen = comparison.difference(old, new, alpha)
    found.ratio, found.basis, found.method = math.exp(seen.value), seen.basis, seen.method
    found.mde = None if seen.mde is None else stats.as_fraction(seen.mde)
    if seen.low is not None and seen.high is not None:
        found.ratio_low, found.ratio_high = math.exp(seen.low), math.exp(seen.high)
        found.confidence = 1.0 - alpha


def _judge(found: Verdict) -> None:
    """The verdict at a planned look."""
    difference, low, high = (math.log(value or 1.0) for value in (found.ratio, found.ratio_low, found.ratio_high))
    found.verdict = position(low, high, found.tolerance)
    if found.verdict != "inconclusive":
        if found.baseline_starts < ENOUGH_STARTS:
            found.reasons = [f"the baseline is provisional ({_starts(found.baseline_starts)})"]
        return
    n, k = found.baseline_starts, found.new_starts
    sd = 0.5 * (high - low) / (_factor(n, k, len(found.looks)))
    spread = f"starts differ by {100 * sd:.1f} %"
    later = [look for look in found.looks if look > k]
    if later:
        found.starts_needed = later[0] - k
        found.reasons = [f"{spread}; {_planned(k, later[0])}"]
        return
    found.starts_needed = _needed(difference, sd, found.tolerance, n)
    if found.starts_needed:
        found.reasons = [
            f"{spread}: needs {found.starts_needed} more {'start' if found.starts_needed == 1 else 'starts'}, judged "
            f"together (baseline_looks: [{found.starts_needed}]), if the difference stays as it is"
        ]
        return
    each = next(
        (m for m in range(n + 1, MAX_STARTS + 1) if _decides(difference, sd, found.tolerance, m, m)),
        None,
    )
    enough = f"{each} starts in the baseline and {each} new ones" if each else f"more than {MAX_STARTS} on each side"
    found.reasons = [f"{spread}: no number of new starts decides against {_starts(n)}; it takes {enough}"]


def _factor(n: int, k: int, looks: int = 1) -> float:
    """Half width of an interval in standard deviations."""
    return stats.t_quantile(1.0 - 0.5 * ALPHA / looks, n + k - 2) * math.sqrt(1.0 / n + 1.0 / k)


def position(low: float, high: float, tolerance: float) -> str:
    """Where an interval of the log ratio lies against the tolerance: faster, slower, same or inconclusive."""
    below, above = math.log(1 - tolerance), math.log(1 + tolerance)
    if high < below:
        return "slower"
    if low > above:
        return "faster"
    return "same" if low >= below and high <= above else "inconclusive"


def _decides(difference: float, sd: float, tolerance: float, n: int, k: int) -> bool:
    half = _factor(n, k) * sd
    return position(difference - half, difference + half, tolerance) != "inconclusive"


def _needed(difference: float, sd: float, tolerance: float, n: int) -> int | None:
    """Smallest number of new starts (at most MAX_STARTS) that would decide this very difference against n."""
    counts = range(1, MAX_STARTS + 1)
    return next((k for k in counts if _decides(difference, sd, tolerance, n, k)), None)


def _metrics(
    measurement: dict[str, Any], baseline: list[dict[str, Any]], group: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Every other metric: its ratio, and whether it changed when all of them are looked at together (Holm)."""
    rows: dict[str, dict[str, Any]] = {}
    for concurrency, which in starts.others(measurement):
        old, new = starts.metric(baseline, concurrency, which), starts.metric(group, concurrency, which)
        if not old or not new:
            continue
        seen = comparison.difference(old, new, ALPHA)
        if seen.basis == "starts" and seen.p is not None:
            row = {"metric": which, "concurrency": concurrency, "ratio": math.exp(seen.value), "p": seen.p}
            rows[f"{which} {concurrency}"] = row
    adjusted = comparison.holm({name: row["p"] for name, row in rows.items()})
    return [{**row, "p_holm": adjusted[name], "changed": adjusted[name] < ALPHA} for name, row in rows.items()]


def standing(baseline: list[dict[str, Any]]) -> dict[str, Any]:
    """How many starts a baseline has, and whether it is only provisional."""
    number = len(starts.headlines(baseline))
    return {"starts": number, "provisional": number < ENOUGH_STARTS}


def as_row(record: dict[str, Any]) -> dict[str, Any]:
    """Of a record that is not in the index yet, what :func:`drift` needs."""
    return {
        "id": record["id"],
        "start_id": record["measurement"]["server"]["start_id"],
        "state_hash": state(record),
        "decode_tok_s": record["measurement"]["headline"]["value"],
        "verdict": None,
    }


def drift(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Whether the rate drifted while the state stayed the same: a CUSUM over the starts, None when it did not.

    ``rows``: of the index (or :func:`as_row`), of one host and declaration, oldest first. Only the starts since the
    last change of the state count; a change that came with it is the verdict's business.
    """
    since: list[dict[str, Any]] = []
    for row in reversed(rows):
        if row["state_hash"] != rows[-1]["state_hash"]:
            break
        if row["verdict"] != "incomparable" and row["decode_tok_s"]:
            since.insert(0, row)
    series: dict[str, list[float]] = {}
    names: dict[str, str] = {}
    for row in since:
        series.setdefault(row["start_id"], []).append(math.log(row["decode_tok_s"]))
        names.setdefault(row["start_id"], row["id"])
    order = list(series)
    found = comparison.cusum([stats.mean(series[start]) for start in order])
    if found is None:
        return None
    return {
        "since": names[order[found.since]],
        "noticed": names[order[found.alarm]],
        "change": stats.as_fraction(found.change),
        "starts": len(order),
    }
