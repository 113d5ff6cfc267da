"""What is read back from the disk may be anything: told in one sentence, or done without."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import files, ready_file, servers, waiting
from hypothesis import given
from hypothesis import strategies as st

OTHER = [None, True, 7, 1.5, "text", [1], {"a": 1}]
RECORD = servers.ServerRecord(name="local", start_id="s1", engine="llama_cpp", log="/nowhere")


def damaged(home, **content):
    path = os.path.join(servers.folder(str(home), "local"), "server.json")
    files.write_json(path, {**RECORD.as_dict(), **content})
    return path


WRONG = [
    (name, value)
    for name, right in RECORD.as_dict().items()
    for value in OTHER
    if type(value) is not type(right) and not (isinstance(right, float) and type(value) is int)
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_record_with_a_value_of_another_type_is_named(tmp_path, name, value):
    path = damaged(tmp_path, **{name: value})
    with pytest.raises(ValueError, match="remove the file") as caught:
        servers.load(str(tmp_path), "local")
    assert path in str(caught.value)
    assert name in str(caught.value)


def test_a_record_of_another_version_may_lack_and_have_fields(tmp_path):
    path = damaged(tmp_path)
    found = json.loads(Path(path).read_text())
    del found["env_hash"]
    files.write_json(path, {**found, "later": 1})
    assert servers.load(str(tmp_path), "local") == RECORD


def test_a_whole_number_is_a_time(tmp_path):
    damaged(tmp_path, launched_at=1795969000)
    assert servers.load(str(tmp_path), "local").launched_at == 1795969000


WHOLE = ready_file.Kept(
    elapsed_s=3.5,
    watched_from_s=0.2,
    phases=[{"name": "starting", "at_s": 0.0}],
    workers=[[0, 4711, 99]],
    active_s=3.0,
    parts=[["VLLM::EngineCore", 4710, 98]],
    pids=[4710, 4711],
    shared_memory=[["/dev/shm/psm_1815efec", 12]],
)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.one_of(
    *(st.none(), st.booleans(), st.integers(), numbers, st.text("ab", max_size=2), st.lists(st.integers(), max_size=2)),
    st.dictionaries(st.sampled_from(["folder", "x"]), st.integers(), max_size=2),
)


@given(st.dictionaries(st.sampled_from(sorted(asdict(WHOLE))), values, max_size=3), st.booleans())
def test_a_damaged_ready_file_is_done_without(damage, whole):
    with tempfile.TemporaryDirectory() as home:
        path = os.path.join(servers.folder(home, "local"), "ready.json")
        files.write_json(path, {"start_id": "s1", **(asdict(WHOLE) if whole else {}), **damage})
        waiter = waiting.Waiter(home, RECORD)
        assert waiter.timeline.report()
        assert all(len(one) == 3 for one in waiter.kept.workers)
        assert isinstance(waiter.kept.dead(), list)
        if not damage and whole:
            assert waiter.kept == WHOLE


def test_what_an_earlier_slice_kept_of_another_start_is_not_used(tmp_path):
    WHOLE.save(servers.folder(str(tmp_path), "local"), "another")
    assert waiting.Waiter(str(tmp_path), RECORD).kept == ready_file.Kept()
    WHOLE.save(servers.folder(str(tmp_path), "local"), "s1")
    assert waiting.Waiter(str(tmp_path), RECORD).kept == WHOLE


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00"])
def test_a_ready_file_that_is_none_is_done_without(tmp_path, text):
    files.write_atomic(os.path.join(servers.folder(str(tmp_path), "local"), "ready.json"), text)
    assert waiting.Waiter(str(tmp_path), RECORD).kept == ready_file.Kept()


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    path = tmp_path / "x.json"
    with pytest.raises(OSError, match=r"No space left on device: '.*x\.json'"):
        files.write_json(str(path), {"a": 1})
    assert list(tmp_path.iterdir()) == []
