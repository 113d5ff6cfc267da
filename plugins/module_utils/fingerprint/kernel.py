# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Section kernel: the running kernel, its settings, and the limits that the server runs under."""

from __future__ import annotations

import os
import re
from typing import Any

from . import reading
from .reading import Unknown

_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"


def read(root: str, pid: int | str, unknown: Unknown) -> dict[str, Any]:
    """The section. ``pid``: the process whose limits count, the server's where it runs, else "self"."""
    return {
        "release": reading.value(f"{root}/proc/sys/kernel/osrelease", unknown, "kernel.release"),
        "cmdline": reading.value(f"{root}/proc/cmdline", unknown, "kernel.cmdline"),
        "os": _os_release(root, unknown),
        "governors": _governors(root, unknown),
        "transparent_hugepages": _chosen(root, unknown),
        "numa_balancing": reading.value(f"{root}/proc/sys/kernel/numa_balancing", unknown, "kernel.numa_balancing"),
        "turbo": _turbo(root, unknown),
        "swap_total_mib": _swap(root),
        "shm_bytes": _shm(root, unknown),
        "limits": limits(root, pid, unknown),
    }


def _os_release(root: str, unknown: Unknown) -> str | None:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        content = reading.text(root + path)
        if content:
            words = reading.keyed(content, "=")
            return (
                (words.get("PRETTY_NAME") or f"{words.get('ID', '?')} {words.get('VERSION_ID', '')}").strip().strip('"')
            )
    unknown["kernel.os"] = "neither /etc/os-release nor /usr/lib/os-release can be read"
    return None


def _governors(root: str, unknown: Unknown) -> dict[str, int] | None:
    """Governor -> number of CPUs that have it."""
    folder = f"{root}/sys/devices/system/cpu"
    found: dict[str, int] = {}
    for name in reading.entries(folder, "cpu"):
        governor = reading.text(f"{folder}/{name}/cpufreq/scaling_governor")
        if governor:
            found[governor] = found.get(governor, 0) + 1
    if not found:
        unknown["kernel.governors"] = "no CPU has cpufreq/scaling_governor (usual in virtual machines)"
        return None
    return found


def _turbo(root: str, unknown: Unknown) -> bool | None:
    """Whether CPUs may go above their nominal clock."""
    cpus = f"{root}/sys/devices/system/cpu"
    off, boost = reading.number(f"{cpus}/intel_pstate/no_turbo"), reading.number(f"{cpus}/cpufreq/boost")
    if off is not None:
        return not off
    if boost is not None:
        return bool(boost)
    unknown["kernel.turbo"] = "neither intel_pstate/no_turbo nor cpufreq/boost (usual in virtual machines)"
    return None


def _chosen(root: str, unknown: Unknown) -> str | None:
    content = reading.value(
        f"{root}/sys/kernel/mm/transparent_hugepage/enabled", unknown, "kernel.transparent_hugepages"
    )
    match = re.search(r"\[(\w+)\]", content or "")
    return match.group(1) if match else None


def _swap(root: str) -> int | None:
    match = re.search(r"SwapTotal:\s*(\d+) kB", reading.text(f"{root}/proc/meminfo") or "")
    return reading.mib(int(match.group(1))) if match else None


def _shm(root: str, unknown: Unknown) -> int | None:
    try:
        info = os.statvfs(f"{root}/dev/shm")
    except OSError as error:
        unknown["kernel.shm_bytes"] = f"/dev/shm: {error.strerror}"
        return None
    return info.f_blocks * info.f_frsize


# --- limits of control groups ----------------------------------------------------------------------


def limits(root: str, pid: int | str, unknown: Unknown) -> dict[str, Any]:
    """What the control groups of a process allow: ``cpus`` and ``memory_bytes`` (None: no limit), ``cpuset``.

    The lowest value on the way up to the root counts: a limit of the container's own group is usually set above ours.
    """
    result: dict[str, Any] = {"cpus": None, "memory_bytes": None, "cpuset": None}
    content = reading.value(f"{root}/proc/{pid}/cgroup", unknown, "kernel.limits")
    status = reading.keyed(reading.text(f"{root}/proc/{pid}/status") or "")
    result["cpuset"] = status.get("Cpus_allowed_list")
    if result["cpuset"] is None:
        unknown["kernel.limits.cpuset"] = f"/proc/{pid}/status cannot be read"
    for line in (content or "").splitlines():
        _number, _colon, rest = line.partition(":")
        controllers, _colon, path = rest.partition(":")
        for folder in _upwards(f"{root}/sys/fs/cgroup", controllers, path):
            if not controllers:
                _lower(result, "cpus", _quota_v2(reading.text(f"{folder}/cpu.max")))
                _lower(result, "memory_bytes", _bytes(reading.text(f"{folder}/memory.max")))
            elif "memory" in controllers.split(","):
                _lower(result, "memory_bytes", _bytes(reading.text(f"{folder}/memory.limit_in_bytes")))
            elif "cpu" in controllers.split(","):
                quota, period = (
                    reading.number(f"{folder}/cpu.cfs_quota_us"),
                    reading.number(f"{folder}/cpu.cfs_period_us"),
                )
                _lower(result, "cpus", quota / period if quota and quota > 0 and period else None)
    return result


def _upwards(mount: str, controllers: str, path: str) -> list[str]:
    """Folders of a group and of all above it, also where a namespace hides the way (then only the mount's root)."""
    base = os.path.join(mount, controllers) if controllers else mount
    if controllers and not os.path.isdir(base) and os.path.isdir(os.path.join(mount, controllers.split(",")[0])):
        base = os.path.join(mount, controllers.split(",")[0])
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        parts = []
    return [os.path.join(base, *parts[:count]) for count in range(len(parts), -1, -1)]


def _lower(result: dict[str, Any], key: str, value: float | int | None) -> None:
    if value is not None and (result[key] is None or value < result[key]):
        result[key] = value


def _quota_v2(content: str | None) -> float | None:
    words = (content or "").split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
        return None  # "max 100000": no quota
    return int(words[0]) / int(words[1])


def _bytes(content: str | None) -> int | None:
    if content is None or not content.isdigit() or int(content) >= _UNLIMITED:
        return None
    return int(content)
