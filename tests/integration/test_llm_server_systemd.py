"""The systemd launcher, as far as it can be run where systemd does not: a systemctl that really starts processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import control, launcher, plan, procfs, servers
from ansible_collections.groundstate.llm.plugins.module_utils.declaration import complete
from killing import kill_if_there

FAKE = Path(__file__).with_name("fake_systemctl.py")
SLEEP = "import sys, time; print('awake', sys.argv[1], flush=True); time.sleep(600)"


@pytest.fixture
def units(tmp_path, monkeypatch):
    folder = tmp_path / "units"
    folder.mkdir()
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_UNITS", str(folder))
    monkeypatch.setattr(launcher, "UNIT_FOLDER", str(folder))
    monkeypatch.setattr(launcher, "SYSTEMD_RUNNING", str(folder))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    yield folder
    for path in folder.glob("*.pid"):
        kill_if_there(int(path.read_text()))


def make(*command):
    declared = complete(
        {"name": "gen", "engine": "generic", "model": "m", "command": list(command), "env": {"A": "a b"}}
    )
    return plan.make_plan(declared, "", 19500, {"PATH": os.environ["PATH"]}, {}, "", "systemd")


def calls(units):
    return (units / "calls").read_text().splitlines()


def test_a_unit_is_started_recorded_and_removed(units, tmp_path):
    home = str(tmp_path / "home")
    record = control.start(home, make(sys.executable, "-c", SLEEP, "50% of $HOME"))
    unit = "groundstate-gen.service"
    assert calls(units) == [
        "daemon-reload",
        f"reset-failed {unit}",
        f"start {unit}",
        f"show --property=MainPID --value {unit}",
    ]
    assert (record.state, record.launcher, record.unit, record.supervisor_pid) == ("launched", "systemd", unit, 0)
    assert record.running()
    variables = procfs.initial_environment(record.pid).variables
    assert variables["A"] == "a b"
    assert variables["GROUNDSTATE_START"] == record.start_id
    log = Path(record.log)
    deadline = time.monotonic() + 10
    while not log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert log.read_text() == "awake 50% of $HOME\n"

    control.stop(home, "gen", servers.look(home, "gen"))
    assert calls(units)[-1] == f"stop {unit}"
    assert not record.running()
    assert servers.load(home, "gen").state == "stopped"
    control.remove(home, "gen")
    assert calls(units)[-2:] == ["daemon-reload", f"reset-failed {unit}"]
    assert not (units / unit).exists()
    assert not (tmp_path / "home/servers/gen").exists()


def test_a_unit_that_cannot_start_says_what_systemd_said(units, tmp_path):
    with pytest.raises(control.ControlError, match=r"Failed to start groundstate-gen\.service"):
        control.start(str(tmp_path / "home"), make("/no/such/program"))


def test_the_unit_never_restarts_and_has_its_limits():
    text = launcher.render_unit("gen", "/h/servers/gen", ["/e/bin/x", "a b", "100%", "$HOME", 'say "hi"', ""], 90.0)
    lines = text.splitlines()
    assert 'ExecStart=/e/bin/x "a b" 100%% $$HOME "say \\"hi\\"" ""' in lines
    for line in (
        "Restart=no",
        "LimitMEMLOCK=infinity",
        "TimeoutStopSec=90",
        "EnvironmentFile=/h/servers/gen/environment",
        "StandardOutput=append:/h/servers/gen/server.log",
    ):
        assert line in lines
    assert any(line.startswith("LimitNOFILE=") for line in lines)
    assert not any(line.startswith("[Install]") for line in lines)


def test_which_launcher_is_chosen(units, monkeypatch):
    assert launcher.choose("auto") == "systemd"
    assert launcher.choose("process") == "process"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert launcher.choose("auto") == "process"
    with pytest.raises(launcher.LaunchError, match="system units need root"):
        launcher.choose("systemd")
    monkeypatch.setattr(launcher, "SYSTEMD_RUNNING", "/no/such/folder")
    with pytest.raises(launcher.LaunchError, match="systemd does not run this system"):
        launcher.choose("systemd")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_itself_accepts_the_unit(tmp_path):

    (tmp_path / "environment").write_text("A=1\n")
    words = [sys.executable, "-c", 'print("50% of $HOME")', "a b", ""]
    path = tmp_path / "groundstate-gen.service"
    path.write_text(launcher.render_unit("gen", str(tmp_path), words, 90.0))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if path.name in line]
    assert (done.returncode, complaints) == (0, [])
