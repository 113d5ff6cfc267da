"""The places of a profile on real files, a real Python and a real server: written, switched, left without a trace."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.groundstate.llm.plugins.module_utils import nccl_places

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = yaml.safe_load((ROOT / "roles" / "nccl_profile" / "vars" / "main.yml").read_text())["nccl_profile_shipped"]
STORY = {name: str(value) for name, value in SHIPPED["pcie_ll_ring"]["variables"].items()}
OTHERS = b"# of the site\r\nNCCL_SOCKET_IFNAME=eth0\nNCCL_PROTO=Simple"


@pytest.fixture
def python(tmp_path):
    """A Python of its own, whose start may be changed."""
    subprocess.run(
        [os.path.realpath(sys.executable), "-m", "venv", "--without-pip", str(tmp_path / "venv")],
        check=True,
        timeout=120,
    )
    return tmp_path / "venv" / "bin" / "python"


@pytest.fixture
def write(host, module, tmp_path):
    """Write a profile for the server "local", whose user's home is an empty folder."""

    def run(profile="pcie_ll_ring", own=None, environment=None, by=module, **arguments):
        return by(
            "nccl_profile",
            home=str(host.home),
            server="local",
            profile=profile,
            profiles={**SHIPPED, **(own or {})},
            environment={"HOME": str(tmp_path), **(environment or {})},
            **arguments,
        )

    return run


