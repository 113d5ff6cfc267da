# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Host memory of a process: the limit of its control group, and whether the kernel has killed for want of memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import holders, procfs

CGROUPS = "/sys/fs/cgroup"
#: Version 1 writes "no limit" as the largest multiple of a page.
_UNLIMITED = 1 << 60
#: (limit, counter of kills) of versions 2 and 1.
_FILES = (("memory.max", "memory.events"), ("memory.limit_in_bytes", "memory.oom_control"))


@dataclass(frozen=True)
class Group:
    """A control group (its folder) with a memory limit (bytes; None: none) and how often the kernel killed in it."""

    folder: str
    limit: int | None = None
    kills: int | None = None

    def words(self) -> str:
        """The limit in words; "" when there is none."""
        return f"the memory limit of its control group is {self.limit / 2**30:.2f} GiB" if self.limit else ""


def group(pid: int, proc: str = procfs.PROC, root: str = CGROUPS) -> Group | None:
    """The group that limits a process: the one with the smallest limit, else its own. None when that cannot be told."""
    found = holders.cgroups(pid, proc)
    first = next((path for name, path in found.items() if "memory" in name.split(",")), None)
    top = root if first is None else os.path.join(root, "memory")
    first = found.get("") if first is None else first
    if first is None:
        return None
    groups = []
    for folder in _upwards(os.path.join(top, first.strip("/")).rstrip("/"), top):
        one = read(folder)
        groups += [one] if one else []
    limited = [one for one in groups if one.limit is not None]
    return min(limited, key=lambda one: one.limit or 0) if limited else (groups[0] if groups else None)


def read(folder: str) -> Group | None:
    """One control group as it is now, of version 2 or 1; None when it is gone, or is no memory group."""
    for limit_file, kills_file in _FILES:
        events = _read(os.path.join(folder, kills_file))
        if events:
            return Group(folder, _number(_read(os.path.join(folder, limit_file)).strip()), _kills(events))
    return None


def _upwards(folder: str, top: str) -> list[str]:
    folders = [folder]
    while folders[-1] != top and len(folders[-1]) > len(top):
        folders.append(os.path.dirname(folders[-1]))
    return folders


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _kills(text: str) -> int | None:
    for line in text.splitlines():
        name, _space, value = line.partition(" ")
        if name == "oom_kill":
            return _number(value.strip())
    return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as source:
            return source.read()
    except OSError:
        return ""
