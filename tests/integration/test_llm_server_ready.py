"""The wait for a server that answers early, binds late, stalls, spins, or loses a worker; and what it remembers."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs

STAND_IN = Path(__file__).with_name("stand_in_engine.py")
RAS = Path(__file__).resolve().parents[1] / "data" / "server_logs" / "nccl-ras.txt"


class Server:
    """The stand-in as a declared server; its script is a file, so that the declaration stays the same."""

    def __init__(self, host, script: Path):
        self.host, self.script = host, script

    def start(self, state="started", env=None, **script):
        self.script.write_text(json.dumps(script))
        result = self.host.run(
            "llm_server",
            state=state,
            env_path="/",
            launcher="process",
            declaration={
                "name": "local",
                "engine": "sglang",
                "model": str(STAND_IN),
                "served_model_name": str(STAND_IN),
                "tensor_parallel": 2,
                "port_from": 19600,
                "gpus": [],
                "command": [sys.executable, str(STAND_IN)],
                "extra_args": {"script": f"@{self.script}"},
                "env": env or {},
            },
        )
        assert not result["failed"], result

    def ready(self, **arguments):
        options = {"timeout_s": 60, "slice_s": 0, "stall_s": 0, **arguments}
        return self.host.run("llm_server_ready", server="local", **options)

    def slices_until(self, seen, **arguments):
        """Wait in short slices until one's answer is as told, and return that; whether the server is ready or not."""
        for _slice in range(300):
            answer = self.ready(slice_s=0.3, **arguments)
            if seen(answer):
                return answer
            assert not answer["failed"], answer
            assert not answer["ready"], answer
        raise AssertionError(f"not after 300 slices: {answer}")


@pytest.fixture
def hold(tmp_path):
    """The file of the stand-in's ``hold``: while it is there, the phase goes on."""
    made = tmp_path / "hold"
    made.touch()
    return made


@pytest.fixture
def server(host, tmp_path):
    return Server(host, tmp_path / "script.json")


def test_a_model_list_that_answers_early_makes_nothing_ready(server, hold):
    server.start(early=True, hold_in="capturing graphs", hold=str(hold))
    answer = server.slices_until(lambda answer: answer["phase"] == "capturing graphs" and "models" in answer["probes"])
    assert answer["ready"] is False
    assert not answer["probes"].keys() & {"health", "completion"}
    hold.unlink()
    ready = server.ready()
    assert ready["ready"] is True
    first = ready["probes"]
    assert first["models"] < first["health"] <= first["completion"]


def test_a_socket_that_comes_after_the_log_said_up(server, hold):
    server.start(bind_late=True, hold_in="up", hold=str(hold))
    answer = server.slices_until(lambda answer: answer["phase"] == "up")
    assert answer["ready"] is False
    assert not answer["probes"].keys() & {"models", "health", "completion"}
    assert "connection refused" in answer["waiting_for"]
    hold.unlink()
    ready = server.ready()
    assert ready["ready"] is True
    up = next(one for one in ready["phases"] if one["name"] == "up")
    assert ready["probes"]["health"] >= up["at_s"]


def test_a_completion_of_the_wrong_length_is_none(server):
    server.start(tokens=7)
    answer = server.slices_until(lambda answer: "7 tokens, 2 were asked for" in answer["waiting_for"])
    assert answer["ready"] is False
    assert "completion" not in answer["probes"]


def test_a_worker_lost_while_it_loads_is_told_with_its_signal(server, host):
    server.start(lose_in="allocating KV cache", lose_worker=1, hang_in="allocating KV cache", step_s=0.6)
    failed = server.ready()
    assert failed["failed"] is True
    assert "worker of rank 1" in failed["msg"]
    assert "has died in phase 'allocating KV cache', killed by SIGKILL" in failed["msg"]
    assert "somebody sent the signal" in failed["msg"] or "may not be read" in failed["msg"]
    assert host.record("local").running()


def test_a_worker_lost_after_it_was_ready_is_found_by_the_next_call(server, host):
    server.start()
    assert server.ready()["ready"] is True
    victim = next(item for item in host.ours("local") if item.cmdline.startswith("sglang::scheduler_TP1"))
    os.kill(victim.pid, signal.SIGKILL)
    failed = server.ready()
    assert failed["failed"] is True
    assert f"worker of rank 1 (process {victim.pid}) has died after it was ready, killed by SIGKILL" in failed["msg"]


def test_a_stall_names_the_phase_and_leaves_the_server(server, host):
    server.start(hang_in="loading weights")
    failed = server.ready(stall_s=4)
    assert failed["failed"] is True
    assert "it has stalled in phase 'loading weights': for " in failed["msg"]
    assert "is left running to be looked into" in failed["msg"]
    assert failed["phase"] == "loading weights"
    assert failed["log_tail"][-1].endswith("Load weight begin. avail mem=138.34 GB")
    assert host.record("local").running()


def test_ranks_that_never_meet_are_named_by_nccl(server, host):
    """A hang that burns processor time is no stall: the limit of the phase ends the wait, and RAS is asked."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _peer = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(RAS.read_bytes())

    threading.Thread(target=serve, daemon=True).start()
    with listener:
        server.start(spin_in="distributed init", env={"NCCL_RAS_ADDR": f"127.0.0.1:{listener.getsockname()[1]}"})
        failed = server.ready(stall_s=3, phase_timeouts={"distributed init": 6})
    assert failed["failed"] is True
    assert "phase 'distributed init' has lasted " in failed["msg"]
    assert "stalled" not in failed["msg"]
    assert any("Rank 1 -- GPU 0 managed by process 60004" in one for one in failed["evidence"])
    assert failed["diagnosis"]["name"] == "ranks do not find each other"
    assert "NCCL_P2P_DISABLE" in failed["msg"]
    assert host.record("local").running()


def test_phases_are_compared_with_the_last_start(server):
    server.start(step_s={"loading weights": 0.2})
    first = server.ready()
    assert first["was_s"] is None
    assert {one["note"] for one in first["phases"]} == {""}
    server.start("restarted", step_s={"loading weights": 6.0})
    second = server.ready()
    assert second["was_s"] == first["elapsed_s"]
    notes = {one["name"]: one["note"] for one in second["phases"]}
    assert notes["loading weights"].startswith("loading weights ")
    assert ", was " in notes["loading weights"]
    assert "page cache" not in notes["loading weights"]  # it read nothing, then as now
    assert notes["up"] == ""
    # Asked again, the answer is the one of then.
    assert server.ready()["phases"] == second["phases"]


def test_a_limit_for_a_phase_that_does_not_exist_is_refused(server):
    server.start()
    refused = server.ready(phase_timeouts={"loading wieghts": 5})
    assert refused["failed"] is True
    assert "unknown phase loading wieghts; there are allocating KV cache, " in refused["msg"]


def test_a_death_between_two_slices_is_no_secret(server, host):
    server.start(step_s={"capturing graphs": 60})
    while True:
        answer = server.ready(slice_s=0.3)
        assert answer["ready"] is False
        if "workers" in answer["probes"]:
            break
    victim = next(item for item in host.ours("local") if item.cmdline.startswith("sglang::scheduler_TP0"))
    os.kill(victim.pid, signal.SIGKILL)
    while procfs.alive(victim.pid, victim.start):
        time.sleep(0.01)
    failed = server.ready(slice_s=0.3)
    assert f"worker of rank 0 (process {victim.pid}) has died" in failed["msg"]
