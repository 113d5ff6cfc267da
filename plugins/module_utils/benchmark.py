# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One measurement of one server from its declaration to its document: what the module ``llm_benchmark`` does."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Callable

from . import calibration, endpoint, files, load, measurement, prompts, server_env, servers, workload
from .engines import get_engine
from .fingerprint import take
from .http_client import Client
from .prompt_source import PromptSource
from .sampling import Sampler
from .self_check import run_in_loop

PROGRESS_INTERVAL_S = 1.0


class NoServer(Exception):
    """The server that is to be measured is not there; the message says what to do."""


def running(home: str, name: str) -> servers.ServerRecord:
    """The record of our server ``name``. Raises NoServer unless it runs, ValueError for an impossible name."""
    servers.check_name(name)
    record = servers.load(home, name)
    if record is None:
        raise NoServer(f"there is no server {name!r} under {home}; start it first (llm_server)")
    if not record.running():
        raise NoServer(f"server {name!r} does not run (its log: {record.log or 'none'}); start it first (llm_server)")
    return record


@dataclass
class Target:
    """What is measured. ``record`` and ``folder`` are None for a server that is not ours."""

    base_url: str
    model: str
    engine_name: str
    api_key: str = ""
    validate_certs: bool = True
    ca_path: str | None = None
    record: servers.ServerRecord | None = None
    folder: str | None = None

    @classmethod
    def ours(cls, home: str, record: servers.ServerRecord, model: str, **options: Any) -> Target:
        """A server of ours, by its record."""
        folder = servers.folder(home, record.name)
        model = model or record.served_model_name
        return cls(record.base_url, model, record.engine, record=record, folder=folder, **options)

    def own_key(self) -> str:
        """The key that our server was started with, from its environment file (0600); "" without one."""
        variable = get_engine(self.engine_name).api_key_variable
        if self.folder is None or not variable:
            return ""
        try:
            return server_env.read(os.path.join(self.folder, "environment")).get(variable, "")
        except OSError:
            return ""

    def client(self) -> Client:
        key = self.api_key or self.own_key()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return Client(self.base_url, headers, self.validate_certs, self.ca_path)

    def guard(self) -> str | None:
        """A reason as soon as our server is gone."""
        if self.record is None or self.record.running():
            return None
        return f"server {self.record.name!r} (pid {self.record.pid}) ended while it was measured"

    def as_dict(self) -> dict[str, Any]:
        """What the document says of it."""
        record = self.record
        return {
            "name": record.name if record else "",
            "start_id": record.start_id if record else "",
            "declaration_hash": record.declaration_hash if record else "",
            "base_url": self.base_url,
            "engine": get_engine(self.engine_name).name,
            "served_model_name": self.model,
        }


@dataclass
class Plan:
    """A complete workload, the texts of its prompts file, and what is done around it."""

    workload: dict[str, Any]
    texts: list[str] | None = None
    sample: bool = True
    calibrate: bool = False
    fingerprint: Callable[[], dict[str, Any]] = field(default=dict)

    @classmethod
    def make(cls, given: dict[str, Any], **options: Any) -> Plan:
        """From a declared workload. Raises WorkloadError, and OSError for a prompts file that cannot be read."""
        found = workload.resolve(given)
        texts = None
        if found["prompts_file"]:
            texts = prompts.read_file(os.path.expanduser(found["prompts_file"]))
            # Part of the identity: another text under the same name is another workload.
            found["prompts_hash"] = files.digest(texts)
        return cls(found, texts, **options)


