# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who holds the GPUs: processes with an open or mapped /dev/nvidia*, joined with the driver's own list.

The driver's list alone is no ground to end a process: in a container it is empty or shows the host's process numbers.
The open files alone are no ground either to say *which* GPU a process uses: CUDA opens the nodes of GPUs that it then
leaves alone. So a process holds a GPU where both agree, and where the driver does not know the process, where its
open nodes leave no doubt.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import procfs
from .nvidia import Gpu
from .procfs import Process

_DELETED = " (deleted)"
SHARED_MEMORY = "/dev/shm/"


@dataclass
class Scan:
    """Open and mapped paths of all processes that may be looked at."""

    opened: dict[str, set[int]] = field(default_factory=dict)  # path -> pids
    unreadable: set[int] = field(default_factory=set)  # live processes whose files may not be looked at

    def nodes(self, dev: str = "/dev") -> dict[int, set[int]]:
        """pid -> numbers N of the /dev/nvidiaN that it has open or mapped."""
        found: dict[int, set[int]] = {}
        for path, owners in self.opened.items():
            number = path[len(dev) + len("/nvidia") :]
            if path.startswith(f"{dev}/nvidia") and number.isdigit():
                for pid in owners:
                    found.setdefault(pid, set()).add(int(number))
        return found

    def device_nodes(self, dev: str = "/dev") -> dict[int, set[str]]:
        """pid -> all /dev/nvidia* that it has open or mapped, also nvidiactl and nvidia-uvm."""
        found: dict[int, set[str]] = {}
        for path, owners in self.opened.items():
            if path.startswith(f"{dev}/nvidia"):
                for pid in owners:
                    found.setdefault(pid, set()).add(path)
        return found


def _paths(folder: str, prefixes: tuple[str, ...]) -> tuple[list[str], bool]:
    """What the process or thread of this folder has open or mapped, and whether some of that may not be looked at."""
    found: list[str] = []
    denied = False
    for source in ("fd", "maps"):
        where = f"{folder}/{source}"
        try:
            found.extend(_links(where) if source == "fd" else _mapped(where, prefixes))
        except (FileNotFoundError, ProcessLookupError):
            break  # gone meanwhile
        except OSError:
            denied = True
    return found, denied


def _other_threads(pid: int, proc: str) -> list[str]:
    """The folders of all threads but the first. They share its files; when that one has ended, only they show them."""
    try:
        return [f"{proc}/{pid}/task/{name}" for name in os.listdir(f"{proc}/{pid}/task") if name != str(pid)]
    except OSError:
        return []


def _links(folder: str) -> Iterable[str]:
    for name in os.listdir(folder):
        try:
            yield os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue  # closed meanwhile


def _mapped(path: str, prefixes: tuple[str, ...]) -> Iterable[str]:
    with open(path, "rb") as source:
        raw = source.read()
    if not any(prefix.encode() in raw for prefix in prefixes):
        return
    for line in raw.decode("utf-8", "surrogateescape").splitlines():
        parts = line.split(None, 5)
        if len(parts) == 6:
            yield parts[5]
            if parts[5].startswith(SHARED_MEMORY) and parts[5].endswith(_DELETED):
                yield from _present_names(parts[3], int(parts[4]))


def _present_names(device: str, inode: int) -> Iterable[str]:
    """The names of a mapped file that is shown as deleted, when it is not.

    glibc makes a named semaphore under a passing name, maps it, and only then gives it its own: maps shows the former.
    """
    for entry in os.scandir(SHARED_MEMORY):
        if entry.inode() == inode:
            number = os.lstat(entry.path).st_dev
            if f"{os.major(number):02x}:{os.minor(number):02x}" == device:
                yield entry.path


def scan(pids: Iterable[int], dev: str = "/dev", proc: str = procfs.PROC) -> Scan:
    """Look at the open files and maps of these processes for /dev/nvidia* and shared memory."""
    prefixes = (f"{dev}/nvidia", SHARED_MEMORY)
    found = Scan()
    for pid in pids:
        paths, denied = _paths(f"{proc}/{pid}", prefixes)
        for folder in [] if paths else _other_threads(pid, proc):
            more, refused = _paths(folder, prefixes)
            paths, denied = paths + more, denied or refused
        if denied:
            found.unreadable.add(pid)
        for path in paths:
            if path.startswith(prefixes):
                if path.endswith(_DELETED):
                    if path.startswith(SHARED_MEMORY):
                        continue  # another file may have that name now
                    path = path[: -len(_DELETED)]
                found.opened.setdefault(path, set()).add(pid)
    return found


@dataclass(frozen=True)
class Hold:
    """The GPUs (indices) of one process. ``doubtful``: node open, but nothing says that it uses that GPU."""

    gpus: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()
    memory: int | None = None  # bytes over all GPUs, where the driver tells


def holds(nodes: Mapping[int, set[int]], gpus: Iterable[Gpu], asked: Iterable[int]) -> dict[int, Hold]:
    """pid -> :class:`Hold`, for every process with a GPU node open; ``asked``: indices of the GPUs in scope.

    A process that the driver lists holds the GPUs it is listed for. One that the driver does not list holds all whose
    nodes it has open when all of those are asked for; else it is doubtful which of them it uses.
    """
    known = list(gpus)
    wanted = frozenset(asked)
    index_of = {one.minor if one.minor is not None else one.index: one.index for one in known}
    listed: dict[int, set[int]] = {}
    memory: dict[int, int | None] = {}
    for gpu in known:
        for one in gpu.processes:
            listed.setdefault(one.pid, set()).add(gpu.index)
            before = memory.get(one.pid, 0)
            memory[one.pid] = None if one.memory is None or before is None else before + one.memory
    found = {}
    for pid, minors in nodes.items():
        mine = frozenset(index_of[minor] for minor in minors if minor in index_of)
        if not mine:
            continue
        # Both must agree: the number in the driver's list may be that of a process in another namespace.
        agreed = mine & frozenset(listed.get(pid, ()))
        if agreed:
            found[pid] = Hold(agreed, frozenset(), memory.get(pid))
        elif mine <= wanted:
            found[pid] = Hold(mine)
        else:
            found[pid] = Hold(frozenset(), mine)
    return found


