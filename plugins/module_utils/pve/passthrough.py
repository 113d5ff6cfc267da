# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which device nodes a container needs for its GPUs. Pure.

GPUs are named by index (as nvidia-smi counts: by PCI address), PCI address or UUID; the node of a GPU is /dev/nvidiaN
with the driver's minor number, which is not the index and may move with a reboot.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping

from .. import nvidia

COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
MODESET = "/dev/nvidia-modeset"
CAPS = "/dev/nvidia-caps"
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)


def is_nvidia(path: str) -> bool:
    """Whether a device path is one of NVIDIA's: those are in the hands of the option gpus."""
    return path.startswith("/dev/nvidia")


def pci_address(text: str) -> str | None:
    """A PCI address in one spelling (domain:bus:device.function, the domain of four digits or more), or None."""
    found = _PCI.fullmatch(text.strip())
    if not found:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or 0}".lower()


def from_proc(text: str) -> list[nvidia.Gpu]:
    """The GPUs in the files of /proc/driver/nvidia/gpus, one after the other, with what a pass-through needs to know.

    It costs nothing and needs no nvidia-smi. A GPU that nobody has used yet has question marks in its UUID, though.
    """
    found: list[dict[str, str]] = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if key.strip() == "Model":
            found.append({})
        if found and colon:
            found[-1].setdefault(key.strip(), value.strip())
    complete = [one for one in found if {"GPU UUID", "Bus Location", "Device Minor"} <= set(one)]
    complete.sort(key=lambda one: pci_address(one["Bus Location"]) or "")
    return [
        nvidia.Gpu(
            index=index,
            uuid=one["GPU UUID"],
            pci=one["Bus Location"],
            name=one["Model"],
            minor=nvidia.quantity(one["Device Minor"]),
            memory_total=None,
            memory_reserved=None,
            memory_used=None,
            utilisation=None,
            mig=None,
        )
        for index, one in enumerate(complete)
    ]


def choose(gpus: Iterable[nvidia.Gpu], names: Iterable[str]) -> list[nvidia.Gpu]:
    """The GPUs named. Raises ValueError that lists those that are there."""
    known = list(gpus)
    uuids = {pci_address(one.pci): one.uuid for one in known}
    translated = []
    for name in names:
        address = pci_address(str(name))
        if address and address not in uuids:
            there = ", ".join(sorted(str(one) for one in uuids)) or "none"
            raise ValueError(f"gpus: no GPU at PCI address {name} on this node; there: {there}")
        translated.append(uuids[address] if address else str(name))
    return nvidia.select(known, translated)


def paths(gpus: Iterable[nvidia.Gpu], modeset: bool = False, caps: Iterable[str] = ()) -> list[str]:
    """The device nodes for these GPUs, in the order of the GPUs. Raises ValueError when the driver names no minor."""
    chosen = list(gpus)
    blind = [one.pci for one in chosen if one.minor is None]
    if blind:
        raise ValueError(f"gpus: the driver tells no minor number (N of /dev/nvidiaN) of the GPU at {', '.join(blind)}")
    if not chosen:
        return []
    nodes = [f"/dev/nvidia{one.minor}" for one in chosen]
    return [*nodes, *COMMON, *([MODESET] if modeset else []), *caps]


def refusals(wanted: Iterable[str], modes: Mapping[str, int | None]) -> list[str]:
    """Why these nodes cannot be passed through, [] when all can.

    ``modes``: path -> st_mode on the node, None when nothing is there.
    """
    found = []
    for path in wanted:
        mode = modes.get(path)
        if mode is None:
            fix = "load the module and make its nodes (nvidia-modprobe -c0 -u): the role proxmox_node_gpu does both"
            found.append(f"{path} is not on the node: " + (fix if is_nvidia(path) else "name a device that is there"))
        elif stat.S_ISDIR(mode):
            found.append(f"{path} is a directory, not a device: name the nodes in it (gpu_caps: true does for {CAPS})")
        elif not stat.S_ISCHR(mode) and not stat.S_ISBLK(mode):
            fix = "remove it on the node (the role proxmox_node_gpu does) and make the device again"
            found.append(f"{path} is a plain file, not a device: {fix}")
        elif is_nvidia(path) and not stat.S_ISCHR(mode):
            found.append(f"{path} is a block device; NVIDIA's are character devices")
    return found
