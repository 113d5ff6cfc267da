# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a start has on its host: noted while it lives, so that it is known, and can be removed, when it is dead.

A name in /dev/shm seldom tells whose it is. What one of the server's processes had open when we looked, and is still
the same file, is the server's; so is what has the number of such a process in its name. Everything else of that kind
is for the clean state (gpu_reset), which can wait until it is old.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from . import holders, leftovers, procfs, servers
from .leftovers import Leftover
from .ready_file import Kept
from .servers import ServerRecord


def shared_memory(pids: Iterable[int]) -> list[list[str | int]]:
    """[path, inode] of each file of shared memory that these processes have open."""
    found: list[list[str | int]] = []
    for path in sorted(holders.scan(pids).opened):
        if path.startswith(holders.SHARED_MEMORY) and leftovers.creator(os.path.basename(path)) is not None:
            inode = _inode(path)
            if inode:
                found.append([path, inode])
    return found


def _inode(path: str) -> int:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def sweep(
    home: str, record: ServerRecord | None, ended: Iterable[int], held: holders.Scan, keep: bool = False
) -> list[Leftover]:
    """Remove the shared memory of a server of which nothing runs; returns what was removed, and what stays and why.

    ``ended``: pids of the processes that were just ended; ``held``: what they had open before. What is known of a start
    that had died already was noted by the wait for it. ``keep`` True (check mode) only says what would go. The rules
    are those of the clean state: never what a process that lives has open.
    """
    gone = set(ended)
    opened = {path: set(pids) for path, pids in held.opened.items()}
    if record and record.pid and record.boot_id == procfs.boot_id():
        kept = Kept.load(servers.folder(home, record.name), record.start_id)
        gone |= {record.pid, *kept.pids}
        for path, inode in kept.shared_memory:
            if _inode(path) == inode:
                opened.setdefault(path, set()).add(record.pid)
    # A number may be another process's by now. Zombies have nothing open any more.
    live = {pid for pid, item in procfs.processes().items() if not item.zombie}
    gone -= live
    before = holders.Scan(opened)
    candidates = leftovers.candidates(gone, before)
    if not candidates:
        return []
    found = leftovers.find(holders.scan(live), live, gone, before, time.time(), os.geteuid())
    mine = [one for one in found if one.path in candidates]
    if keep:
        return mine
    return [one for one in mine if one.stays] + leftovers.remove(mine)
