# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a target host has, as far as :mod:`.checks` asks. It only looks and changes nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

from .. import engines, holders, launcher, nvidia, ports, procfs, servers, writable
from ..fingerprint import kernel
from ..venvs import interpreters

MIB = 1 << 20


def gather(wants: Mapping[str, Any], root: str = "") -> dict[str, Any]:
    """Facts for what is wanted: home, environment, server, local_fact as the module preflight has them."""
    home, environment, server = wants["home"], wants["environment"], wants["server"]
    ours, running, damage = _own(home, server["name"])
    facts = {
        "python": ".".join(str(one) for one in sys.version_info[:3]),
        "platform": sysconfig.get_platform(),
        "machine": platform.machine(),
        "root": os.geteuid() == 0,
        "home": _place(home, ("servers", "envs", "models", "cache", "facts.d")),
        "environment": _place(environment["path"]) if environment["path"] else None,
        "env_python": _interpreter(environment),
        "memory": memory(root),
        "running": running is not None,
        "record": damage,
        "port_users": _port_users(home, server, ours, running, wants["gpu_state"]),
        "low_ports_from": _unprivileged_port(root),
        "models": {field: model(path) for field, path in server["models"].items()},
        "program": _program(server["program"]),
        "systemd": launcher.systemd_usable() if server["launcher"] == "systemd" else "",
        "local_fact": writable.obstacle(os.path.dirname(wants["local_fact"])) if wants["local_fact"] else "",
        "gpus": None,
    }
    if server["gpus_needed"]:
        facts["gpus"] = _gpus(server["gpus"], bool(environment["compute_capability"]))
    return facts


# --- folders, disk, memory ---------------------------------------------------------------------------


def _place(path: str, inside: tuple[str, ...] = ()) -> dict[str, Any]:
    """A folder: whether it exists, why it could not be written to, how much is free on its filesystem."""
    why = writable.obstacle(path)
    if not why:
        # A home that another user (root, usually) wrote to before is of no use to this one.
        existing = [os.path.join(path, name) for name in inside if os.path.lexists(os.path.join(path, name))]
        why = next((reason for reason in map(writable.obstacle, existing) if reason), "")
    free = files_left = None
    try:
        info = os.statvfs(writable.nearest(path))
        free = info.f_bavail * info.f_frsize // MIB
        # Filesystems without a fixed number of inodes report 0 of 0.
        files_left = info.f_favail if info.f_files else None
    except OSError:
        pass
    return {"path": path, "exists": os.path.isdir(path), "obstacle": why, "free_mib": free, "files_left": files_left}


def memory(root: str = "") -> dict[str, int | None]:
    """Available memory in MiB: what the kernel says, and the limit of our control group, where there is one."""
    try:
        with open(f"{root}/proc/meminfo", encoding="ascii", errors="replace") as source:
            found = re.search(r"MemAvailable:\s*(\d+) kB", source.read())
    except OSError:
        found = None
    limit = kernel.limits(root, "self", {})["memory_bytes"]
    return {
        "available_mib": int(found.group(1)) // 1024 if found else None,
        "limit_mib": limit // MIB if limit else None,
    }


# --- environment, model, program ---------------------------------------------------------------------


def _interpreter(environment: Mapping[str, Any]) -> dict[str, str]:
    """The Python that a new environment would be made for; {} when none has to be made."""
    if not environment["lock"] or os.path.isdir(environment["path"]):
        return {}
    try:
        found = interpreters.find(environment["python"], environment["python_range"])
    except ValueError as error:
        return {"error": str(error)}
    return {"path": found.executable, "version": found.version}


