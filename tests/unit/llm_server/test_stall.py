"""Work and no work of a process tree, on real processes and on numbers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs, stall

Activity = stall.Activity


def watch(patience_s=60.0, gpu=None):
    made = stall.Watch(patience_s, 0.0, gpu)
    made.look(0.0, Activity(10.0, 0, 0), 100)
    return made


@pytest.mark.parametrize(
    ("activity", "size"),
    [
        (Activity(10.0, 0, 0), 101),
        (Activity(10.5, 0, 0), 100),
        (Activity(10.0, 2**20, 2**20), 100),
        (Activity(10.0, 0, 2**20), 100),
        (Activity(9.0, 0, 0), 100),  # a process has ended
    ],
)
def test_what_is_work(activity, size):
    made = watch()
    made.look(2.0, activity, size)
    assert made.active_s == 2.0
    assert not made.stalled(61.0)
    assert made.stalled(62.0)


def test_polling_is_no_work():
    made = watch()
    for step in range(1, 40):
        made.look(2.0 * step, Activity(10.0 + 0.02 * step, 100 * step, 4000 * step), 100)
    assert made.quiet_s(78.0) == 78.0
    assert made.stalled(78.0)


def test_without_patience_nothing_is_a_stall():
    made = watch(0.0)
    assert not made.stalled(1e6)


def test_bytes_that_may_not_be_read_do_not_count():
    made = watch()
    made.look(2.0, Activity(10.0, None, None), 100)
    assert made.active_s == 0.0


def test_the_driver_is_asked_late_and_a_change_of_gpu_memory_is_work():
    answers = iter([{"a": 1}, {"a": 1}, {"a": 2}, {"a": 2}, None, {"a": 3}])
    asked = []
    made = watch(60.0, lambda: asked.append(1) or next(answers))
    made.look(20.0, Activity(10.0, 0, 0), 100)
    assert not asked
    made.look(32.0, Activity(10.0, 0, 0), 100)
    made.look(34.0, Activity(10.0, 0, 0), 100)
    assert made.active_s == 0.0
    made.look(36.0, Activity(10.0, 0, 0), 100)
    assert made.active_s == 36.0
    # A driver that did not answer in between proves nothing.
    for at in (70.0, 72.0, 74.0):
        made.look(at, Activity(10.0, 0, 0), 100)
    assert made.active_s == 36.0


def test_a_real_process_that_works_and_one_that_sleeps(tmp_path):
    big = tmp_path / "weights"
    big.write_bytes(b"x" * (4 * 2**20))
    program = "import sys; open(sys.argv[1], 'rb').read(); sum(range(3 * 10**6)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(big)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        item = procfs.process(process.pid)
        before = stall.measure([item])
        assert before.read_bytes >= 4 * 2**20
        assert before.cpu_s > 0
        after = stall.measure([item])
        made = stall.Watch(60.0, 0.0)
        made.look(0.0, before, 1)
        made.look(2.0, after, 1)
        assert made.active_s == 0.0
        assert stall.sleepers([item]) == []
        process.stdin.close()
    assert stall.measure([item]) == Activity(0.0, None, None)


def test_a_process_in_the_kernel_is_named(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "wchan").write_text("nfs_wait_bit_killable")
    item = procfs.Process(7, 1, 1, 1, "D", "python", 0, "sglang::scheduler_TP3")
    assert stall.sleepers([item], str(tmp_path)) == [
        "process 7 (sglang::scheduler_TP3) waits in the kernel (nfs_wait_bit_killable)"
    ]
