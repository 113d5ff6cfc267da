#!/usr/bin/env python3
"""How long from dirty GPUs to proved clean ones: the module gpu_reset against the shell line that it replaces.

usage: python tests/bench/reset_time.py [--runs 20] [--stubborn]     (as root)

Both clear the same forest of processes on a stand-in host (tests/tools/gpu_host.py), a private mount and process
namespace with nodes named /dev/nvidia* and a driver whose memory follows who holds them; the shell line runs in there,
and nowhere else. The clock runs until the command has ended and, for the shell line, until nvidia-smi (asked every
second, as its user did) says 0 MiB. Printed too: what each of them ended that holds no GPU or belongs to the driver.
Then the time of the module on the clean host. --stubborn adds a process that ignores SIGTERM, with a grace of 5 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "playbooks" / "collections"), str(ROOT / "tests" / "tools")]

from gpu_host import DATA, Host, can_unshare  # noqa: E402

# Word for word, with the watching that follows; the check before it keeps it inside of the stand-in host.
LINE = """
[ "$(readlink /proc/self/ns/pid)" = "$1" ] || exit 99
ps aux | grep python3 | grep -v grep | awk '{print $2}' | xargs -r kill -9; sleep 2; fuser -k /dev/nvidia*
until ! nvidia-smi --query-gpu=uuid,memory.used --format=csv,noheader | grep -v ', 0 MiB'; do sleep 1; done
"""
PYTHON = os.path.realpath(sys.executable)  # .../python3.x: what the line looks for


def forest(host: Host, stubborn: bool) -> tuple[list[int], dict[str, int]]:
    """Start it; the processes that have to go, and those that must not."""
    job = (PYTHON, str(DATA / "job.py"))
    stale = [
        *host.job("--open", "/dev/nvidia0", "--open", "/dev/nvidia1", "--shm", "psm_bench", program=job),
        *host.job("--map", "/dev/nvidia1", program=job),
        *host.job("--open", "/dev/nvidia0", "--detach", program=job),
        host.job("--worker", "sglang::scheduler_TP0", "--open", "/dev/nvidia0", program=job)[1],
        *(host.job("--open", "/dev/nvidia1", "--ignore-term", program=job) if stubborn else []),
    ]
    (bystander,) = host.job(program=job)
    driver = host.start("sh", "-c", f"exec 3</dev/nvidia0; exec {host.bin}/nvidia-persistenced 1000000")
    host.tell_driver(memory={str(driver): 0}, late=1)
    return stale, {"a Python process without a GPU": bystander, "nvidia-persistenced": driver}


def once(way: str, stubborn: bool) -> tuple[float, float, list[str]]:
    """(seconds to clean, seconds of the module afterwards, what ended although it should not)."""
    with tempfile.TemporaryDirectory(prefix="groundstate-bench-") as folder:
        host = Host(Path(folder))
        try:
            stale, others = forest(host, stubborn)
            script = Path(folder) / "line.sh"
            script.write_text(LINE, encoding="ascii")
            inside = os.readlink(f"/proc/{host.init}/ns/pid")
            if inside == os.readlink("/proc/self/ns/pid"):
                sys.exit("the stand-in host is no namespace of its own: nothing was run")
            began = time.perf_counter()
            if way == "shell":
                host.run("sh", str(script), inside)
            else:
                done = host.direct(grace_s=5 if stubborn else 30)
                if done.get("failed"):
                    sys.exit(done["msg"])
            took = time.perf_counter() - began
            if host.alive(*stale):
                sys.exit(f"{way}: {host.alive(*stale)} of {stale} still run")
            lost = [name for name, pid in others.items() if not host.alive(pid)]
            began = time.perf_counter()
            again = host.direct()
            clean = time.perf_counter() - began
            if way == "module" and again["changed"]:
                sys.exit(f"the second run changed something: {again}")
            return took, clean, lost
        finally:
            host.close()


def summary(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="reset against shell line")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--stubborn", action="store_true")
    given = parser.parse_args()
    if not can_unshare():
        sys.exit("needs root and private mount and process namespaces")
    found: dict[str, list[tuple[float, float, list[str]]]] = {"shell": [], "module": []}
    for _run in range(given.runs):
        for way, results in found.items():
            results.append(once(way, given.stubborn))
    times = {way: [one[0] for one in results] for way, results in found.items()}
    for way, results in found.items():
        lost = sorted({name for one in results for name in one[2]})
        print(
            f"{way}: {summary(times[way])} to clean, {len(results)} runs; wrongly ended: {', '.join(lost) or 'nothing'}"
        )
    ratios = [mine / theirs for mine, theirs in zip(times["module"], times["shell"], strict=True)]
    print(f"module / shell: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"module on the clean host: {summary([one[1] for one in found['module']])}")
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