def model(path: str) -> dict[str, Any]:
    """What lies at a model's path: kind ("missing", "file", "folder", "other"), size or content, and what begins it."""
    path = os.path.expanduser(path)
    found: dict[str, Any] = {
        "path": path,
        "kind": "missing",
        "size": None,
        "config": None,
        "names": None,
        "magic": None,
    }
    if os.path.isdir(path):
        try:
            names = os.listdir(path)
        except OSError:
            return {**found, "kind": "unreadable"}
        return {**found, "kind": "folder", "names": len(names), "config": "config.json" in names}
    if os.path.isfile(path):
        try:
            with open(path, "rb") as source:
                magic = source.read(4)
        except OSError:
            return {**found, "kind": "unreadable"}
        return {**found, "kind": "file", "size": os.path.getsize(path), "magic": magic.decode("latin-1")}
    return {**found, "kind": "link to nowhere" if os.path.islink(path) else found["kind"]}


def _program(program: str) -> bool | None:
    """Whether the server's program can be run; None when there is nothing to look for (yet)."""
    return shutil.which(os.path.expanduser(program)) is not None if program else None


# --- the server's processes and port -----------------------------------------------------------------


def _own(home: str, name: str) -> tuple[set[int], servers.ServerRecord | None, str]:
    """Pids of all processes of our own server, its record when that process still runs, why it cannot be read."""
    if not name or not os.path.isdir(servers.folder(home, name)):
        return set(), None, ""
    try:
        ours = {item.pid for item in servers.started_by_us(home, name, procfs.processes())}
        record = servers.load(home, name)
    except (OSError, ValueError) as error:
        return set(), None, str(error)
    return ours, record if record and record.running() else None, ""


def _port_users(
    home: str, server: Mapping[str, Any], ours: set[int], running: servers.ServerRecord | None, gpu_state: bool
) -> list[dict[str, Any]]:
    """Who has the declared port and is not our own server."""
    port = server["port"]
    if not 1 <= port <= ports.LAST_PORT:
        return []
    found = []
    for use in ports.who_has(port, server["host"]):
        mine = use.pid in ours or (use.pid is None and running is not None and running.port == port)
        if not mine:
            cleared = gpu_state and use.pid is not None and _will_be_ended(home, use.pid)
            found.append({"pid": use.pid, "state": use.state, "cmdline": use.cmdline, "cleared": cleared})
    return found


def _will_be_ended(home: str, pid: int) -> bool:
    """Whether the role gpu_state, which comes before the start, ends this process: another server of ours, or an
    engine that holds a GPU."""
    marker = procfs.initial_environment(pid).variables.get(servers.SERVER_VARIABLE, "")
    if marker and os.path.dirname(marker) == servers.servers_folder(home):
        return True
    item = procfs.process(pid)
    return item is not None and engines.classify(item.cmdline) is not None and bool(holders.scan([pid]).nodes())


def _unprivileged_port(root: str = "") -> int:
    try:
        with open(f"{root}/proc/sys/net/ipv4/ip_unprivileged_port_start", encoding="ascii") as source:
            return int(source.read())
    except (OSError, ValueError):
        return 1024


# --- GPUs --------------------------------------------------------------------------------------------


def _gpus(wanted: Any, ask_capability: bool = False) -> dict[str, Any]:
    answer = nvidia.query()
    found: dict[str, Any] = {
        "available": answer.available,
        "why": answer.why,
        "count": len(answer.gpus),
        "chosen": None,
    }
    found["driver"] = answer.report.driver if answer.report else None
    found["cuda"] = answer.report.cuda if answer.report else None  # the newest that this driver can run
    found["closed"] = [node for node in nvidia.device_nodes() if not os.access(node, os.R_OK | os.W_OK)]
    try:
        names = [wanted] if isinstance(wanted, (str, int)) else list(wanted)
        chosen = nvidia.select(answer.gpus, [str(one) for one in names])
        found["chosen"] = len(chosen)
        known = nvidia.capabilities() if ask_capability and chosen else {}
        found["capabilities"] = {one.name: known[one.uuid] for one in chosen if one.uuid in known}
    except ValueError as error:
        found["wrong"] = str(error)
    return found
