# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs a workload against an endpoint: warm-up, levels, repeats; watches the server and the client itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Callable

from . import prompt_source, repetition, server_metrics, stats
from . import workload as workloads
from .endpoint import Endpoint, Sample
from .http1 import HttpError
from .self_check import ClientWatch, report
from .wire import now

#: So many successive warm-up waves have to agree (within the workload's steady_share) for the server to be steady.
STEADY_WAVES = 3
#: ... and are given up after so many, however quick they are.
WARMUP_WAVES = 60
GUARD_INTERVAL_S = 0.2


class LoadError(Exception):
    """The workload could not be measured; the message says why."""


class ServerGone(LoadError):
    """The server ended while it was measured."""


@dataclass
class Progress:
    """Where a run stands; read by whoever shows it, from another thread."""

    phase: str = "checking"
    done: int = 0
    total: int = 0
    began: float = field(default_factory=time.time)
    phase_began: float = field(default_factory=time.monotonic)
    last_done: float = 0.0

    def enter(self, phase: str, total: int) -> None:
        self.phase, self.done, self.total, self.phase_began = phase, 0, total, time.monotonic()

    def step(self) -> None:
        """One more request is done."""
        self.done += 1
        self.last_done = time.monotonic()

    def as_dict(self) -> dict[str, Any]:
        eta = None
        if 0 < self.done <= self.total:
            each = (self.last_done - self.phase_began) / self.done
            eta = max(0.0, self.phase_began + each * self.total - time.monotonic())
        return {"phase": self.phase, "done": self.done, "total": self.total, "eta_s": eta, "began": self.began}


@dataclass
class Repeat:
    """The samples of one repeat of a level."""

    concurrency: int
    index: int
    samples: list[Sample]


@dataclass
class Level:
    """When a level ran (:func:`time.perf_counter`), how it was warmed up, what the server told of it."""

    concurrency: int
    began: float
    ended: float
    warmup: dict[str, Any]
    metrics: dict[str, Any] | None


@dataclass
class Run:
    """Everything that a run observed; ``measurement.py`` makes the result of it."""

    began: float  # time.perf_counter() at the first measured request
    seconds: float
    repeats: list[Repeat]
    warmup: dict[str, Any]
    client: dict[str, Any]
    prompts: dict[str, Any]
    levels: list[Level]


