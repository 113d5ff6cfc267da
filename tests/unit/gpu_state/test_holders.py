"""Who holds a GPU: a made /proc, and the join with the driver's list."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import ending, holders, procfs
from ansible_collections.groundstate.llm.plugins.module_utils.holders import Hold
from ansible_collections.groundstate.llm.plugins.module_utils.nvidia import DriverProcess, Gpu
from ansible_collections.groundstate.llm.plugins.module_utils.procfs import Process


def gpu(index: int, *processes: DriverProcess, minor: int | None = None) -> Gpu:
    return Gpu(index, f"GPU-{index}", "", "", index if minor is None else minor, 1000, 0, 0, 0, False, processes)


def process(pid: int = 5, comm: str = "x", cmdline: str = "x") -> Process:
    return Process(pid, 1, 1, 1, "S", comm, 0, cmdline)


def test_open_and_mapped_nodes_of_a_real_process(tmp_path: Path):
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).write_bytes(b"\0" * mmap.PAGESIZE)
    code = (
        "import mmap, sys; d = sys.argv[1]; a = open(d + '/nvidia0'); c = open(d + '/nvidiactl')\n"
        "b = open(d + '/nvidia12', 'r+b'); m = mmap.mmap(b.fileno(), 0); b.close()\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"ready\n"
        (tmp_path / "nvidia0").unlink()  # still held
        found = holders.scan([child.pid, os.getpid()], dev=str(tmp_path))
        child.stdin.close()
    assert found.nodes(str(tmp_path)) == {child.pid: {0, 12}}
    assert found.unreadable == set()


HEADLESS = """
import ctypes, sys, threading, time
held = open(sys.argv[1])
threading.Thread(target=time.sleep, args=(1000,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60}.get(sys.argv[2], 93), 0)  # ends this thread alone
"""


def test_a_process_whose_first_thread_has_ended_still_holds_and_can_be_ended(tmp_path: Path):
    (tmp_path / "nvidia0").touch()
    child = subprocess.Popen(
        [sys.executable, "-c", HEADLESS, str(tmp_path / "nvidia0"), os.uname().machine], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout.readline() == b"ready\n"
        for _turn in range(3000):
            item = procfs.process(child.pid)
            if item.state == "Z":
                break
            time.sleep(0.01)
        assert (item.state, item.threads, item.zombie) == ("Z", 2, False)
        assert holders.scan([child.pid], dev=str(tmp_path)).nodes(str(tmp_path)) == {child.pid: {0}}
        (done,) = ending.end([item], [item], 5)
        assert (done.how, done.zombie_of) == ("exited on TERM", os.getpid())
    finally:
        child.kill()
        child.communicate()


def test_a_named_semaphore_is_in_use_though_its_map_is_shown_as_deleted():
    # vLLM's workers hold such ones: taken for leftovers, a live server would lose them.
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    path = f"/dev/shm/sem.{semaphore._semlock.name.lstrip('/')}"
    assert os.path.exists(path)
    assert os.getpid() in holders.scan([os.getpid()]).opened[path]


@pytest.mark.parametrize(
    ("lines", "container"),
    [
        ("0::/lxc/101/ns/system.slice/vllm.service", "101"),  # Proxmox 7 and up
        ("0::/lxc/101", "101"),
        ("0::/lxc.payload.gpu-box/init.scope", "gpu-box"),  # LXC itself
        ("12:devices:/lxc.payload/101\n0::/", "101"),
        ("1:name=systemd:/lxc/101/ns/init.scope\n0::/", "101"),
        ("0::/user.slice/lxc.payload.7/a", "7"),
        ("0::/lxc/101/ns/lxc/102/x", "101"),  # a container in a container belongs to the outer one
        ("0::/lxc/101/ns/lxc.payload.102", "101"),
        ("0::/lxc.monitor.101", ""),  # the node's own process that watches it
        ("0::/lxc.monitor/101", ""),
        ("0::/system.slice/pve-container@101.service", ""),
        ("0::/system.slice/lxc.service", ""),
        ("0::/mylxc/101", ""),
        ("", ""),
    ],
)
def test_the_container_of_a_process(tmp_path: Path, lines: str, container: str):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(lines + "\n", encoding="ascii")
    assert holders.container(holders.cgroups(7, str(tmp_path))) == container
    assert holders.container_exists("101", str(tmp_path), str(tmp_path)) is (container == "101")


def test_a_container_that_does_not_run_is_known_by_its_configuration(tmp_path: Path):
    (tmp_path / "etc/pve/lxc").mkdir(parents=True)
    (tmp_path / "etc/pve/lxc/103.conf").touch()
    assert holders.container_exists("103", str(tmp_path), str(tmp_path))
    assert not holders.container_exists("104", str(tmp_path), str(tmp_path))


@pytest.mark.parametrize(
    ("raw", "title"),
    [
        (b"sglang::scheduler_TP0\0\0\0\0\0", "sglang::scheduler_TP0"),
        (b"VLLM::EngineCore", "VLLM::EngineCore"),
        (b"nginx: worker process\0", "nginx: worker process"),
        (b"python3\0-m\0vllm\0", ""),
        (b"sleep\0", ""),
        (b"", ""),
    ],
)
def test_titles(tmp_path: Path, raw: bytes, title: str):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(raw)
    assert holders.title(7, str(tmp_path)) == title
    assert holders.title(8, str(tmp_path)) == ""


def test_what_may_not_be_read_is_unreadable(tmp_path: Path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "fd").touch()  # listing it fails with another error than "no such file"
    (tmp_path / "7" / "maps").touch()
    assert holders.scan([7, 8], proc=str(tmp_path)).unreadable == {7}


def test_without_the_driver_open_nodes_count_when_all_are_asked_for():
    nodes = {5: {0}, 6: {0, 1}}
    found = holders.holds(nodes, [gpu(0), gpu(1)], asked=[0, 1])
    assert found == {5: Hold(frozenset({0})), 6: Hold(frozenset({0, 1}))}


def test_an_open_node_alone_does_not_tell_which_gpu_is_used():
    found = holders.holds({6: {0, 1}}, [gpu(0), gpu(1)], asked=[0])
    assert found == {6: Hold(frozenset(), frozenset({0, 1}))}


def test_the_driver_tells_which_gpu_is_used():
    gpus = [gpu(0), gpu(1, DriverProcess(6, "C", "x", 700))]
    assert holders.holds({6: {0, 1}}, gpus, asked=[0]) == {6: Hold(frozenset({1}), frozenset(), 700)}


def test_a_number_in_the_drivers_list_is_no_evidence_without_an_open_node():
    gpus = [gpu(0, DriverProcess(5, "C", "of another namespace", 700))]
    assert holders.holds({}, gpus, asked=[0]) == {}
    # Process 6 has only the node of the other GPU: the driver's 6 is another one.
    gpus = [gpu(0, DriverProcess(6, "C", "of another namespace", 700)), gpu(1)]
    assert holders.holds({6: {1}}, gpus, asked=[0, 1])[6].gpus == {1}


def test_nodes_are_matched_by_minor_number():
    assert holders.holds({5: {3}}, [gpu(0, minor=3)], asked=[0]) == {5: Hold(frozenset({0}))}
    assert holders.holds({5: {0}}, [gpu(0, minor=3)], asked=[0]) == {}


@pytest.mark.parametrize(
    ("comm", "cmdline", "exe", "expected"),
    [
        ("python3", "/opt/env/bin/python3 -u train.py", "/usr/bin/python3.12", True),
        ("sglang::schedul", "sglang::scheduler_TP0", "/usr/bin/python3.12", True),
        ("python", "python", "", True),
        ("pythonista", "pythonista", "/usr/bin/pythonista", False),
        ("llama-server", "llama-server -m python.gguf", "/usr/bin/llama-server", False),
    ],
)
def test_python_is_recognised_by_its_executable_too(comm, cmdline, exe, expected):
    assert holders.is_python(process(comm=comm, cmdline=cmdline), exe) is expected


def test_names_of_an_interpreted_program():
    names = holders.program_names(process(comm="python3", cmdline="python3 -u /opt/gpu_exporter.py --port 1"), "")
    assert names == {"python3", "gpu_exporter.py"}
    assert "nvitop" in holders.program_names(process(comm="python3", cmdline="python3 -m nvitop"), "")
    # A model whose path looks like a protected program is an argument, not a name.
    assert "dcgm" not in holders.program_names(process(comm="python3", cmdline="python3 a.py /models/dcgm"), "")


@pytest.mark.parametrize(
    ("group", "unit"),
    [
        ("/system.slice/vllm.service", "vllm.service"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service", "llm.service"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice", ""),
        ("/user.slice/user-0.slice/session-1.scope", ""),
        ("/", ""),
    ],
)
def test_unit_of_a_control_group(group, unit):
    assert holders.unit(group) == unit


def test_details_of_this_process():
    me = procfs.process(os.getpid())
    found = holders.describe(me, Hold(frozenset({1}), frozenset(), 5))
    assert (found["pid"], found["start"], found["gpus"], found["gpu_memory"]) == (os.getpid(), me.start, [1], 5)
    assert found["same_namespace"] is True
    assert found["user"] == holders.user(os.geteuid())
    assert holders.user(4294967294 - 7) == str(4294967294 - 7)
