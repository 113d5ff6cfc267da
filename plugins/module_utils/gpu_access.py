# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a host, mostly a container, has all that it takes to compute on its GPUs: nodes, driver, memory limits."""

from __future__ import annotations

import errno
import glob
import os
import re
import resource
import stat
from dataclasses import dataclass

from . import files
from .pve.properties import size_text

COMMON = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
KERNEL_VERSION = "/proc/driver/nvidia/version"
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


@dataclass(frozen=True)
class Node:
    """A device node and what opening it says."""

    path: str
    state: str  # open, forbidden, no_driver, denied, absent, no_device, error
    why: str


def opened(path: str) -> Node:
    """Open a node and tell the ways in which that fails apart; the errors look alike and mean different things."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISCHR(mode):
            return Node(path, "no_device", "it is no character device: something was left at its place")
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except FileNotFoundError:
        return Node(
            path, "absent", "it is not there: pass it through (gpus), and make it on the node (nvidia-modprobe)"
        )
    except OSError as error:
        return Node(path, *_refused(error))
    return Node(path, "open", "")


def _refused(error: OSError) -> tuple[str, str]:
    if error.errno == errno.EPERM:
        why = "the control group forbids its number (EPERM): pass it through as devN and restart the container"
        return "forbidden", why + "; a raw devices.allow line with the number of an earlier boot does this"
    if error.errno in (errno.ENXIO, errno.ENODEV):
        why = "it is allowed, and no driver is behind its number (ENXIO)"
        return "no_driver", why + ": load the module on the node; after that the container has to be restarted"
    if error.errno == errno.EACCES:
        return "denied", "its owner and mode keep this user out (EACCES): see gpu_mode and gpu_gid"
    return "error", error.strerror or str(error)


def nodes(dev: str = "/dev") -> list[Node]:
    """The nodes of the GPUs here and those that every CUDA program needs."""
    gpus = sorted(path for path in glob.glob(f"{dev}/nvidia[0-9]*") if path.rpartition("nvidia")[2].isdigit())
    return [opened(path) for path in (*gpus, *(f"{dev}/{name}" for name in COMMON))]


def kernel_version(path: str = KERNEL_VERSION) -> str:
    """Version of the driver that the kernel runs, which a container sees too; "" when none is loaded."""
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", "\n".join(files.tail(path)))
    return found.group(1) if found else ""


def userland_versions(folders: tuple[str, ...] = _LIBRARIES) -> list[str]:
    """Versions of the driver's libraries that are installed, from the names of their files."""
    found = set()
    for folder in folders:
        for path in glob.glob(f"{folder}/libcuda.so.*.*") + glob.glob(f"{folder}/libnvidia-ml.so.*.*"):
            found.add(path.partition(".so.")[2])
    return sorted(found)


def version_problem(kernel: str, userland: list[str], works: bool = False) -> str:
    """What is wrong with the versions, and what helps; "" when they are equal.

    ``works``: CUDA computes. Then a version that cannot be read here is hidden, not missing: some virtual machines and
    sandboxes show neither /proc/driver/nvidia nor the libraries at their usual places.
    """
    if works and not (kernel and userland):
        return ""
    if not kernel:
        return "no NVIDIA driver is loaded: load it on the node (role proxmox_node_gpu)"
    remedy = (
        f"install exactly {kernel} here, without its kernel modules: "
        f"NVIDIA-Linux-x86_64-{kernel}.run --no-kernel-modules, or packages of that version"
    )
    if not userland:
        return f"the driver's libraries are not installed: {remedy}"
    if userland != [kernel]:
        return f"the kernel runs driver {kernel}, and the libraries here are of {', '.join(userland)}: {remedy}"
    return ""


def shm_bytes(path: str = "/dev/shm") -> int | None:
    """Size of /dev/shm in bytes; None when it cannot be told."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def memlock_bytes() -> int | None:
    """Limit of locked memory of this process in bytes; None when there is none."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def limit_problems(shm: int | None, memlock: int | None, min_shm: int, min_memlock: int) -> list[str]:
    """What NCCL would fail over: too little shared memory, too little that may be locked."""
    found = []
    if shm is not None and shm < min_shm:
        size = size_text(min_shm)
        found.append(f"/dev/shm has {size_text(shm)}, {size} are wanted: declare shm_size: {size}")
    if memlock is not None and memlock < min_memlock:
        found.append(f"only {size_text(memlock)} may be locked in memory: declare memlock: unlimited")
    return found
