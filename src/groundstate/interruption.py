"""Ctrl-C during a playbook: end it in order, by force only when it does not go."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C
PATIENCE_S = 30.0


def children() -> list[int]:
    """The processes that the main thread of this one started; none where the kernel does not tell."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


class Interruption:
    """A `cancel_callback` for ansible-runner.

    Left to itself ansible-runner kills ansible-playbook, whose tasks then go on without it. Interrupted,
    ansible-playbook ends them first; so that is what it gets, and the kill only after `PATIENCE_S` or at the second
    Ctrl-C.
    """

    def __init__(self, say: Callable[[str], None] = lambda _text: None) -> None:
        self.count = 0
        self._say = say
        self._passed_on_at: float | None = None

    def install(self) -> None:
        """Take SIGINT, SIGTERM and SIGHUP (the terminal was closed) from here on."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def __call__(self) -> bool:
        """True when ansible-runner shall kill what it started."""
        if self.count == 0:
            return False
        if self._passed_on_at is None:
            self._passed_on_at = time.monotonic()
            for pid in children():
                os.kill(pid, signal.SIGINT)
            self._say("interrupted: ending what runs, in order (once more: by force)")
        return self.count > 1 or time.monotonic() - self._passed_on_at > PATIENCE_S
