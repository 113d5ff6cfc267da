"""Where environments lie: what is ours, switching, keeping, the lock."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import files, procfs
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import store as venv_store
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import usage
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.store import MANIFEST, MARKER, Store
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.usage import used


@pytest.fixture(autouse=True)
def _no_process_of_others(monkeypatch):
    # To a normal user any of them may work from an environment.
    others = usage.others
    monkeypatch.setattr(usage, "others", lambda proc: [one for one in others(proc) if one.uid == os.getuid()])


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


@pytest.fixture
def waiting(tmp_path):
    """Start a program that waits; all are ended."""
    started = []

    def start(*argv, **options) -> subprocess.Popen:
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, **options))
        return started[-1]

    yield start
    for one in started:
        end(one)


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def test_what_was_started_by_the_link_before_the_switch_keeps_what_was_there_then(store, monkeypatch, waiting):
    monkeypatch.setattr(venv_store, "_SLACK_S", 0.0)
    first, second = make(store, "00000000", 20), make(store, "11111111", 10)
    store.switch(first)
    for folder in (first, second):
        os.symlink(sys.executable, os.path.join(folder, "python"))
    process = waiting(f"{store.path}/python", "-c", "input()")
    later = time.time() + 1
    third, fourth = store.folder("22222222"), store.folder("33333333")
    for folder in (third, fourth):
        store.begin(folder)
        store.finish(folder, {"made_at": later})
    store.switch(fourth)
    os.utime(store.path, (later, later), follow_symlinks=False)
    assert store.prune(1) == [third]
    assert set(store.folders()) == {first, second, fourth}
    end(process)
    assert set(store.prune(1)) == {first, second}


def test_what_was_started_by_the_link_after_the_switch_keeps_no_other(store, monkeypatch, waiting):
    monkeypatch.setattr(venv_store, "_SLACK_S", 0.0)
    first, second = make(store, "00000000"), make(store, "11111111")
    store.switch(second)
    os.utime(store.path, (1000, 1000), follow_symlinks=False)
    os.symlink(sys.executable, os.path.join(second, "python"))
    waiting(f"{store.path}/python", "-c", "input()")
    assert store.prune(1) == [first]


def test_a_folder_in_which_a_process_stands_stays(store, waiting):
    first, second = make(store, "00000000"), make(store, "11111111")
    store.switch(second)
    process = waiting(sys.executable, "-c", "input()", cwd=first)
    assert store.prune(1) == []
    # It does not keep a repair from the files.
    assert used([first]) == set()
    end(process)
    assert store.prune(1) == [first]


def test_what_cannot_be_looked_at_may_be_a_user_and_is_named(store, monkeypatch):
    old = procfs.Process(4711, 5, 1, 1, "S", "VLLM::Worker_TP", 0, "VLLM::Worker_TP1")
    monkeypatch.setattr(usage, "others", lambda proc: [old])
    monkeypatch.setattr(procfs, "started_at", lambda item: 2000.0)

    def hidden(item, proc):
        raise PermissionError

    monkeypatch.setattr(usage, "_maps", hidden)
    first, second = make(store, "00000000"), make(store, "11111111")
    store.switch(second)
    half = store.folder("22222222")
    store.begin(half)
    assert store.prune(1) == [half]
    assert store.folders() == [second, first]
    assert len(store.doubts) == 1
    assert "e.00000000 stays: whether process 4711 (VLLM::Worker_TP), of another user" in store.doubts[0]
    # What was made after it had been started is not what it was started from.
    store.update(first, {"made_at": 3000})
    assert store.prune(1) == [first]
    assert store.doubts == []


@pytest.mark.parametrize(
    ("comm", "cmdline", "other"),
    [
        ("sshd", "/usr/sbin/sshd -D", True),
        ("networkd-dispat", "/usr/bin/python3 /usr/bin/networkd-dispatcher", True),
        ("sshd", "sshd: user [priv]", True),
        ("(sd-pam)", "(sd-pam)", True),
        ("dbus-daemon", "@dbus-daemon --system", True),
        ("bash", "-bash", True),
        ("sleep", "sleep 100", True),
        ("python", "python -m vllm.entrypoints.openai.api_server", False),
        ("python3", "python3 serve.py", False),
        ("VLLM::EngineCor", "VLLM::EngineCore", False),
        ("sglang::schedul", "sglang::scheduler_TP0", False),
        ("pt_main_thread", "sleep", False),
        ("kthread", "", False),
    ],
)
def test_names_that_say_that_a_process_is_no_python_of_an_environment(comm, cmdline, other):
    assert usage.another_program(procfs.Process(1, 1, 1, 1, "S", comm, 0, cmdline)) is other


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
