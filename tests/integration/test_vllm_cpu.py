"""The main job with real vLLM on the CPU: an environment from its lock, a model from a seed, two real workers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs, servers
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.build import distributions, site_packages

ROOT = Path(__file__).resolve().parents[2]
PROFILE = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(shutil.which("python3.11") is None, reason="the lock vllm_cpu is for Python 3.11"),
]


def play(folder: Path, playbook: str, *arguments: str) -> str:
    """Run a playbook of the checkout with state and records in ``folder``; returns its output."""
    done = subprocess.run(
        ["ansible-playbook", f"playbooks/{playbook}.yml", "-i", "inventories/local_vllm", *arguments],
        cwd=ROOT,
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GROUNDSTATE_HOME": str(folder / "home"),
            "GROUNDSTATE_RECORDS": str(folder / "records"),
            "ANSIBLE_NOCOLOR": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def ours(folder: Path) -> list[procfs.Process]:
    return servers.started_by_us(str(folder / "home"), "local_vllm", procfs.processes())


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").glob("vllm_dist_*"))


def test_two_real_workers_are_started_proved_measured_and_torn_down(tmp_path):
    foreign = shared_memory()
    try:
        output = play(tmp_path, "deploy_baseline")
        env = tmp_path / "home" / "envs" / "vllm_cpu"
        installed = distributions(site_packages(str(env), "3.11"))
        assert installed["torch"].endswith("+cpu")
        assert installed["vllm"] == f"{installed['vllm-cpu']}+cpu"
        assert not {"triton", "torchvision", "torchaudio", "torchcodec"} & set(installed)

        workers = [item for item in ours(tmp_path) if item.cmdline.startswith("VLLM::Worker")]
        assert sorted(item.cmdline for item in workers) == ["VLLM::Worker_TP0", "VLLM::Worker_TP1"]
        for item in workers:
            # Not from our own proof: straight from the process.
            seen = procfs.initial_environment(item.pid).variables
            assert {name: seen.get(name) for name in PROFILE} == PROFILE

        [path] = [one for one in (tmp_path / "records" / "local").glob("*.json") if one.name != "baseline.json"]
        record = json.loads(path.read_text())
        assert record["proof"]["verdict"] == "proved"
        assert [worker["rank"] for worker in record["proof"]["workers"]] == [0, 1]
        assert sorted(worker["pid"] for worker in record["proof"]["workers"]) == sorted(item.pid for item in workers)
        assert record["measurement"]["headline"]["value"] > 0
        assert 5 <= record["measurement"]["levels"][0]["ok"] <= record["measurement"]["levels"][0]["requests"] == 40
        assert record["fingerprints"]["before"]["sections"]["python_env"]["counts"]["edited"] == 0
        assert re.search(r"proof\s+proved, profile pcie_ll_ring, 2 worker", output)

        before = servers.load(str(tmp_path / "home"), "local_vllm")
        again = play(tmp_path, "deploy_baseline")
        assert re.search(r"changed=0\b", again[again.index("PLAY RECAP") :]), again
        assert servers.load(str(tmp_path / "home"), "local_vllm").start_id == before.start_id
    finally:
        play(tmp_path, "teardown")
        for left in shared_memory() - foreign:  # vLLM's workers do not remove theirs; a reset does, after a minute
            left.unlink()
    assert ours(tmp_path) == []
    assert [one.name for one in tmp_path.iterdir()] == ["records"]
