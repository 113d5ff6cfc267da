# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node with GPUs: driver, device nodes now and at each boot, and what stands between its GPUs."""

from __future__ import annotations

import glob
import os
import re
import shutil
import stat
from dataclasses import dataclass, field

from .. import files, gpu_access, nvidia
from . import passthrough
from .shell import Shell

UNIT = "groundstate-nvidia-nodes.service"
UNIT_FOLDER = "/etc/systemd/system"
_UNIT_TEXT = """# Written by groundstate.llm (proxmox_node_gpu). Loading a module makes no device nodes, and a
# container that starts without them fails or computes on its CPU.
[Unit]
Description=Load the NVIDIA driver and make its device nodes before containers start
After=systemd-modules-load.service
Before=pve-guests.service

[Service]
Type=oneshot
RemainAfterExit=yes
{commands}

[Install]
WantedBy=multi-user.target
"""
_ACS = 0x000D  # PCI Express extended capability: access control services
_REDIRECT = 0x04 | 0x08  # of its control register: requests or completions between peers take the way over the root


def program(name: str) -> str | None:
    """Path of a program of the administrator's, which not every PATH has; None when it is not installed."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")


@dataclass
class Bridge:
    """A PCIe bridge above a GPU. ``redirects``: None when it has no access control services or they are unreadable."""

    address: str
    redirects: bool | None
    gpus: list[str] = field(default_factory=list)


def registered(devices: str) -> set[str]:
    """Names of character devices in the text of /proc/devices."""
    characters = devices.partition("Block devices:")[0]
    return {words[1] for words in map(str.split, characters.splitlines()) if len(words) == 2 and words[0].isdigit()}


def expected(gpus: list[nvidia.Gpu], modeset: bool) -> list[str]:
    """The device nodes that the node should have."""
    return passthrough.paths(gpus, modeset) if gpus else []


def wrong_nodes(paths: list[str]) -> tuple[list[str], list[str]]:
    """(those that are not there, those that are something else than a character device)."""
    missing, other = [], []
    for path in paths:
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            missing.append(path)
        else:
            if not stat.S_ISCHR(mode):
                other.append(path)
    return missing, other


def unit_text(minors: list[int], modeset: bool) -> str:
    """The unit that makes the nodes at boot."""
    modprobe = program("modprobe") or "/sbin/modprobe"
    maker = program("nvidia-modprobe") or "/usr/bin/nvidia-modprobe"
    commands = [
        f"ExecStart={modprobe} -a nvidia nvidia_uvm" + (" nvidia_modeset" if modeset else ""),
        *(f"ExecStart={' '.join(make_command(maker, minor, modeset))}" for minor in minors),
    ]
    return _UNIT_TEXT.format(commands="\n".join(commands))


def make_command(maker: str, minor: int, modeset: bool) -> list[str]:
    """The command that makes the nodes of one GPU and those that all have in common."""
    return [maker, f"-c{minor}", "-u", *(["-m"] if modeset else [])]


def redirects(config: bytes) -> bool | None:
    """Whether a bridge sends traffic between peers over the root, from its PCI configuration space."""
    offset = 0x100
    for _step in range(64):  # a damaged list could lead round in circles
        if offset < 0x100 or offset + 8 > len(config):
            return None
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            return bool(int.from_bytes(config[offset + 6 : offset + 8], "little") & _REDIRECT)
        offset = header >> 20
    return None


def bridges(gpus: list[nvidia.Gpu], sys: str = "/sys") -> list[Bridge]:
    """The bridges above the GPUs, from the GPU upwards."""
    found: dict[str, Bridge] = {}
    for gpu in gpus:
        address = passthrough.pci_address(gpu.pci) or ""
        above = os.path.dirname(os.path.realpath(f"{sys}/bus/pci/devices/{address}"))
        while passthrough.pci_address(os.path.basename(above)):
            name = os.path.basename(above)
            if name not in found:
                try:
                    with open(f"{above}/config", "rb") as source:
                        found[name] = Bridge(name, redirects(source.read()))
                except OSError:
                    found[name] = Bridge(name, None)
            found[name].gpus.append(address)
            above = os.path.dirname(above)
    return list(found.values())


def iommu(cmdline: str, sys: str = "/sys") -> str:
    """What translates addresses between devices and memory: off, passthrough or translated."""
    if not glob.glob(f"{sys}/class/iommu/*"):
        return "off"
    return "passthrough" if re.search(r"\biommu=pt\b|\biommu\.passthrough=1\b", cmdline) else "translated"


def advice(state: str, above: list[Bridge], gpus: int) -> list[str]:
    """What keeps GPUs from reaching each other's memory directly, and what helps. For people: nothing is changed."""
    if gpus < 2:
        return []
    found = []
    turned = [one.address for one in above if one.redirects]
    if turned:
        found.append(
            f"ACS of bridge {', '.join(turned)} sends traffic between GPUs over the root complex: peer-to-peer is slow "
            "there, and with the IOMMU on it can hang or give zeros; turn ACS off in the firmware, or per boot with "
            "setpci on each bridge (its ACS control to 0); NCCL_P2P_DISABLE=1 is the way round"
        )
    if state == "translated":
        found.append("the IOMMU translates addresses: peer-to-peer may hang or give zeros: boot with iommu=pt or off")
    return found


def driver_gpus(root: str = "") -> list[nvidia.Gpu]:
    """The GPUs that the driver of this node knows."""
    texts = [files.tail(path, 100) for path in sorted(glob.glob(f"{root}/proc/driver/nvidia/gpus/*/information"))]
    return passthrough.from_proc("\n".join(line for lines in texts for line in lines))


def loaded_version() -> str:
    """Version of the driver that the kernel runs; "" when none is loaded."""
    return gpu_access.kernel_version()


def installed_version(shell: Shell) -> str:
    """Version of the kernel module on disk, which the next boot loads; "" when there is none that modinfo finds."""
    modinfo = program("modinfo")
    if modinfo is None:
        return ""
    status, out, _error = shell.run([modinfo, "-F", "version", "nvidia"])
    return out.strip() if status == 0 else ""


def persistence(shell: Shell) -> bool | None:
    """Whether the driver stays awake without users; None when that cannot be told."""
    if shutil.which("nvidia-smi") is None:
        return None
    status, out, _error = shell.run(["nvidia-smi", "--query-gpu=persistence_mode", "--format=csv,noheader"])
    return all(line.strip() == "Enabled" for line in out.splitlines()) if status == 0 and out.strip() else None
