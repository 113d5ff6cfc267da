"""Where environments lie: what is ours, switching, keeping, the lock."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import files
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.store import MANIFEST, MARKER, Store, used


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(str(tmp_path / "envs" / "e"))


def make(store: Store, key: str, age: int = 0) -> str:
    folder = store.folder(key)
    store.begin(folder)
    store.finish(folder, {"key": key})
    os.utime(folder, (1000 - age, 1000 - age))
    return folder


def test_the_states_of_a_folder(store, tmp_path):
    folder = store.folder("00000000")
    assert store.state(folder) == "absent"
    store.begin(folder)
    assert store.state(folder) == "unfinished"
    assert store.manifest(folder) is None
    store.finish(folder, {"key": "k"})
    assert store.state(folder) == "finished"
    assert store.manifest(folder) == {"key": "k", "schema": 1}
    # Killed while it was being removed.
    (tmp_path / "envs" / "e.00000000" / MARKER).touch()
    assert store.state(folder) == "unfinished"
    # Killed between making the folder and marking it.
    os.makedirs(store.folder("11111111"))
    assert store.state(store.folder("11111111")) == "unfinished"


def test_folders_and_links_of_others_are_not_ours(store, tmp_path):
    mine = make(store, "00000000")
    foreign = tmp_path / "envs" / "e.11111111"
    foreign.mkdir()
    (foreign / "x").touch()
    (tmp_path / "envs" / "e.22222222").symlink_to(mine)
    (tmp_path / "envs" / "e.notahash").mkdir()
    assert store.folders() == [mine]
    with pytest.raises(ValueError, match="was not made by Groundstate"):
        store.begin(str(foreign))
    for target in ("/usr", "nowhere", "e.11111111"):
        os.symlink(target, store.path)
        assert store.current() is None
        with pytest.raises(ValueError, match="was not made by Groundstate"):
            store.check()
        os.unlink(store.path)


def test_an_empty_folder_and_a_link_to_nothing_may_be_taken(store):
    os.makedirs(store.path)
    store.check()
    folder = make(store, "00000000")
    store.switch(folder)
    assert store.current() == folder
    store.remove(folder)
    store.check()
    store.switch(make(store, "11111111"))
    assert os.readlink(store.path) == "e.11111111"


def test_a_manifest_of_another_version_counts_as_none(store, tmp_path):
    folder = make(store, "00000000")
    (tmp_path / "envs" / "e.00000000" / MANIFEST).write_text('{"schema": 99}')
    assert store.manifest(folder) is None
    assert store.folders() == [folder]


def test_the_newest_stay(store):
    old, middle, new = make(store, "00000000", 30), make(store, "11111111", 20), make(store, "22222222", 10)
    store.switch(middle)
    half = store.folder("33333333")
    store.begin(half)
    assert set(store.prune(3)) == {half}
    assert store.prune(2) == [old]
    assert set(store.folders()) == {middle, new}
    assert store.prune(1) == [new]
    assert store.remove_all() == [store.path, middle]
    assert os.listdir(os.path.dirname(store.path)) == []


@pytest.mark.parametrize("unfinished", [False, True])
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_full_disk_does_not_keep_what_is_removed(store, tmp_path, monkeypatch, unfinished, stubborn):
    folder = make(store, "00000000")
    for name in ("bin", "lib"):
        (tmp_path / "envs" / "e.00000000" / name).mkdir()
    if unfinished:
        (tmp_path / "envs" / "e.00000000" / MARKER).touch()
    store.switch(folder)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_atomic", full)
    if stubborn:
        monkeypatch.setattr(os, "rename", full)
    assert store.remove_all() == [store.path, folder]
    assert os.listdir(tmp_path / "envs") == []
    # Nor does one that cannot even be begun stay.
    with pytest.raises(OSError, match="No space"):
        store.begin(folder)
    assert store.folders() == []


@pytest.mark.parametrize("stubborn", [False, True])
def test_what_a_killed_removal_leaves_is_no_environment(store, tmp_path, monkeypatch, stubborn):
    folder = make(store, "00000000")
    for name in ("bin", "aaa", "lib"):
        (tmp_path / "envs" / "e.00000000" / name).mkdir()
        (tmp_path / "envs" / "e.00000000" / name / "python").touch()

    def killed(path):
        if path.endswith("lib"):
            raise KeyboardInterrupt
        remove(path)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", killed)
    if stubborn:
        monkeypatch.setattr(os, "rename", full)
    with pytest.raises(KeyboardInterrupt):
        store.remove(folder)
    assert store.folders() == [folder]
    assert not os.path.exists(os.path.join(folder, "bin"))
    assert store.state(folder) == ("finished" if stubborn else "unfinished")
    monkeypatch.undo()
    store.remove(folder)
    assert store.folders() == []


def test_a_folder_that_a_process_works_from_is_known(tmp_path):
    folder = tmp_path / "e.00000000"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    process = subprocess.Popen([folder / "python", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert used([str(folder), str(tmp_path / "other")]) == {str(folder)}
    finally:
        process.communicate(b"\n")
    assert used([str(folder)]) == set()


def test_one_at_a_time_and_whoever_inherited_the_lock_holds_it(store):
    with store.locked(1) as handle:
        with pytest.raises(TimeoutError, match="another run has been building"), store.locked(0):
            pass
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(handle,))
    # We have let it go; the installer that we started has not.
    with pytest.raises(TimeoutError), store.locked(0):
        pass
    child.communicate(b"\n")
    with store.locked(5):
        assert os.path.exists(f"{store.path}.lock")
