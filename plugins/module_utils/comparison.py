# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Comparing two groups of starts, and watching a series of them. Values are logs of rates: differences are shares.

A *cluster* is what was measured within one start: its repeats share the luck of the start, so the groups are compared
by the means of their clusters, and the repeats only say how well each mean is known.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from . import stats

Clusters = Sequence[Sequence[float]]

BOOTSTRAP_FROM = 8  # starts on a side; below, a bootstrap is too narrow and Student's t is right
RESAMPLES = 2000
CUSUM_SLACK = 0.5  # standard deviations that are let pass: tuned to find a shift of one
CUSUM_LIMIT = 5.0


@dataclass(frozen=True)
class Difference:
    """New minus baseline, with its interval. The bounds are None where nothing tells the spread.

    ``basis`` says what the spread is of: ``starts``; ``repeats``, which is a lower bound only, because starts differ
    by more than their repeats do; or ``none``. ``method``: ``t``, ``bootstrap`` or ``none``. ``p``: two-sided
    probability of a difference as large if nothing changed (of the t test, with either method).
    """

    value: float
    low: float | None
    high: float | None
    sd: float | None
    basis: str
    method: str
    p: float | None
    mde: float | None


def cluster_means(clusters: Clusters) -> list[float]:
    """One value a start. Raises ValueError for a start without values."""
    return [stats.mean(one) for one in clusters]


def difference(baseline: Clusters, new: Clusters, alpha: float = 0.05) -> Difference:
    """How far the starts ``new`` lie from the starts ``baseline`` (at least one each), at confidence 1 - alpha.

    With the pooled deviation s of n and k starts: t(1 - alpha/2, n+k-2) · s · √(1/n + 1/k). For one new start that is
    the prediction interval of the baseline. From eight starts on either side: a hierarchical bootstrap.
    """
    old_means, new_means = cluster_means(baseline), cluster_means(new)
    value = stats.mean(new_means) - stats.mean(old_means)
    if len(old_means) + len(new_means) > 2:
        found = _by_t(value, old_means, new_means, alpha, "starts")
        if min(len(old_means), len(new_means)) >= BOOTSTRAP_FROM:
            low, high = _bootstrap(baseline, new, alpha)
            return Difference(value, low, high, found.sd, "starts", "bootstrap", found.p, found.mde)
        return found
    if min(len(baseline[0]), len(new[0])) > 1:
        return _by_t(value, baseline[0], new[0], alpha, "repeats")
    return Difference(value, None, None, None, "none", "none", None, None)


def pooled_sd(first: Sequence[float], second: Sequence[float]) -> float:
    """Standard deviation within two groups, n + k - 2 degrees of freedom. Raises ValueError below three values."""
    df = len(first) + len(second) - 2
    if df < 1:
        raise ValueError("a pooled standard deviation needs three values")
    squares = 0.0
    for group in (first, second):
        middle = stats.mean(group)
        squares += math.fsum((value - middle) ** 2 for value in group)
    return math.sqrt(squares / df)


def _by_t(value: float, old: Sequence[float], new: Sequence[float], alpha: float, basis: str) -> Difference:
    n, k = len(old), len(new)
    df = n + k - 2
    sd = pooled_sd(old, new)
    error = sd * math.sqrt(1.0 / n + 1.0 / k)
    half = stats.t_quantile(1.0 - alpha / 2.0, df) * error
    surely = 1.0 if value == 0 else 0.0
    p = 2.0 * stats.t_cdf(-abs(value) / error, df) if error > 0 else surely
    return Difference(value, value - half, value + half, sd, basis, "t", p, stats.mde(sd, n, k, alpha))


def interval(clusters: Clusters, alpha: float = 0.05) -> stats.Interval:
    """Mean over starts with its interval: Student's t below eight starts, from there a hierarchical bootstrap."""
    means = cluster_means(clusters)
    found = stats.mean_interval(means, 1.0 - alpha)
    if found.n < BOOTSTRAP_FROM:
        return found
    dice = random.Random(0)
    low, high = _expanded([_resampled(clusters, dice) for _number in range(RESAMPLES)], found.n, found.n - 1, alpha)
    return stats.Interval(found.mean, low, high, found.n, found.sd)


def _resampled(clusters: Clusters, dice: random.Random) -> float:
    """Mean of one hierarchical resample: starts, then the repeats within each of them, both with replacement."""
    total = 0.0
    for cluster in dice.choices(clusters, k=len(clusters)):
        drawn = dice.choices(cluster, k=len(cluster)) if len(cluster) > 1 else cluster
        total += sum(drawn) / len(drawn)
    return total / len(clusters)


def _expanded(resamples: list[float], n: int, df: int, alpha: float) -> tuple[float, float]:
    """Percentiles of resampled means, set wider as few values ask for (Hesterberg's expanded percentile interval).

    Plain percentiles are those of a normal distribution with divisor n: at n = 8 they cover 89 instead of 95 %.
    """
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * stats.t_quantile(1.0 - alpha / 2.0, df))
    low, high = (stats.percentile(resamples, 100.0 * share) for share in (tail, 1.0 - tail))
    if low is None or high is None:
        raise ValueError("there are no resamples to take percentiles of")
    return low, high


def _bootstrap(baseline: Clusters, new: Clusters, alpha: float) -> tuple[float, float]:
    # Always the same dice: the same records give the same verdict.
    dice = random.Random(0)
    resamples = [_resampled(new, dice) - _resampled(baseline, dice) for _number in range(RESAMPLES)]
    # Each side's resamples are too narrow by its own n; the smaller one decides.
    return _expanded(resamples, min(len(baseline), len(new)), len(baseline) + len(new) - 2, alpha)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values of several metrics: below alpha means changed, and one false alarm in all at most
    with that probability."""
    adjusted: dict[str, float] = {}
    highest = 0.0
    ordered = sorted(p_values, key=lambda name: p_values[name])
    for rank, name in enumerate(ordered):
        highest = max(highest, min(1.0, (len(ordered) - rank) * p_values[name]))
        adjusted[name] = highest
    return adjusted


@dataclass(frozen=True)
class Drift:
    """Where a series left its level: positions of the point that raised the alarm and of the first shifted one."""

    alarm: int
    since: int
    change: float  # mean of the points since then minus the mean of those before, in their unit


def cusum(values: Sequence[float], slack: float = CUSUM_SLACK, limit: float = CUSUM_LIMIT) -> Drift | None:
    """The first drift in a series of starts under one and the same state; None when there is none.

    Two-sided and self-starting (Hawkins): each value is compared with the mean and deviation of those before it and its
    t quantile made normal, so that no level has to be known beforehand and few values raise no false alarm. The caller
    begins a new series where the state changed.
    """
    up = down = 0.0
    up_since = down_since = 2
    for position in range(2, len(values)):
        before = values[:position]
        sd = stats.sample_sd(before)
        if sd <= 0:
            continue
        t = (values[position] - stats.mean(before)) / (sd * math.sqrt(1.0 + 1.0 / position))
        # Beyond 8 deviations the normal quantile has no digits left, and nothing depends on them.
        z = NormalDist().inv_cdf(min(max(stats.t_cdf(t, position - 1), 1e-15), 1.0 - 1e-15))
        if up == 0.0:
            up_since = position
        if down == 0.0:
            down_since = position
        up, down = max(0.0, up + z - slack), max(0.0, down - z - slack)
        if max(up, down) > limit:
            since = up_since if up > down else down_since
            return Drift(position, since, stats.mean(values[since : position + 1]) - stats.mean(values[:since]))
    return None
