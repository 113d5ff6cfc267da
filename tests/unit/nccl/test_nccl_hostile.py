"""Logs, files and interpreters as an attacker with a shell on the host would leave them for NCCL's modules."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import (
    collective,
    file_change,
    files,
    marked_block,
    nccl_log,
    nccl_places,
    nccl_profiles,
    nccl_sources,
    servers,
)

HEAD = "gpu1:7:7 [0] NCCL INFO "
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


# --- logs ----------------------------------------------------------------------------------------


def test_a_matrix_that_is_none_is_left_at_once():
    """The digits could be told apart in 2^4000 ways."""
    lines = [HEAD + "ncclCommInitRank comm 0x1 rank 0 nranks 2 - Init START", "Function | LL | Tree"]
    made = nccl_log.parse([*lines, "AllReduce | " + "1" * 4000 + "x", "AllReduce | " + "1 " * 2000 + "| x"])
    assert made[7].communicators[0].enabled == {}
    made = nccl_log.parse([*lines, "  AllReduce |  1 |1  "])
    assert made[7].communicators[0].enabled == {"AllReduce": {"protocols": ["LL"], "algorithms": ["Tree"]}}


def test_a_log_does_not_take_the_square_of_its_length():
    init = "ncclCommInitRank comm 0x{:x} rank 0 nranks 2 - Init START"
    lines = [f"gpu1:{number}:7 [0] NCCL INFO hello" for number in range(20_000)]
    lines += [HEAD + init.format(number) for number in range(20_000)]
    lines += [f"{HEAD}NCCL_ALGO set by environment to {number}" for number in range(20_000)]
    lines += [f"{HEAD}NCCL_X{number} set by environment to 1" for number in range(20_000)]
    lines += [HEAD + "1 coll channels," + "9" * 60_000] * 100
    made = nccl_log.parse(["gpu1:7:7 [0] NCCL INFO NCCL version 2.28.9", *lines])
    assert len(made) == len(made[7].communicators) == len(made[7].variables) == nccl_log.MOST
    assert len(made[7].variables["NCCL_ALGO"]) == nccl_log.MOST


def test_colours_and_endless_numbers_in_a_log_are_harmless():
    made = nccl_log.parse([HEAD + "\x1b[31mWARN", f"gpu1:{'9' * 5000}:7 [0] NCCL INFO x", HEAD + "1 coll channels, x"])
    assert list(made) == [7]
    assert made[7].last == "1 coll channels, x"


# --- files of others -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("home/eva/.bashrc", "set -" + "x" * 400_000 + "!\nNCCL_DEBUG=WARN\n"),
        ("home/eva/.config/systemd/user/x.service", "\n" * 500_000 + "Environment=NCCL_DEBUG=WARN\n"),
        ("home/eva/.nccl.conf", "# BEGIN groundstate x\n" * 20_000 + "NCCL_DEBUG=WARN\n"),
    ],
)
def test_a_file_of_another_user_does_not_hold_us_up(tmp_path, place, text):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found, _unread = nccl_sources.others("local", "", root=str(tmp_path), proc=str(tmp_path / "proc"))
    assert [(one.path, one.variables) for one in found] == [(str(path), {"NCCL_DEBUG": "WARN"})]


def test_a_block_that_lost_its_end_does_not_take_the_next_one_along():
    text = "# BEGIN groundstate a\nA=1\n# BEGIN groundstate b\nB=1\n# END groundstate b\n# END groundstate a\n"
    assert marked_block.names(text) == ["b"]
    assert marked_block.take(text, "b") == "# BEGIN groundstate a\nA=1\n# END groundstate a\n"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    before = os.stat(path)
    with pytest.raises(OSError, match=r"no regular file|Is a directory"):
        file_change.change(str(path), b"NCCL_DEBUG=WARN\n")
    with pytest.raises(OSError, match="no regular file"):
        files.write_atomic(os.path.realpath(path), b"x")
    assert stat.S_IFMT(os.stat(path).st_mode) == stat.S_IFMT(before.st_mode)
    assert os.stat(path).st_ino == before.st_ino


def test_a_file_that_never_ends_is_not_read(tmp_path):
    path = tmp_path / "nccl.conf"
    with path.open("wb") as out:
        out.truncate(1 << 40)
    with pytest.raises(OSError, match="it has more than"):
        file_change.change(str(path), b"")


@AS_ROOT
def test_a_file_of_another_user_is_not_taken_over():
    with tempfile.TemporaryDirectory() as folder:  # others may not enter those of pytest
        path = Path(folder, "nccl.conf")
        path.write_text("A=1\n")
        os.chmod(folder, 0o777)
        made = file_change.change(str(path), b"B=1\n")
        os.seteuid(65534)
        try:
            with pytest.raises(PermissionError, match="belongs to another user"):
                made.do()
        finally:
            os.seteuid(0)
        assert (path.read_text(), path.stat().st_uid) == ("A=1\n", 0)


# --- places --------------------------------------------------------------------------------------

RECORD = {"profile": "p", "variables": {"NCCL_ALGO": "Ring"}, "places": [{"place": "conf", "path": "/x"}]}


@pytest.mark.parametrize(
    "damage",
    [
        {"places": [{"place": "conf"}]},
        {"places": [{"place": "conf", "path": 5}]},
        {"places": [{"place": "python_startup", "python": "/x"}]},
        {"places": [{"place": ["conf"], "path": "/x"}]},
        {"places": [{"place": "server"}]},
        {"places": [7]},
        {"places": {}},
        {"variables": None},
        {"variables": {"NCCL_ALGO": 5}},
    ],
)
def test_a_damaged_record_of_places_is_told(tmp_path, damage):
    path = os.path.join(servers.folder(str(tmp_path), "local"), nccl_profiles.RECORD_NAME)
    files.write_json(path, RECORD)
    assert nccl_places.load_record(str(tmp_path), "local") == RECORD
    files.write_json(path, {**RECORD, **damage})
    with pytest.raises(ValueError, match="is damaged; look for lines"):
        nccl_places.load_record(str(tmp_path), "local")


@pytest.mark.parametrize("note", ["mode 4755 before", "mode 9 before", "mode", "mode 12345 before", "mode x before"])
def test_a_forged_note_gives_a_file_no_special_mode(tmp_path, note):
    conf = tmp_path / "nccl.conf"
    conf.write_text(marked_block.put("A=1\n", "local", "B=1\n", note=note))
    conf.chmod(0o640)
    path = os.path.join(servers.folder(str(tmp_path), "local"), nccl_profiles.RECORD_NAME)
    files.write_json(path, {**RECORD, "places": [{"place": "conf", "path": str(conf)}]})
    for one in nccl_places.absent(str(tmp_path), "local"):
        one.do()
    assert conf.read_text() == "A=1\n"
    assert stat.S_IMODE(conf.stat().st_mode) in (0o640, 0o755)


def test_a_place_that_cannot_be_written_is_told_before_anything_is_changed(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    wish = nccl_places.Wish(str(tmp_path / "home"), "local", ("server", "conf"), str(blocked / "nccl.conf"))
    with pytest.raises((nccl_places.PlaceError, NotADirectoryError)):
        nccl_places.plan(wish, "p", {"NCCL_ALGO": "Ring"})
    wish = nccl_places.Wish(str(tmp_path / "home"), "local", ("server", "conf"), "/proc/nccl.conf")
    with pytest.raises(nccl_places.PlaceError, match=r"/proc/nccl.conf cannot be written: nothing can be made in"):
        nccl_places.plan(wish, "p", {"NCCL_ALGO": "Ring"})
    assert not (tmp_path / "home").exists()


# --- ranks of a collective ------------------------------------------------------------------------


@pytest.mark.parametrize("chatter", ["print('x' * 10, flush=True)", "print('x' * 5000, end='', flush=True)"])
def test_a_rank_that_only_prints_gets_no_further(tmp_path, chatter):
    worker = tmp_path / "worker.py"
    worker.write_text(
        f'import time\nprint(\'{{"stage": "chat"}}\')\nwhile True:\n    {chatter}\n    time.sleep(0.01)\n'
    )
    begin = time.monotonic()
    with pytest.raises(collective.CollectiveError, match="no rank left stage 'chat' within 1 s") as caught:
        collective.probe(sys.executable, str(worker), dict(os.environ), 1.0, str(tmp_path))
    assert caught.value.hung
    assert time.monotonic() - begin >= 1.0


def test_what_a_rank_prints_without_end_is_not_kept():
    one = collective.Rank(0, "python", None, None, "")
    for _ in range(100):
        collective._take(one, b"x" * 65536)
    assert len(one.rest) <= 1 << 20
    collective._take(one, b"[" * 100_000 + b"\n" + json.dumps({"stage": "on"}).encode() + b"\n")
    assert one.stage == "on"
