# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a declared server to a state: find out what runs, check, stop, launch, record.

The order makes every interruption recoverable: the record says ``launching`` before a process exists, and each process
carries the mark of its start, so that the next run finds it whether or not it was recorded.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from . import (
    argument_check,
    ending,
    engine_parser,
    files,
    holders,
    launcher,
    leftovers,
    nccl_files,
    nccl_places,
    nvidia,
    oom,
    plan,
    ports,
    procfs,
    readiness,
    servers,
)
from . import death as deaths
from . import declaration as declarations
from .engines import get_engine
from .servers import ServerRecord

#: A program that cannot run at all says so within this time; whatever dies later is for llm_server_ready to tell.
EARLY_DEATH_S = 0.3
#: A free port may be lost to a stranger between its choice and its use.
LAUNCHES = 3

Say = Callable[[str], None]


class ControlError(Exception):
    """A sentence for the user, and facts that go with it (log_tail, diagnosis)."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts


@dataclass
class Situation:
    """What is there of a server: its record (None: never launched here) and all its live processes."""

    record: ServerRecord | None
    tree: list[procfs.Process]

    @property
    def alive(self) -> bool:
        return self.record is not None and self.record.running()


def look(home: str, name: str) -> Situation:
    """Raises ValueError for a damaged record."""
    return Situation(servers.load(home, name), servers.started_by_us(home, name, procfs.processes()))


@contextmanager
def locked(home: str, timeout_s: float = 300.0) -> Iterator[None]:
    """Let one run at a time launch and stop servers of this home. Raises ControlError when another one does not end.

    The folder itself is locked: nothing has to be cleaned up, and the kernel unlocks it when a run is killed.
    """
    path = servers.servers_folder(home)
    os.makedirs(path, exist_ok=True)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ControlError(
                        f"another run has been changing the servers below {path} for {timeout_s:.0f} s; "
                        "wait until it ends, or end it"
                    ) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(handle)


# --- before anything is changed ------------------------------------------------------------------


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
    claimed = servers.claimed_ports(servers.folder(home, name), procfs.processes())
    if record and record.port >= start and record.port not in claimed and not ports.who_has(record.port, host):
        return record.port
    return ports.free_port(start, {*claimed, *(other.port for other in _others(home, name))})


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


def _gpu_conflicts(home: str, declaration: dict[str, Any]) -> list[str]:
    if not nvidia.device_nodes():
        return []
    found = []
    known: list[nvidia.Gpu] | None = None
    for other in _others(home, declaration["name"]):
        if not other.running():
            continue
        mine, theirs = declaration["gpus"], other.declaration.get("gpus", "all")
        if known is None and mixed_names(mine, theirs):
            report = nvidia.query().report
            known = list(report.gpus) if report else []
        shared = shared_gpus(mine, theirs, known or ())
        if shared:
            found.append(
                f"gpus: {shared} also in use by our server {other.name!r} (process {other.pid}); "
                "stop it or declare disjoint gpus"
            )
    return found


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


# --- why -----------------------------------------------------------------------------------------


def end_words(home: str, record: ServerRecord) -> str:
    """How a recorded process ended, in words."""
    if record.boot_id != procfs.boot_id():
        return f"the host was rebooted since process {record.pid} was launched"
    words = readiness.exit_words(launcher.read_exit(servers.folder(home, record.name)))
    return f"process {record.pid} has died: {words}"


def reasons(home: str, situation: Situation, wanted: plan.Plan) -> list[str]:
    """Why the server has to be launched (again); [] when it runs as declared."""
    record = situation.record
    if record is None:
        found = ["it was never launched here"]
    elif record.state == "launching":
        found = ["an earlier run was interrupted while it launched the server"]
    elif record.state == "stopped":
        found = ["it was stopped"]
    elif not record.running():
        found = [end_words(home, record)]
    else:
        return plan.differences(record, wanted)
    if situation.tree:
        found.append(f"{len(situation.tree)} processes of an earlier start are left and are ended first")
    return found


# --- changes -------------------------------------------------------------------------------------


def stop(home: str, name: str, situation: Situation, say: Say | None = None) -> list[ending.Ended]:
    """End every process of a server and remove the shared memory that they leave.

    Raises ControlError when something cannot be ended.
    """
    record = situation.record
    held = holders.scan(item.pid for item in situation.tree)
    grace_s = get_engine(record.engine).term_grace_s if record and record.engine else 15.0
    if record and record.launcher == "systemd" and record.unit:
        launcher.stop_unit(name)
    found: list[ending.Ended] = []
    # Workers may still have been starting others when we looked.
    for _round in range(3):
        tree = servers.started_by_us(home, name, procfs.processes())
        if not tree:
            break
        numbers = {item.pid for item in tree}
        roots = [item for item in tree if item.ppid not in numbers]
        found += ending.end(roots, tree, grace_s, say)
    left = [one for one in found if not one.gone]
    if left:
        told = "; ".join(f"{one.pid} ({one.cmdline[:80]}): {one.how}" for one in left)
        raise ControlError(f"server {name!r}: processes could not be ended: {told}")
    _sweep(held, {one.pid for one in found} | {item.pid for item in situation.tree})
    if record:
        _await_supervisor(record)
        servers.save(home, replace(record, state="stopped"))
    return found


def _sweep(held: holders.Scan, ended: set[int]) -> None:
    """Remove shared memory of ended processes (vLLM's workers leave some at an orderly end, all do when killed).

    Those without a pid in their name are known by having been open in one of them (``held``). The rules are those of
    the clean state: never what a process that lives has open.
    """
    if not leftovers.candidates(ended, held):
        return
    live = set(procfs.processes()) - ended
    found = leftovers.find(holders.scan(live), live, ended, held, time.time(), os.geteuid())
    leftovers.remove(one for one in found if one.path in leftovers.candidates(ended, held))


def _await_supervisor(record: ServerRecord) -> None:
    """Let the supervisor write down the end before the next start begins."""
    deadline = time.monotonic() + 5.0
    while record.supervisor_pid and time.monotonic() < deadline:
        if not procfs.alive(record.supervisor_pid, record.supervisor_start):
            return
        time.sleep(0.01)


def launch(home: str, declaration: dict[str, Any], planned: Callable[[int], plan.Plan], keep_logs: int) -> ServerRecord:
    """Launch a server of which nothing runs; ``planned`` makes its plan for a port. Returns the record.

    The port is chosen again, in our turn: another launch may have taken it since. Raises ControlError, with the end of
    the log, when the server dies at once; ValueError when no port is left.
    """
    attempt = 1
    while True:
        with ports.turn():
            wanted = planned(choose_port(home, declaration, look(home, declaration["name"])))
            try:
                return start(home, wanted, keep_logs)
            except ControlError as error:
                # Somebody else was quicker: the next attempt finds the port taken.
                lost = (error.facts.get("diagnosis") or {}).get("name") == "port in use"
                if declaration["port"] or not lost or attempt == LAUNCHES:
                    raise
        attempt += 1


def start(home: str, wanted: plan.Plan, keep_logs: int = launcher.KEEP_LOGS) -> ServerRecord:
    """Launch a planned server; nothing of it may run. Returns the record.

    Raises ControlError, with the end of the log, when it dies at once.
    """
    name = wanted.declaration["name"]
    folder = servers.folder(home, name)
    os.makedirs(folder, exist_ok=True)
    start_id = uuid.uuid4().hex
    unit = launcher.unit_name(name) if wanted.launcher == "systemd" else ""
    record = plan.record_of(wanted, start_id, os.path.join(folder, "server.log"), unit)
    record.boot_id = procfs.boot_id() or ""
    record.launched_at = time.time()
    launcher.forget_exit(folder)
    nccl_files.renew(folder, wanted.environment)
    text = launcher.environment_text(wanted.environment, folder, start_id)
    files.write_atomic(os.path.join(folder, "environment"), text, 0o600)
    servers.save(home, record)
    try:
        if wanted.launcher == "systemd":
            grace_s = get_engine(wanted.declaration["engine"]).term_grace_s
            launched = launcher.launch_unit(name, folder, wanted.argv, grace_s, keep_logs)
        else:
            launched = launcher.launch_process(folder, wanted.argv, wanted.environment, start_id, keep_logs)
    except launcher.LaunchError as error:
        raise death(home, record, str(error)) from error
    record = recorded(home, record, launched)
    deadline = time.monotonic() + EARLY_DEATH_S
    while time.monotonic() < deadline:
        if not record.running():
            raise death(home, record, "it died at once")
        time.sleep(0.02)
    return record


def recorded(home: str, record: ServerRecord, launched: launcher.Launched) -> ServerRecord:
    """Write down which process a launch has become."""
    made = replace(record, state="launched", pid=launched.engine.pid, pid_start=launched.engine.start)
    if launched.supervisor:
        made = replace(made, supervisor_pid=launched.supervisor.pid, supervisor_start=launched.supervisor.start)
    servers.save(home, made)
    return made


def death(home: str, record: ServerRecord, what: str, memory: oom.Group | None = None) -> ControlError:
    """The error for a server that has died: status in words, what the host knows, end of the log, diagnosis."""
    story = deaths.tell(home, record, memory)
    return ControlError(
        f"server {record.name!r}: {what}, {story.words}.{story.text(record.log)}",
        **story.facts(),
    )


def remove(home: str, name: str) -> bool:
    """Remove the folder of a stopped server. Returns whether there was one.

    Raises ControlError for a folder that is not ours.
    """
    folder = servers.folder(home, name)
    if not os.path.lexists(folder):
        return False
    launcher.remove_unit(name)
    for change in nccl_places.absent(home, name):  # the profile may stand outside of the folder, too
        change.do()
    shutil.rmtree(folder)
    return True


def check_ours(home: str, name: str) -> None:
    """Raises ControlError when the server's folder holds things and no record of ours."""
    folder = servers.folder(home, name)
    if os.path.islink(folder):
        raise ControlError(f"{folder} is a link; remove it yourself, what it points to is not ours to remove")
    if not os.path.isdir(folder) or os.path.exists(os.path.join(folder, "server.json")):
        return
    # nccl_profile writes before the first launch: that alone makes a folder ours too.
    foreign = sorted(set(os.listdir(folder)) - {"nccl.env", "nccl.json", "nccl.conf", "environment"})
    if foreign:
        raise ControlError(
            f"{folder} has no server.json and holds {', '.join(foreign[:5])}: it was not made by us and is left alone; "
            "move these files away"
        )
