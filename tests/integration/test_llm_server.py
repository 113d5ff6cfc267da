"""Launch, readiness and stop on a real engine, and on a stand-in for faults that a real one does not have on demand."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import control, plan, ports, procfs, server_env, servers
from ansible_collections.groundstate.llm.plugins.module_utils.declaration import complete

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("stand_in_engine.py")


class Llama:
    """A declared llama.cpp server on a test's host."""

    def __init__(self, host, env: Path, model: Path):
        self.host = host
        self.env = env
        self.declaration = {
            "name": "local",
            "engine": "llama_cpp",
            "model": str(model),
            "served_model_name": "smol",
            "port_from": 19300,
            "threads": 1,
            "context_length": 256,
            "gpus": [],
        }

    def server(self, state="started", check=False, **fields):
        return self.host.run(
            "llm_server",
            check=check,
            state=state,
            env_path=str(self.env),
            launcher="process",
            declaration={**self.declaration, **fields},
        )

    def ready(self, **arguments):
        return self.host.run("llm_server_ready", server="local", **{"timeout_s": 60, "slice_s": 0, **arguments})

    def started(self, **fields):
        """Launch and wait; returns the launch's result."""
        made = self.server(**fields)
        assert not made["failed"], made
        ready = self.ready()
        assert ready.get("ready") is True, ready
        return made


@pytest.fixture
def llama(host, llama_env, llama_model):
    return Llama(host, llama_env, llama_model)


def wait_gone(items, seconds=10.0):
    deadline = time.monotonic() + seconds
    while any(procfs.alive(one.pid, one.start) for one in items):
        assert time.monotonic() < deadline, items
        time.sleep(0.01)


def kill(record):
    os.kill(record.pid, signal.SIGKILL)
    item = procfs.Process(record.pid, record.pid_start, 0, 0, "", "", 0, "")
    wait_gone([item])


def test_from_start_to_nothing_left(llama, host):
    first = llama.server()
    assert (first["changed"], first["action"]) == (True, "started")
    assert first["why"] == ["it was never launched here"]
    assert "--threads\n1\n" in first["diff"]["after"]
    ready = llama.ready()
    assert ready["ready"] is True
    assert [one["name"] for one in ready["phases"]][-1] == "ready"
    assert {"process", "workers", "health", "models", "completion"} == set(ready["probes"])
    kept = json.loads((host.folder("local") / "ready.json").read_text())
    assert kept["start_id"] == first["start_id"]
    assert kept["ready"] is True

    again = llama.server()
    assert (again["changed"], again["action"], again["why"]) == (False, "unchanged", [])
    assert (again["pid"], again["start_id"], again["port"]) == (first["pid"], first["start_id"], first["port"])
    assert (again["ready"]["ready"], again["ready"]["already_ready"]) == (True, True)
    assert again["ready"]["phases"] == ready["phases"]
    asked = llama.ready()
    assert asked["already_ready"] is True
    assert asked["phases"] == ready["phases"]

    changed = llama.server(context_length=512)
    assert (changed["changed"], changed["action"]) == (True, "restarted")
    assert changed["why"] == ["argument --context-length: 256 -> 512"]
    assert changed["port"] == first["port"]
    assert changed["start_id"] != first["start_id"]
    assert [one["pid"] for one in changed["ended"]] == [first["pid"]]
    assert llama.ready()["already_ready"] is False

    tree = host.ours("local")
    assert tree
    gone = host.run("llm_server", server="local", state="absent")
    assert (gone["changed"], gone["action"]) == (True, "removed")
    assert not host.folder("local").exists()
    assert not [one for one in tree if procfs.alive(one.pid, one.start)]
    assert ports.who_has(first["port"]) == []
    nothing = host.run("llm_server", server="local", state="absent")
    assert (nothing["changed"], nothing["action"]) == (False, "absent")


