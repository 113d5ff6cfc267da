"""What the next run makes of a server that has died, wholly or in part: why it is launched again, and what goes."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import control, launcher, plan, procfs
from ansible_collections.groundstate.llm.plugins.module_utils.declaration import complete
from killing import kill_if_there

STAND_IN = Path(__file__).with_name("stand_in_engine.py")
SHARED = Path("/dev/shm")


class Server:
    """The stand-in as a declared server; its script is part of the declaration."""

    def __init__(self, host):
        self.host = host

    def run(self, state="started", check=False, **script):
        declared = {"name": "local", "engine": "sglang", "model": str(STAND_IN), "served_model_name": str(STAND_IN)}
        declared.update({"tensor_parallel": 2, "port_from": 19700, "gpus": []})
        declared["command"] = [sys.executable, str(STAND_IN)]
        declared["extra_args"] = {"script": json.dumps(script)}
        result = self.host.run(
            "llm_server", check=check, state=state, env_path="/", launcher="process", declaration=declared
        )
        assert not result["failed"], result
        return result

    def up(self, **script):
        made = self.run(**script)
        ready = self.host.run("llm_server_ready", server="local", timeout_s=60, slice_s=0)
        assert ready.get("ready") is True, ready
        return made

    def part(self, title: str) -> procfs.Process:
        return next(item for item in self.host.ours("local") if item.cmdline.startswith(title))


@pytest.fixture
def server(host):
    return Server(host)


@pytest.fixture
def mark():
    """Part of the names of a test's shared memory."""
    text = uuid.uuid4().hex[:8]
    yield text
    for path in SHARED.glob(f"*{text}*"):
        path.unlink()


def kill(*items: procfs.Process) -> None:
    for item in items:
        kill_if_there(item.pid)
    while any(procfs.alive(item.pid, item.start) for item in items):
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("title", "words"),
    [("sglang::scheduler_TP1", "the worker of rank 1"), ("sglang::detokenizer", "sglang::detokenizer")],
)
def test_a_server_that_lost_a_part_is_not_unchanged(server, host, title, words):
    script = {"detokenizer": True}
    first = server.up(**script)
    assert server.run(**script)["action"] == "unchanged"
    lost = server.part(title)
    kill(lost)
    waited = host.run("llm_server_ready", server="local", timeout_s=60, slice_s=0)
    assert waited["failed"] is True
    assert f"(process {lost.pid}) has died after it was ready, killed by SIGKILL" in waited["msg"]
    seen = host.run("llm_server_info", server="local", completion=False, watch_s=0)
    assert seen["health"] == "incomplete", seen
    would = server.run(check=True, **script)
    assert (would["changed"], would["action"]) == (True, "restarted")
    again = server.run(**script)
    assert (again["changed"], again["action"]) == (True, "restarted")
    assert len(again["why"]) == 1
    assert again["why"][0].startswith(words)
    assert f"(process {lost.pid}) has died; the server process {first['pid']} still runs" in again["why"][0]
    assert first["pid"] in [one["pid"] for one in again["ended"]]


def test_what_a_dead_server_left_goes_when_it_is_stopped(server, host, mark):
    server.up(leave=mark)
    tree = host.ours("local")
    workers = [server.part(f"sglang::scheduler_TP{rank}") for rank in range(2)]
    kill(*tree)
    assert host.ours("local") == []
    foreign = SHARED / f"psm_{mark}foreign"
    foreign.touch()
    # Made anew under a name that the server had: it is not the file that was noted.
    anew = SHARED / f"psm_{mark}2"
    anew.rename(SHARED / f"psm_{mark}2.old")  # so that its inode is not used again
    anew.touch()
    strangers = {str(foreign), str(anew), f"{anew}.old"}
    left = {str(SHARED / f"psm_{mark}{rank}") for rank in (0, 1, 3)}
    left |= {str(SHARED / f"sem.loky-{worker.pid}-{mark}") for worker in workers}
    in_use = str(SHARED / f"psm_{mark}1")
    with open(in_use, "a"):  # by a process that lives, this one
        would = host.run("llm_server", check=True, server="local", state="stopped")
        assert would["changed"] is True
        assert set(would["removed"]) == left - {in_use}
        assert {str(path) for path in SHARED.glob(f"*{mark}*")} == left | strangers
        done = host.run("llm_server", server="local", state="stopped")
        assert (done["changed"], done["action"], done["ended"]) == (True, "stopped", [])
        assert set(done["removed"]) == left - {in_use}
        assert done["left_files"] == [{"path": in_use, "why": f"in use by process {os.getpid()}"}]
    assert {str(path) for path in SHARED.glob(f"*{mark}*")} == strangers | {in_use}
    gone = host.run("llm_server", server="local", state="absent")
    assert gone["removed"] == [in_use]
    assert {str(path) for path in SHARED.glob(f"*{mark}*")} == strangers
    assert host.run("llm_server", server="local", state="absent")["changed"] is False