class Benchmark:
    """Measures a target by a plan, keeps what it found in the folder of a server of ours."""

    def __init__(self, target: Target, plan: Plan) -> None:
        self.target, self.plan = target, plan
        self.before = plan.fingerprint()
        record = target.record
        start_id, declared = (record.start_id, record.declaration_hash) if record else ("", "")
        self.identity = measurement.identity(start_id, declared, plan.workload, self.before.get("state_hash", ""))
        self.progress = load.Progress()

    # --- the last measurement ----------------------------------------------------------------------

    @property
    def path(self) -> str | None:
        """Where the measurement of our server is kept."""
        return os.path.join(self.target.folder, "measurement.json") if self.target.folder else None

    def last(self) -> dict[str, Any] | None:
        """The kept measurement, or None. Raises ValueError for a damaged file."""
        found = files.read_json(self.path) if self.path else None
        return found if measurement.usable(found) else None

    def still_speaks(self, last: dict[str, Any] | None) -> bool:
        """Whether the last measurement answers what this one would ask."""
        if last is None or last.get("identity") != self.identity:
            return False
        return not self.plan.calibrate or "calibration" in last["client"]

    # --- measuring ---------------------------------------------------------------------------------

    def _endpoint(self, client: Client) -> endpoint.Endpoint:
        return endpoint.Endpoint(client, get_engine(self.target.engine_name), self.target.model, self.plan.workload)

    def check(self) -> None:
        """Fit to be measured, without load. Raises EndpointError, LoadError."""

        async def work() -> None:
            client = self.target.client()
            try:
                await self._endpoint(client).check()
            finally:
                await client.close()

        run_in_loop(lambda: load.guarded(work(), self.target.guard))

    def measure(self) -> dict[str, Any]:
        """The new measurement; nothing is kept yet. Raises EndpointError, LoadError, WorkloadError."""
        started, begin = time.time(), time.monotonic()
        name = measurement.new_id(started)
        sampler = Sampler(self.plan.sample)

        async def work() -> load.Run:
            client = self.target.client()
            try:
                ready = self._endpoint(client)
                await ready.check()
                model_path = self.target.record.model if self.target.record else ""
                self.progress.enter("preparing prompts", 0)
                asked = self.plan.workload
                chosen = await PromptSource(ready, asked, name, self.plan.texts, model_path).choose()
                with sampler:
                    return await load.Runner(ready, asked, chosen, self.progress).run()
            finally:
                await client.close()

        with self._alone():
            # Before there are threads: it forks.
            known = calibration.calibrate(self.plan.workload["concurrency"]) if self.plan.calibrate else None
            with self._shown():
                run, interpreter = run_in_loop(lambda: load.guarded(work(), self.target.guard))
        if known is not None:
            why = calibration.problems(known["levels"])
            run.client.update(
                calibration=known, why=run.client["why"] + why, limited=run.client["limited"] or bool(why)
            )
        seconds = time.monotonic() - begin
        return measurement.build(
            run,
            self.plan.workload,
            self.target.as_dict(),
            interpreter,
            sampler,
            name,
            self.identity,
            started,
            seconds,
        )

    def keep(self, found: dict[str, Any]) -> None:
        """Keep the measurement of a server of ours."""
        if self.path is not None:
            files.write_json(self.path, found)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two measurements of one server at a time would measure each other."""
        if self.target.folder is None or self.target.record is None:
            yield
            return
        # The folder itself is locked: nothing is left behind, and a killed run's lock is gone with it.
        handle = os.open(self.target.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise load.LoadError(
                    f"server {self.target.record.name!r} is being measured by another run; wait for it to end"
                ) from None
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """progress.json, kept up to date by a thread: writing it in the event loop would delay time stamps."""
        if self.target.folder is None:
            yield
            return
        path = os.path.join(self.target.folder, "progress.json")
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                with suppress(OSError):  # a full disk shows itself where the result is written
                    files.write_json(path, self.progress.as_dict())
                stop.wait(PROGRESS_INTERVAL_S)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()
            if os.path.exists(path):
                os.unlink(path)


def fingerprint_of(home: str, name: str, env_path: str, verify_files: bool) -> Callable[[], dict[str, Any]]:
    """Takes the state that can explain the result of a server of ours."""
    return lambda: take.take(home, name, env_path, verify_files)


def keep_fact(path: str, found: dict[str, Any], write: bool) -> bool:
    """Write the short form where it is asked for and differs; whether it differed."""
    if not path:
        return False
    path = os.path.abspath(path)
    try:
        old = files.read_json(path)
    except ValueError:
        old = None  # not ours or damaged: it is replaced by what was asked for
    new = measurement.short(found)
    if old == new:
        return False
    if write:
        files.write_json(path, new)
    return True
