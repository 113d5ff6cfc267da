# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Limits of a server: what it should have (engines pin memory and open many files), and what came of that.

Nobody can raise a limit above the hard limit of a container: systemd takes less without a word, as we do.
"""

from __future__ import annotations

import resource
from typing import Any

from . import nvidia, procfs

OPEN_FILES = 1048576
#: Fewer than this have been too few for eight ranks with their sockets; more than this is no matter for a warning.
ENOUGH_FILES = 65536
_REMEDY = (
    "raise the hard limit: of a container on its node (lxc.prlimit.{0}, docs/proxmox.md), of a user in limits.conf"
)


def raise_own() -> None:
    """Raise the limits of this process as far as they may be raised here."""
    for limit, most in ((resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY), (resource.RLIMIT_NOFILE, OPEN_FILES)):
        _soft, hard = resource.getrlimit(limit)
        allowed = (
            most if hard == resource.RLIM_INFINITY else hard if most == resource.RLIM_INFINITY else min(most, hard)
        )
        resource.setrlimit(limit, (allowed, hard))


def unit_lines() -> list[str]:
    """The same for a unit of systemd."""
    return ["LimitMEMLOCK=infinity", f"LimitNOFILE={OPEN_FILES}"]


def of(pid: int, proc: str = procfs.PROC) -> dict[str, int | None]:
    """Soft limits of a process: ``memlock`` in bytes and ``nofile``; None is no limit, a missing one is not known."""
    try:
        with open(f"{proc}/{pid}/limits", encoding="ascii", errors="replace") as source:
            text = source.read()
    except OSError:
        return {}
    found: dict[str, int | None] = {}
    for line in text.splitlines():
        for title, name in (("Max locked memory ", "memlock"), ("Max open files ", "nofile")):
            soft = line[len(title) :].split()[:1] if line.startswith(title) else []
            if soft and (soft[0] == "unlimited" or soft[0].isdigit()):
                found[name] = None if soft[0] == "unlimited" else int(soft[0])
    return found


def warnings(pid: int, declaration: dict[str, Any], dev: str = "/dev", proc: str = procfs.PROC) -> list[str]:
    """Limits of a launched server that are lower than it should have, each with its remedy.

    Locked memory matters where there are GPUs: NCCL registers its buffers with network cards.
    """
    found = of(pid, proc)
    told = []
    memlock, files = found.get("memlock"), found.get("nofile")
    if memlock is not None and declaration["gpus"] != [] and nvidia.device_nodes(dev):
        told.append(
            f"process {pid} may lock {memlock / 2**20:g} MiB of memory and should be able to lock all; "
            + _REMEDY.format("memlock")
        )
    if files is not None and files < ENOUGH_FILES:
        told.append(f"process {pid} may open {files} files and should have {OPEN_FILES}; {_REMEDY.format('nofile')}")
    return told
