"""What a host has, found out on this one and in made folders; nothing is changed by looking."""

from __future__ import annotations

import os
import socket
import stat
import sys
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import servers, writable
from ansible_collections.groundstate.llm.plugins.module_utils.preflight import facts, wants

DATA = Path(__file__).parents[2] / "data" / "nvidia_smi"


def gather(**given):
    return facts.gather(wants.complete(given))


# --- writable ----------------------------------------------------------------------------------------


def test_a_folder_that_need_not_exist_yet(tmp_path):
    assert writable.obstacle(str(tmp_path / "a" / "b" / "c")) == ""
    assert os.listdir(tmp_path) == []


def test_a_file_or_a_dead_link_on_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("/nowhere/at/all")
    assert writable.obstacle(str(tmp_path / "file" / "x" / "y")) == f"{tmp_path}/file is a file, not a folder"
    assert writable.obstacle(str(tmp_path / "link" / "x")) == f"{tmp_path}/link is a link to nowhere"


def test_a_folder_of_somebody_else(tmp_path, monkeypatch):
    # As root every folder may be written to; what access() says to other users is what counts here.
    monkeypatch.setattr(writable.os, "access", lambda path, mode: False)
    assert writable.obstacle(str(tmp_path / "x")) == f"{tmp_path} may not be written to by this user"


def test_a_read_only_filesystem_is_called_that(tmp_path, monkeypatch):
    class ReadOnly:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(writable.os, "access", lambda path, mode: False)  # what access() says there, to root too
    monkeypatch.setattr(writable.os, "statvfs", lambda path: ReadOnly)
    assert writable.obstacle(str(tmp_path / "x")) == f"{tmp_path} is on a read-only filesystem"


# --- the parts ---------------------------------------------------------------------------------------


def test_modes_do_not_tell_all(tmp_path):
    assert writable.obstacle("/proc/x") == "nothing can be made in /proc (No such file or directory)"
    assert writable.obstacle(str(tmp_path)) == ""
    assert list(tmp_path.iterdir()) == []


def test_looking_makes_nothing(tmp_path):
    home = tmp_path / "home"
    found = gather(
        home=str(home),
        environment={"path": str(home / "envs/x"), "lock": "x"},
        server={"name": "local", "port": 19999, "host": "127.0.0.1"},
        local_fact=str(home / "facts.d/groundstate.fact"),
    )
    assert os.listdir(tmp_path) == []
    assert found["home"]["exists"] is False
    assert found["home"]["obstacle"] == found["local_fact"] == ""
    assert found["home"]["free_mib"] > 0
    assert found["python"] == ".".join(str(one) for one in sys.version_info[:3])
    assert found["env_python"]["version"]
    assert found["gpus"] is None


def test_a_home_with_a_part_that_cannot_be_used(tmp_path):
    (tmp_path / "envs").write_text("a file in the way")
    assert gather(home=str(tmp_path))["home"]["obstacle"] == f"{tmp_path}/envs is a file, not a folder"


def test_no_python_in_the_range_is_an_error_only_while_something_has_to_be_made(tmp_path):
    environment = {"path": str(tmp_path / "env"), "lock": "x", "python_range": ">=3.99"}
    assert "no Python >=3.99" in gather(home=str(tmp_path), environment=environment)["env_python"]["error"]
    (tmp_path / "env").mkdir()
    assert gather(home=str(tmp_path), environment=environment)["env_python"] == {}


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: None, "missing"),
        (lambda path: path.mkdir(), "folder"),
        (lambda path: path.write_bytes(b"GGUFxyz"), "file"),
        (lambda path: path.symlink_to("/nowhere/x"), "link to nowhere"),
    ],
)
def test_kinds_of_models(tmp_path, make, kind):
    make(tmp_path / "m")
    found = facts.model(str(tmp_path / "m"))
    assert found["kind"] == kind
    assert found["magic"] == ("GGUF" if kind == "file" else None)


def test_a_model_folder_tells_whether_it_has_its_config(tmp_path):
    assert facts.model(str(tmp_path))["names"] == 0
    (tmp_path / "config.json").write_text("{}")
    found = facts.model(str(tmp_path))
    assert (found["names"], found["config"]) == (1, True)


def test_programs(tmp_path):
    program = tmp_path / "serve"
    program.write_text("#!/bin/sh\n")
    assert gather(home=str(tmp_path), server={"program": str(program)})["program"] is False
    program.chmod(stat.S_IRWXU)
    assert gather(home=str(tmp_path), server={"program": str(program)})["program"] is True
    assert gather(home=str(tmp_path))["program"] is None


