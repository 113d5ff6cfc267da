"""Which services a reset stops, with stand-ins for systemctl and pct."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import units
from ansible_collections.groundstate.llm.plugins.module_utils.procfs import Process
from ansible_collections.groundstate.llm.plugins.module_utils.reset_plan import Item


@pytest.fixture
def programs(tmp_path: Path, monkeypatch) -> Path:
    """A folder for programs, first in the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f'#!/bin/sh\necho "$@" >>{folder}/calls\n{body}\n', encoding="ascii")
    (folder / name).chmod(0o755)


def item(pid: int, unit: str = "a.service", server: str = "") -> Item:
    return Item(Process(pid, 1, 1, 1, "S", "x", 0, "x"), "python", "why", (0,), server, unit)


def test_a_service_whose_main_process_is_to_be_ended_is_stopped(programs: Path):
    program(programs, "systemctl", "echo MainPID=10")
    assert units.Watch().to_stop([item(10), item(11)], ()) == ["a.service"]
    assert units.Watch().to_stop([item(11)], ()) == []
    assert units.Watch().to_stop([item(10)], ["a.service"]) == []
    assert units.Watch().to_stop([item(10, server="ours"), item(10, unit="")], ()) == []
    assert (programs / "calls").read_text(encoding="ascii").splitlines()[0] == "show --property=MainPID a.service"


def test_a_service_that_got_another_main_process_is_stopped(programs: Path):
    watch = units.Watch()
    program(programs, "systemctl", "echo MainPID=20")
    assert watch.to_stop([item(21)], ()) == []
    assert watch.to_stop([item(22)], ()) == []
    program(programs, "systemctl", "echo MainPID=30")
    assert watch.to_stop([item(31)], ()) == ["a.service"]


@pytest.mark.parametrize("body", ["echo MainPID=0", "echo nonsense", "exit 1", "echo MainPID=10; exit 4"])
def test_a_service_of_which_systemd_does_not_tell_is_not_stopped(programs: Path, body: str):
    program(programs, "systemctl", body)
    assert units.Watch().to_stop([item(10)], ()) == []


def test_the_services_of_a_container_are_asked_for_inside(programs: Path, tmp_path: Path):
    proc = tmp_path / "proc"
    (proc / "4010").mkdir(parents=True)
    (proc / "4010" / "status").write_text("Name:\tx\nNSpid:\t4010\t10\n", encoding="ascii")
    program(programs, "pct", "echo MainPID=10")
    assert units.Watch("101", str(proc)).to_stop([item(4010)], ()) == ["a.service"]
    assert units.stop("a.service", 5, "101") == ""
    assert (programs / "calls").read_text(encoding="ascii").splitlines() == [
        "exec 101 -- systemctl show --property=MainPID a.service",
        "exec 101 -- systemctl stop a.service",
    ]


def test_lxc_without_proxmox(monkeypatch):
    monkeypatch.setattr(units.shutil, "which", lambda name: None)
    assert units.systemctl("box") == ["lxc-attach", "-n", "box", "--", "systemctl"]
    assert units.systemctl() == ["systemctl"]


def test_why_a_service_could_not_be_stopped(programs: Path, monkeypatch):
    program(programs, "systemctl", "echo Access denied >&2; exit 4")
    assert units.stop("a.service", 5) == "status 4: Access denied"
    program(programs, "systemctl", "sleep 60")
    assert units.stop("a.service", 0.2) == "it did not answer in time"
    monkeypatch.setenv("PATH", str(programs / "none"))
    assert "No such file" in units.stop("a.service", 5)
