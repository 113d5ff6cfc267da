"""Identity, tree and sockets of processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ansible_collections.groundstate.llm.plugins.module_utils import procfs
from hypothesis import given
from hypothesis import strategies as st


def write_process(folder, pid, comm=b"python3", ppid=1, session=1, start=100, state=b"S", cmdline=b"python3\0"):
    """One process of a made /proc, in the kernel's form."""
    home = Path(folder) / str(pid)
    home.mkdir(parents=True)
    rest = [state, b"%d" % ppid, b"1", b"%d" % session, *[b"0"] * 15, b"%d" % start, *[b"0"] * 30]
    (home / "stat").write_bytes(b"%d (%s) %s\n" % (pid, comm, b" ".join(rest)))
    (home / "cmdline").write_bytes(cmdline)


def test_ourselves():
    found = procfs.process(os.getpid())
    assert (found.pid, found.ppid, found.uid) == (os.getpid(), os.getppid(), os.getuid())
    assert found.session == os.getsid(0)
    assert not found.zombie
    assert procfs.alive(found.pid, found.start)
    assert not procfs.alive(found.pid, found.start + 1), "another process that got the same number"
    assert found.pid in procfs.processes()
    assert os.getpid() in procfs.pids()


def test_a_start_is_told_by_the_clock_of_files():
    before = time.time()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        found = procfs.process(child.pid)
    # The kernel counts in hundredths of a second.
    assert before - 0.1 <= procfs.started_at(found) <= time.time() + 0.1


def test_boot_id_is_the_kernels(tmp_path):
    assert procfs.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert procfs.boot_id(str(tmp_path)) is None


def test_a_name_with_parentheses_and_fields_does_not_fool_it(start):
    name = ") S 1 (x 9 9"
    process = start.python(f"open('/proc/self/comm', 'w').write({name!r})")
    found = procfs.process(process.pid)
    assert found.comm == name
    assert found.ppid == os.getpid()
    assert found.start > procfs.process(os.getpid()).start


@given(
    comm=st.binary(max_size=15).filter(lambda raw: b"\0" not in raw),
    ppid=st.integers(0, 2**22),
    start=st.integers(0, 2**63),
    state=st.sampled_from([b"R", b"S", b"D", b"Z", b"T", b"I", b"X"]),
)
def test_any_name_the_kernel_allows(comm, ppid, start, state):
    with tempfile.TemporaryDirectory() as folder:
        write_process(folder, 7, comm, ppid, 5, start, state)
        found = procfs.process(7, folder)
    assert (found.ppid, found.session, found.start) == (ppid, 5, start)
    assert found.comm == comm.decode("utf-8", "replace")
    assert found.zombie == (state in b"ZX")


@given(st.binary(max_size=60))
def test_a_stat_that_is_none_is_no_process(raw):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "7").mkdir()
        (Path(folder) / "7" / "stat").write_bytes(raw)
        assert procfs.process(7, folder) is None


def test_a_title_padded_with_nuls_is_shown_without_them(tmp_path):
    write_process(tmp_path, 7, cmdline=b"sglang::scheduler_TP0" + b"\0" * 200)
    assert procfs.process(7, str(tmp_path)).cmdline == "sglang::scheduler_TP0"


def test_descendants_come_parents_first_and_a_circle_ends(tmp_path):
    # 40 and 41 each claim the other as parent: a torn reading, where numbers were reused in between.
    for pid, ppid in ((2, 1), (5, 2), (3, 5), (4, 2), (9, 3), (40, 41), (41, 40), (50, 1)):
        write_process(tmp_path, pid, ppid=ppid)
    table = procfs.processes(str(tmp_path))
    assert [item.pid for item in procfs.descendants(2, table)] == [4, 5, 3, 9]
    assert [item.pid for item in procfs.descendants(40, table)] == [41]
    assert procfs.descendants(9, table) == []


def test_a_zombie_is_not_alive():
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        found = procfs.process(process.pid)
        assert found.zombie
        assert not procfs.alive(found.pid, found.start)
    finally:
        process.wait()
    assert procfs.process(process.pid) is None


def test_listeners_name_the_owner(start, tmp_path):
    told = tmp_path / "port"
    process = start.python(
        "import socket; server = socket.create_server(('127.0.0.1', 0))\n"
        f"open({str(told)!r}, 'w').write(str(server.getsockname()[1]))"
    )
    (found,) = procfs.listeners(int(told.read_text()))
    assert (found.state, found.pid) == ("listening", process.pid)
    assert "create_server" in found.cmdline


def test_a_bound_socket_that_does_not_listen_is_no_listener():
    with socket.socket(socket.AF_INET) as bound:
        bound.bind(("127.0.0.1", 0))
        assert procfs.listeners(bound.getsockname()[1]) == []
        bound.listen()
        assert [one.pid for one in procfs.listeners(bound.getsockname()[1])] == [os.getpid()]


def test_a_listener_of_an_invisible_owner(tmp_path):
    (tmp_path / "net").mkdir()
    row = "   0: 00000000000000000000000000000000:1F40 00000000000000000000000000000000:0000 {} 0:0 0:0 0 0 0 {} 1 0"
    (tmp_path / "net" / "tcp6").write_text("\n".join(["  sl", row.format("0A", 777), row.format("06", 778)]) + "\n")
    assert procfs.listeners(8000, str(tmp_path)) == [procfs.PortUse(8000, "listening", None, "")]


def test_what_a_process_sleeps_in(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "wchan").write_text("nv_wait_for_gpu", encoding="ascii")
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "wchan").write_text("0", encoding="ascii")
    assert [procfs.wchan(pid, str(tmp_path)) for pid in (7, 8, 9)] == ["nv_wait_for_gpu", "", ""]


def test_the_number_of_a_process_inside_of_its_namespace(tmp_path):
    (tmp_path / "4010").mkdir()
    (tmp_path / "4010" / "status").write_text("Name:\tx\nPid:\t4010\nNSpid:\t4010\t55\t10\n", encoding="ascii")
    assert procfs.number_inside(4010, str(tmp_path)) == 10
    assert procfs.number_inside(4011, str(tmp_path)) == 4011
    assert procfs.number_inside(os.getpid()) >= 1
