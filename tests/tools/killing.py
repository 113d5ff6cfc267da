"""End processes of which some may end by themselves at that moment, because the one before was killed."""

from __future__ import annotations

import contextlib
import os
import signal


def kill_if_there(pid: int) -> None:
    """SIGKILL; that it is gone already is as good."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
