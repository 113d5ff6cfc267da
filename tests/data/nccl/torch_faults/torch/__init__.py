"""So much of torch as the ranks of a pre-flight need, with the faults that no working torch has on demand.

FAULT says which: hang:STAGE:RANK, die:STAGE:RANK, wrong. Stages: cuda, init, reduce. GPUS: how many GPUs it claims.
"""

import os
import sys
import time
from types import SimpleNamespace

__version__ = "0+faults"
RANK = int(sys.argv[1].partition('"rank": ')[2].partition(",")[0] or 0)


def fault(stage):
    kind, _, place = os.environ.get("FAULT", "").partition(":")
    if place == f"{stage}:{RANK}":
        if kind == "hang":
            time.sleep(600)
        elif kind == "die":
            sys.exit("RuntimeError: CUDA error: an illegal memory access was encountered")


class Tensor:
    """Many elements with one value."""

    def __init__(self, count, value):
        self.count, self.value = count, value

    def __eq__(self, other):
        return Tensor(self.count, self.value == other)

    def all(self):
        return bool(self.value)


def full(shape, value, device="cpu"):
    return Tensor(shape[0], value)


def zeros(count, device="cpu"):
    return Tensor(count, 0.0)


cuda = SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: int(os.environ.get("GPUS", "0")),
    get_device_name=lambda index: "Made GPU",
    set_device=lambda index: fault("cuda"),
    synchronize=lambda: None,
    nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
)
