"""Limits of a server: how they are read, and which of them are worth a warning."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import limits
from hypothesis import given
from hypothesis import strategies as st

# As a Linux kernel writes it.
TEXT = """\
Limit                     Soft Limit           Hard Limit           Units
Max core file size        0                    unlimited            bytes
Max open files            {files:<20} {files:<20} files
Max locked memory         {memory:<20} {memory:<20} bytes
Max pending signals       30446                30446                signals
"""


@pytest.fixture
def process(tmp_path):
    """(proc, dev) folders with process 7; called with its limits."""

    def make(files="1048576", memory="unlimited", gpus=1):
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "limits").write_text(TEXT.format(files=files, memory=memory))
        for number in range(gpus):
            (tmp_path / f"nvidia{number}").touch()
        return {"proc": str(tmp_path), "dev": str(tmp_path)}

    return make


def test_the_limits_of_this_process():
    unlimited = resource.RLIM_INFINITY
    soft = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE}
    wanted = {name: resource.getrlimit(which)[0] for name, which in soft.items()}
    assert limits.of(os.getpid()) == {name: None if one == unlimited else one for name, one in wanted.items()}


def test_all_as_it_should_be(process):
    assert limits.warnings(7, {"gpus": "all"}, **process()) == []


def test_what_a_container_took_away_is_told(process):
    memory, files = limits.warnings(7, {"gpus": [0]}, **process("4096", "8388608"))
    assert memory.startswith("process 7 may lock 8 MiB of memory")
    assert "lxc.prlimit.memlock" in memory
    assert files.startswith("process 7 may open 4096 files")


@pytest.mark.parametrize(("gpus", "nodes"), [([], 1), ("all", 0)])
def test_locked_memory_is_no_matter_without_gpus(process, gpus, nodes):
    assert limits.warnings(7, {"gpus": gpus}, **process("524288", "8388608", nodes)) == []


def test_a_process_that_is_gone_has_no_limits(tmp_path):
    assert limits.warnings(7, {"gpus": "all"}, proc=str(tmp_path)) == []


@given(st.binary())
def test_no_text_breaks_it(raw):
    folder = Path("/dev/shm") / f"gs-test-limits-{os.getpid()}"
    try:
        (folder / "7").mkdir(parents=True, exist_ok=True)
        (folder / "7" / "limits").write_bytes(raw)
        assert set(limits.of(7, str(folder))) <= {"memlock", "nofile"}
    finally:
        for path in (folder / "7" / "limits", folder / "7", folder):
            path.unlink() if path.is_file() else path.rmdir()
