# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The client's own error on this host, now: a run against the deterministic server at the same concurrencies.

The server is a child of this process and ends with it, however that ends. Both clocks are CLOCK_MONOTONIC, so that what
the server really sent and what the client says of it can be compared request by request.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import load, stats
from . import workload as workloads
from .endpoint import Endpoint
from .engines import get_engine
from .http_client import Client
from .known_server import Server, Settings
from .prompt_source import PromptSource
from .self_check import new_loop, run_in_loop

TTFT_S, STEP_S, TOKENS = 0.1, 0.01, 64

#: Errors (as shares) above which the client may not measure a baseline.
LIMITS = {"ttft_error": 0.1, "tpot_error": 0.01, "output_error": 0.02}


@contextmanager
def server(settings: Settings) -> Iterator[str]:
    """The deterministic server as a process of its own; its URL.

    It is forked, not started anew: a module that Ansible runs has no file that a second interpreter could import. Call
    it before any thread exists. The pipe tells the child that we are gone, even when we were killed.
    """
    told, tell = os.pipe()
    watched, watch = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.close(watch)
        try:
            _serve(settings, tell, watched)
        finally:
            os._exit(0)
    os.close(tell)
    os.close(watched)
    try:
        with os.fdopen(told, "rb") as source:
            port = source.readline().strip()
        if not port.isdigit():
            raise load.LoadError("calibrate: the deterministic server did not start on this host")
        yield f"http://127.0.0.1:{int(port)}"
    finally:
        os.close(watch)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _serve(settings: Settings, tell: int, watched: int) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
    loop, _name = new_loop()
    asyncio.set_event_loop(loop)
    loop.add_reader(watched, os._exit, 0)
    port = loop.run_until_complete(Server(settings).listen())
    os.write(tell, b"%d\n" % port)
    os.close(tell)
    loop.run_forever()


def _share(told: float | None, true: float) -> float | None:
    return None if told is None or true <= 0 else told / true - 1.0


def compare(run: load.Run, truths: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each level: the client's figures against the truth, as shares (0.01: 1 % too much)."""
    found = []
    for level in run.levels:
        samples = [one for repeat in run.repeats if repeat.concurrency == level.concurrency for one in repeat.samples]
        true = [one for one in truths if level.began <= one["received_at"] <= level.ended and one["complete"]]
        good = [one for one in samples if one.ok]
        if not good or len(true) != len(samples):
            raise load.LoadError(
                f"calibrate: {len(good)} of {len(samples)} requests to the deterministic server on this host were "
                f"answered, it saw {len(true)}"
            )
        span = max(one["last_at"] for one in true) - min(one["received_at"] for one in true)
        own_span = max(one.last_token_at for one in good) - min(one.sent_at for one in samples)
        tokens = sum(one["tokens"] for one in true)
        found.append(
            {
                "concurrency": level.concurrency,
                "requests": len(samples),
                "ttft_error": _share(
                    stats.mean([one.ttft_s or 0.0 for one in good]),
                    stats.mean([one["first_at"] - one["received_at"] for one in true]),
                ),
                "tpot_error": _share(
                    stats.mean([one.tpot_s or 0.0 for one in good]),
                    stats.mean([(one["last_at"] - one["first_at"]) / (one["tokens"] - 1) for one in true]),
                ),
                "output_error": _share(sum(one.tokens or 0 for one in good) / own_span, tokens / span),
            }
        )
    return found


def problems(levels: list[dict[str, Any]]) -> list[str]:
    """Why a client with these errors may not measure a baseline; [] when it may."""
    return [
        f"calibration: {name.replace('_', ' ')} of {level[name]:+.1%} at concurrency {level['concurrency']}"
        for level in levels
        for name, limit in LIMITS.items()
        if level[name] is not None and abs(level[name]) > limit
    ]


def calibrate(concurrency: list[int], settings: Settings | None = None) -> dict[str, Any]:
    """Measure the deterministic server at each concurrency. Raises LoadError when even that fails."""
    settings = settings or Settings(ttft=TTFT_S, step=STEP_S)
    wanted = workloads.resolve(
        {
            "concurrency": concurrency,
            "output_tokens": TOKENS,
            "repeats": 1,
            "requests": 2,
            "warmup_requests": 1,
            "warmup_cap_s": 0.0,
        }
    )

    async def work(url: str) -> tuple[load.Run, list[dict[str, Any]]]:
        client = Client(url)
        try:
            target = Endpoint(client, get_engine("generic"), settings.model, wanted)
            chosen = await PromptSource(target, wanted, "calibration").choose()
            run = await load.Runner(target, wanted, chosen, load.Progress()).run()
            reply = await client.request("GET", "/mock/truth")
            return run, json.loads(reply.body)["requests"]
        finally:
            await client.close()

    with server(settings) as url:
        (run, truths), _interpreter = run_in_loop(lambda: work(url))
    return {
        "ttft_s": settings.ttft,
        "step_s": settings.step,
        "tokens": TOKENS,
        "loop_lag_p99_s": run.client["loop_lag_p99_s"],
        "cpu_share": run.client["cpu_share"],
        "levels": compare(run, truths),
    }
