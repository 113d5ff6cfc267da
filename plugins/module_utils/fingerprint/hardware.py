# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Section hardware: what the machine is made of."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any

from . import reading
from .reading import Unknown


def read(
    root: str, gpus: list[dict[str, Any]] | None, unknown: Unknown, topology: dict[str, str] | None = None
) -> dict[str, Any]:
    """The section. ``root``: "" or the folder that stands for /; ``gpus`` and ``topology``: see :mod:`.gpus`."""
    cpu = _cpu(root, unknown)
    return {
        "cpu": cpu,
        "memory_total_mib": _memory(root, unknown),
        "numa_nodes": _numa(root, unknown),
        "virtualisation": {"vm": _vm(root, unknown), "container": _container(root)},
        "product": _product(root, unknown),
        "gpus": gpus,
        "topology": topology,
    }


def _cpu(root: str, unknown: Unknown) -> dict[str, Any]:
    result: dict[str, Any] = dict.fromkeys(("model", "sockets", "cores", "threads", "microcode", "flags_digest"))
    content = reading.value(f"{root}/proc/cpuinfo", unknown, "hardware.cpu")
    if content is None:
        return result
    blocks = [reading.keyed(block) for block in re.split(r"\n\s*\n", content)]
    threads = [block for block in blocks if "processor" in block]
    first = threads[0] if threads else {}
    result["threads"] = len(threads) or None
    result["model"] = first.get("model name") or _arm_model(first)
    if result["model"] is None:
        unknown["hardware.cpu.model"] = "/proc/cpuinfo names no model"
    # Microcode changes what the mitigations cost, and so explains numbers that nothing else does.
    result["microcode"] = first.get("microcode")
    flags = first.get("flags") or first.get("Features")
    if flags:
        result["flags_digest"] = hashlib.sha256(" ".join(sorted(set(flags.split()))).encode()).hexdigest()[:16]
    if all("physical id" in block and "core id" in block for block in threads) and threads:
        result["sockets"] = len({block["physical id"] for block in threads})
        result["cores"] = len({(block["physical id"], block["core id"]) for block in threads})
    else:
        unknown["hardware.cpu.cores"] = "/proc/cpuinfo tells no core ids"
    return result


def _arm_model(block: dict[str, str]) -> str | None:
    if "CPU part" not in block:
        return None
    return f"implementer {block.get('CPU implementer')} part {block['CPU part']} variant {block.get('CPU variant')}"


def _total(content: str) -> int | None:
    match = re.search(r"MemTotal:\s*(\d+) kB", content)
    return int(match.group(1)) if match else None


def _memory(root: str, unknown: Unknown) -> int | None:
    content = reading.value(f"{root}/proc/meminfo", unknown, "hardware.memory_total_mib")
    return None if content is None else reading.mib(_total(content))


def _numa(root: str, unknown: Unknown) -> list[dict[str, Any]] | None:
    folder = f"{root}/sys/devices/system/node"
    names = reading.entries(folder, "node")
    if not names:
        unknown["hardware.numa_nodes"] = f"{folder} lists no node"
        return None
    # Without their memory: kernels that initialise it lazily report a number that grows while they run.
    return [{"node": int(name[4:]), "cpus": reading.text(f"{folder}/{name}/cpulist")} for name in names]


def _vm(root: str, unknown: Unknown) -> str | None:
    """ "none", or the hypervisor's name as far as the firmware tells it ("yes": it does not)."""
    content = reading.text(f"{root}/proc/cpuinfo")
    if content is None:
        unknown["hardware.virtualisation.vm"] = "/proc/cpuinfo cannot be read"
        return None
    if not re.search(r"^flags\s*:.*\bhypervisor\b", content, re.MULTILINE):
        # Arm has no such flag: there only the firmware's words tell.
        vendor = (reading.text(f"{root}/sys/class/dmi/id/sys_vendor") or "").lower()
        return "kvm" if vendor in ("qemu", "kvm") else "none"
    vendor = (reading.text(f"{root}/sys/class/dmi/id/sys_vendor") or "").lower()
    for sign, name in (("qemu", "kvm"), ("kvm", "kvm"), ("vmware", "vmware"), ("microsoft", "hyperv"), ("xen", "xen")):
        if sign in vendor:
            return name
    return reading.text(f"{root}/sys/hypervisor/type") or "yes"


def _container(root: str) -> str:
    """Kind of container we are in, or "none" when nothing points to one."""
    named = reading.text(f"{root}/run/systemd/container")
    if named:
        return named
    match = re.search(r"(?:^|\0)container=([^\0]+)", reading.text(f"{root}/proc/1/environ") or "")
    if match:
        return match.group(1)
    for path, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if os.path.exists(root + path):
            return name
    # lxcfs shows itself by what it mounts, also to users who may not read /proc/1/environ.
    return "lxc" if "lxcfs" in (reading.text(f"{root}/proc/self/mounts") or "") else "none"


def _product(root: str, unknown: Unknown) -> str | None:
    words = [reading.text(f"{root}/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    known = [word for word in words if word]
    if not known:
        tree = reading.text(f"{root}/proc/device-tree/model")
        if tree:
            return tree
        unknown["hardware.product"] = "neither /sys/class/dmi/id nor a device tree names it"
        return None
    return " ".join(known)
