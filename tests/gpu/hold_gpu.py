#!/usr/bin/env python3
"""Hold memory of a GPU until it is ended, as a job does that nobody remembers.

usage: hold_gpu.py GPU|none MIB [--ignore-term] [--name NAME]

Prints "held" when it does. NAME becomes the name of the program. "none" holds a GPU of no machine: for a dry run.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("gpu")
    parser.add_argument("mib", type=int)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--name")
    options = parser.parse_args()
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.gpu != "none":
        os.environ["CUDA_VISIBLE_DEVICES"] = options.gpu
        import torch

        held = torch.ones(options.mib * 2**20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        assert held.is_cuda
    if options.name:
        Path("/proc/self/comm").write_text(options.name)
    print("held", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
