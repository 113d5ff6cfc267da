"""Shared memory leftovers: what goes, what stays, and why."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import leftovers
from ansible_collections.groundstate.llm.plugins.module_utils.holders import Scan
from ansible_collections.groundstate.llm.plugins.module_utils.leftovers import Leftover
from hypothesis import given
from hypothesis import strategies as st

LATER = time.time() + 3600  # every file of these tests is old by then


@pytest.fixture
def find(tmp_path: Path):
    """leftovers.find on a folder of its own; returns name -> reason to stay ("" for those that go)."""

    def run(*names: str, scan=None, live=(), ended=(), before=None, now=LATER, uid=None) -> dict[str, str]:
        for name in names:
            (tmp_path / name).touch()
        seen = Scan({str(tmp_path / path): pids for path, pids in (scan or {}).items()})
        old = Scan({str(tmp_path / path): pids for path, pids in (before or scan or {}).items()})
        me = os.geteuid() if uid is None else uid
        items = leftovers.find(seen, live, ended, old, now, me, str(tmp_path), str(tmp_path))
        return {os.path.basename(item.path): item.stays for item in items}

    return run


@pytest.mark.parametrize(
    ("name", "pid"),
    [
        ("sgl_shm_mm_4242_x", 4242),
        ("torch_77_123456_0", 77),
        ("sem.loky-901-abc", 901),
        ("cuda.shm.0.1a2b.1", 0x1A2B),
        ("nccl-AbCd12", 0),
        ("psm_1234abcd", 0),
        ("vllm_dist_6e8f8bfa65bf48d383f4d1fb807793f4-tp:0-[0-1]-cpushm_0", 0),
        ("sem.mp-x1y2", 0),
        ("pulse-shm-123", None),
        ("sem.other", None),
        ("my_nccl-notes", None),
    ],
)
def test_creator_in_the_name(name, pid):
    assert leftovers.creator(name) == pid


@given(st.text(alphabet=st.characters(exclude_characters="/\0"), min_size=1))
def test_no_name_breaks_the_rules(name):
    assert leftovers.creator(name) is None or leftovers.creator(name) >= 0


def test_of_a_dead_creator_goes_of_a_live_one_stays(find):
    found = find("sgl_shm_mm_41_x", "sgl_shm_mm_42_y", live=[42])
    assert found == {"sgl_shm_mm_41_x": "", "sgl_shm_mm_42_y": "its creator 42 lives"}


def test_foreign_names_are_never_looked_at(find):
    assert find("pulse-shm-1", "important.db") == {}


def test_what_a_process_uses_stays_even_when_its_creator_is_dead(find):
    assert find("sgl_shm_mm_41_x", scan={"sgl_shm_mm_41_x": {50}}, live=[50]) == {
        "sgl_shm_mm_41_x": "in use by process 50"
    }
    assert find("psm_a", scan={"psm_a": {50}}, live=[50])["psm_a"] == "in use by process 50"


def test_young_files_stay_unless_an_ended_process_had_them(find):
    now = time.time()
    assert find("psm_a", now=now) == {"psm_a": "younger than 60 s"}
    assert find("psm_a", before={"psm_a": {50}}, ended=[50], now=now) == {"psm_a": ""}
    assert find("psm_a", "sgl_shm_mm_51_x", ended=[51], now=now)["sgl_shm_mm_51_x"] == ""


def test_a_file_shared_with_a_process_that_stays_stays(find):
    assert find("psm_a", scan={"psm_a": {50, 60}}, live=[60], ended=[50]) == {"psm_a": "in use by process 60"}


def test_of_another_user_stays(find):
    assert find("psm_a", uid=os.geteuid() + 1) == {"psm_a": f"belongs to uid {os.geteuid()}"}


def test_only_plain_files_and_sockets(find, tmp_path):
    (tmp_path / "psm_folder").mkdir()
    (tmp_path / "psm_link").symlink_to("/etc/passwd")
    assert find("psm_a") == {"psm_a": ""}


def test_a_process_that_may_not_be_looked_at_could_use_it(tmp_path):
    (tmp_path / "psm_a").touch()
    scan = Scan(unreadable={os.getpid()})
    (item,) = leftovers.find(scan, (), (), scan, LATER, os.geteuid(), str(tmp_path), str(tmp_path))
    assert f"cannot tell whether process {os.getpid()}" in item.stays


def test_what_an_ended_process_had_goes_whoever_else_may_not_be_looked_at(tmp_path):
    """Each login session has such a process, (sd-pam); nothing of an ended server would ever go."""
    for name in ("psm_a", "sem.loky-51-x", "psm_other"):
        (tmp_path / name).touch()
    before = Scan({str(tmp_path / "psm_a"): {50}})
    found = leftovers.find(
        Scan(unreadable={os.getpid()}), (), {50, 51}, before, LATER, os.geteuid(), str(tmp_path), str(tmp_path)
    )
    assert [os.path.basename(one.path) for one in found if not one.stays] == ["psm_a", "sem.loky-51-x"]


def test_a_bound_socket_stays_and_a_dead_one_goes(find, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket may be 107 characters long
    short = f"/tmp/nccl-socket-{os.getpid()}-test"
    try:
        with socket.socket(socket.AF_UNIX) as live:
            live.bind(short)
            (item,) = [
                one
                for one in leftovers.find(Scan(), (), (), Scan(), LATER, os.geteuid(), str(tmp_path))
                if one.path == short
            ]
            assert item.stays == "a process has this socket"
        (item,) = [
            one
            for one in leftovers.find(Scan(), (), (), Scan(), LATER, os.geteuid(), str(tmp_path))
            if one.path == short
        ]
        assert item.stays == ""
    finally:
        os.unlink(short)


def test_removal_takes_only_what_goes(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).touch()
    items = [Leftover(str(tmp_path / "a")), Leftover(str(tmp_path / "b"), "in use"), Leftover(str(tmp_path / "gone"))]
    assert leftovers.remove(items) == [items[0]]
    assert [one.name for one in tmp_path.iterdir()] == ["b"]


def test_what_cannot_be_removed_is_reported():
    def refuse(path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    (item,) = leftovers.remove([Leftover("/dev/shm/psm_x")], refuse)
    assert item.stays == "cannot be removed: Operation not permitted"
