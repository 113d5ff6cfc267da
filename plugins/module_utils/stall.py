# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Does a starting server still do anything: log lines, processor time, bytes read, memory of its GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from . import nvidia, procfs

#: Between two samples, in seconds.
GAP_S = 2.0
#: Idle engines poll: below this share of one core they do nothing. A hang in NCCL may spin; that is for time limits.
CPU_SHARE = 0.05
#: Bytes between two samples that are more than the small talk between processes.
READ_BYTES = 1024 * 1024
#: The driver is asked only when all else has been quiet for this share of the patience.
ASK_GPU_AT = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Activity:
    """Of a process tree, since it began: processor time in seconds, bytes from disks, bytes read in any way.

    The byte counts are None where they may not be read (processes of another user).
    """

    cpu_s: float = 0.0
    disk_bytes: int | None = None
    read_bytes: int | None = None


def measure(tree: Iterable[procfs.Process], proc: str = procfs.PROC) -> Activity:
    """The sum over a tree, with what its ended children had."""
    cpu, disk, read, known = 0.0, 0, 0, False
    for item in tree:
        cpu += _cpu_s(item.pid, proc)
        counts = _io(item.pid, proc)
        if counts:
            known = True
            disk += counts.get("read_bytes", 0)
            read += counts.get("rchar", 0)
    return Activity(cpu, disk if known else None, read if known else None)


def _cpu_s(pid: int, proc: str) -> float:
    try:
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as source:
            fields = source.read().rpartition(")")[2].split()
        # utime, stime and those of children that were waited for.
        return sum(int(one) for one in fields[11:15]) / _TICKS
    except (OSError, ValueError):
        return 0.0


def _io(pid: int, proc: str) -> dict[str, int]:
    try:
        with open(f"{proc}/{pid}/io", encoding="ascii", errors="replace") as source:
            pairs = [line.split(":", 1) for line in source if ":" in line]
        return {name: int(value) for name, value in pairs}
    except (OSError, ValueError):
        return {}


class Watch:
    """How long nothing has happened. Times are seconds since the launch; ``active_s``: when something last did."""

    def __init__(self, patience_s: float, active_s: float, gpu_memory: Callable[[], object] | None = None) -> None:
        self.patience_s = patience_s
        self.active_s = active_s
        self._gpu_memory = gpu_memory
        self._gpu_seen: object = None
        self._last: tuple[float, Activity, int] | None = None

    def due(self, now_s: float) -> bool:
        return self._last is None or now_s - self._last[0] >= GAP_S

    def look(self, now_s: float, activity: Activity, log_size: int) -> None:
        """Take a sample."""
        before, self._last = self._last, (now_s, activity, log_size)
        if before is not None and self._did_something(before, now_s, activity, log_size):
            self.active_s = now_s
            self._gpu_seen = None
        elif self._gpu_memory and self.quiet_s(now_s) > self.patience_s * ASK_GPU_AT:
            seen = self._gpu_memory()
            if self._gpu_seen is not None and seen is not None and seen != self._gpu_seen:
                self.active_s = now_s
            self._gpu_seen = seen

    def quiet_s(self, now_s: float) -> float:
        return max(0.0, now_s - self.active_s)

    def stalled(self, now_s: float) -> bool:
        return self.patience_s > 0 and self.quiet_s(now_s) >= self.patience_s

    @staticmethod
    def _did_something(before: tuple[float, Activity, int], now_s: float, activity: Activity, log_size: int) -> bool:
        then_s, was, size = before
        cpu = activity.cpu_s - was.cpu_s
        # Less than before: a process has ended and was not waited for. That is an event, too.
        return (
            log_size != size
            or cpu < 0
            or cpu > CPU_SHARE * max(now_s - then_s, 0.1)
            or _grew(activity.disk_bytes, was.disk_bytes)
            or _grew(activity.read_bytes, was.read_bytes)
        )


def _grew(now: int | None, was: int | None) -> bool:
    return now is not None and was is not None and abs(now - was) >= READ_BYTES


def gpu_memory() -> object:
    """Memory in use of every GPU, to be compared; None when the driver does not answer."""
    try:
        return nvidia.memory_used(timeout_s=10.0)
    except OSError:
        return None


def sleepers(tree: Iterable[procfs.Process], proc: str = procfs.PROC) -> list[str]:
    """What the processes that cannot be interrupted wait for: a disk, a network file system, the driver."""
    return [
        f"process {item.pid} ({item.cmdline[:60]}) waits in the kernel ({procfs.wchan(item.pid, proc) or '?'})"
        for item in tree
        if item.state == "D"
    ]
