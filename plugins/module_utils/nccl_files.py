# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL on a host's disk and in its processes: the logs of a start, and the libraries that a process maps."""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping

from . import nccl_log, procfs

#: Bytes that are read of one log: with per-collective lines it grows without end, and what is proved comes first.
LARGEST_LOG = 64 << 20
_LIBRARY = re.compile(r"/libnccl\.so[.\d]*(?: \(deleted\))?$")


def renew(folder: str, environment: Mapping[str, str]) -> None:
    """Prepare a server's folder for the logs of a new start: those of the one before prove nothing any more.

    NCCL makes no folder: where there is none it writes to stdout. Raises OSError.
    """
    place = os.path.join(folder, nccl_log.FOLDER)
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place)
    if os.path.dirname(environment.get("NCCL_DEBUG_FILE", "")) == place:
        os.makedirs(place, 0o755, exist_ok=True)


def log_path(pattern: str, pid: int) -> str:
    """Where NCCL writes with this NCCL_DEBUG_FILE in the process with this number (of its own namespace).

    The newest of several files; the path with ``*`` for the host's name, which a container may have of its own, when
    there is none.
    """
    known = {"%h": "*", "%p": str(pid), "%%": "%"}
    parts = re.split(r"(%[hp%])", pattern)
    wanted = "".join(known.get(part, glob.escape(part)) for part in parts)
    found = sorted(glob.glob(wanted), key=os.path.getmtime)
    return found[-1] if found else "".join(known.get(part, part) for part in parts)


def read_logs(
    given: Mapping[str, str], server_log: str, pids: Iterable[int], since: float, proc: str = procfs.PROC
) -> dict[int, tuple[str, nccl_log.ProcessLog | None]]:
    """NCCL's log of each of these processes: pid -> (path, log; None: there is none of this start).

    ``given``: the environment of the start. ``since``: when it was, in seconds since 1970; older files are of others.
    Without NCCL_DEBUG_FILE, NCCL writes to stdout: ``server_log``. Raises OSError for a file that may not be read.
    """
    pattern = given.get("NCCL_DEBUG_FILE", "")
    read: dict[str, dict[int, nccl_log.ProcessLog]] = {}
    found: dict[int, tuple[str, nccl_log.ProcessLog | None]] = {}
    for pid in pids:
        inside = procfs.number_inside(pid, proc)
        path = log_path(pattern, inside) if pattern else server_log
        if path not in read:
            read[path] = _read(path, since)
        found[pid] = (path, read[path].get(inside))
    return found


def _read(path: str, since: float) -> dict[int, nccl_log.ProcessLog]:
    try:
        # A second for clocks of file systems that count coarsely.
        if os.stat(path).st_mtime < since - 1.0:
            return {}
        return nccl_log.parse(_lines(path))
    except FileNotFoundError:
        return {}


def _lines(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8", errors="replace") as source:
        left = LARGEST_LOG
        while left > 0:
            line = source.readline(1 << 16)
            if not line:
                return
            left -= len(line)
            yield line


def libraries(pid: int, proc: str = procfs.PROC) -> tuple[str, ...] | None:
    """The libnccl files that a process maps now, sorted; None when that may not be read.

    The NCCL of a statically linked program is in no file of its own: then there is none.
    """
    try:
        with open(f"{proc}/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
            paths = {line.rstrip("\n").split(None, 5)[-1] for line in maps if _LIBRARY.search(line.rstrip("\n"))}
    except OSError:
        return None
    return tuple(sorted(paths))
