"""The collective before a start: with a torch that fails as told, and (slow) with the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.groundstate.llm.plugins.module_utils import procfs, servers

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "data" / "nccl" / "torch_faults"
SHIPPED = yaml.safe_load((ROOT / "roles" / "nccl_profile" / "vars" / "main.yml").read_text())["nccl_profile_shipped"]


@pytest.fixture
def env(tmp_path):
    """An environment whose python is the one of the tests."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return tmp_path / "env"


def left_over():
    """Ranks that run: the program with its task as argument, not an editor or a linter that has the file open."""
    table = procfs.processes().values()
    return [item for item in table if "/collective_worker.py {" in item.cmdline and not item.zombie]


def collective(host, env, **arguments):
    """The module with the torch that fails as told; no rank may be left whatever came of it."""
    environment = {"PYTHONPATH": str(FAULTS), **arguments.pop("environment", {})}
    result = host.run("nccl_preflight", env_path=str(env), environment=environment, sizes_kib=[8, 64], **arguments)
    assert left_over() == []
    return result


def test_gpus_that_reach_each_other(host, env):
    result = collective(
        host, env, environment={"GPUS": "2"}, profile="pcie_ll_ring", profiles=SHIPPED, server="x", timeout=60
    )
    assert (result["verdict"], result["backend"], result["ranks"]) == ("passed", "nccl", 2), result
    assert (result["profile"], result["transports"], result["flags"]) == ("pcie_ll_ring", ["P2P/IPC"], [])
    assert [(row["bytes"], row["algorithm"], row["protocol"]) for row in result["sizes"]] == [
        (8192, "RING", "LL"),
        (65536, "RING", "LL"),
    ]
    for row in result["sizes"]:
        assert row["bus_gbs"] == row["algorithm_gbs"], "2 (n - 1) / n is 1 with two ranks"
    assert result["table"][0] == "nccl: 2 x Made GPU, torch 0+faults, NCCL 2.28.9, over P2P/IPC"
    assert result["table"][2].split()[:2] == ["8", "KiB"]


def test_a_collective_that_hangs_is_named_with_advice(host, env):
    result = collective(host, env, environment={"GPUS": "2", "FAULT": "hang:init:1"}, timeout=5)
    assert (result["failed"], result["verdict"]) == (True, "hung")
    assert "rank 1 never left 'init_process_group' (after 5 s; waiting for it: rank 0 in 'done')" in result["msg"]
    assert result["stages"]["1"] == "init_process_group"
    assert "NCCL_P2P_DISABLE=1 in the profile shows whether P2P is the cause" in result["msg"]


def test_a_rank_that_dies_is_named_with_its_last_words(host, env):
    result = collective(host, env, environment={"GPUS": "2", "FAULT": "die:reduce:0"}, timeout=60)
    assert (result["failed"], result["verdict"]) == (True, "failed")
    assert "rank 0 died in stage 'first all_reduce' (exit status 1): RuntimeError: CUDA error" in result["msg"]


def test_wrong_sums_and_the_network_within_a_host(host, env):
    result = collective(host, env, environment={"GPUS": "2", "FAULT": "wrong"}, timeout=60)
    assert "the sums are wrong for messages of 8 KiB, 64 KiB" in result["msg"]
    result = collective(host, env, environment={"GPUS": "2", "WAY": "NET/Socket/0"}, timeout=60)
    assert result["verdict"] == "passed"
    assert "NCCL talks over the network within one host (0 -> 1 via NET/Socket)" in result["flags"][0]


def test_without_torch_without_an_environment_and_with_one_gpu(host, env, tmp_path):
    result = host.run("nccl_preflight", env_path=str(env), environment={"PYTHONPATH": "/nowhere"})
    assert result["failed"]
    assert "has no torch, which the collective needs" in result["msg"]
    result = host.run("nccl_preflight", env_path=str(tmp_path / "none"))
    assert "does not run (No such file or directory); build the environment with ml_env" in result["msg"]
    result = collective(host, env, environment={"GPUS": "1"})
    assert (result["failed"], result["verdict"]) == (False, "skipped")
    assert result["table"] == ["skipped: one GPU: there is nobody to talk to"]


def test_a_running_server_is_not_disturbed(host, env):
    me = procfs.process(os.getpid())
    record = servers.ServerRecord("x", pid=me.pid, pid_start=me.start, boot_id=procfs.boot_id())
    servers.save(str(host.home), record)
    result = host.run("nccl_preflight", env_path=str(env), server="x")
    assert result["table"] == ["skipped: server 'x' runs and would be disturbed"]
    result = host.run("nccl_preflight", check=True, env_path=str(env))
    assert (result["verdict"], result["changed"]) == ("skipped", False)


def test_the_role_shows_the_table_and_stops_at_a_hang(host, env):
    variables = {
        "ansible_python_interpreter": sys.executable,
        "groundstate_home": str(host.home),
        "ml_env_path": str(env),
        "nccl_profile_name": "nvlink",
        "nccl_profile_preflight_timeout_s": 6,
        "llm_server": {"name": "x", "env": {"PYTHONPATH": str(FAULTS), "GPUS": "2", "FAULT": "{{ fault }}"}},
    }
    # In one run, because Ansible takes seconds to start: first without the fault.
    play = [
        {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "vars": variables,
            "tasks": [
                {
                    "name": f"Preflight with {fault or 'no fault'}",
                    "ansible.builtin.include_role": {"name": "groundstate.llm.nccl_profile", "tasks_from": "preflight"},
                    "vars": {"fault": fault},
                }
                for fault in ("", "hang:cuda:1")
            ],
        }
    ]
    path = host.home / "play.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(play))
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), str(path)],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "playbooks" / "collections"), "ANSIBLE_NOCOLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "localhost: all-reduce with NCCL profile nvlink: passed" in done.stdout
    assert "nccl: 2 x Made GPU, torch 0+faults, NCCL 2.28.9, over P2P/IPC" in done.stdout
    assert "rank 1 never left 'open its GPU' (after 6 s" in done.stdout + done.stderr
    assert left_over() == []


@pytest.mark.slow(reason="it needs the environment with torch, and each of its ranks takes seconds to import it")
def test_the_real_collective_on_the_cpu(host, vllm_env):
    result = host.run("nccl_preflight", env_path=str(vllm_env), sizes_kib=[8, 1024], timeout=120)
    assert (result["verdict"], result["backend"], result["ranks"]) == ("passed", "gloo", 2), result
    assert "no GPU is used here: the all-reduce ran with gloo on the CPU" in result["flags"][0]
    assert all(row["correct"] and row["microseconds"] > 0 for row in result["sizes"])
    assert left_over() == []


@pytest.mark.slow(reason="it needs the environment with torch")
def test_a_real_rank_that_never_comes_is_named(host, vllm_env, tmp_path):
    (tmp_path / "env" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *\'"rank": 1\'*) exec sleep 600;; esac\nexec {vllm_env}/bin/python "$@"\n'
    )
    python.chmod(0o755)
    result = host.run("nccl_preflight", env_path=str(python.parents[1]), timeout=40)
    assert result["verdict"] == "hung"
    assert "rank 1 never left 'start' (after 40 s; waiting for it: rank 0 in 'init_process_group')" in result["msg"]
    assert left_over() == []
