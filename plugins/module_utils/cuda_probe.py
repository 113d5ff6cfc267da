# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether CUDA works here: the driver's own library, called in a process of its own that may hang or crash.

nvidia-smi alone is no proof: it does without /dev/nvidia-uvm, which every CUDA program needs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from . import files, nvidia

# Needs nothing but Python and libcuda.so.1: a context and a piece of memory on each GPU, and who reaches whom.
_PROGRAM = r"""
import ctypes, json
said = {"init": None, "devices": [], "peers": []}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    said["library"] = str(error)
else:
    def name(code):
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(text))
        return "%s (%d)" % (text.value.decode() if text.value else "error", code)
    code = cuda.cuInit(0)
    said["init"] = code
    if code:
        said["error"] = name(code)
    else:
        count = ctypes.c_int()
        cuda.cuDeviceGetCount(ctypes.byref(count))
        handles = []
        for index in range(count.value):
            device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
            title = ctypes.create_string_buffer(128)
            cuda.cuDeviceGet(ctypes.byref(device), index)
            cuda.cuDeviceGetName(title, 128, device)
            code = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            if not code:
                code = cuda.cuCtxSetCurrent(context)
            if not code:
                code = cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20))
            if not code:
                code = cuda.cuMemFree_v2(memory)
            said["devices"].append({"index": index, "name": title.value.decode(), "error": name(code) if code else ""})
            handles.append(device)
        for one in handles:
            row = []
            for other in handles:
                can = ctypes.c_int()
                cuda.cuDeviceCanAccessPeer(ctypes.byref(can), one, other)
                row.append(one.value == other.value or bool(can.value))
            said["peers"].append(row)
print(json.dumps(said))
"""
_TORCH = """
import json, torch
torch.cuda.init()
print(json.dumps({"devices": torch.cuda.device_count(), "sum": float(torch.ones(8, device="cuda").sum())}))
"""


@dataclass(frozen=True)
class Cuda:
    """What the driver's library said."""

    works: bool | None  # None: could not tell
    why: str
    devices: list[str] = field(default_factory=list)  # names of the GPUs that gave a context and memory
    peers: list[list[bool]] = field(default_factory=list)  # [one][other]: whether one reaches the other's memory

    @property
    def peer_to_peer(self) -> bool | None:
        """Whether every GPU reaches every other; None with fewer than two."""
        return all(all(row) for row in self.peers) if len(self.peers) > 1 else None


def read(status: int | None, out: str, err: str, timeout_s: float) -> Cuda:
    """What the probe's end and output mean."""
    if status is None:
        return Cuda(
            None, f"a CUDA call did not return within {timeout_s:g} s: see the kernel log of the node for Xid lines"
        )
    if status < 0:
        return Cuda(False, f"the CUDA library was ended by signal {-status}")
    try:
        said = files.decode_json(out)
    except ValueError:
        return Cuda(None, f"the CUDA probe failed: {' '.join(err.split())[-200:] or f'status {status}'}")
    if "library" in said:
        return Cuda(False, f"no CUDA library: {said['library']}")
    if said["init"]:
        return Cuda(False, f"cuInit failed with {said['error']}")
    broken = [f"GPU {one['index']}: {one['error']}" for one in said["devices"] if one["error"]]
    devices = [one["name"] for one in said["devices"] if not one["error"]]
    if broken or not devices:
        return Cuda(False, "; ".join(broken) or "CUDA sees no GPU", devices, said["peers"])
    return Cuda(True, "", devices, said["peers"])


def run(timeout_s: float) -> Cuda:
    """Probe the CUDA driver of this host."""
    status, out, err = nvidia.run([sys.executable, "-c", _PROGRAM], timeout_s)
    return read(status, out, err, timeout_s)


def torch(python: str, timeout_s: float) -> str:
    """Why PyTorch of that interpreter cannot compute on a GPU; "" when it can."""
    try:
        status, out, err = nvidia.run([python, "-c", _TORCH], timeout_s)
    except OSError as error:
        return f"{python} cannot be run: {error.strerror}"
    if status is None:
        return f"torch did not compute within {timeout_s:g} s"
    if status != 0:
        return files.plain((err.strip().splitlines() or [f"status {status}"])[-1], 300)
    try:
        right = files.decode_json(out.splitlines()[-1])["sum"] == 8.0
    except (ValueError, LookupError, TypeError):
        right = False
    return "" if right else f"torch computed nonsense: {files.plain(' '.join(out.split()), 300) or 'it said nothing'}"
