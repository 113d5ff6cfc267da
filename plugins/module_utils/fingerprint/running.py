# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The server as it runs: arguments that the engine resolved, the NCCL that its processes mapped, who else is there."""

from __future__ import annotations

import mmap
import os
import re
from typing import Any

from .. import engines, procfs, servers
from ..declaration import secret_hash
from . import reading
from .reading import Unknown

_HEAD = 1 << 20  # of the log: engines print their arguments among the first lines
_SECRET = re.compile(r"key|token|password|secret", re.IGNORECASE)
_NOT_SECRET = re.compile(r"tokenizer|_tokens?(_|$)|token_(usage|map|ids?)|keyfile$|time_to", re.IGNORECASE)
_NCCL = re.compile(r"/[^/]*libnccl\.so[^/]*$")
_NCCL_VERSION = re.compile(rb"NCCL version (\d+\.\d+[\w.+]*)")
_SHOWN = 5
_LEAST_CORES = 0.1


# --- section server ----------------------------------------------------------------------------------


def resolved(record: servers.ServerRecord, unknown: Unknown) -> dict[str, str] | None:
    """Arguments as the engine itself resolved them, from the beginning of its log; secrets as hashes."""
    adapter = engines.ENGINES.get(record.engine)
    if adapter is None or not adapter.resolved_pattern:
        unknown["server.resolved"] = f"{record.engine} does not print its arguments"
        return None
    try:
        with open(record.log, encoding="utf-8", errors="replace") as source:
            head = source.read(_HEAD)
    except OSError as error:
        unknown["server.resolved"] = f"{record.log}: {error.strerror or error}"
        return None
    for line in head.splitlines():
        found = adapter.resolved_arguments(line)
        if found is not None:
            return {name: _masked(name, value) for name, value in sorted(found.items())}
    unknown["server.resolved"] = f"the beginning of {record.log} does not show the arguments"
    return None


def _masked(name: str, value: str) -> str:
    secret = _SECRET.search(name) and not _NOT_SECRET.search(name) and value not in ("None", "''", "False", "True")
    return secret_hash(value) if secret else value


def nccl(tree: list[procfs.Process], unknown: Unknown, proc: str = procfs.PROC) -> dict[str, str | None] | None:
    """File -> version of every NCCL that the server's processes have mapped; the pip package may be another one."""
    found: dict[str, str | None] = {}
    refused: OSError | None = None
    for item in tree:
        try:
            with open(f"{proc}/{item.pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
                paths = {line.split(None, 5)[5].rstrip("\n") for line in maps if "libnccl" in line}
        except FileNotFoundError:
            continue  # it ended meanwhile
        except OSError as error:
            refused = error
            continue
        for path in paths:
            if _NCCL.search(path) and path not in found:
                # In the process's own view of the file system: it may live in a container.
                found[path] = library_version(f"{proc}/{item.pid}/root{path}") or library_version(path)
    if not tree or (refused is not None and not found):
        why = f"{refused.filename}: {refused.strerror}" if refused else "the server does not run"
        unknown["server.nccl_mapped"] = why
        return None
    return found


def library_version(path: str) -> str | None:
    """The version that an NCCL library says it is; None when it cannot be read or says none."""
    try:
        with open(path, "rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as content:
            match = _NCCL_VERSION.search(content)
            return match.group(1).decode() if match else None
    except (OSError, ValueError):
        return None  # an empty file cannot be mapped


# --- conditions: who else is there -------------------------------------------------------------------


class Tenants:
    """Processes that are not the server's: on the GPUs, and by CPU time between :meth:`begin` and :meth:`end`."""

    def __init__(self, table: dict[int, procfs.Process], tree: list[procfs.Process], proc: str = procfs.PROC) -> None:
        self.proc = proc
        self.table = table
        # In a container the driver may tell the host's pids: then the title is what we have.
        self.titles = {item.cmdline for item in tree if item.cmdline}
        # Not ourselves and not those that started us either: they are gone when the server is measured.
        self.ours = {item.pid for item in tree} | _ancestors(os.getpid(), table)
        self.ticks = self._ticks()
        self.uptime = _uptime(proc)

    def _ticks(self) -> dict[tuple[int, int], int]:
        found = {}
        for pid, item in self.table.items():
            content = None if pid in self.ours else reading.text(f"{self.proc}/{pid}/stat")
            fields = (content or "").rpartition(")")[2].split()
            if len(fields) > 19 and int(fields[19]) == item.start:
                found[(pid, item.start)] = int(fields[11]) + int(fields[12])
        return found

    def read(self, gpus: list[dict[str, Any]] | None) -> dict[str, Any]:
        """``cpu``: the busiest by name, in cores; ``gpus``: per GPU by name, with their memory."""
        seconds = (_uptime(self.proc) or 0.0) - (self.uptime or 0.0)
        cores: dict[str, float] = {}
        if seconds > 0:
            hertz = os.sysconf("SC_CLK_TCK")
            for key, ticks in self._ticks().items():
                name = self.table[key[0]].comm
                cores[name] = cores.get(name, 0.0) + (ticks - self.ticks.get(key, ticks)) / hertz / seconds
        busiest = sorted((name for name in cores if cores[name] >= _LEAST_CORES), key=lambda name: -cores[name])
        shared: dict[tuple[int, str], int] = {}
        for gpu in gpus or []:
            for one in gpu["processes"]:
                if one["pid"] not in self.ours and one["name"] not in self.titles and one["memory_mib"]:
                    place = (gpu["index"], os.path.basename(one["name"]))
                    shared[place] = shared.get(place, 0) + one["memory_mib"]
        return {
            "cpu": [{"name": name, "cores": round(cores[name], 2)} for name in busiest[:_SHOWN]],
            "gpus": [{"gpu": key[0], "name": key[1], "memory_mib": memory} for key, memory in sorted(shared.items())],
        }


def _ancestors(pid: int, table: dict[int, procfs.Process]) -> set[int]:
    found = {pid}
    while pid in table and table[pid].ppid not in found and table[pid].ppid > 1:
        pid = table[pid].ppid
        found.add(pid)
    return found


def _uptime(proc: str) -> float | None:
    words = (reading.text(f"{proc}/uptime") or "").split()
    return float(words[0]) if words else None