async def guarded(work: Coroutine[Any, Any, Any], guard: Callable[[], str | None] | None) -> Any:
    """Await ``work``, but end it with ServerGone as soon as ``guard()`` returns a reason (asked 5 times a second)."""
    if guard is None:
        return await work
    task = asyncio.ensure_future(work)
    try:
        while True:
            await asyncio.wait({task}, timeout=GUARD_INTERVAL_S)
            reason = guard()
            if task.done() and not task.cancelled() and task.exception() and not reason:
                # Sockets are closed before their process is gone: a death explains failed requests better than they do.
                for _index in range(5):
                    await asyncio.sleep(GUARD_INTERVAL_S)
                    reason = reason or guard()
            if reason:
                raise ServerGone(reason)
            if task.done():
                return task.result()
    finally:
        if not task.done():
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Runner:
    """One run of a resolved workload with prompts that were chosen for it (:mod:`.prompt_source`)."""

    def __init__(
        self, endpoint: Endpoint, workload: dict[str, Any], chosen: prompt_source.Chosen, progress: Progress
    ) -> None:
        self.endpoint, self.workload, self.chosen, self.progress = endpoint, workload, chosen, progress
        self.tokens: int = workload["output_tokens"]

    async def run(self) -> Run:
        """Warm up and measure every level. Raises LoadError or EndpointError."""
        repeats: list[Repeat] = []
        levels: list[Level] = []
        began, watch = now(), ClientWatch()
        for concurrency in self.workload["concurrency"]:
            # More streams at once than before: shapes and buffers that the server has not used yet.
            warmup = await self._warm_up(concurrency)
            before = await self.endpoint.metrics()
            self.progress.enter("measuring", workloads.level_requests(self.workload, concurrency))
            begin = now()
            began = began if levels else begin
            done = [await self._repeat(concurrency, index, watch) for index in range(self.workload["repeats"])]
            end = now()
            self._check_errors(concurrency, done)
            tokens = sum(one.tokens or 0 for repeat in done for one in repeat.samples)
            told = server_metrics.compare(before, await self.endpoint.metrics(), tokens)
            levels.append(Level(concurrency, begin, end, warmup, told))
            repeats += done
        good = [one for repeat in repeats for one in repeat.samples if one.ok]
        client = report(watch, self.endpoint.client, good)
        return Run(began, now() - began, repeats, levels[0].warmup, client, self.chosen.about, levels)

    # --- requests ----------------------------------------------------------------------------------

    def _body(self, key: tuple[str | int, ...]) -> bytes:
        return self.endpoint.body(self.chosen.prompts.make(*key), self.tokens)

    async def _stream(self, bodies: list[bytes]) -> list[Sample]:
        """One stream: its requests one after the other."""
        samples = []
        for body in bodies:
            samples.append(await self.endpoint.measure(body, self.tokens))
            self.progress.step()
        return samples

    async def _wave(
        self, concurrency: int, keys: list[tuple[str | int, ...]], watch: ClientWatch | None = None
    ) -> list[Sample]:
        """All requests over ``concurrency`` streams that begin together (closed loop)."""
        bodies = [self._body(key) for key in keys]
        try:
            await self.endpoint.client.open(concurrency)
        except HttpError as error:
            raise LoadError(f"{concurrency} connections could not be opened: {error}") from error
        if self.workload["prefix_cache"] == "flush":
            await self.endpoint.flush_cache()
        share = len(bodies) // concurrency
        parts = [bodies[index * share : (index + 1) * share] for index in range(concurrency)]
        with watch or nullcontext():
            done = await asyncio.gather(*(self._stream(part) for part in parts))
        return [sample for part in done for sample in part]

    async def _repeat(self, concurrency: int, index: int, watch: ClientWatch) -> Repeat:
        count = concurrency * self.workload["requests"]
        keys: list[tuple[str | int, ...]] = [("measure", concurrency, index, number) for number in range(count)]
        samples = await self._wave(concurrency, keys, watch)
        for key, sample in zip(keys, samples):  # nothing is in flight now
            sample.repetition = repetition.of_request(self.chosen.prompts.make(*key), sample.text)
            sample.text = ""
        return Repeat(concurrency, index, samples)

    async def _warm_up(self, concurrency: int) -> dict[str, Any]:
        """Waves until three successive ones agree; the first failure ends the run, since it tells what is wrong."""
        wanted, cap_s, share = (self.workload[key] for key in ("warmup_requests", "warmup_cap_s", "steady_share"))
        rates: list[float] = []
        requests = 0
        steady = False
        began = now()
        self.progress.enter("warm-up", wanted)
        while wanted:
            keys: list[tuple[str | int, ...]] = [("warm-up", concurrency, requests, n) for n in range(concurrency)]
            samples = await self._wave(concurrency, keys)
            for sample in samples:
                # One answer may come in one piece by chance (a small model, a busy machine); all of them do not.
                chance = sample.error == "not_streamed" and (rates or requests < (STEADY_WAVES - 1) * concurrency)
                if not sample.ok and not chance:
                    raise LoadError(f"a warm-up request failed ({sample.error}): {sample.message}{hint(sample.error)}")
            requests += concurrency
            told = [one.decode_tok_s for one in samples if one.decode_tok_s]
            rates += [stats.mean(told)] if told else []
            last = rates[-STEADY_WAVES:]
            steady = len(last) == STEADY_WAVES and max(last) - min(last) <= share * stats.mean(last)
            if requests >= wanted and (steady or now() - began >= cap_s or len(rates) >= WARMUP_WAVES):
                break
        return {"requests": requests, "seconds": now() - began, "steady": steady, "decode_tok_s": rates}

    def _check_errors(self, level: int, repeats: list[Repeat]) -> None:
        samples = [one for repeat in repeats for one in repeat.samples]
        failed = [one for one in samples if not one.ok]
        allowed = self.workload["max_error_share"]
        empty = [number for number, repeat in enumerate(repeats, 1) if not any(one.ok for one in repeat.samples)]
        few = len(failed) <= allowed * len(samples)
        if few and not empty:
            return
        kinds = count_errors(failed)
        told = ", ".join(f"{number} x {kind}" for kind, number in kinds.items())
        raise LoadError(
            f"at concurrency {level}, {len(failed)} of {len(samples)} requests failed ({told}), "
            + (f"all of repeat {empty[0]} among them" if few else f"max_error_share allows {allowed:g}")
            + f"; the first: {failed[0].message}{hint(failed[0].error)}"
        )


def count_errors(samples: list[Sample]) -> dict[str, int]:
    """Kind of error -> how many."""
    found: dict[str, int] = {}
    for sample in samples:
        if not sample.ok:
            found[sample.error] = found.get(sample.error, 0) + 1
    return dict(sorted(found.items()))


def hint(kind: str) -> str:
    """What a person can do about a kind of error; begins with "; " or is empty."""
    told = {
        "http_401": "set api_key to the key that the server was started with",
        "http_403": "set api_key to the key that the server was started with",
        "http_404": "check the model's name and that the server has this route (workload api)",
        "timeout": "raise request_timeout_s, or find out why the server is so slow",
        "no_usage": "the server ignores stream_options.include_usage; without usage tokens cannot be counted",
        "short": "the engine did not generate to the end; declare the right engine, so that ignore_eos is sent",
        "not_streamed": "ask the server directly, without a proxy that buffers",
    }.get(kind)
    return f"; {told}" if told else ""
