# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run at a time compares on a host: two would end each other's servers.

``<records_dir>/<host>/comparisons/running.json`` says which ansible-playbook does. It holds while that process lives,
so that a killed one blocks nothing. Only one controller is looked at: where several share their records, or where there
is no /proc, nothing is held.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping
from typing import Any

from ..module_utils import files, procfs
from . import comparisons, records

NAME = "running.json"
#: Seconds that the other one may take to write so short a file.
PATIENCE_S = 10.0

Run = dict[str, Any]


def path(records_dir: str, host: str) -> str:
    """Path of the marker of a host."""
    return os.path.join(comparisons.folder(records_dir, host), NAME)


def this() -> Run | None:
    """This run: its ansible-playbook, of which the process of a task is a child. None where that cannot be told."""
    parent = multiprocessing.parent_process()  # not the parent of now: another one adopts the child of a killed process
    process = procfs.process(os.getpid() if parent is None or parent.pid is None else parent.pid)
    if process is None:
        return None
    return {"pid": process.pid, "start": process.start, "boot_id": procfs.boot_id()}


def other(records_dir: str, host: str, own: Run) -> Run | None:
    """The run that compares on this host now, if it is not this one."""
    try:
        found = files.read_json(path(records_dir, host))
    except (ValueError, OSError):
        return None  # half a marker is none: its writer was killed, or a person edited it
    if not isinstance(found, dict) or not all(isinstance(found.get(name), int) for name in ("pid", "start")):
        return None
    if _same(found, own) or found.get("boot_id") != own["boot_id"]:
        return None
    return found if procfs.alive(found["pid"], found["start"]) else None


def _same(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    return all(one.get(name) == two.get(name) for name in ("pid", "start", "boot_id"))


def refusal(records_dir: str, host: str, found: Run) -> str:
    """Why a second run cannot be, in one sentence."""
    return (
        f"another run compares on {host} now: ansible-playbook with process {found['pid']}, comparison "
        f"{found.get('comparison')}, since {found.get('since')}; two would end each other's servers. Let it end, or "
        f"end it. If it goes on with other hosts only, since it failed for this one: remove {path(records_dir, host)}"
    )


def told(records_dir: str, host: str) -> list[str]:
    """A sentence when another run compares on a host now; nothing is written."""
    own = this()
    found = other(records_dir, host, own) if own is not None else None
    return [] if found is None else [refusal(records_dir, host, found)]


def claim(records_dir: str, host: str, comparison: str) -> None:
    """Note that this run compares on a host. Raises RecordError when another one does, or it cannot be written."""
    own = this()
    if own is None:
        return
    where = path(records_dir, host)
    try:
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with files.folder_locked(os.path.dirname(where), PATIENCE_S):
            found = other(records_dir, host, own)
            if found is not None:
                raise records.RecordError(refusal(records_dir, host, found))
            files.write_json(where, {**own, "comparison": comparison, "since": comparisons.stamp(time.time())})
    except files.Busy as error:
        raise records.RecordError(f"{os.path.dirname(where)} is in use by another run; try again") from error
    except OSError as error:
        raise records.RecordError(f"cannot write {where}: {error}; check groundstate_records_dir") from error


def release(records_dir: str, host: str) -> None:
    """Take the note away, if it is of this run."""
    own, where = this(), path(records_dir, host)
    try:
        found = files.read_json(where)
        if own is not None and isinstance(found, dict) and _same(found, own):
            os.remove(where)
    except (ValueError, OSError):
        return  # it ends with this process all the same