def content(folder):
    """All files below a folder with what is in them and their modes; not what Python compiled, which holds times."""
    return {
        path: (path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.suffix != ".pyc"
    }


def warned(result):
    return json.dumps(result.get("warnings", []))


def test_the_servers_environment_alone_is_the_default(host, write):
    first = write()
    assert (first["failed"], first["changed"]) == (False, True), first
    assert first["environment"] == first["variables"] == STORY
    kept = content(host.home)
    assert [path.name for path in kept] == ["nccl.env"]
    assert write()["changed"] is False
    stock = write("stock")
    assert (stock["changed"], stock["environment"], stock["variables"]) == (True, {}, {})
    assert write()["changed"] is True
    assert content(host.home) == kept


def test_a_profile_for_other_links_is_warned_of_when_it_is_written(host, write, tmp_path, monkeypatch):
    """The driver is not asked again where nothing changes: that would be half a second of each run."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\necho "$*" >> "$0.asked"\nprintf "\\tGPU0\\tGPU1\\nGPU0\\t X \\tNV18\\nGPU1\\tNV18\\t X \\n"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    write = functools.partial(write, by=host.run)  # in one process, warnings add up
    assert "it is for pcie, but the GPUs here are linked by nvlink (GPU0-GPU1)" in warned(write())
    assert "linked by" not in warned(write())
    assert "linked by" not in warned(write("nvlink"))
    assert "linked by" not in warned(write("stock"))
    assert Path(f"{program}.asked").read_text() == "topo -m\n" * 2


def test_switching_between_profiles_in_all_places_gives_the_same_bytes(write, python, tmp_path):
    conf = tmp_path / "etc" / "nccl.conf"
    conf.parent.mkdir()
    conf.write_bytes(OTHERS)
    conf.chmod(0o600)
    before = content(tmp_path)
    where = {
        "places": ["server", "conf", "python_startup"],
        "conf_path": str(conf),
        "python": str(python),
    }
    check = write(check=True, **where)
    assert (check["failed"], check["changed"], content(tmp_path)) == (False, True, before)
    first = write(**where)
    assert (first["failed"], first["changed"]) == (False, True), first
    assert first["environment"] == check["environment"]
    assert first["environment"]["NCCL_CONF_FILE"] == str(conf)
    assert first["startup"][-2:] == ["forkserver  set", "-S          not set (no start-up code runs then)"]
    assert conf.read_bytes().endswith(OTHERS)
    assert conf.stat().st_mode & 0o7777 == 0o644, "workers of any user have to read it"
    kept = content(tmp_path)
    again = write(**where)
    assert (again["changed"], again["written"], content(tmp_path)) == (False, [], kept)

    assert write("stock", **where)["changed"] is True
    left = content(tmp_path)
    assert [path.name for path in left if path not in before] == ["nccl.env"]
    assert {path: left[path] for path in before} == before
    assert write(**where)["changed"] is True
    assert content(tmp_path) == kept


def test_a_place_that_is_no_longer_named_is_cleaned(host, module, write, python, tmp_path):
    conf = tmp_path / "nccl.conf"
    before = content(tmp_path)
    everywhere = {"places": ["server", "conf", "python_startup"], "python": str(python)}
    write(conf_path=str(conf), **everywhere)
    assert conf.exists()
    moved = write(**everywhere)
    assert not conf.exists()
    assert moved["environment"]["NCCL_CONF_FILE"] == str(host.folder("local") / "nccl.conf")
    done = write(places=["server"])
    assert (done["failed"], done["environment"]) == (False, STORY)
    assert [path.name for path in content(tmp_path) if path not in before] == ["nccl.env"]
    write(conf_path=str(conf), **everywhere)
    gone = module("nccl_profile", home=str(host.home), server="local", state="absent")
    assert (gone["failed"], gone["changed"]) == (False, True)
    assert content(tmp_path) == before


def test_a_run_that_ended_half_way_is_cleaned_up_by_the_next(write, python, tmp_path, monkeypatch):
    before = content(tmp_path)
    where = {"places": ["python_startup", "conf"], "python": str(python)}
    broken = write(conf_path="/proc/nccl.conf", **where)
    assert broken["failed"] is True
    assert "nothing can be made in /proc" in broken["msg"]
    assert content(tmp_path) == before
    # As when that is found out only after the interpreter's start was changed.
    monkeypatch.setattr(nccl_places.writable, "obstacle", lambda path: "")
    broken = write(conf_path="/proc/nccl.conf", **where)
    monkeypatch.undo()
    assert broken["failed"] is True
    assert "/proc/nccl.conf" in broken["msg"] or "/proc" in broken["msg"]
    assert len(list(tmp_path.rglob("*.pth"))) == 1
    assert write("stock")["failed"] is False
    assert [path.name for path in content(tmp_path) if path not in before] == ["nccl.env"]


def test_which_source_wins_and_who_else_sets_variables(host, write, tmp_path):
    write = functools.partial(write, by=host.run)  # which returns the warnings, whatever ran before in this process
    conf, user = tmp_path / "nccl.conf", tmp_path / ".nccl.conf"
    conf.write_bytes(OTHERS)
    user.write_text("NCCL_ALGO=Tree\n")
    made = write(places=["conf"], conf_path=str(conf), environment={"NCCL_NTHREADS": "256"})
    assert [one["source"] for one in made["sources"]] == ["environment", "NCCL_CONF_FILE", "/etc/nccl.conf"]
    assert made["winners"]["NCCL_PROTO"] == {"value": "LL", "source": "NCCL_CONF_FILE", "shadowed": []}
    assert made["winners"]["NCCL_NTHREADS"] == {
        "value": "256",
        "source": "environment",
        "shadowed": [{"source": "NCCL_CONF_FILE", "value": "512"}],
    }
    assert "NCCL_NTHREADS is 512 in the profile, and '256' wins, from environment" in warned(made)
    assert "NCCL_ALGO and is not read by this server" in warned(made)
    found = {one["path"]: one["variables"] for one in made["others"]}
    assert found[str(conf)] == {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_PROTO": "Simple"}
    assert found[str(user)] == {"NCCL_ALGO": "Tree"}
    assert f"{conf} sets NCCL_PROTO=Simple (the profile: LL), NCCL_SOCKET_IFNAME=eth0 (not in" in warned(made)

    # Without NCCL_CONF_FILE the file of the user comes next, behind the environment.
    made = write()
    assert [one["source"] for one in made["sources"]] == ["environment", "~/.nccl.conf", "/etc/nccl.conf"]
    assert made["winners"]["NCCL_ALGO"] == {
        "value": "Ring",
        "source": "environment",
        "shadowed": [{"source": "~/.nccl.conf", "value": "Tree"}],
    }
    stock = write("stock")
    assert stock["winners"]["NCCL_ALGO"]["value"] == "Tree"
    assert f"{user} sets NCCL_ALGO=Tree (not in the profile)" in warned(stock)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"places": []}, "has no place: name one of server, conf, python_startup"),
        ({"places": ["conf"], "conf_path": "nccl.conf"}, "no whole path"),
        ({"places": ["python_startup"]}, "needs the Python that the server runs with"),
        ({"places": ["python_startup"], "python": "/nonexistent/python"}, "/nonexistent/python does not run"),
        ({"places": ["etc"]}, "must be one or more of: server, conf, python_startup"),
        (
            {"places": ["conf"], "own": {"p": {"variables": {"NCCL_CONF_FILE": "/x"}}}, "profile": "p"},
            "sets NCCL_CONF_FILE, which the place 'conf' sets by itself",
        ),
        (
            {"own": {"p": {"variables": {"NCCL_P2P_LEVEL": "sys", "NCCL_FOO": 1}}}, "profile": "p"},
            "NCCL ignores it silently; the case matters: write SYS",
        ),
    ],
)
def test_one_clear_error_before_anything_is_written(host, write, tmp_path, arguments, says):
    made = write(**arguments)
    assert made["failed"] is True
    assert says in made["msg"]
    assert content(tmp_path) == {}


def test_a_running_server_is_restarted_when_what_its_environment_does_not_show_has_changed(
    host, module, write, python, tmp_path
):
    conf = tmp_path / "nccl.conf"
    declaration = {
        "name": "local",
        "engine": "generic",
        "model": "none",
        "port_from": 19470,
        "gpus": [],
        "command": [str(python), "-c", "import time; time.sleep(600)"],
    }

    def server():
        made = module("llm_server", home=str(host.home), declaration=declaration, launcher="process")
        assert made["failed"] is False, made
        return made["action"], made["why"]

    def proof():
        made = module("nccl_proof", home=str(host.home), server="local", policy="warn")
        return made["verdict"], made["profile"]

    own = {"mine": {"variables": {"NCCL_P2P_LEVEL": "SYS"}}}
    start = {"places": ["python_startup", "conf"], "python": str(python), "conf_path": str(conf)}
    write(**start)
    assert server()[0] == "started"
    assert server() == ("unchanged", [])
    # Its environment has none of the six variables, and its process has all of them.
    assert not set(STORY) & set(host.record("local").environment)
    assert proof() == ("proved", "pcie_ll_ring")
    write("mine", own=own, **start)
    action, why = server()
    assert action == "restarted"
    assert "GROUNDSTATE_NCCL_PROFILE" in why[0]
    assert proof() == ("proved", "mine")
    write("mine", own=own)
    assert server()[0] == "restarted"
    assert proof() == ("proved", "mine")
    write("mine", own=own, **start)
    assert server()[0] == "restarted"
    # With the server goes what stands outside of its folder.
    assert conf.exists()
    assert module("llm_server", home=str(host.home), server="local", state="absent")["action"] == "removed"
    assert not conf.exists()
    assert list(tmp_path.rglob("*.pth")) == []