def test_a_launch_that_failed_is_no_interruption(host, tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    declared = {"name": "local", "engine": "generic", "model": "m", "port_from": 19720, "gpus": []}
    declared["command"] = [str(program)]

    def launch():
        return host.run("llm_server", launcher="process", declaration=declared)

    first = launch()
    assert first["failed"] is True
    assert "exit status 3" in first["msg"]
    program.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    again = launch()
    assert again["action"] == "started"
    # Whether it was seen before it died depends on the machine.
    assert again["why"][0].endswith((" has died: exit status 3", "it died at its launch: exit status 3"))


def test_a_launch_without_a_process_says_so_everywhere(host, monkeypatch):
    declared = complete({"name": "local", "engine": "generic", "model": "m", "command": ["/bin/false"]})
    wanted = plan.make_plan(declared, "", 19730, {"PATH": os.environ["PATH"]}, {}, "", "process")
    monkeypatch.setattr(launcher, "_marked", lambda *_arguments: False)  # it had ended before we could look
    with pytest.raises(control.ControlError, match="exit status 1"):
        control.start(str(host.home), wanted)
    assert host.record("local").state == "failed"
    waiting = host.run("llm_server_ready", server="local")
    assert "server 'local' died at its launch; run llm_server" in waiting["msg"]
    seen = host.run("llm_server_info", server="local")
    assert (seen["health"], seen["why"]) == ("dead", ["it died at its launch: exit status 1"])


def test_a_program_beside_the_python_of_the_environment_is_found(host, tmp_path):
    """As ninja is, which kernels are compiled with: it is called by name."""
    env = tmp_path / "env"
    (env / "bin").mkdir(parents=True)
    (env / "bin" / "python").symlink_to(sys.executable)
    tool = env / "bin" / "gs-test-ninja"
    tool.write_text("#!/bin/sh\necho 1.13.0\n")
    tool.chmod(0o755)
    code = "import subprocess, time; print(subprocess.check_output(['gs-test-ninja'])); time.sleep(600)"
    declared = {"name": "local", "engine": "generic", "model": "m", "port_from": 19740, "gpus": []}
    for env_path, command in ((str(env), "{env}/bin/python"), ("", str(env / "bin" / "python"))):
        declared["command"] = [command, "-u", "-c", code]
        made = host.run("llm_server", launcher="process", env_path=env_path, declaration=declared)
        assert not made["failed"], made
        log = Path(made["log"])
        while "\n" not in log.read_text():
            assert host.record("local").running(), log.read_text()
            time.sleep(0.02)
        assert "1.13.0" in log.read_text()


def test_too_few_open_files_are_a_warning_with_its_remedy(host):
    lower = "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))"
    host.prefix = (sys.executable, "-c", f"import os, resource, sys; {lower}; os.execv(sys.argv[1], sys.argv[1:])")
    declared = {"name": "local", "engine": "generic", "model": "m", "port_from": 19750, "gpus": []}
    declared["command"] = [sys.executable, "-c", "import time; time.sleep(600)"]
    made = host.run("llm_server", launcher="process", declaration=declared)
    [warning] = map(str, made["warnings"])
    assert f"process {made['pid']} may open 4096 files and should have 1048576; raise the hard limit" in warning
    assert "lxc.prlimit.nofile" in warning