def test_the_process_is_detached_and_gets_exactly_its_environment(llama, host):
    os.environ["GROUNDSTATE_LEAK"] = "1"
    try:
        made = llama.server(env={"MARK": "a b"})
    finally:
        del os.environ["GROUNDSTATE_LEAK"]
    item = procfs.process(made["pid"])
    assert item.session != procfs.process(os.getpid()).session
    found = procfs.initial_environment(item.pid).variables
    assert found == server_env.read(str(host.folder("local") / "environment"))
    assert found["MARK"] == "a b"
    assert found["GROUNDSTATE_START"] == made["start_id"]
    assert os.readlink(f"/proc/{item.pid}/fd/0") == "/dev/null"
    assert os.readlink(f"/proc/{item.pid}/fd/1") == str(host.folder("local") / "server.log")
    status = Path(f"/proc/{item.pid}/status").read_text()
    ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    assert not ignored & (1 << (signal.SIGINT - 1) | 1 << (signal.SIGQUIT - 1) | 1 << (signal.SIGHUP - 1))


def test_killed_while_it_starts_and_after_it_was_ready(llama, host):
    llama.server()
    kill(host.record("local"))
    failed = llama.ready()
    assert failed["failed"] is True
    assert "killed by SIGKILL (exit status 137)" in failed["msg"]
    assert failed["exit"].startswith("killed by SIGKILL")

    started = llama.started()
    assert started["why"][0].startswith("process ")
    assert "killed by SIGKILL" in started["why"][0]
    first = host.record("local")
    kill(first)
    failed = llama.ready()
    assert "died after it was ready" in failed["msg"]
    again = llama.started()
    assert again["action"] == "started"
    assert again["port"] == first.port
    # What the dead start had written is not taken for the new one's.
    assert json.loads((host.folder("local") / "ready.json").read_text())["start_id"] == again["start_id"]
    assert (host.folder("local") / "server.log.1").exists()


def test_a_value_that_only_the_engine_refuses_shows_its_own_message(llama):
    result = llama.server(
        extra_args={"batch-size": 0}
    )  # a whole number, as its parser says; the engine wants one above 0
    if not result["failed"]:  # on a busy machine it dies a little later
        result = llama.ready()
    assert result["failed"] is True
    assert "argument --batch-size: 0 is not a whole number above 0" in result["msg"]
    assert "exit status 2" in result["msg"]
    # Corrected, the same command goes on.
    assert llama.started()["action"] == "started"


def test_an_occupied_port_is_refused_before_anything_is_changed(llama, host):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = llama.server(port=port)
    assert refused["failed"] is True
    assert f"port: {port} is taken (listening) by process {os.getpid()}" in refused["msg"]
    assert host.record("local") is None
    assert not host.folder("local").exists()


def test_a_running_server_survives_a_declaration_that_cannot_be_launched(llama, host):
    first = llama.started()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert llama.server(port=other.getsockname()[1])["failed"] is True
    missing = llama.server(model="/no/such/model.gguf")
    assert "model: /no/such/model.gguf does not exist" in missing["msg"]
    assert host.record("local").start_id == first["start_id"]
    assert host.record("local").running()


def test_all_obstacles_are_told_at_once(llama):
    llama.env = Path("/no/such/env")
    refused = llama.server(model="/no/such/model.gguf")
    assert "model: /no/such/model.gguf does not exist" in refused["msg"]
    assert "/no/such/env/bin/groundstate-llama-cpp cannot be run" in refused["msg"]


def test_check_mode_changes_nothing(llama, host):
    would = llama.server(check=True)
    assert (would["changed"], would["action"]) == (True, "started")
    assert not host.home.joinpath("servers").exists()
    waiting = llama.ready(check=True)
    assert waiting["skipped"] is True
    first = llama.started()
    would = llama.server(check=True, context_length=512)
    assert (would["changed"], would["action"]) == (True, "restarted")
    assert llama.server(check=True)["changed"] is False
    down = host.run("llm_server", check=True, server="local", state="absent")
    assert (down["changed"], down["action"]) == (True, "removed")
    assert host.record("local").start_id == first["start_id"]
    assert host.record("local").running()


