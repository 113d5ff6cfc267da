# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a declared server to a state: find out what runs, check, stop, launch, record.

The order makes every interruption recoverable: the record says ``launching`` before a process exists, and each process
carries the mark of its start, so that the next run finds it whether or not it was recorded.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from . import death as deaths
from . import (
    ending,
    files,
    holders,
    launcher,
    nccl_files,
    nccl_places,
    obstacles,
    oom,
    plan,
    ports,
    procfs,
    ready_file,
    servers,
    traces,
)
from .engines import get_engine
from .leftovers import Leftover
from .servers import ServerRecord, Situation

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


@contextmanager
def locked(home: str, timeout_s: float = 300.0) -> Iterator[None]:
    """Let one run at a time launch and stop servers of this home. Raises ControlError when another one does not end."""
    path = servers.servers_folder(home)
    os.makedirs(path, exist_ok=True)
    try:
        with files.folder_locked(path, timeout_s):
            yield
    except files.Busy as error:
        raise ControlError(f"another run is changing the servers: {error}; wait until it ends, or end it") from None


# --- why -----------------------------------------------------------------------------------------


def end_words(home: str, record: ServerRecord) -> str:
    """How a recorded process ended, in words."""
    words = deaths.end_words(home, record)
    if record.state == "failed":
        return f"it died at its launch: {words}"
    if record.boot_id != procfs.boot_id():
        return f"the host was rebooted since process {record.pid} was launched"
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
        # A server may answer, and its record be that of the plan, long after one of its workers has died.
        kept = ready_file.Kept.load(servers.folder(home, record.name), record.start_id)
        return [f"{one} has died; the server process {record.pid} still runs" for one in kept.dead()] + (
            plan.differences(record, wanted)
        )
    if situation.tree:
        found.append(f"{len(situation.tree)} processes of an earlier start are left and are ended first")
    return found


# --- changes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stopped:
    """What became of the processes that ran, and of the shared memory of the server (see Leftover)."""

    ended: list[ending.Ended]
    files: list[Leftover]

    def as_dict(self) -> dict[str, Any]:
        return {
            "ended": [one.as_dict() for one in self.ended],
            "removed": [one.path for one in self.files if not one.stays],
            "left_files": [one.as_dict() for one in self.files if one.stays],
        }


def stop(home: str, name: str, situation: Situation, say: Say | None = None) -> Stopped:
    """End every process of a server, of a dead one those that outlived it, and remove the shared memory they leave.

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
    ended = {one.pid for one in found} | {item.pid for item in situation.tree}
    swept = traces.sweep(home, record, ended, held)
    if record:
        _await_supervisor(record)
        servers.save(home, replace(record, state="stopped"))
    return Stopped(found, swept)


def left_behind(home: str, record: ServerRecord | None) -> list[Leftover]:
    """Shared memory that a server of which nothing runs has left, and what would become of it."""
    return traces.sweep(home, record, (), holders.Scan(), keep=True)


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
            situation = servers.look(home, declaration["name"])
            wanted = planned(obstacles.choose_port(home, declaration, situation))
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
        # The next run is told why, and not of an interruption; unless there is a process after all, which it may adopt.
        if not servers.look(home, name).tree:
            servers.save(home, replace(record, state="failed"))
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
