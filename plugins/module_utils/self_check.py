# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The client watches itself: its event loop, its CPU, and whether it, not the server, was what was measured."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Coroutine, Iterable
from typing import Any, Callable

from . import stats
from .endpoint import Sample
from .http_client import Client
from .wire import now

LAG_INTERVAL_S = 0.02

#: Above these the client, not the server, may have been what was measured.
LIMIT_CPU_SHARE = 0.8
LIMIT_LAG_TTFT = 0.1  # of the median time to first token
LIMIT_LAG_DECODE = 0.01  # of the median time from first to last token
LIMIT_LAG_REQUEST = 0.05  # of the median time of a request: so much later may a stream send its next one
LIMIT_LATE_TTFT = 0.1  # of the median time to first token, once chunks come faster than they are read
LIMIT_LAG_FLOOR_S = 0.005


class ClientWatch:
    """What the client itself costs while requests are in flight; may be entered many times.

    ``lags``: how late the event loop wakes a task that asked for it.
    """

    def __init__(self) -> None:
        self.lags: list[float] = []
        self.cpu_s = self.wall_s = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def cpu_share(self) -> float:
        """CPU seconds of this process (sampling included) a second."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0

    async def _watch(self) -> None:
        while True:
            due = now() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self.lags.append(max(0.0, now() - due))

    def __enter__(self) -> ClientWatch:
        self.cpu_s -= time.process_time()
        self.wall_s -= now()
        self._task = asyncio.get_running_loop().create_task(self._watch())
        return self

    def __exit__(self, *_unused: object) -> None:
        self.cpu_s += time.process_time()
        self.wall_s += now()
        if self._task is not None:
            self._task.cancel()


def self_check(
    lags: Iterable[float], cpu_share: float, samples: list[Sample], stamped: bool = False, late_s: float = 0.0
) -> dict[str, Any]:
    """Whether the client may have been the limit, and why.

    ``stamped``: the times of arrival are the kernel's, so that a late reader falsifies no latency, unless it is so late
    (``late_s``, the 99th percentile) that the first chunks are read at once and share a stamp; and it can send the next
    request of a stream late. Without, its lateness is an error of every figure.
    """
    p99 = stats.percentile(lags, 99) or 0.0
    told = f"event loop lag p99 {p99 * 1e3:.1f} ms"
    why = []
    if cpu_share > LIMIT_CPU_SHARE:
        why.append(f"the client used {cpu_share:.0%} of a core")
    if p99 > LIMIT_LAG_FLOOR_S:
        whole = _median(one.e2e_s for one in samples)
        ttft = _median(one.ttft_s for one in samples)
        decode = None if whole is None or ttft is None else whole - ttft
        if stamped:
            if whole and p99 > LIMIT_LAG_REQUEST * whole:
                why.append(f"{told} against requests of {whole * 1e3:.1f} ms: the next ones were sent late")
            gap = _median(gap for one in samples for gap in one.gaps)
            if ttft and gap is not None and late_s > max(gap, LIMIT_LATE_TTFT * ttft):
                why.append(f"bytes were read {late_s * 1e3:.1f} ms late (p99), with {gap * 1e3:.1f} ms between chunks")
        else:
            if ttft is not None and p99 > LIMIT_LAG_TTFT * ttft:
                why.append(f"{told} against a time to first token of {ttft * 1e3:.1f} ms")
            if decode is not None and p99 > LIMIT_LAG_DECODE * decode:
                why.append(f"{told} against {decode * 1e3:.1f} ms of decoding")
    return {"loop_lag_p99_s": p99, "cpu_share": cpu_share, "limited": bool(why), "why": why}


def _median(values: Iterable[float | None]) -> float | None:
    return stats.percentile([value for value in values if value is not None], 50)


def report(watch: ClientWatch, client: Client, samples: list[Sample]) -> dict[str, Any]:
    """The self-check of a run, and how its time stamps came about."""
    late = stats.percentile(client.lates, 99) or 0.0
    return {
        **self_check(watch.lags, watch.cpu_share, samples, client.stamped, late),
        "time_stamps": "kernel" if client.stamped else "reader",
        "read_late_p99_s": late,
    }


def new_loop() -> tuple[asyncio.AbstractEventLoop, str]:
    """An event loop and its name: uvloop's where it is installed (it costs less CPU), else asyncio's."""
    try:
        # Optional, so mypy may or may not find it.
        import uvloop  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return asyncio.new_event_loop(), "asyncio"
    return uvloop.new_event_loop(), "uvloop"


def run_in_loop(make: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[Any, dict[str, str]]:
    """Run a coroutine to its end in a fresh loop; its result and what ran it."""
    loop, name = new_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(make()), {"loop": name, "python": platform.python_version()}
    finally:
        asyncio.set_event_loop(None)
        loop.close()
