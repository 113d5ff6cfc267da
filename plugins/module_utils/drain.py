# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Waiting until the memory of GPUs is back at the idle level of this host.

The idle level is not 0 everywhere (older drivers count their own memory as used, a display server has some), so it is
recorded at the first clean state and compared with from then on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable

from . import files
from .nvidia import MIB

SCHEMA = 1
EQUAL_SAMPLES = 3
#: More than this is never taken for an idle level: somebody whom we do not see uses the GPU.
IDLE_MAX = 1024 * MIB
_FIRST_PAUSE_S = 0.25
_LAST_PAUSE_S = 2.0

Memory = Mapping[str, "int | None"]  # uuid -> bytes in use


def _path(home: str) -> str:
    return os.path.join(home, "cache", "gpu_idle.json")


def load_idle(home: str) -> dict[str, int]:
    """Recorded idle levels, uuid -> bytes; {} when none were recorded. Raises ValueError for a damaged file."""
    raw = files.read_json(_path(home))
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        return {}
    return {uuid: used for uuid, used in raw.get("gpus", {}).items() if isinstance(used, int)}


def record_idle(home: str, levels: Memory) -> dict[str, int]:
    """Record the levels of GPUs that have none yet and return what was added. Raises OSError."""
    known = load_idle(home)
    added = {uuid: used for uuid, used in levels.items() if uuid not in known and used is not None and used <= IDLE_MAX}
    if added:
        files.write_json(_path(home), {"schema": SCHEMA, "gpus": {**known, **added}})
    return added


@dataclass(frozen=True)
class Drained:
    """The end of a wait."""

    levels: dict[str, int | None]  # the last sample, uuid -> bytes
    over: dict[str, int]  # GPUs that stayed above their limit -> that limit
    unknown: list[str]  # GPUs whose memory the driver does not tell
    waited_s: float


def drain(
    limits: Mapping[str, int],
    read: Callable[[], Memory],
    timeout_s: float,
    settle: bool = True,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    give_up: Callable[[], bool] = lambda: False,
) -> Drained:
    """Wait until every GPU (uuid -> bytes allowed) is at or below its limit in three equal samples in a row.

    ``settle=False``: nothing was ended, one sample below the limits is enough. ``give_up`` is asked after each sample
    that is not good; where it says so, waiting longer is of no use. Raises what ``read`` raises.
    """
    started = clock()
    pause = _FIRST_PAUSE_S
    equal = 0
    before: dict[str, int | None] | None = None
    while True:
        sample = read()
        now = {uuid: sample.get(uuid) for uuid in limits}
        over = {uuid: limits[uuid] for uuid, used in now.items() if used is not None and used > limits[uuid]}
        unknown = sorted(uuid for uuid, used in now.items() if used is None)
        equal = equal + 1 if now == before else 1
        before = now
        waited = clock() - started
        if not over and (not settle or equal >= EQUAL_SAMPLES):
            return Drained(now, {}, unknown, waited)
        if waited >= timeout_s or (over and give_up()):
            # Below the limits but still moving is below the limits.
            return Drained(now, over, unknown, waited)
        sleep(min(pause, max(0.0, timeout_s - waited)))
        pause = min(pause * 1.3, _LAST_PAUSE_S)
