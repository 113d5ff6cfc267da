# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ready.json: what is known of one start so far, kept between the slices of the wait for it."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from . import files, oom, phase_times, procfs

FILE = "ready.json"
#: Field -> types. A file in which one of them is another type was not written by us.
_TYPES: dict[str, Any] = {
    "ready": bool,
    "elapsed_s": (int, float),
    "was_s": (int, float, type(None)),
    "watched_from_s": (int, float),
    "phases": list,
    "probes": dict,
    "log_offset": int,
    "workers": list,
    "active_s": (int, float),
    "disk_bytes": (int, type(None)),
    "memory": (dict, type(None)),
    "parts": list,
    "pids": list,
    "shared_memory": list,
}
_ENTRIES = {"workers": [int, int, int], "parts": [str, int, int], "shared_memory": [str, int]}


@dataclass
class Kept:
    """See the fields of llm_server_ready's result; the others serve the next slice. All times since the launch."""

    ready: bool = False
    elapsed_s: float = 0.0
    was_s: float | None = None
    watched_from_s: float | None = None
    phases: list[dict[str, Any]] = field(default_factory=list)
    probes: dict[str, float] = field(default_factory=dict)
    log_offset: int = 0
    workers: list[list[int]] = field(default_factory=list)  # [rank, pid, start time]
    active_s: float | None = None  # when anything last happened
    disk_bytes: int | None = None  # read by all its processes when the phase began
    memory: oom.Group | None = None  # its control group as it was at the first look
    parts: list[list[Any]] = field(default_factory=list)  # [title, pid, start time] of what it needs besides workers
    pids: list[int] = field(default_factory=list)  # all its processes
    shared_memory: list[list[Any]] = field(default_factory=list)  # [path, inode] of what they had open in /dev/shm

    @classmethod
    def load(cls, folder: str, start_id: str) -> Kept:
        """What an earlier slice wrote of this start; a new one when there is nothing of use: the wait begins anew."""
        try:
            raw = files.read_json(os.path.join(folder, FILE))
        except ValueError:
            return cls()
        if not isinstance(raw, dict) or raw.get("start_id") != start_id:
            return cls()
        if not all(isinstance(raw.get(name), kinds) for name, kinds in _TYPES.items()):
            return cls()
        known = {one.name: raw[one.name] for one in fields(cls)}
        counts = [known[name] for name, kinds in _TYPES.items() if isinstance(known[name], (int, float))]
        counts += known["probes"].values()
        if not all(isinstance(one, bool) or files.is_number(one) for one in counts) or known["log_offset"] < 0:
            return cls()
        if not phase_times.are_phases(known["phases"]):
            return cls()
        for name, kinds in _ENTRIES.items():
            if not all(isinstance(one, list) and [type(item) for item in one] == kinds for one in known[name]):
                return cls()
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in known["pids"]):
            return cls()
        try:
            known["memory"] = oom.Group(**known["memory"]) if known["memory"] else None
        except TypeError:
            return cls()
        memory = known["memory"]
        if memory and not (
            isinstance(memory.folder, str)
            and all(one is None or isinstance(one, int) for one in (memory.limit, memory.kills))
        ):
            return cls()
        return cls(**known)

    def dead(self) -> list[str]:
        """What of the server has died (zombies included), in words that are a subject; [] when all of it lives."""
        known = [(f"the worker of rank {rank}", pid, start) for rank, pid, start in self.workers]
        known.extend((part[0], part[1], part[2]) for part in self.parts)
        return [f"{what} (process {pid})" for what, pid, start in known if not procfs.alive(pid, start)]

    def save(self, folder: str, start_id: str) -> None:
        """Write it atomically. Raises OSError."""
        value = {"start_id": start_id, **asdict(self)}
        if self.ready:
            value["ready_at"] = time.time()
        files.write_json(os.path.join(folder, FILE), value)
