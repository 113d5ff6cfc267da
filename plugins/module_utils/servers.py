# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The record of a server on its host: what was launched, with what, and whether it is still that.

One folder a server, ``<home>/servers/<name>/``:

    server.json       the record (:class:`ServerRecord`), written before the launch and again after it
    environment       KEY=VALUE lines that the process got, 0600 (may hold secrets)
    nccl.env          the NCCL profile's part of it, 0644 (written by nccl_profile)
    nccl.conf         the profile as a file of NCCL, where that place was asked for
    nccl.json         what of the profile is written elsewhere than in nccl.env, where that is so
    nccl/             NCCL's own logs of this start, one a process: <host>.<pid>.log (GPU engines)
    server.log        stdout and stderr of this start; server.log.1 of the one before
    exit              written by the supervisor when the process ended: "<status> <unix time>"
    ready.json        phases, probe times, processes and shared memory of this start (written by llm_server_ready)
    starts.json       the phases of the last ready start of each declaration (written by llm_server_ready)
    measurement.json  the last measurement (written by llm_benchmark)
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from . import files, procfs

SCHEMA = 1

# Set in the environment of every process we start, so that its children can be told from strangers even
# when the record was lost or the root has died.
SERVER_VARIABLE = "GROUNDSTATE_SERVER"
START_VARIABLE = "GROUNDSTATE_START"
#: What to do about a record that cannot be used.
_WAY_OUT = "remove the file; the next deployment finds by their marks the processes that run"


@dataclass
class ServerRecord:
    """What is known of one launch ("start") of a declared server."""

    name: str
    start_id: str = ""  # random, new with every launch
    state: str = "stopped"  # launching, launched, failed (no process came of the launch), stopped
    engine: str = ""
    declaration_hash: str = ""
    declaration: dict[str, Any] = field(default_factory=dict)  # as declared, secrets replaced
    argv: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)  # secrets replaced by their hash
    base_url: str = ""
    host: str = ""
    port: int = 0
    model: str = ""
    served_model_name: str = ""
    tensor_parallel: int = 1
    env_path: str = ""
    env_hash: str = ""  # of groundstate-env.json, "" when the environment is not ours
    launcher: str = "process"  # process, systemd
    unit: str = ""
    pid: int = 0
    pid_start: int = 0
    boot_id: str = ""
    supervisor_pid: int = 0
    supervisor_start: int = 0
    launched_at: float = 0.0  # seconds since 1970
    log: str = ""
    schema: int = SCHEMA

    def running(self, proc: str = procfs.PROC) -> bool:
        """Whether the process that this record names still runs."""
        return bool(self.pid) and self.boot_id == procfs.boot_id(proc) and procfs.alive(self.pid, self.pid_start, proc)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def servers_folder(home: str) -> str:
    return os.path.join(home, "servers")


def folder(home: str, name: str) -> str:
    """The folder of one server; the name has been checked by :func:`check_name`."""
    return os.path.join(servers_folder(home), name)


def check_name(name: str) -> None:
    """Raises ValueError unless the name can be a folder's and a systemd unit's."""
    if not name or len(name) > 64 or not all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
        raise ValueError(f"server name {name!r}: use 1 to 64 letters, digits, '-' or '_'")


def load(home: str, name: str) -> ServerRecord | None:
    """The record of a server; None when there is none. Raises ValueError for a damaged one."""
    path = os.path.join(folder(home, name), "server.json")
    raw = files.read_json(path)
    if raw is None:
        return None
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        schema = raw.get("schema") if isinstance(raw, dict) else None
        raise ValueError(f"{path} is no record of schema {SCHEMA} ({schema!r}): {_WAY_OUT}")
    made = ServerRecord(
        **{"name": name, **{one.name: raw[one.name] for one in fields(ServerRecord) if one.name in raw}}
    )
    like = ServerRecord(name=name)
    wrong = [one.name for one in fields(made) if not _alike(getattr(made, one.name), getattr(like, one.name))]
    if wrong:
        raise ValueError(f"{path} is damaged ({', '.join(wrong)}): {_WAY_OUT}")
    return made


def _alike(value: Any, like: Any) -> bool:
    """Whether a value from JSON has the type of another; a number is no bool, and a whole one is a float, too."""
    kinds = (int, float) if isinstance(like, float) else type(like)
    return isinstance(value, kinds) and isinstance(value, bool) == isinstance(like, bool)


def save(home: str, record: ServerRecord) -> None:
    """Write a record atomically. 0600: arguments may tell more than others should know."""
    files.write_json(os.path.join(folder(home, record.name), "server.json"), record.as_dict(), 0o600)


def names(home: str) -> list[str]:
    """Names of all servers that have a folder under this home."""
    try:
        return sorted(entry.name for entry in os.scandir(servers_folder(home)) if entry.is_dir())
    except OSError:
        return []


def marker(pid: int, proc: str = procfs.PROC) -> tuple[str, str] | None:
    """(folder of the server, start id) that we put into the environment of a process; None when it has none.

    A process title overwrites /proc/PID/environ (the workers of vLLM and SGLang set one), so the live environment is
    asked where that happened. The start id is "" where it could not be read.
    """
    found = procfs.initial_environment(pid, proc)
    if SERVER_VARIABLE not in found.variables and not found.complete and found.source != "none":
        found = procfs.live_environment(pid, proc)
    where = found.variables.get(SERVER_VARIABLE)
    return (where, found.variables.get(START_VARIABLE, "")) if where else None


def started_by_us(
    home: str, name: str, table: dict[int, procfs.Process], proc: str = procfs.PROC
) -> list[procfs.Process]:
    """Every live process of any start of this server: the recorded root, its descendants, and orphans.

    Orphans are found by the variables we put into the environment of every start, so that they are found
    even when the root or the record is gone. Parents before children; zombies left out.
    """
    record = load(home, name)
    mine: set[int] = set()
    if record and record.running(proc):
        mine.add(record.pid)
    ours = folder(home, name)
    for item in table.values():
        found = None if item.zombie else marker(item.pid, proc)
        if found and found[0] == ours:
            mine.add(item.pid)
    for root in list(mine):
        mine.update(item.pid for item in procfs.descendants(root, table) if not item.zombie)
    # The module that looks is not part of what it looks for, even when it was started from a server's shell.
    mine.discard(os.getpid())
    tops = [table[pid] for pid in sorted(mine) if pid in table and table[pid].ppid not in mine]
    ordered: list[procfs.Process] = []
    for top in tops:
        ordered.append(top)
        ordered.extend(item for item in procfs.descendants(top.pid, table) if item.pid in mine)
    return ordered


def live(table: dict[int, procfs.Process], proc: str = procfs.PROC) -> dict[str, ServerRecord]:
    """Folder -> record of every server of ours of which a process lives, below whatever home.

    A server of a user whose processes may not be read is not seen, nor one whose record is damaged.
    """
    folders = {mark[0] for item in table.values() if not item.zombie and (mark := marker(item.pid, proc))}
    found = {}
    for where in sorted(folders):
        try:
            record = load(os.path.dirname(os.path.dirname(where)), os.path.basename(where))
        except (ValueError, OSError):
            continue  # that server's own problem
        if record:
            found[where] = record
    return found


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
    return Situation(load(home, name), started_by_us(home, name, procfs.processes()))