def test_stopped_and_started_again(llama, host):
    first = llama.started()
    stopped = llama.server(state="stopped")
    assert (stopped["changed"], stopped["action"]) == (True, "stopped")
    assert host.ours("local") == []
    assert (host.folder("local") / "exit").read_text().split()[0] == "0"
    assert llama.server(state="stopped")["changed"] is False
    waiting = llama.ready()
    assert "is stopped; run llm_server" in waiting["msg"]
    assert "ready" not in stopped
    again = llama.started()
    assert again["why"] == ["it was stopped"]
    assert again["port"] == first["port"]
    forced = llama.server(state="restarted")
    assert forced["why"] == ["a restart was asked for"]


def test_the_api_key_is_only_in_the_environment(llama, host):
    made = llama.server(api_key="very-s3cret-key")
    ready = llama.ready()
    assert ready["ready"] is True
    assert "very-s3cret-key" not in json.dumps([made, ready])
    assert "very-s3cret-key" not in (host.folder("local") / "server.json").read_text()
    for item in [*host.ours("local"), procfs.process(host.record("local").supervisor_pid)]:
        assert "very-s3cret-key" not in item.cmdline
    assert (host.folder("local") / "environment").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="401"):
        _get(made["base_url"] + "/v1/models")
    changed = llama.server(api_key="an0ther")
    assert changed["why"] == ["environment GROUNDSTATE_API_KEY: the secret changed"]


def _get(url):
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as reply:
        return reply.read().decode()


def test_speculation_by_n_grams_is_accepted_by_the_engine(llama):
    made = llama.started(speculation={"algorithm": "ngram", "draft_tokens": 4})
    assert made["argv"][-4:] == ["--speculation", "ngram", "--draft-tokens", "4"]
    assert "llamacpp:spec_decode_num_drafts_total" in _get(made["base_url"] + "/metrics")


def test_a_changed_profile_or_environment_restarts(llama, host):
    llama.server()
    (host.folder("local") / "nccl.env").write_text("NCCL_PROTO=LL\n")
    changed = llama.server()
    assert changed["why"] == ["environment NCCL_PROTO: unset -> LL"]
    assert procfs.initial_environment(changed["pid"]).variables["NCCL_PROTO"] == "LL"


def test_a_second_server_gets_another_port(llama, host):
    first = llama.server()
    second = llama.server(name="second")
    assert second["port"] != first["port"]
    host.run("llm_server", server="second", state="absent")
    assert host.record("local").running()


# --- runs that were interrupted ------------------------------------------------------------------


