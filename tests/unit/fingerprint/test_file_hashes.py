"""The cache of file hashes: quick when nothing changed, never wrong when something did."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import file_hashes
from ansible_collections.groundstate.llm.plugins.module_utils.file_hashes import FileHashes, sha256_file


@pytest.fixture
def later(monkeypatch):
    """The clock far after the files were written, so that they count as settled."""
    now = file_hashes.time.time_ns()
    monkeypatch.setattr(file_hashes.time, "time_ns", lambda: now + 3_600_000_000_000)


def entries(hashes):
    return json.loads(Path(hashes.path).read_text())["entries"]


def make(folder, **content):
    folder.mkdir(exist_ok=True)
    for name, text in content.items():
        (folder / name).write_text(text)
    return folder


def test_remembers_what_did_not_change(tmp_path, later):
    root = make(tmp_path / "root", a="one", b="two")
    first = FileHashes(str(root), str(tmp_path / "cache"))
    assert first.one("a") == hashlib.sha256(b"one").hexdigest()
    assert first.one("b") == hashlib.sha256(b"two").hexdigest()
    first.save()
    (root / "b").write_text("2")
    second = FileHashes(str(root), str(tmp_path / "cache"))
    assert second.one("a") == hashlib.sha256(b"one").hexdigest()
    assert second.hashed == 0
    assert second.one("b") == hashlib.sha256(b"2").hexdigest()
    assert second.hashed == 1


def test_a_file_changed_just_now_is_not_remembered(tmp_path, monkeypatch):
    root = make(tmp_path / "root", a="one")
    changed = os.stat(root / "a").st_ctime_ns
    monkeypatch.setattr(file_hashes.time, "time_ns", lambda: changed + 1_000_000)
    first = FileHashes(str(root), str(tmp_path / "cache"))
    first.one("a")
    first.save()
    second = FileHashes(str(root), str(tmp_path / "cache"))
    second.one("a")
    assert second.hashed == 1


def test_whole_second_stamps_need_a_longer_rest():
    class Stat:
        st_ctime_ns = st_mtime_ns = 5_000_000_000

    assert not file_hashes._settled(Stat, 6_500_000_000)
    assert file_hashes._settled(Stat, 8_000_000_000)
    Stat.st_ctime_ns = 5_000_000_001
    assert file_hashes._settled(Stat, 6_500_000_000)


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "not json",
        "[]",
        '{"schema": 1}',
        '{"schema": 99, "entries": {}}',
        '{"schema":1,"root":"ROOT","entries":{"a":7}}',
    ],
)
def test_a_damaged_cache_only_costs_time(tmp_path, later, damage):
    root = make(tmp_path / "root", a="one")
    first = FileHashes(str(root), str(tmp_path / "cache"))
    first.one("a")
    first.save()
    with open(first.path, "w") as out:
        out.write(damage.replace("ROOT", str(root)))
    second = FileHashes(str(root), str(tmp_path / "cache"))
    assert second.one("a") == hashlib.sha256(b"one").hexdigest()
    assert second.hashed == 1
    second.save()
    assert entries(second).keys() == {"a"}


def test_forgets_files_that_are_gone_or_changed_and_keeps_the_cache_private(tmp_path, later):
    root = make(tmp_path / "root", a="one", b="two", c="three", d="four")
    first = FileHashes(str(root), str(tmp_path / "cache"))
    for name in "abcd":
        first.one(name)
    first.save()
    os.unlink(root / "b")
    (root / "c").write_text("another")
    second = FileHashes(str(root), str(tmp_path / "cache"))
    second.one("a")
    second.save()
    assert entries(second).keys() == {"a", "d"}
    assert stat.S_IMODE(os.stat(second.path).st_mode) == 0o600


def test_those_who_ask_for_different_files_of_a_folder_share_its_cache(tmp_path, later, monkeypatch):
    root = make(tmp_path / "root", a="one", b="two")
    read = []
    for name in "abab":
        hashes = FileHashes(str(root), str(tmp_path / "cache"))
        hashes.one(name)
        hashes.save()
        read.append(hashes.hashed)
    assert read == [1, 1, 0, 0]
    monkeypatch.setattr(file_hashes, "_KEPT", 0)  # but not without end
    make(root, c="three")
    hashes = FileHashes(str(root), str(tmp_path / "cache"))
    hashes.one("c")
    hashes.save()
    assert entries(hashes).keys() == {"c"}


def test_nothing_is_written_when_nothing_changed(tmp_path, later):
    root = make(tmp_path / "root", a="one")
    for _ in range(2):
        hashes = FileHashes(str(root), str(tmp_path / "cache"))
        hashes.one("a")
        hashes.save()
        os.utime(hashes.path, (1, 1))
    hashes = FileHashes(str(root), str(tmp_path / "cache"))
    hashes.one("a")
    hashes.save()
    assert os.stat(hashes.path).st_mtime == 1


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, later):
    root = make(tmp_path / "root", a="one")
    (tmp_path / "file").write_text("")
    hashes = FileHashes(str(root), str(tmp_path / "file" / "cache"))
    assert hashes.one("a") == hashlib.sha256(b"one").hexdigest()
    hashes.save()


def test_unreadable_and_missing_files_give_none(tmp_path):
    root = make(tmp_path / "root", a="one")
    (root / "folder").mkdir()
    hashes = FileHashes(str(root), None)
    assert hashes.one("missing") is None
    assert hashes.one("folder") is None
    assert hashes.why == {"missing": "No such file or directory", "folder": "it is no regular file"}


def test_pipes_and_devices_are_unreadable_instead_of_read_for_ever(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    hashes = FileHashes(str(tmp_path), None)
    assert [hashes.one("pipe"), hashes.one("/dev/zero")] == [None, None]
    assert hashes.why == dict.fromkeys(("pipe", "/dev/zero"), "it is no regular file")


def test_many_files_in_parallel_give_each_its_own(tmp_path):
    root = make(tmp_path / "root", **{f"f{n}": f"text {n}" for n in range(40)})
    wanted = [(f"f{n}", os.stat(root / f"f{n}")) for n in range(40)]
    found = FileHashes(str(root), None, workers=4).many(wanted)
    assert found == {f"f{n}": hashlib.sha256(f"text {n}".encode()).hexdigest() for n in range(40)}


def test_head_of_a_file(tmp_path):
    (tmp_path / "f").write_bytes(b"a" * 3_000_000)
    assert sha256_file(str(tmp_path / "f"), 2_000_000) == hashlib.sha256(b"a" * 2_000_000).hexdigest()
    assert sha256_file(str(tmp_path / "f"), 9_000_000) == sha256_file(str(tmp_path / "f"))
