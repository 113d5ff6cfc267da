# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""End processes: exactly the given ones, identified by pid and start time, politely first."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Callable

from . import procfs
from .procfs import Process

#: How often is looked for processes whose parent is gone: what ends with its parent has this long for it.
FOLLOW_S = 1.5


@dataclass
class Ended:
    """What became of one process that was to be ended."""

    pid: int
    start: int
    cmdline: str
    how: str  # "exited on TERM", "killed", "exited with its parent", "was gone", "left: ..."
    zombie_of: int | None = None  # the parent that has not taken note of its end yet

    @property
    def gone(self) -> bool:
        return not self.how.startswith("left")

    def as_dict(self) -> dict:
        return {**asdict(self), "gone": self.gone}


def send(item: Process, number: int, proc: str = procfs.PROC) -> bool:
    """Signal this very process; False when it is gone or another has its number.

    With a pidfd (Linux 5.3+, Python 3.9+) the number cannot be reused between the check and the signal.
    Raises PermissionError when it is not ours to signal.
    """
    try:
        handle = os.pidfd_open(item.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        handle = -1
    try:
        if not procfs.alive(item.pid, item.start, proc):
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(item.pid, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)


def wait_gone(items: list[Process], timeout_s: float, proc: str = procfs.PROC) -> list[Process]:
    """Wait until none of them runs; returns those that still do. Zombies count as gone: only a parent can reap them."""
    deadline = time.monotonic() + timeout_s
    pause = 0.01
    left = items
    while True:
        left = [item for item in left if procfs.alive(item.pid, item.start, proc)]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 1.5, 0.25)


def _without_parent(items: list[Process]) -> list[Process]:
    """Those of them whose parent is none of them: the roots of what is left of the trees."""
    numbers = {item.pid for item in items}
    return [item for item in items if item.ppid not in numbers]


def end(
    roots: list[Process],
    members: list[Process],
    grace_s: float,
    progress: Callable[[str], None] | None = None,
    proc: str = procfs.PROC,
) -> list[Ended]:
    """End process trees: TERM to the roots, ``grace_s`` seconds, then KILL to what is left, children first.

    A child that outlives its parent (a launcher that TERM ends before it can take its workers along) becomes a root:
    nobody else would tell it, and the whole grace would be waited for. It has had FOLLOW_S to end by itself.

    ``members`` are all processes of the trees (roots included), parents before children. Descendants that
    appear while we wait are *not* added: the caller looks again afterwards. Raises nothing for a process that
    cannot be signalled; it is reported as ``left``.
    """
    say = progress or (lambda text: None)
    result = {item.pid: Ended(item.pid, item.start, item.cmdline, "was gone") for item in members}
    running = {item.pid for item in members if procfs.alive(item.pid, item.start, proc)}
    denied: set[int] = set()

    def signal_one(item: Process, number: int) -> None:
        try:
            if not send(item, number, proc):
                return
        except PermissionError:
            denied.add(item.pid)
            result[item.pid].how = "left: not permitted to signal it (run as its user or as root)"
            return
        result[item.pid].how = "exited on TERM" if number == signal.SIGTERM else "killed"

    def term(items: list[Process]) -> None:
        for item in items:
            say(f"TERM to {item.pid}")
            signal_one(item, signal.SIGTERM)

    deadline = time.monotonic() + grace_s
    term(roots)
    for item in members:
        # A stopped process takes no TERM before it goes on.
        now = procfs.process(item.pid, proc)
        if now and now.state == "T" and item.pid not in denied:
            with suppress(PermissionError):
                send(item, signal.SIGCONT, proc)
    waiting = [item for item in members if item.pid not in denied]
    left = wait_gone(waiting, min(FOLLOW_S, grace_s), proc)
    told = {item.pid for item in roots}
    before: set[int] = set()  # those that were on their own at the last look
    while left and time.monotonic() < deadline:
        alone = _without_parent(left)
        term([item for item in alone if item.pid in before and item.pid not in told])
        told |= before
        before = {item.pid for item in alone}
        left = wait_gone(left, min(FOLLOW_S, max(0.0, deadline - time.monotonic())), proc)
    for item in waiting:
        if item not in left and item.pid in running and result[item.pid].how == "was gone":
            result[item.pid].how = "exited with its parent"
    for item in reversed(left):
        say(f"KILL to {item.pid}")
        signal_one(item, signal.SIGKILL)
    for item in wait_gone([one for one in left if one.pid not in denied], 10.0, proc):
        now = procfs.process(item.pid, proc)
        state = now.state if now else "?"
        result[item.pid].how = f"left: still in state {state} 10 s after KILL"
    for item in members:
        now = procfs.process(item.pid, proc)
        if now and now.start == item.start and now.zombie:
            result[item.pid].zombie_of = now.ppid
    return list(result.values())
