# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gather what a running server's processes tell of NCCL, and have it judged."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from contextlib import suppress

from . import files, nccl_conf, nccl_files, nccl_log, nccl_places, procfs, proof, servers
from .engines import get_engine
from .proof_sources import Sources


def prove(home: str, record: servers.ServerRecord, declared: Mapping[str, str]) -> tuple[proof.Proof, int]:
    """Look at all workers of a running server. Returns the proof and how many workers there have to be (0: unknown).

    Raises ValueError for an unknown engine, OSError for a log that may not be read.
    """
    engine, given = get_engine(record.engine), record.environment
    processes = members(home, record)
    expected = engine.expected_workers(record.declaration)
    ranks = {item.pid: rank for rank, item in engine.find_workers(processes, record.declaration).items()}
    # An engine that cannot tell its workers: each process of the server has to have the profile.
    workers = [item for item in processes if item.pid in ranks] if expected or ranks else processes
    # A single rank makes no communicator, and so writes nothing.
    several = max(expected, record.tensor_parallel) > 1
    want_logs = several and engine.uses_nccl(record.declaration) and nccl_log.names_variables(given)
    of = [one.pid for one in workers] if want_logs else []
    logs = nccl_files.read_logs(given, record.log, of, record.launched_at)
    startup = _startup(home, record.name)
    root = next((item for item in processes if item.pid == record.pid), None)
    made = proof.judge(
        declared,
        [seen(item, ranks.get(item.pid), given, engine.sets_nccl, startup, logs.get(item.pid)) for item in workers],
        seen(root, None, given, engine.sets_nccl, startup, None) if root is not None else None,
        expected,
        engine.sets_nccl,
        given,
        {
            **nccl_log.added_by_us(given, servers.folder(home, record.name)),
            **nccl_places.beside(home, record.name),
            **(record.declaration.get("env") or {}),
        },
        want_logs,
    )
    return made, expected


def _startup(home: str, server: str) -> tuple[str, Mapping[str, str]]:
    """(place in words, variables) of the profile at the start of a Python; ("", {}) when it is not written there."""
    record = nccl_places.load_record(home, server)
    for one in record.get("places", []):
        if one["place"] == nccl_places.PYTHON:
            return f"Python start-up ({one['method']} of {one['python']})", record["variables"]
    return "", {}


def members(home: str, record: servers.ServerRecord) -> list[procfs.Process]:
    """The processes of this start: the root first, its descendants, and those that lost their parent."""
    table = procfs.processes()
    below = {item.pid for item in procfs.descendants(record.pid, table)} | {record.pid}
    found = []
    for item in servers.started_by_us(home, record.name, table):
        mark = procfs.initial_environment(item.pid).variables.get(servers.START_VARIABLE)
        if item.pid in below or mark == record.start_id:
            found.append(item)
    return sorted(found, key=lambda item: item.pid != record.pid)


def seen(
    item: procfs.Process,
    rank: int | None,
    given: Mapping[str, str],
    engine_sets: frozenset[str],
    startup: tuple[str, Mapping[str, str]],
    log: tuple[str, nccl_log.ProcessLog | None] | None,
) -> proof.Seen:
    """A process with the environment that it has now, its log, its libraries and what could have set its variables."""
    path, told = log or ("", None)
    environment, initial = procfs.live_environment(item.pid), procfs.initial_environment(item.pid)
    libraries = nccl_files.libraries(item.pid)
    confs = configuration(item, environment, told.version if told else "")
    if not procfs.alive(item.pid, item.start):
        environment = procfs.Environment({}, False, "none", "the process ended while it was looked at")
        told, libraries = None, None
    sources = Sources(given, engine_sets, confs, startup)
    return proof.Seen(rank, item.pid, item.cmdline, environment, initial, told, path, libraries, sources)


def configuration(
    item: procfs.Process, environment: procfs.Environment, version: str, proc: str = procfs.PROC
) -> tuple[tuple[str, Mapping[str, str]], ...]:
    """The nccl.conf files that NCCL of this version ("": a current one) reads in a process, those that win first.

    As the process sees them: it may be in a container of its own. A file that is not there is left out.
    """
    number = tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]) or None
    user_home = environment.variables.get("HOME", "")
    if number is not None and number < (2, 30, 3) and item.uid is not None:
        with suppress(KeyError):
            user_home = pwd.getpwuid(item.uid).pw_dir
    found = []
    for _source, path in nccl_conf.search_order(environment.variables, user_home):
        if path:
            base = f"{proc}/{item.pid}/root" if os.path.isabs(path) else f"{proc}/{item.pid}/cwd/"
            try:
                text = files.read_regular(base + path).decode("utf-8", "surrogateescape")
                found.append((path, nccl_conf.parse(text, number)))
            except OSError:
                continue
    return tuple(found)
