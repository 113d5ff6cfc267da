# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Small-sample statistics with the standard library only: t quantiles, intervals, percentiles, detectable effect.

The samples here are few (starts, repeats), so everything rests on Student's t, not on the normal distribution.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function (modified Lentz); converges for x < (a+1)/(a+b+2)."""
    tiny = 1e-300
    c = 1.0
    d = 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 1000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            result *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return result


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), for a, b > 0 and 0 <= x <= 1."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def t_cdf(t: float, df: float) -> float:
    """Probability that Student's t with ``df`` degrees of freedom (> 0, may be a fraction) is at most ``t``."""
    if df <= 0:
        raise ValueError(f"degrees of freedom must be above 0, not {df}")
    # The half of the tail is taken from whichever argument keeps its digits: near t = 0 that is t²/(df+t²).
    square = t * t
    if square < df:
        half = 0.5 * (1.0 - incomplete_beta(0.5, df / 2.0, square / (df + square)))
    else:
        half = 0.5 * incomplete_beta(df / 2.0, 0.5, df / (df + square))
    return half if t < 0 else 1.0 - half


@functools.lru_cache(maxsize=256)
def t_quantile(p: float, df: float) -> float:
    """The value that Student's t with ``df`` degrees of freedom stays below with probability ``p``.

    Found by bisection of :func:`t_cdf`: right everywhere, but some 50 evaluations, hence the cache. Raises ValueError
    unless 0 < p < 1 and df > 0.
    """
    if not 0.0 < p < 1.0:
        raise ValueError(f"a probability must lie between 0 and 1, not {p}")
    if df <= 0:
        raise ValueError(f"degrees of freedom must be above 0, not {df}")
    if p == 0.5:
        return 0.0
    if p > 0.5:
        return -t_quantile(1.0 - p, df)
    low = -1.0
    while t_cdf(low, df) > p:
        low *= 2.0
    high = 0.0
    while high - low > 1e-13 * max(1.0, abs(low)):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if t_cdf(middle, df) < p:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


@dataclass(frozen=True)
class Interval:
    """A mean with its interval. ``low``, ``high`` and ``sd`` are None where n is too small to know them."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    sd: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else 0.5 * (self.high - self.low)


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; raises ValueError for no values."""
    if not values:
        raise ValueError("the mean of no values is not defined")
    return math.fsum(values) / len(values)


def sample_sd(values: Sequence[float]) -> float:
    """Sample standard deviation (divisor n - 1); raises ValueError for fewer than two values."""
    if len(values) < 2:
        raise ValueError("a standard deviation needs at least two values")
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def _check_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence must lie between 0 and 1, not {confidence}")


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of the values with its t interval: mean ± t·sd/√n.

    With one value the bounds and the deviation are None, with none the mean is None too.
    """
    _check_confidence(confidence)
    values = list(values)
    n = len(values)
    if n == 0:
        return Interval(None, None, None, 0, None)
    middle = mean(values)
    if n == 1:
        return Interval(middle, None, None, 1, None)
    sd = sample_sd(values)
    half = t_quantile(0.5 + confidence / 2.0, n - 1) * sd / math.sqrt(n)
    return Interval(middle, middle - half, middle + half, n, sd)


def prediction_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Where one *new* value of the same kind falls: mean ± t·sd·√(1 + 1/n). Bounds are None for n < 2."""
    base = mean_interval(values, confidence)
    if base.mean is None or base.sd is None:
        return base
    half = t_quantile(0.5 + confidence / 2.0, base.n - 1) * base.sd * math.sqrt(1.0 + 1.0 / base.n)
    return Interval(base.mean, base.mean - half, base.mean + half, base.n, base.sd)


def mde(sd: float, n: int, k: int | None = None, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """Minimal detectable effect between a group of n and one of k (default: n as well), in the unit of ``sd``.

    (t[1-alpha/2, n+k-2] + t[power, n+k-2]) · sd · √(1/n + 1/k): the true difference that a two-sided test at ``alpha``
    finds with probability ``power``. None below three values in all (nothing is known of the spread then).
    """
    k = n if k is None else k
    df = n + k - 2
    if n < 1 or k < 1 or df < 1:
        return None
    return (t_quantile(1.0 - alpha / 2.0, df) + t_quantile(power, df)) * sd * math.sqrt(1.0 / n + 1.0 / k)


def percentile(values: Iterable[float], q: float) -> float | None:
    """The q-th percentile (0..100), linear between neighbours (as numpy's default); None for no values."""
    if not 0.0 <= q <= 100.0:
        raise ValueError(f"a percentile lies between 0 and 100, not {q}")
    ordered = sorted(values)
    if not ordered:
        return None
    place = (len(ordered) - 1) * q / 100.0
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def log_rates(rates: Iterable[float]) -> list[float]:
    """y = ln(rate): differences of y are relative changes. Raises ValueError for a rate that is not above 0."""
    found = []
    for rate in rates:
        if not rate > 0 or math.isinf(rate):
            raise ValueError(f"a rate must be a number above 0, not {rate}")
        found.append(math.log(rate))
    return found


def relative_change(old: float, new: float) -> float:
    """Change of a rate on the log scale, as a fraction: ln(new/old). -0.073 is about 7 % slower."""
    first, second = log_rates([old, new])
    return second - first


def as_fraction(log_difference: float) -> float:
    """A difference of logs as the fraction a person expects: exp(d) - 1."""
    return math.expm1(log_difference)
