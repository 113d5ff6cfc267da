"""The collectives of the stand-in: each rank computes the sum alone; with NCCL_DEBUG_FILE it writes a captured log."""

import os
import pathlib

from . import fault

STATE = {}
CAPTURED = pathlib.Path(__file__).parents[2] / "rank0.base.log"


def is_available():
    return True


is_nccl_available = is_gloo_available = is_available


def init_process_group(backend, init_method, rank, world_size, timeout):
    STATE.update(rank=rank, ranks=world_size)
    fault("init")


def all_reduce(tensor):
    fault("reduce")
    path = os.environ.get("NCCL_DEBUG_FILE", "").replace("%p", str(os.getpid()))
    if path and not os.path.exists(path):
        text = CAPTURED.read_text().replace(":732:", f":{os.getpid()}:")
        with open(path, "w", encoding="utf-8") as log:
            log.write(text.replace("P2P/IPC", os.environ.get("WAY", "P2P/IPC")))
    wrong = 1.0 if os.environ.get("FAULT") == "wrong" and tensor.count > 1000 else 0.0
    # What is timed is zero.
    tensor.value = tensor.value and sum(range(1, STATE["ranks"] + 1)) + wrong


def barrier():
    pass


def destroy_process_group():
    pass
