# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What stands in the way of a launch, found before anything is changed: arguments, paths, port, GPUs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

from . import argument_check, draft_model, engine_parser, nvidia, plan, ports, procfs, servers
from . import declaration as declarations
from .engines import get_engine
from .servers import ServerRecord, Situation


def choose_port(home: str, declaration: dict[str, Any], situation: Situation) -> int:
    """The declared port, or the one of the last start while it is ours or free, or the first free one.

    Ports that a server of ours was launched for are taken before it binds them. Raises ValueError when there is none.
    """
    if declaration["port"]:
        return int(declaration["port"])
    record, start, host = situation.record, declaration["port_from"], declaration["host"]
    if record and record.port >= start and situation.alive:
        return record.port
    name = declaration["name"]
    mine = servers.folder(home, name)
    claimed = {other.port for where, other in servers.live(procfs.processes()).items() if where != mine}
    if record and record.port >= start and record.port not in claimed and not ports.who_has(record.port, host):
        return record.port
    return ports.free_port(start, claimed | {other.port for other in _others(home, name)})


def _others(home: str, name: str) -> list[ServerRecord]:
    """Records of the other servers; a damaged one is its own server's problem."""
    found = []
    for other in servers.names(home):
        if other != name:
            try:
                record = servers.load(home, other)
            except (ValueError, OSError):
                continue
            if record:
                found.append(record)
    return found


def obstacles(home: str, wanted: plan.Plan, situation: Situation) -> list[str]:
    """All reasons, found without changing anything, why this plan could not be launched here."""
    declaration = wanted.declaration
    found = []
    for field, path in declarations.local_paths(declaration).items():
        if not os.path.exists(os.path.expanduser(path)):
            found.append(f"{field}: {path} does not exist on this host; copy the model there or correct the path")
    found += [one for one in [draft_model.mismatch(declaration)] if one]
    program = wanted.argv[0] if wanted.argv else ""
    if program and not shutil.which(program, path=wanted.environment["PATH"]):
        hint = "" if os.path.isdir(wanted.env_path) else f" (the environment {wanted.env_path or '-'} does not exist)"
        found.append(f"program: {program} cannot be run{hint}; build the environment with the role ml_env")
    why = ports.unusable(declaration["host"])
    if why:
        found.append(f"host: {declaration['host']} {why}; use 127.0.0.1, or an address of this host")
    ours = {item.pid for item in situation.tree}
    keeps = situation.alive and situation.record is not None and situation.record.port == wanted.port
    for use in ports.who_has(wanted.port, declaration["host"]):
        if use.pid in ours or (use.pid is None and keeps):
            continue
        who = f"process {use.pid} ({use.cmdline[:200]})" if use.pid else "a process that is not visible to this user"
        found.append(
            f"port: {wanted.port} is taken ({use.state}) by {who}; end it or declare another port (0: a free one)"
        )
    found += _gpu_conflicts(home, declaration)
    return found


def check_arguments(home: str, wanted: plan.Plan, keep: bool) -> tuple[list[str], list[str], argument_check.Parser]:
    """(problems, warnings, parser) of a planned command line, by the installed engine's own parser.

    ``keep`` False (check mode) writes down nothing of what the parser said.
    """
    declaration = wanted.declaration
    engine = get_engine(declaration["engine"])
    hidden = engine.secrets(declaration)
    environment = {name: value for name, value in wanted.environment.items() if name not in hidden}
    parser = engine_parser.parser_of(home, declaration, wanted.env_path, environment, keep=keep)
    words = wanted.argv if declaration["command"] else engine_parser.flags_of(engine, wanted.argv)
    return (*argument_check.check(engine, declaration, words, parser), parser)


def gpu_warnings(home: str, declaration: dict[str, Any], dev: str = "/dev") -> list[str]:
    """GPUs that a running server of ours of another home uses: no error, two homes may be two people's arrangement."""
    if not nvidia.device_nodes(dev):
        return []
    here = servers.servers_folder(home)
    elsewhere = (one for where, one in servers.live(procfs.processes()).items() if os.path.dirname(where) != here)
    return [
        f"gpus: {shared} also in use by our server {other.name!r} (process {other.pid}, {os.path.dirname(other.log)}); "
        "what is measured here is then shared with it"
        for other, shared in _sharers(elsewhere, declaration["gpus"])
    ]


def _gpu_conflicts(home: str, declaration: dict[str, Any]) -> list[str]:
    if not nvidia.device_nodes():
        return []
    return [
        f"gpus: {shared} also in use by our server {other.name!r} (process {other.pid}); "
        "stop it or declare disjoint gpus"
        for other, shared in _sharers(_others(home, declaration["name"]), declaration["gpus"])
    ]


def _sharers(others: Iterable[ServerRecord], gpus: Any) -> Iterator[tuple[ServerRecord, str]]:
    """The running ones of these servers that use some of these GPUs, with which of them."""
    known: list[nvidia.Gpu] | None = None
    for other in others:
        if not other.running():
            continue
        theirs = other.declaration.get("gpus", "all")
        if known is None and mixed_names(gpus, theirs):
            report = nvidia.query().report
            known = list(report.gpus) if report else []
        shared = shared_gpus(gpus, theirs, known or ())
        if shared:
            yield other, shared


def mixed_names(one: Any, other: Any) -> bool:
    """Whether two declarations name GPUs in two ways (index and UUID), so that only the driver can compare them."""
    names = [*(one if one != "all" else ()), *(other if other != "all" else ())]
    return len({str(name).isdigit() for name in names}) > 1


def shared_gpus(one: Any, other: Any, known: Iterable[nvidia.Gpu] = ()) -> str:
    """Which GPUs two declarations have in common, in the words of the first; "" for none.

    ``known``: the host's GPUs, for declarations of which one names indexes and the other UUIDs.
    """
    if one == "all":
        return "all" if other else ""
    if other == "all":
        return ", ".join(str(gpu) for gpu in one)
    same = {gpu.uuid.lower(): str(gpu.index) for gpu in known}
    theirs = {same.get(str(gpu).lower(), str(gpu).lower()) for gpu in other}
    return ", ".join(sorted(str(gpu) for gpu in one if same.get(str(gpu).lower(), str(gpu).lower()) in theirs))
