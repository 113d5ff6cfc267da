# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which of several that should be alike is not: robust z-scores, that the ones apart do not widen."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from ..module_utils import stats

Z_LIMIT = 3.5  # Iglewicz and Hoaglin's limit
ENOUGH = 4  # of three, the median absolute deviation is only the smaller of two gaps
# Of a normal distribution: the deviation that the middle half has, and the mean absolute one, as standard deviations.
_FROM_MEDIAN = 1.4826
_FROM_MEAN = 1.2533


def robust_z(values: Mapping[str, float]) -> dict[str, float]:
    """Name -> how many robust standard deviations its value lies from the median.

    By the median absolute deviation; where that is 0 (half of them are equal) by the mean one. {} for fewer than
    :data:`ENOUGH`, or when all are equal.
    """
    if len(values) < ENOUGH:
        return {}
    middle = statistics.median(values.values())
    gaps = [abs(value - middle) for value in values.values()]
    spread = _FROM_MEDIAN * statistics.median(gaps) or _FROM_MEAN * stats.mean(gaps)
    return {name: (value - middle) / spread for name, value in values.items()} if spread else {}


def outliers(values: Mapping[str, float], tolerance: float) -> dict[str, float]:
    """Name -> z of those that are apart: beyond :data:`Z_LIMIT`, and by more than a share that matters."""
    middle = statistics.median(values.values()) if values else 0.0
    return {
        name: z
        for name, z in robust_z(values).items()
        if abs(z) > Z_LIMIT and abs(values[name] - middle) > tolerance * abs(middle)
    }
