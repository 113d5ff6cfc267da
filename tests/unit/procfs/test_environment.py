"""The environment of processes: as it was at exec, and as it is now."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs
from hypothesis import given, settings
from hypothesis import strategies as st


def interpreters():
    """Every Python that is around: they differ in where they keep ``environ`` (program, shared library, libc)."""
    found = {}
    candidates = [
        sys.executable,
        "/usr/bin/python3",
        *glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")),
        *glob.glob(os.path.expanduser("~/.local/share/uv/python/*/bin/python3")),
    ]
    for path in candidates:
        if os.access(path, os.X_OK):
            found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def fixture_process(folder, environ):
    """A made /proc with one process that has only an environ file."""
    (folder / "42").mkdir()
    (folder / "42" / "environ").write_bytes(environ)
    return str(folder)


# --- at exec -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "variables"),
    [
        (b"\0" * 1300, {}),
        (b"\0" * 1200 + b"NCCL_PROTO=LL\0", {"NCCL_PROTO": "LL"}),
        (b"sglang::scheduler_TP0\0" + b"\0" * 500, {}),
        (b"", {}),
    ],
    ids=["nothing but NULs", "only what was set late", "title text", "empty"],
)
def test_an_overwritten_environment_is_not_complete(tmp_path, environ, variables):
    found = procfs.initial_environment(42, fixture_process(tmp_path, environ))
    assert found.variables == variables
    assert not found.complete
    assert "title" in found.why


def test_an_intact_environment_is_complete(tmp_path):
    found = procfs.initial_environment(42, fixture_process(tmp_path, b"A=1\0B=\0C=x=y\0A=2\0"))
    assert found == procfs.Environment({"A": "1", "B": "", "C": "x=y"}, True, "environ")


def test_no_environ_file_is_unknown(tmp_path):
    found = procfs.initial_environment(42, str(tmp_path))
    assert (found.variables, found.complete, found.source) == ({}, False, "none")


# --- now -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", interpreters())
def test_every_python_shows_what_it_set_after_its_start(start, python):
    late = "os.environ['LATE'] = 'set later'; os.environ['MARK'] = 'changed'; os.environ.pop('GONE')"
    process = start.python(late, {"MARK": "x y", "EMPTY": "", "GONE": "1"}, python)
    found = procfs.live_environment(process.pid)
    assert (found.source, found.complete, found.why) == ("memory", True, "")
    assert found.variables["LATE"] == "set later"
    assert found.variables["MARK"] == "changed"
    assert found.variables["EMPTY"] == ""
    assert "GONE" not in found.variables
    # The kernel's copy still tells the past: that is why the memory is read.
    assert procfs.initial_environment(process.pid).variables["MARK"] == "x y"


@pytest.mark.parametrize("shell", ["bash", "dash", "sh"])
def test_other_programs(start, shell):
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    process = start.run([shell, "-c", "echo ready; read x"], {"MARK": "1", "PATH": os.environ["PATH"]})
    found = procfs.live_environment(process.pid)
    assert found.source == "memory"
    assert found.variables["MARK"] == "1"


@pytest.mark.parametrize("python", interpreters())
def test_a_process_title_hides_the_initial_but_not_the_live_environment(start, python):
    process = start.titled("--set", "LATE=2", "--title", "sglang::scheduler_TP0", env={"MARK": "1"}, python=python)
    assert procfs.process(process.pid).cmdline == "sglang::scheduler_TP0"
    initial = procfs.initial_environment(process.pid)
    assert not initial.complete
    assert "MARK" not in initial.variables
    live = procfs.live_environment(process.pid)
    assert (live.source, live.complete) == ("memory", True)
    assert (live.variables["MARK"], live.variables["LATE"]) == ("1", "2")


def test_a_title_that_keeps_the_environment(start):
    process = start.titled("--title", "VLLM::Worker_TP1", "--keep", env={"MARK": "1"})
    assert procfs.process(process.pid).cmdline == "VLLM::Worker_TP1"
    initial = procfs.initial_environment(process.pid)
    assert initial.complete
    assert initial.variables["MARK"] == "1"


def test_a_pointer_to_nowhere_falls_back_and_says_why(start):
    process = start.titled("--garbage", env={"MARK": "1"})
    found = procfs.live_environment(process.pid)
    assert (found.source, found.complete, found.variables["MARK"]) == ("environ", True, "1")
    assert "0xfffffffffffffff0 is no address" in found.why


def test_memory_that_may_not_be_read_makes_an_overwritten_environment_unknown(start, monkeypatch):
    process = start.titled("--title", "sglang::scheduler_TP0", env={"MARK": "1"})

    def refuse(*_arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(procfs, "_memory_environment", refuse)
    found = procfs.live_environment(process.pid)
    assert not found.complete
    assert "Operation not permitted" in found.why
    assert "a process title overwrote" in found.why


def test_a_process_that_is_gone_is_unknown():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    found = procfs.live_environment(process.pid)
    assert (found.variables, found.complete, found.source) == ({}, False, "none")


# --- ELF -----------------------------------------------------------------------------------------


def test_a_shared_name_tail_is_found_and_each_file_is_read_once(start, monkeypatch):
    first = start.python("")
    procfs.live_environment(first.pid)
    monkeypatch.setattr(procfs, "elf_symbol", lambda *_arguments: pytest.fail("read again"))
    second = start.python("os.environ['LATE'] = '1'")
    assert procfs.live_environment(second.pid).variables["LATE"] == "1"


def test_a_library_without_the_symbol_has_none():
    assert procfs.elf_symbol(sys.executable, (b"there_is_no_such_symbol_here",)) is None


def test_no_elf_file(tmp_path):
    path = tmp_path / "script"
    path.write_text("#!/bin/sh\n")
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF"):
        procfs.elf_symbol(str(path), (b"environ",))


PROGRAM = Path(shutil.which("true") or "/bin/true").read_bytes()


@settings(max_examples=150)
@given(
    st.dictionaries(st.integers(0, len(PROGRAM) - 1), st.integers(0, 255), max_size=20), st.integers(0, len(PROGRAM))
)
def test_a_damaged_elf_file_is_a_value_error_at_worst(changes, length):
    damaged = bytearray(PROGRAM)
    for where, value in changes.items():
        damaged[where % 4096 if where % 2 else where] = value
    with tempfile.NamedTemporaryFile() as file:
        file.write(damaged[:length])
        file.flush()
        found = None
        with contextlib.suppress(ValueError):
            found = procfs.elf_symbol(file.name, (b"environ",))
        assert found is None or isinstance(found, procfs.Symbol)
