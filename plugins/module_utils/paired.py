# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Arms that were started in turn, block by block: their difference, and how the machine drifted meanwhile.

Values are logs of rates, so that differences are shares. A block holds one start of each arm, one soon after the other:
what makes a machine faster or slower for hours moves both and leaves their difference alone. The unit of statistics is
the block, so the interval is Student's t over the differences of the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from . import stats

POWER = 0.8


@dataclass(frozen=True)
class Pair:
    """An arm minus the reference, over ``blocks`` blocks, at confidence 1 - alpha.

    ``low``, ``high``, ``sd`` (of the differences of single blocks) and ``mde`` are None below two blocks.
    """

    value: float
    low: float | None
    high: float | None
    sd: float | None
    blocks: int
    mde: float | None


def pair(differences: Sequence[float], alpha: float) -> Pair:
    """The mean of the blocks' differences and its interval, mean ± t(1 - alpha/2, n-1) · s/√n.

    Raises ValueError for no blocks, or when alpha is no probability.
    """
    found = stats.mean_interval(differences, 1.0 - alpha)
    if found.mean is None:
        raise ValueError("no block has a start of both arms")
    mde = None if found.sd is None else minimal_effect(found.sd, found.n, alpha)
    return Pair(found.mean, found.low, found.high, found.sd, found.n, mde)


def minimal_effect(sd: float, blocks: int, alpha: float) -> float:
    """The true difference that ``blocks`` (two at least) blocks find with probability 80 %, at this alpha."""
    df = blocks - 1
    return (stats.t_quantile(1.0 - alpha / 2.0, df) + stats.t_quantile(POWER, df)) * sd / math.sqrt(blocks)


def half_width(sd: float, blocks: int, alpha: float) -> float:
    """Half of the interval that as many blocks (two at least) of this deviation give."""
    return stats.t_quantile(1.0 - alpha / 2.0, blocks - 1) * sd / math.sqrt(blocks)


@dataclass(frozen=True)
class Drift:
    """Change of the log rate from one start to the next, whatever the arm, with its interval and p-value."""

    value: float
    low: float
    high: float
    p: float


def drift(starts: Sequence[tuple[str, float, float]], alpha: float = 0.05) -> Drift | None:
    """The linear drift over starts of (arm, position in the run, log rate), each arm with a level of its own.

    Least squares of the log rate on arm and position: both are centred within each arm, which leaves the slope as it
    is (Frisch-Waugh-Lovell). None while there are too few starts to tell: it takes one more than arms and slope.
    """
    arms = sorted({arm for arm, _place, _value in starts})
    df = len(starts) - len(arms) - 1
    if df < 1:
        return None
    centred = []
    for arm in arms:
        own = [(place, value) for name, place, value in starts if name == arm]
        middle, level = (stats.mean(column) for column in zip(*own))
        centred += [(place - middle, value - level) for place, value in own]
    along = math.fsum(place * place for place, _value in centred)
    if along <= 0.0:
        return None
    slope = math.fsum(place * value for place, value in centred) / along
    rest = math.fsum((value - slope * place) ** 2 for place, value in centred)
    error = math.sqrt(rest / df / along)
    half = stats.t_quantile(1.0 - alpha / 2.0, df) * error
    surely = 1.0 if slope == 0 else 0.0
    p = 2.0 * stats.t_cdf(-abs(slope) / error, df) if error > 0 else surely
    return Drift(slope, slope - half, slope + half, p)
