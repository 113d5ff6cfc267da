# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which hosts of a group that should be alike are not, by robust z-scores, and what differs on them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any

from ..module_utils import stats
from ..module_utils.fingerprint import under_load
from ..module_utils.fingerprint.explain import explain

Record = dict[str, Any]

#: Hosts whose robust z is beyond this are outliers (Iglewicz and Hoaglin, 1993).
Z_LIMIT = 3.5
#: With three hosts the MAD is only the smaller of two gaps.
ENOUGH_HOSTS = 4
_MAD_SCALE = 0.6745  # of a normal distribution: MAD / standard deviation
_MEAN_SCALE = 1.253314  # standard deviation / mean absolute deviation


def robust_z(values: Mapping[str, float]) -> dict[str, float]:
    """Host -> robust z of its value: distance from the median in standard deviations that outliers do not move.

    By the median absolute deviation; where that is 0 (half of them are equal) by the mean one. {} for fewer than
    :data:`ENOUGH_HOSTS` or when all are equal.
    """
    if len(values) < ENOUGH_HOSTS:
        return {}
    middle = statistics.median(values.values())
    gaps = [abs(value - middle) for value in values.values()]
    spread = statistics.median(gaps) / _MAD_SCALE or stats.mean(gaps) * _MEAN_SCALE
    return {host: (value - middle) / spread for host, value in values.items()} if spread else {}


def outliers(values: Mapping[str, float], tolerance: float) -> dict[str, tuple[float, float]]:
    """Host -> (z, share above the median) of those unlike their group: beyond :data:`Z_LIMIT` and the tolerance.

    A group that is alike within 0.1 % has outliers that nobody needs to know of: hence the tolerance.
    """
    middle = statistics.median(values.values()) if values else 0.0
    found = {}
    for host, z in robust_z(values).items():
        share = values[host] / middle - 1 if middle else 0.0
        if abs(z) > Z_LIMIT and abs(share) > tolerance:
            found[host] = (z, share)
    return found


def median_host(values: Mapping[str, float]) -> str:
    """The host whose value is the (lower) median."""
    return sorted(values, key=lambda host: (values[host], host))[(len(values) - 1) // 2]


# Of two hosts these always differ, and explain nothing.
_OWN_GPU = ("uuid",)
_OWN_CONDITIONS = ("uptime_s", "container_uptime_s")


def _comparable(record: Record) -> dict[str, Any]:
    """The fingerprint of a host without what is its own."""
    taken = record["fingerprints"].get("before") or {}
    sections = dict(taken.get("sections") or {})
    hardware = dict(sections.get("hardware") or {})
    if hardware.get("gpus"):
        hardware["gpus"] = [{k: v for k, v in one.items() if k not in _OWN_GPU} for one in hardware["gpus"]]
        sections["hardware"] = hardware
    conditions = {k: v for k, v in (taken.get("conditions") or {}).items() if k not in _OWN_CONDITIONS}
    return {**taken, "sections": sections, "conditions": conditions}


def unlike(usual: Record, host: Record) -> list[str]:
    """What differs between the fingerprint of a group's median host and that of another, likeliest first."""
    loads = [under_load.summary(one["measurement"], one["fingerprints"]) for one in (usual, host)]
    return [_instead(text) for text in explain(_comparable(usual), _comparable(host), *loads)]


def _instead(text: str) -> str:
    """ "X: 16 -> 8" as "X: 8 instead of 16": nothing changed here, two hosts differ."""
    return re.sub(r"^([^:]+): (\S.*?) -> (\S.*)$", r"\1: \3 instead of \2", text)
