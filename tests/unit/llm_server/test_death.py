"""What the host knows of a death: the kernel's log, control groups, /dev/shm, ports; and the log without its noise."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import (
    death,
    kernel_log,
    launcher,
    log_lines,
    oom,
    procfs,
    servers,
)

LOGS = Path(__file__).parents[2] / "data" / "server_logs"
MEMCG = (
    "Memory cgroup out of memory: Killed process 1703792 (VLLM::Worker_TP) total-vm:68545920kB, anon-rss:37760kB, "
    "file-rss:77744kB, shmem-rss:0kB, oom_score_adj:1000"
)
GLOBAL = "Out of memory: Killed process 7899 (python) total-vm:26184840kB, anon-rss:15370088kB, file-rss:0kB, UID:0"


@pytest.fixture
def record(tmp_path) -> servers.ServerRecord:
    """A server that has died: its folder, its log."""
    made = servers.ServerRecord(
        name="local", engine="vllm", pid=4711, pid_start=100, log=str(tmp_path / "servers" / "local" / "server.log")
    )
    made.declaration = {"name": "local", "tensor_parallel": 2}
    made.argv = ["/env/bin/vllm", "serve"]
    Path(made.log).parent.mkdir(parents=True)
    Path(made.log).write_text("INFO loading\n")
    return made


def died(tmp_path, text: str) -> str:
    (tmp_path / "servers" / "local" / "exit").write_text(text)
    return str(tmp_path)


def kernel(monkeypatch, lines: list[str] | None) -> None:
    found = None if lines is None else [(5.0, line) for line in lines]
    monkeypatch.setattr(kernel_log, "_records", lambda _path: found)
    monkeypatch.setattr(kernel_log, "_dmesg", lambda: None)


def group(folder: Path, kills: int, limit: str = "8589934592") -> oom.Group:
    folder.mkdir(exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 12\noom {kills}\noom_kill {kills}\n")
    return oom.read(str(folder))


def test_a_kill_by_the_kernel_is_shown_with_its_line_and_the_limit(record, tmp_path, monkeypatch):
    kernel(monkeypatch, [GLOBAL, MEMCG])
    home = died(tmp_path, "137 1795970000\n")
    story = death.tell(home, record, group(tmp_path / "cg", 0))
    # In a container the pid of the line is the host's: the worker is known by its name.
    assert story.evidence == [
        f"the kernel killed it for want of memory: {MEMCG}",
        "the memory limit of its control group is 8.00 GiB",
    ]
    assert story.diagnosis["name"] == "killed for want of host memory"
    assert "killed by SIGKILL (exit status 137)" in story.words
    assert f"The kernel killed it for want of memory: {MEMCG}." in story.text(record.log)


def test_a_counter_of_the_control_group_is_enough(record, tmp_path, monkeypatch):
    kernel(monkeypatch, None)
    home = died(tmp_path, "137 1\n")
    before = group(tmp_path / "cg", 2)
    assert "may not be read here" in death.tell(home, record, before).evidence[0]
    group(tmp_path / "cg", 3)
    story = death.tell(home, record, before)
    assert story.evidence[0].startswith("the kernel killed a process of its control group")
    assert story.diagnosis["name"] == "killed for want of host memory"


def test_a_kill_that_was_not_the_kernel_s(record, tmp_path, monkeypatch):
    kernel(monkeypatch, [GLOBAL])  # another program
    story = death.tell(died(tmp_path, "137 1\n"), record, group(tmp_path / "cg", 0))
    assert story.evidence == [
        "the kernel's log has no kill for want of memory since the launch: somebody sent the signal"
    ]
    assert story.diagnosis == {}


def test_a_kill_before_the_launch_is_another_s(record, tmp_path, monkeypatch):
    kernel(monkeypatch, [MEMCG])
    record.pid_start = 100 * os.sysconf("SC_CLK_TCK")  # the line is from the fifth second
    assert "somebody" in death.tell(died(tmp_path, "137 1\n"), record).evidence[0]


def test_a_bus_error_shows_shared_memory(record, tmp_path):
    story = death.tell(died(tmp_path, "135 1\n"), record)
    about = os.statvfs("/dev/shm")
    size = about.f_blocks * about.f_frsize / 2**20
    assert story.evidence[0].startswith(f"/dev/shm has {size:.0f} MiB, ")
    assert "SIGBUS" in story.words


def test_the_signal_of_a_worker_is_taken_from_the_engine_s_own_words(record, tmp_path):
    Path(record.log).write_text(
        "ERROR Worker proc VllmWorker-1 died unexpectedly (exit code: -7), shutting down executor.\n"
    )
    story = death.tell(died(tmp_path, "1 1\n"), record)
    assert story.evidence[0].startswith("/dev/shm has ")
    assert story.diagnosis["cause"] == "a worker ended with exit code -7"


def test_a_port_has_an_owner(record, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        record.port = other.getsockname()[1]
        Path(record.log).write_text("ERROR: [Errno 98] address already in use\n")
        story = death.tell(died(tmp_path, "1 1\n"), record)
        assert f"port {record.port} belongs to process {os.getpid()} (" in story.evidence[0]
        assert story.evidence[0].endswith(", listening")
    assert death.tell(str(tmp_path), record).evidence == [f"port {record.port} is free by now"]


def test_a_worker_that_nobody_has_waited_for_tells_its_signal(record, tmp_path, monkeypatch):
    kernel(monkeypatch, [])
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        item = procfs.process(process.pid)
        assert death.zombie_status(item) == ""
        process.kill()
        while procfs.alive(item.pid, item.start):
            time.sleep(0.01)
        assert death.zombie_status(item) == "137"
        story = death.tell(str(tmp_path), record, None, item)
        assert story.words.startswith("killed by SIGKILL")
        assert "somebody sent the signal" in story.evidence[0]
    finally:
        process.wait()
    assert death.zombie_status(item) == ""
    assert process.returncode == -signal.SIGKILL


def test_systemd_is_asked_how_its_unit_ended(record, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text(
        '#!/bin/sh\ntest "$1 $2 $3" = "show --property=Result u.service" && echo Result=oom-kill\n'
    )
    (programs / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    kernel(monkeypatch, [])
    record.launcher, record.unit = "systemd", "u.service"
    story = death.tell(died(tmp_path, "KILL 1\n"), record)
    assert "systemd says of u.service: oom-kill" in story.evidence
    assert launcher.read_exit(str(tmp_path / "servers" / "local")) == "KILL 1"


# --- control groups ------------------------------------------------------------------------------


def process_in(tmp_path: Path, text: str) -> str:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(text)
    return str(tmp_path / "proc")


def test_the_smallest_limit_above_a_process_counts(tmp_path):
    proc = process_in(tmp_path, "0::/system.slice/groundstate-x.service\n")
    root = tmp_path / "cg"
    group(root, 0, "max")
    group(root / "system.slice", 4, "4294967296")
    group(root / "system.slice" / "groundstate-x.service", 1, "max")
    found = oom.group(7, proc, str(root))
    assert (found.folder, found.limit, found.kills) == (str(root / "system.slice"), 4 * 2**30, 4)
    assert found.words() == "the memory limit of its control group is 4.00 GiB"


def test_a_group_that_is_gone_has_a_parent(tmp_path):
    proc = process_in(tmp_path, "0::/gone/deeper\n")
    group(tmp_path / "cg", 0, "max")
    assert oom.group(7, proc, str(tmp_path / "cg")) == oom.Group(str(tmp_path / "cg"), None, 0)
    assert oom.group(8, proc, str(tmp_path / "cg")) is None


def test_control_groups_of_version_1(tmp_path):
    proc = process_in(tmp_path, "4:memory:/job\n1:cpu:/\n0::/\n")
    folder = tmp_path / "cg" / "memory" / "job"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("2147483648\n")
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (folder.parent / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (folder.parent / "memory.oom_control").write_text("oom_kill 5\n")
    assert oom.group(7, proc, str(tmp_path / "cg")) == oom.Group(str(folder), 2 * 2**30, 2)


def test_this_process_has_a_group_that_can_be_read_or_none():
    found = oom.group(os.getpid())
    assert found is None or (os.path.isdir(found.folder) and (found.limit is None or found.limit > 2**20))


# --- the log -------------------------------------------------------------------------------------


def test_bars_probes_and_repetitions_are_left_out():
    bar = "\rCapturing batches (bs=4 avail_mem=69.03 GB):   0%|          | 0/4 [00:00<?, ?it/s]"
    lines = [
        "[2026-11-29 13:38:14 TP1] Init torch distributed begin.",
        "[2026-11-29 13:38:14 TP0] Init torch distributed begin.",
        bar,
        bar + "RuntimeError: what is on the same line is not lost",
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  1.2it/s]",
        '[2026-11-29 13:38:23] INFO:     127.0.0.1:51272 - "GET /health HTTP/1.1" 503 Service Unavailable',
        "",
        '[2026-11-29 13:38:31] INFO:     127.0.0.1:60180 - "POST /v1/completions HTTP/1.1" 200 OK',
    ]
    assert log_lines.relevant(lines) == [
        lines[0],
        "RuntimeError: what is on the same line is not lost",
        lines[-1],
    ]
    assert log_lines.relevant(lines, 1) == lines[-1:]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("torch.AcceleratorError: CUDA error: an illegal memory access", "torch.AcceleratorError: CUDA error"),
        ("(EngineCore pid=12) ERROR 11-29 19:55:56 [core.py:1510] KeyError: 'layers'", "KeyError: 'layers'"),
        ("  what():  CUDA error: unspecified launch failure", "what():  CUDA error"),
        ("Fatal Python error: Segmentation fault", "Fatal Python error: Segmentation fault"),
        ("[2026-12-01 01:06:34] Scheduler hit an exception: Traceback (most recent call last):", ""),
        ("Failed to load generation config: no such file. Proceeding without it", ""),
        ("DeprecationWarning: this Error: is none", ""),
    ],
)
def test_the_last_exception_of_a_log(line, told):
    earlier = "ValueError: an earlier one"
    found = log_lines.last_exception([earlier, line, "1. set --mem-fraction-static"])
    assert found.startswith(told or earlier)


def test_the_end_of_a_captured_log_is_readable():
    lines = (LOGS / "sglang.tp2.eagle.log").read_text(encoding="utf-8").splitlines()
    kept = log_lines.relevant(lines)
    assert not [line for line in kept if "it/s]" in line or "s/it]" in line]
    assert len(kept) < len(lines) / 2
    assert any("Load weight end" in line for line in kept)
