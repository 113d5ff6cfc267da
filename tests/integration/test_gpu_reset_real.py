"""The reset on real GPUs: torch processes that hold memory; one ignores SIGTERM, each has a child."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import gpu_view, holders, nvidia
from ansible_collections.groundstate.llm.plugins.module_utils.gpu_clean import Options, Reset
from ansible_collections.groundstate.llm.plugins.module_utils.nvidia import MIB

GPUS = nvidia.query().gpus if importlib.util.find_spec("torch") else ()
pytestmark = pytest.mark.skipif(not GPUS, reason="needs torch and a GPU that nothing else uses")

JOB = """
import signal, subprocess, sys, torch
if "ignore" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = torch.ones(512 * 2**20, dtype=torch.uint8, device="cuda")
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""


class Job:
    """A torch process with 512 MiB on one GPU and a child that holds nothing."""

    def __init__(self, gpu: int, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOB, *arguments],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self.child = int(self.process.stdout.readline())

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    for index in range(min(2, len(GPUS))):
        started.append(Job(index, *(["ignore"] if index else [])))
    yield started
    for job in started:
        job.close()


def reset(home: Path, check: bool = False, **more: Any) -> dict[str, Any]:
    return Reset(Options(home=str(home), grace_s=2, drain_timeout_s=60, **more)).run(check)


def test_the_driver_and_the_scan_agree_on_who_holds_what(jobs: list[Job], tmp_path: Path):
    gpus = nvidia.query().gpus
    seen = gpu_view.look(str(tmp_path), gpus, [0])
    for index, job in enumerate(jobs):
        hold = seen.view.holds[job.pid]
        assert hold.gpus == {index}
        assert hold.memory is None or hold.memory > 512 * MIB
        assert seen.view.traits[job.pid].python
    nodes = holders.scan([job.pid for job in jobs]).nodes()
    print(json.dumps({"nodes open": {f"GPU {i}": sorted(nodes[job.pid]) for i, job in enumerate(jobs)}}))


def test_exactly_the_jobs_end_and_the_memory_drains(jobs: list[Job], tmp_path: Path):
    planned = reset(tmp_path, check=True)
    assert [one["pid"] for one in planned["ended"]] == sorted(job.pid for job in jobs)
    assert all(job.runs for job in jobs)

    first = reset(tmp_path, gpus=("0",))
    assert [(one["pid"], one["how"]) for one in first["ended"]] == [(jobs[0].pid, "exited on TERM")]
    assert [job.runs for job in jobs] == [False, *[True] * (len(jobs) - 1)]
    rest = reset(tmp_path)
    assert [(one["pid"], one["how"]) for one in rest["ended"]] == [(job.pid, "killed") for job in jobs[1:]]
    assert all(one["memory_used"] <= 64 * MIB for one in rest["after"]["gpus"])
    assert not nvidia.query().gpus[0].processes
    again = reset(tmp_path)
    assert (again["changed"], again["ended"]) == (False, [])
