# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Why GPUs may not reach each other over PCIe, and what helps: ACS, IOMMU, the size of /dev/shm."""

from __future__ import annotations

# Pure code: there is no AnsibleModule here whose run_command it could call.
# pylint: disable=ansible-bad-function
import os
import re
import subprocess
from dataclasses import dataclass

_DEVICE = re.compile(r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ", re.IGNORECASE)
_SHM_NEEDED = 1 << 30


@dataclass(frozen=True)
class Findings:
    """What speaks against P2P on a host. None: could not be told."""

    redirecting: list[str] | None  # bridges whose ACS redirects P2P
    iommu: bool | None
    command_line: str
    shm_bytes: int | None


def acs_redirects(text: str) -> list[str] | None:
    """The devices of ``lspci -vvv`` whose ACS sends P2P requests or completions up to the root complex.

    None when the text has no ACSCtl at all: without root lspci does not show capabilities.
    """
    device, found, any_seen = "", [], False
    for line in text.splitlines():
        head = _DEVICE.match(line)
        if head:
            device = head[1]
        elif "ACSCtl:" in line:
            any_seen = True
            if re.search(r"(ReqRedir|CmpltRedir)\+", line):
                found.append(device)
    return found if any_seen else None


def iommu_of(command_line: str, groups: bool | None) -> bool | None:
    """Whether the IOMMU translates: by the kernel's command line, else by whether there are IOMMU groups."""
    if re.search(r"\b(intel_iommu=off|amd_iommu=off|iommu=(?:off|pt))\b", command_line):
        return False
    return groups


def look() -> Findings:
    """Read this host; takes part of a second and changes nothing."""
    command_line, groups, shm = "", None, None
    try:
        with open("/proc/cmdline", encoding="utf-8", errors="replace") as source:
            command_line = source.read().strip()
        groups = bool(os.listdir("/sys/kernel/iommu_groups"))
    except OSError:
        pass
    try:
        about = os.statvfs("/dev/shm")
        shm = about.f_bavail * about.f_frsize
    except OSError:
        pass
    try:
        done = subprocess.run(
            ["lspci", "-vvv"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=20,
            errors="replace",
        )  # fmt: skip
        redirecting = acs_redirects(done.stdout)
    except (OSError, subprocess.TimeoutExpired):
        redirecting = None
    return Findings(redirecting, iommu_of(command_line, groups), command_line, shm)


def advice(found: Findings) -> list[str]:
    """What to try when a collective hangs or fails, what was found first."""
    said = []
    if found.redirecting:
        said.append(
            f"ACS redirects P2P at {', '.join(found.redirecting)}: switch it off in the BIOS, or on the physical node "
            "with setpci -s DEVICE ECAP_ACS+6.w=0000 (not in a container; lost at a reboot)"
        )
    if found.iommu:
        said.append("the IOMMU translates: boot the node with iommu=pt, or intel_iommu=off / amd_iommu=off")
    if found.shm_bytes is not None and found.shm_bytes < _SHM_NEEDED:
        said.append(f"/dev/shm has {found.shm_bytes >> 20} MiB free; NCCL's shared memory needs up to 1 GiB")
    said.append("NCCL_P2P_DISABLE=1 in the profile shows whether P2P is the cause (then it works, slower)")
    if found.redirecting is None:
        said.append("whether ACS redirects P2P could not be told: look at ACSCtl in lspci -vvv as root on the node")
    return said
