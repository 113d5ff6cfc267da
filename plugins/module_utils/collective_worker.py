# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One rank of a timed all-reduce. Runs as a program of its own, with the Python and the torch of an ML environment.

    python collective_worker.py '{"probe": true}'
    python collective_worker.py '{"rank": 0, "ranks": 2, "backend": "nccl", "store": "/tmp/x/store", ...}'

It writes a JSON line before each stage, so that whoever started it can tell where it hangs. Only torch is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import importlib
import json
import os
import signal
import statistics
import sys
import time
from typing import Any


def say(**message: Any) -> None:
    """One line for the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def iterations(size: int) -> int:
    """How often a message of this many bytes is sent in a block: the same in every rank."""
    return max(5, min(200, (64 << 20) // size))


def probe() -> None:
    """Say what torch there is and what it can use."""
    say(stage="import torch")
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    say(stage="look for GPUs")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    available = distributed.is_available()
    nccl = found and available and distributed.is_nccl_available()
    say(
        facts={
            "torch": torch.__version__,
            "gpus": [torch.cuda.get_device_name(index) for index in range(found)],
            "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()) if nccl else "",
            "gloo": bool(available and distributed.is_gloo_available()),
        }
    )
    say(stage="done")


def rank(task: dict[str, Any]) -> None:
    """Join the others and reduce messages of all sizes, with what the parent needs to know on the way."""
    say(stage="import torch")
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    on_gpu = task["backend"] == "nccl"
    if on_gpu:
        say(stage="open its GPU")
        torch.cuda.set_device(task["rank"])
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
    say(stage="init_process_group")
    distributed.init_process_group(
        task["backend"],
        init_method="file://" + task["store"],
        rank=task["rank"],
        world_size=task["ranks"],
        # The parent watches, and ends us long before.
        timeout=datetime.timedelta(hours=1),
    )
    device = "cuda" if on_gpu else "cpu"
    say(stage="first all_reduce")
    _reduce(torch, distributed, task, 4, device)
    for size in task["sizes"]:
        say(stage=f"all_reduce of {size} bytes", size=size)
        correct = _reduce(torch, distributed, task, size, device)
        seconds = _timed(torch, distributed, size, device) if task["timed"] else None
        say(result=size, correct=correct, seconds=seconds)
    say(stage="leave")
    distributed.destroy_process_group()
    say(stage="done")


def _wait(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _reduce(torch: Any, distributed: Any, task: dict[str, Any], size: int, device: str) -> bool:
    """One all-reduce; whether every element is the sum of what the ranks put in."""
    tensor = torch.full((size // 4,), float(task["rank"] + 1), device=device)
    distributed.all_reduce(tensor)
    _wait(torch, device)
    return bool((tensor == task["ranks"] * (task["ranks"] + 1) / 2).all())


def _timed(torch: Any, distributed: Any, size: int, device: str) -> float:
    """Seconds for one all-reduce: the median of three blocks, after one that warms up."""
    tensor = torch.zeros(size // 4, device=device)
    found = []
    for _block in range(4):
        distributed.barrier()
        _wait(torch, device)
        begin = time.perf_counter()
        for _one in range(iterations(size)):
            distributed.all_reduce(tensor)
        _wait(torch, device)
        found.append((time.perf_counter() - begin) / iterations(size))
    return statistics.median(found[1:])


def main() -> None:
    """Run as the one argument says."""
    task = json.loads(sys.argv[1])
    # Whatever ends our parent ends us: nothing may keep a GPU.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if task.get("parent") not in (None, os.getppid()):
        raise SystemExit("the parent is gone")
    if task.get("probe"):
        probe()
    else:
        rank(task)


if __name__ == "__main__":
    main()
