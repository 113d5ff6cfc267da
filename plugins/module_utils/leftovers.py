# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Shared memory that killed engines leave behind: which of it is certainly nobody's any more.

Cautious on purpose: only names that engines, NCCL, torch and Python's multiprocessing use, only files of our user,
never one that a process maps or has open, never one whose creator (where the name tells) lives.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Callable

from . import procfs
from .holders import SHARED_MEMORY, Scan

#: Younger files may belong to a process that is between creating and mapping them.
MIN_AGE_S = 60.0

# (pattern of the file's name, base of the creator's pid in its group "pid"; 0: the name does not tell).
_NAMES: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"sgl_shm_[A-Za-z0-9]+_(?P<pid>\d+)_.*"), 10),
    (re.compile(r"torch_(?P<pid>\d+)_\d+(_\d+)?"), 10),
    (re.compile(r"sem\.loky-(?P<pid>\d+)-.*"), 10),
    (re.compile(r"cuda\.shm\.[0-9a-f]+\.(?P<pid>[0-9a-f]+)\.[0-9a-f]+"), 16),
    (re.compile(r"(nccl-|psm_|sem\.mp-|sglang_loads_|vllm_offload_|vllm_dist_).*"), 0),
)
_SOCKETS = "nccl-socket-*"


@dataclass(frozen=True)
class Leftover:
    """A file with a name of that kind. ``stays`` tells why it is not removed; "" when it is."""

    path: str
    stays: str = ""

    def as_dict(self) -> dict[str, str]:
        return {"path": self.path, "why": self.stays}


def creator(name: str) -> int | None:
    """The pid in a name, 0 when that kind of name has none, None when it is not a name of ours to judge."""
    for pattern, base in _NAMES:
        found = pattern.fullmatch(name)
        if found:
            return int(found.group("pid"), base) if base else 0
    return None


def find(
    scan: Scan,
    live: Collection[int],
    ended: Collection[int],
    before: Scan,
    now: float,
    uid: int,
    folder: str = SHARED_MEMORY,
    temporary: str = "/tmp",
    proc: str = procfs.PROC,
) -> list[Leftover]:
    """All such files and what is to become of each.

    ``live``: pids of the processes that stay; ``ended``: pids that the reset ends or has ended. What those had open in
    the scan ``before`` their end is known to be theirs: it need not be old to go, and goes although there are processes
    that may not be looked at. ``now`` in seconds since 1970.
    """
    # A process of our user whose maps may not be read could map any of them; not so the init process, which some
    # machines hide from everybody.
    blind = [pid for pid in sorted(scan.unreadable) if pid != 1 and _uid(pid, proc) == uid]
    stay, gone = set(live), set(ended)
    found = []
    for path, pid in sorted(_candidates(folder, temporary)):
        try:
            about = os.lstat(path)
        except OSError:
            continue
        if not (stat.S_ISREG(about.st_mode) or stat.S_ISSOCK(about.st_mode)):
            continue
        users = scan.opened.get(path, set()) & stay
        young = now - max(about.st_mtime, about.st_ctime) < MIN_AGE_S
        by_ended = pid in gone or bool(before.opened.get(path, set()) & gone)
        if about.st_uid != uid:
            why = f"belongs to uid {about.st_uid}"
        elif users:
            why = f"in use by process {', '.join(map(str, sorted(users)))}"
        elif pid and pid in stay:
            why = f"its creator {pid} lives"
        elif stat.S_ISSOCK(about.st_mode) and _bound(path, proc):
            why = "a process has this socket"
        elif blind and not by_ended:
            why = f"cannot tell whether process {blind[0]} uses it: its maps may not be read"
        elif young and not by_ended:
            why = f"younger than {MIN_AGE_S:g} s"
        else:
            why = ""
        found.append(Leftover(path, why))
    return found


def candidates(ended: Collection[int], before: Scan, folder: str = SHARED_MEMORY, temporary: str = "/tmp") -> set[str]:
    """Paths of such files that the ended processes made, or had open in the scan ``before`` their end."""
    gone = set(ended)
    return {
        path for path, pid in _candidates(folder, temporary) if pid in gone or before.opened.get(path, set()) & gone
    }


def _candidates(folder: str, temporary: str) -> Iterable[tuple[str, int]]:
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    for name in names:
        pid = creator(name)
        if pid is not None:
            yield os.path.join(folder, name), pid
    for path in glob.glob(os.path.join(temporary, _SOCKETS)):
        yield path, 0


def _uid(pid: int, proc: str) -> int | None:
    try:
        return os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return None


def _bound(path: str, proc: str) -> bool:
    """Whether a Unix socket of that path exists; True when that cannot be told."""
    try:
        with open(f"{proc}/net/unix", encoding="utf-8", errors="surrogateescape") as source:
            return any(line.rstrip("\n").endswith(" " + path) for line in source)
    except OSError:
        return True


def remove(items: Iterable[Leftover], unlink: Callable[[str], None] = os.unlink) -> list[Leftover]:
    """Remove those that do not stay; returns the ones that were (or could not be, with the reason in ``stays``)."""
    done = []
    for item in items:
        if item.stays:
            continue
        try:
            unlink(item.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            item = Leftover(item.path, f"cannot be removed: {error.strerror}")
        done.append(item)
    return done
