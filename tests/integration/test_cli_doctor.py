"""`groundstate doctor` on hosts in all kinds of states: it tells what is wrong and changes nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from cli_site import Site


@pytest.fixture(name="site")
def made_site(tmp_path):
    made = Site(tmp_path)
    yield made
    made.end()


def findings(events: list[dict]) -> list[tuple[str, str]]:
    return [(one["level"], one["what"]) for one in events if one["event"] == "finding"]


def everything(folder: Path) -> dict[str, float]:
    """All files below a folder with the time of their last change, but those of the cache."""
    return {
        str(path): path.stat().st_mtime
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "cache" and "cache" not in path.parts[len(folder.parts) :]
    }


def test_where_nothing_was_ever_done_nothing_is_wrong_and_nothing_is_made(site):
    events = site.run("doctor")
    assert findings(events) == [("note", "server mock was never launched here")]
    assert events[-1]["hosts"]["one"]["changed"] == 0
    assert not site.home.exists()


def test_what_a_deployment_would_refuse_is_a_problem(site):
    events = site.run("doctor", "-e", '{"nccl_profile_nmae": "stock"}', "-e", "baseline_tolerance=lots", code=1)
    problems = [what for level, what in findings(events) if level == "problem"]
    assert len(problems) == 2
    assert any("nccl_profile_nmae" in one["where"] + one["what"] for one in events if one["event"] == "finding")
    assert not site.home.exists()


@pytest.mark.slow  # a deployment, and four looks at what became of it
def test_a_deployed_host_well_changed_dead_and_damaged(site, tmp_path):
    site.run("deploy")
    before = everything(tmp_path / "home") | everything(tmp_path / "records")
    events = site.run("doctor")
    assert [one for one in findings(events) if one[0] == "problem"] == []
    assert everything(tmp_path / "home") | everything(tmp_path / "records") == before

    [server] = [item for item in site.ours() if item.ppid not in {one.pid for one in site.ours()}]
    os.kill(server.pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while site.ours():
        assert time.monotonic() < deadline, "the server does not end"
        time.sleep(0.05)
    events = site.run("doctor", code=1)
    [dead] = [one for one in events if one["event"] == "finding" and one["level"] == "problem"]
    assert dead["what"].startswith("server mock has ended by itself")
    assert "groundstate deploy" in dead["fix"]

    # On a busy machine the measurement may be one that no baseline is made of.
    [record] = (tmp_path / "records").glob("*/2*.json")
    baseline = record.with_name("baseline.json")
    baseline.write_text("{")
    events = site.run("doctor", code=1)
    wheres = {one["where"] for one in events if one["event"] == "finding" and one["level"] == "problem"}
    assert wheres == {"server", "records"}
    # What it says helps.
    baseline.unlink()
    site.run("deploy")
    assert not [one for one in findings(site.run("doctor")) if one[0] == "problem"]
