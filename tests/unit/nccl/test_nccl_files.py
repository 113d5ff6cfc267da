"""NCCL's logs on disk, of this start and no other, and the libraries that a process maps."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from ansible_collections.groundstate.llm.plugins.module_utils import nccl_files, nccl_log

BASE = (Path(__file__).resolve().parents[2] / "data" / "nccl" / "rank0.base.log").read_text()


def test_a_new_start_begins_with_an_empty_folder(tmp_path):
    asked = nccl_log.variables(str(tmp_path), "start")
    nccl_files.renew(str(tmp_path), asked)
    (tmp_path / "nccl" / "old.1.log").write_text("old")
    nccl_files.renew(str(tmp_path), asked)
    assert list((tmp_path / "nccl").iterdir()) == []
    nccl_files.renew(str(tmp_path), {"NCCL_DEBUG_FILE": "/elsewhere/%p"})
    assert not (tmp_path / "nccl").exists()


def test_a_link_in_its_place_is_not_followed(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    (tmp_path / "nccl").symlink_to(tmp_path / "precious")
    nccl_files.renew(str(tmp_path), {})
    assert (tmp_path / "precious" / "file").exists()


def test_only_the_log_of_this_start_is_read(tmp_path):
    me = os.getpid()
    given = {"NCCL_DEBUG_FILE": f"{tmp_path}/%h.%p.log"}
    path = tmp_path / f"some-container.{me}.log"
    path.write_text(BASE.replace(":732:", f":{me}:"))
    now = time.time()
    ((read, log),) = nccl_files.read_logs(given, "/none", [me], now - 60).values()
    assert (read, log.complete) == (str(path), True), "whatever name the host has"
    os.utime(path, (now - 3600, now - 3600))
    assert nccl_files.read_logs(given, "/none", [me], now - 60) == {me: (str(path), None)}
    path.unlink()
    assert nccl_files.read_logs(given, "/none", [me], now - 60) == {me: (f"{tmp_path}/*.{me}.log", None)}


def test_without_a_file_nccl_writes_into_the_log_of_the_server(tmp_path):
    me = os.getpid()
    (tmp_path / "server.log").write_text("Load weight begin\n" + BASE.replace(":732:", f":{me}:"))
    ((_path, log),) = nccl_files.read_logs({}, str(tmp_path / "server.log"), [me], 0.0).values()
    assert log.variables["NCCL_PROTO"] == ["LL"]


def test_a_pattern_with_special_characters(tmp_path):
    folder = tmp_path / "a[b]*"
    folder.mkdir()
    (folder / "h.7.100%.log").write_text("")
    assert nccl_files.log_path(f"{folder}/%h.%p.100%%.log", 7) == str(folder / "h.7.100%.log")


def test_libraries_are_those_that_are_mapped(tmp_path):
    assert nccl_files.libraries(os.getpid()) == ()
    assert nccl_files.libraries(1 << 30) is None
    names = ["libnccl.so.2", "libnccl.so.2.28.9", "libnccl-net.so", "libncclx.so"]
    maps = []
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 4096)
        with open(tmp_path / name, "rb") as source:
            maps.append(mmap.mmap(source.fileno(), 4096, prot=mmap.PROT_READ))
    assert nccl_files.libraries(os.getpid()) == tuple(str(tmp_path / name) for name in names[:2])
    for one in maps:
        one.close()
