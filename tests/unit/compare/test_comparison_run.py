"""One run at a time compares on a host, and one that was killed stands in nobody's way."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs
from ansible_collections.groundstate.llm.plugins.plugin_utils import comparison_run, records

ID = "20991129T180000Z-00000a"


@pytest.fixture
def living():
    """A process that is somebody else's run."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield procfs.process(process.pid)
    process.stdin.close()
    process.wait()


def marked(folder: Path, **more) -> Path:
    """The marker of a run, by default of this process."""
    path = Path(comparison_run.path(str(folder), "h"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**comparison_run.this(), "comparison": ID, "since": "then", **more}))
    return path


def test_a_run_that_lives_is_named_and_left_alone(tmp_path, living):
    path = marked(tmp_path, pid=living.pid, start=living.start)
    before = path.read_text()
    with pytest.raises(records.RecordError) as refused:
        comparison_run.claim(str(tmp_path), "h", "mine")
    for word in (f"process {living.pid}", ID, "then", str(path)):
        assert word in str(refused.value)
    comparison_run.release(str(tmp_path), "h")
    assert path.read_text() == before
    assert comparison_run.told(str(tmp_path), "h") == [str(refused.value)]
    comparison_run.claim(str(tmp_path), "other", "mine")  # another host is another server


@pytest.mark.parametrize("stale", [{"start": 1}, {"pid": 2**22 + 1}, {"boot_id": "before"}])
def test_one_whose_process_is_gone_is_taken_over(tmp_path, living, stale):
    path = marked(tmp_path, **{"pid": living.pid, "start": living.start, **stale})
    assert comparison_run.told(str(tmp_path), "h") == []
    comparison_run.claim(str(tmp_path), "h", "mine")
    assert json.loads(path.read_text())["comparison"] == "mine"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x", "start": 1}'])
def test_half_a_marker_is_none(tmp_path, text):
    path = marked(tmp_path)
    path.write_text(text)
    comparison_run.claim(str(tmp_path), "h", "mine")
    assert json.loads(path.read_text())["comparison"] == "mine"


def test_the_same_run_goes_on_and_takes_its_marker_away(tmp_path):
    comparison_run.claim(str(tmp_path), "h", "mine")
    comparison_run.claim(str(tmp_path), "h", "mine")
    comparison_run.release(str(tmp_path), "h")
    comparison_run.release(str(tmp_path), "h")
    assert not Path(comparison_run.path(str(tmp_path), "h")).exists()


def test_the_run_is_the_process_that_the_task_belongs_to(tmp_path):
    """Each task is a process of its own, which ends long before the run does."""
    task = multiprocessing.get_context("fork").Process(target=comparison_run.claim, args=(str(tmp_path), "h", "mine"))
    task.start()
    task.join()
    assert json.loads(Path(comparison_run.path(str(tmp_path), "h")).read_text())["pid"] == comparison_run.this()["pid"]


def test_where_processes_cannot_be_told_nothing_is_held(tmp_path, living, monkeypatch):
    path = marked(tmp_path, pid=living.pid, start=living.start)
    before = path.read_text()
    monkeypatch.setattr(procfs, "process", lambda *_arguments: None)
    comparison_run.claim(str(tmp_path), "h", "mine")
    assert comparison_run.told(str(tmp_path), "h") == []
    assert path.read_text() == before