# --- details of one process ----------------------------------------------------------------------


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def cgroups(pid: int, proc: str = procfs.PROC) -> dict[str, str]:
    """The control groups of a process by hierarchy ("" is the unified one); {} when they may not be known."""
    try:
        with open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="replace") as source:
            lines = [line.rstrip("\n").split(":", 2) for line in source]
    except OSError:
        return {}
    return {parts[1]: parts[2] for parts in lines if len(parts) == 3}


def container_exists(name: str, proc: str = procfs.PROC, root: str = "/") -> bool:
    """Whether this host knows an LXC container: by its configuration, or by a process of it."""
    places = (f"etc/pve/lxc/{name}.conf", f"var/lib/lxc/{name}")
    return any(os.path.exists(os.path.join(root, place)) for place in places) or any(
        container(cgroups(pid, proc)) == name for pid in procfs.pids(proc)
    )


def main_group(groups: Mapping[str, str]) -> str:
    """The control group to speak of: that of the unified hierarchy, or systemd's; "" when unknown."""
    return next((groups[name] for name in ("name=systemd", "") if groups.get(name, "/") != "/"), groups.get("", ""))


# Proxmox: /lxc/101/ns/...; LXC itself: /lxc.payload.101/...; neither is the monitor (lxc.monitor.101, lxc.monitor/101).
_CONTAINER = re.compile(r"/lxc(?:/|\.payload[./])([^/]+)")


def container(groups: Mapping[str, str]) -> str:
    """Number or name of the LXC container that a process runs in; "" when it runs in none.

    The outermost one: a container may make control groups of any name, but only below its own.
    """
    for group in groups.values():
        found = _CONTAINER.search(group)
        if found:
            return found.group(1)
    return ""


def unit(group: str) -> str:
    """The systemd service that a control group belongs to; "" when none. A login session is no service."""
    services = [part for part in group.split("/") if part.endswith(".service") and not part.startswith("user@")]
    return services[-1] if services else ""


def program_names(item: Process, exe: str) -> frozenset[str]:
    """Names by which a process may be called: comm, argv[0], its executable, and the script of an interpreter."""
    words = item.cmdline.split()
    names = {item.comm, os.path.basename(exe)}
    if words:
        names.add(os.path.basename(words[0]))
        if is_python(item, exe):
            for place, word in enumerate(words[1:], 1):
                if word == "-m" or not word.startswith("-"):
                    names.add(os.path.basename(words[place + 1] if word == "-m" and place + 1 < len(words) else word))
                    break
    return frozenset(name for name in names if name)


def is_python(item: Process, exe: str) -> bool:
    """Whether a Python interpreter runs this process; its title may say something else."""
    words = item.cmdline.split(None, 1)
    candidates = (os.path.basename(exe), os.path.basename(words[0]) if words else "", item.comm)
    return any(re.match(r"^python[0-9.]*[a-z]?$", name) for name in candidates)


def executable(pid: int, proc: str = procfs.PROC) -> str:
    """Path of the program that a process runs; "" when it may not be known."""
    path = _link(f"{proc}/{pid}/exe")
    return path[: -len(_DELETED)] if path.endswith(_DELETED) else path


def title(pid: int, proc: str = procfs.PROC) -> str:
    """The title that a program gave itself in place of its arguments; "" when it has none, or is gone.

    Arguments are separated and ended by a NUL each. A title is one text, with many NULs behind it, or, where it ran
    over the environment, with none.
    """
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as source:
            raw = source.read()
    except OSError:
        return ""
    text = raw.rstrip(b"\0")
    ordinary = len(raw) - len(text) == 1 and b" " not in text
    return "" if b"\0" in text or ordinary else text.decode("utf-8", "replace").strip()


def same_namespace(pid: int, proc: str = procfs.PROC) -> bool | None:
    """Whether a process lives in the PID namespace of this one; None when that may not be known."""
    theirs = _link(f"{proc}/{pid}/ns/pid")
    return theirs == _link(f"{proc}/self/ns/pid") if theirs else None


def user(uid: int | None) -> str:
    """Name of a user; the number as text when it has none here."""
    if uid is None:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def describe(item: Process, hold: Hold, nodes: Iterable[str] = (), proc: str = procfs.PROC) -> dict[str, Any]:
    """One process as the modules return it; ``nodes``: the device nodes that it has open or mapped."""
    groups = cgroups(item.pid, proc)
    group = main_group(groups)
    return {
        "pid": item.pid,
        "start": item.start,
        "ppid": item.ppid,
        "uid": item.uid,
        "user": user(item.uid),
        "state": item.state,
        "comm": item.comm,
        "cmdline": item.cmdline,
        "title": title(item.pid, proc),
        "wchan": procfs.wchan(item.pid, proc) if item.state == "D" else "",
        "cgroup": group,
        "unit": unit(group),
        "container": container(groups),
        "nodes": sorted(nodes),
        "gpus": sorted(hold.gpus),
        "doubtful_gpus": sorted(hold.doubtful),
        "gpu_memory": hold.memory,
        "same_namespace": same_namespace(item.pid, proc),
    }