def interrupted(llama, host, monkeypatch):
    """A run that is killed between the launch and its record. Returns the process it had launched."""
    declared = complete(llama.declaration)
    wanted = plan.make_plan(
        declared,
        str(llama.env),
        ports.free_port(19350),
        server_env.base_environment(str(llama.env), {}),
        {},
        (json.loads((llama.env / "groundstate-env.json").read_text()) if _manifest(llama) else {}).get("hash", ""),
        "process",
    )

    def killed(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(control, "recorded", killed)
        with pytest.raises(KeyboardInterrupt):
            control.start(str(host.home), wanted)
    record = host.record("local")
    assert (record.state, record.pid) == ("launching", 0)
    [item] = host.ours("local")
    return item, record


def _manifest(llama):
    return (llama.env / "groundstate-env.json").exists()


def test_an_unrecorded_launch_is_adopted(llama, host, monkeypatch):
    item, record = interrupted(llama, host, monkeypatch)
    waiting = llama.ready()
    assert "interrupted; run llm_server" in waiting["msg"]
    adopted = llama.server(port=record.port)
    assert (adopted["changed"], adopted["action"], adopted["pid"]) == (True, "adopted", item.pid)
    assert host.record("local").supervisor_pid == item.ppid
    assert llama.ready()["ready"] is True
    assert llama.server(port=record.port)["changed"] is False


def test_an_unrecorded_launch_of_something_else_is_ended(llama, host, monkeypatch):
    item, record = interrupted(llama, host, monkeypatch)
    made = llama.server(port=record.port, context_length=512)
    assert made["action"] == "started"
    assert made["why"][0] == "an earlier run was interrupted while it launched the server"
    assert [one["pid"] for one in made["ended"]] == [item.pid]
    assert not procfs.alive(item.pid, item.start)
    assert llama.ready()["ready"] is True


def test_a_launch_that_never_happened(llama, host):
    llama.started()
    record = host.record("local")
    llama.server(state="stopped")
    servers.save(str(host.home), replace(record, state="launching", pid=0, start_id="0" * 32))
    assert llama.started()["why"] == ["an earlier run was interrupted while it launched the server"]


def test_a_damaged_record_is_one_clear_error(llama, host):
    host.folder("local").mkdir(parents=True)
    (host.folder("local") / "server.json").write_text("{")
    refused = llama.server()
    assert refused["failed"] is True
    assert "server.json is not valid JSON" in refused["msg"]
    (host.folder("local") / "server.json").unlink()


def test_a_folder_that_is_not_ours_is_left_alone(host):
    host.folder("local").mkdir(parents=True)
    (host.folder("local") / "thesis.txt").write_text("x")
    refused = host.run("llm_server", server="local", state="absent")
    assert "holds thesis.txt: it was not made by us" in refused["msg"]
    assert (host.folder("local") / "thesis.txt").exists()


# --- a stand-in that fails as told ---------------------------------------------------------------


class StandIn(Llama):
    def __init__(self, host):
        self.host = host
        self.env = Path("/")
        self.declaration = {
            "name": "local",
            "engine": "sglang",
            "model": str(STAND_IN),
            "served_model_name": str(STAND_IN),
            "tensor_parallel": 2,
            "port_from": 19400,
            "gpus": [],
            "command": [sys.executable, str(STAND_IN)],
        }

    def server(self, state="started", check=False, script=None, **fields):
        return super().server(state, check, extra_args={"script": json.dumps(script or {})}, **fields)


@pytest.fixture
def stand_in(host):
    return StandIn(host)


def test_two_workers_and_every_phase(stand_in, host):
    stand_in.server()
    ready = stand_in.ready()
    assert ready["ready"] is True
    assert [one["name"] for one in ready["phases"]] == [
        *("starting", "reading arguments", "distributed init", "loading weights", "allocating KV cache"),
        *("capturing graphs", "starting HTTP", "warming up", "up", "ready"),
    ]
    record = host.record("local")
    assert len(host.ours("local")) == 3
    os.kill(record.pid, signal.SIGKILL)
    time.sleep(0.1)
    orphans = host.ours("local")
    assert len(orphans) == 2
    again = stand_in.server()
    assert again["why"][1] == "2 processes of an earlier start are left and are ended first"
    assert {one["pid"] for one in again["ended"]} == {item.pid for item in orphans}
    assert stand_in.ready()["ready"] is True


@pytest.mark.parametrize(
    "phase", ["reading arguments", "loading weights", "capturing graphs", "starting HTTP", "warming up"]
)
def test_death_in_a_phase_names_it(stand_in, phase):
    stand_in.server(script={"die_in": phase, "how": 3, "step_s": 0.15})
    failed = stand_in.ready()
    assert failed["failed"] is True
    assert f"died in phase '{phase}', exit status 3" in failed["msg"]
    assert failed["diagnosis"]["cause"] == "the environment lacks the Python module flashinfer"
    assert failed["log_tail"][-1] == "ModuleNotFoundError: No module named 'flashinfer'"


def test_a_kill_is_told_as_a_kill(stand_in):
    stand_in.server(script={"die_in": "capturing graphs", "how": "KILL", "step_s": 0.15})
    failed = stand_in.ready()
    assert "killed by SIGKILL" in failed["msg"]
    assert failed["diagnosis"] == {}
    assert "No known failure is in the log" in failed["msg"]


def test_a_lost_worker_fails_though_the_server_answers(stand_in, host):
    stand_in.server(script={"lose_in": "completion", "lose_worker": 1, "hang_completion": True})
    failed = stand_in.ready()
    assert "worker of rank 1" in failed["msg"]
    assert "has died" in failed["msg"]
    assert host.record("local").running()


def test_a_hang_ends_at_the_time_limit_and_names_the_phase(stand_in):
    stand_in.server(script={"hang_in": "distributed init"})
    late = stand_in.ready(timeout_s=2)
    assert late["failed"] is True
    assert "is in phase 'distributed init'" in late["msg"]
    assert "It waits for 2 workers, and is left running to be looked into" in late["msg"]
    assert late["diagnosis"]["name"] == "ranks do not find each other"
    assert late["log_tail"][-1].endswith("Init torch distributed begin.")


def test_a_stopped_process_is_told(stand_in, host):
    stand_in.server(script={"hang_in": "distributed init"})
    process = host.record("local").pid
    os.kill(process, signal.SIGSTOP)
    late = stand_in.ready(timeout_s=1)
    assert late["failed"] is True
    assert f"waits for process {process} to go on: it was stopped" in late["msg"]
    # Stopped processes are ended like any other.
    assert all(one["gone"] for one in stand_in.server(state="absent")["ended"])


def test_a_server_that_generates_nothing_is_not_ready(stand_in):
    stand_in.server(script={"hang_completion": True})
    late = stand_in.ready(timeout_s=3)
    assert late["failed"] is True
    assert "models: ok" in late["msg"]


def test_slices_continue_where_the_last_one_ended(stand_in, host, tmp_path):
    hold = tmp_path / "hold"
    hold.touch()
    stand_in.server(script={"hold_in": "capturing graphs", "hold": str(hold)})
    names, calls = [], 0
    while True:
        answer = stand_in.ready(slice_s=0.3)
        if "capturing graphs" in names:
            hold.unlink(missing_ok=True)
        assert not answer["failed"], answer
        found = [one["name"] for one in answer["phases"]]
        assert found[: len(names)] == names
        names, calls = found, calls + 1
        if answer["ready"]:
            break
        assert answer["waiting_for"]
        assert calls < 200, names
    assert calls > 1
    assert names[-2:] == ["up", "ready"]
    assert names.count("loading weights") == 1


# --- through Ansible, as a user sees it ----------------------------------------------------------


def test_the_role_shows_phases_and_changes_nothing_the_second_time(llama, host, tmp_path):
    play = [
        {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "tasks": [
                {"ansible.builtin.import_role": {"name": "groundstate.llm.llm_server"}, "tags": ["up"]},
                {
                    "ansible.builtin.import_role": {"name": "groundstate.llm.llm_server", "tasks_from": "stop"},
                    "tags": ["down", "never"],
                },
            ],
        }
    ]
    (tmp_path / "play.yml").write_text(json.dumps(play))
    variables = {
        "groundstate_home": str(host.home),
        "ml_env_path": str(llama.env),
        "llm_server": llama.declaration,
        "llm_server_launcher": "process",
        "ansible_python_interpreter": sys.executable,
    }

    def ansible(*arguments, **more):
        return subprocess.run(
            [
                *(str(Path(sys.executable).with_name("ansible-playbook")), str(tmp_path / "play.yml")),
                *("-e", json.dumps({**variables, **more}), *arguments),
            ],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "False", "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        ).stdout

    first = ansible()
    assert "localhost: loading model (at " in first
    assert "localhost: ready (at " in first
    assert "changed=1" in first
    second = ansible()
    assert "changed=0" in second
    assert "failed=0" in second
    assert "localhost: loading model" not in second
    unknown = ansible(llm_server={**llama.declaration, "contxt_length": 1})
    assert "contxt_length" in unknown
    assert "failed=1" in unknown
    down = ansible("--tags", "down")
    assert "changed=1" in down
    assert not host.folder("local").exists()