def test_memory_is_the_kernels_word_and_the_control_groups(tmp_path):
    for path, text in {
        "proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4194304 kB\n",
        "proc/self/cgroup": "0::/box\n",
        "proc/self/status": "Cpus_allowed_list: 0\n",
        "sys/fs/cgroup/box/memory.max": "1073741824\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert facts.memory(str(tmp_path)) == {"available_mib": 4096, "limit_mib": 1024}


# --- the port ----------------------------------------------------------------------------------------


def test_a_damaged_record_is_told_and_not_fatal(tmp_path):
    folder = tmp_path / "servers" / "local"
    folder.mkdir(parents=True)
    (folder / "server.json").write_text("{")
    found = gather(home=str(tmp_path), server={"name": "local"})
    assert "server.json is not valid JSON" in found["record"]
    assert found["running"] is False


@pytest.fixture
def listening():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_strangers_port_is_named_with_its_process(tmp_path, listening):
    found = gather(home=str(tmp_path), server={"name": "local", "port": listening, "host": "127.0.0.1"})
    assert [(use["pid"], use["state"]) for use in found["port_users"]] == [(os.getpid(), "listening")]
    assert "pytest" in found["port_users"][0]["cmdline"] or "python" in found["port_users"][0]["cmdline"]
    assert found["port_users"][0]["cleared"] is False


def test_our_own_server_may_have_its_port(tmp_path, listening, monkeypatch):
    me = facts.procfs.process(os.getpid())
    (tmp_path / "servers" / "local").mkdir(parents=True)
    monkeypatch.setattr(servers, "started_by_us", lambda home, name, table: [me])
    found = gather(home=str(tmp_path), server={"name": "local", "port": listening, "host": "127.0.0.1"})
    assert found["port_users"] == []


def test_another_server_of_ours_is_for_gpu_state_to_end(tmp_path, listening, monkeypatch):
    marked = facts.procfs.Environment(
        {servers.SERVER_VARIABLE: servers.folder(str(tmp_path), "other")}, True, "environ"
    )
    monkeypatch.setattr(facts.procfs, "initial_environment", lambda pid, proc="/proc": marked)
    server = {"name": "local", "port": listening, "host": "127.0.0.1"}
    monkeypatch.setattr(servers, "started_by_us", lambda home, name, table: [])
    assert gather(home=str(tmp_path), server=server, gpu_state=True)["port_users"][0]["cleared"] is True
    assert gather(home=str(tmp_path), server=server, gpu_state=False)["port_users"][0]["cleared"] is False


@pytest.mark.parametrize("port", [0, -1, 70000])
def test_a_number_that_is_no_port_is_not_looked_for(tmp_path, port):
    assert gather(home=str(tmp_path), server={"port": port})["port_users"] == []


# --- GPUs --------------------------------------------------------------------------------------------


def test_gpus_are_asked_for_only_when_they_are_needed(tmp_path, monkeypatch):
    answer = facts.nvidia.Answer(None, "the driver hangs")
    monkeypatch.setattr(facts.nvidia, "query", lambda: answer)
    assert gather(home=str(tmp_path))["gpus"] is None
    found = gather(home=str(tmp_path), server={"gpus_needed": True, "gpus": "all"})["gpus"]
    assert (found["available"], found["why"], found["count"]) == (None, "the driver hangs", 0)
    found = gather(home=str(tmp_path), server={"gpus_needed": True, "gpus": [0, 3]})["gpus"]
    assert "no GPU 0, 3 on this host" in found["wrong"]


def test_the_compute_capability_is_asked_for_only_when_a_lock_needs_one(tmp_path, monkeypatch):
    text = (DATA / "h200.idle.xml").read_text()
    report = facts.nvidia.parse(text)
    monkeypatch.setattr(facts.nvidia, "query", lambda: facts.nvidia.Answer(True, "", report))
    asked = []
    monkeypatch.setattr(
        facts.nvidia, "capabilities", lambda: asked.append(1) or {one.uuid: "9.0" for one in report.gpus}
    )
    server = {"gpus_needed": True, "gpus": "all"}
    assert gather(home=str(tmp_path), server=server)["gpus"]["capabilities"] == {}
    assert asked == []
    found = gather(home=str(tmp_path), server=server, environment={"compute_capability": "8.0"})["gpus"]
    assert found["capabilities"] == {report.gpus[0].name: "9.0"}
    assert found["cuda"] == "13.0"


def test_compute_capabilities_are_read_as_the_driver_prints_them():
    text = "GPU-1, 9.0\nGPU-2, 12.0\nGPU-3, [N/A]\n\n"
    assert facts.nvidia.parse_capabilities(text) == {"GPU-1": "9.0", "GPU-2": "12.0"}
