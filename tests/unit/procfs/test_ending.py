"""Ending processes: the given ones, politely first, and none other."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import ending, procfs

IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def parent_of(child):
    """Code that starts a child, which says when it is up."""
    command = f"subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)"
    return f"import subprocess; child = {command}; child.stdout.read(2)"


def wait_dead(process):
    process.wait(30)
    return process.returncode


def test_a_polite_process_exits_on_term(start):
    process = start.python("")
    item = procfs.process(process.pid)
    said = []
    (result,) = ending.end([item], [item], 30, said.append)
    assert result.how == "exited on TERM"
    assert result.gone
    assert result.as_dict()["pid"] == process.pid
    assert wait_dead(process) == -signal.SIGTERM
    assert said == [f"TERM to {process.pid}"]


def test_a_stopped_process_takes_the_term(start):
    process = start.python("")
    item = procfs.process(process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    (result,) = ending.end([item], [item], 30)
    assert result.how == "exited on TERM"
    assert wait_dead(process) == -signal.SIGTERM


def test_a_stubborn_process_is_killed_after_the_grace(start):
    process = start.python(IGNORE)
    item = procfs.process(process.pid)
    (result,) = ending.end([item], [item], 0.1)
    assert result.how == "killed"
    assert wait_dead(process) == -signal.SIGKILL


def test_a_tree_the_stubborn_child_of_a_polite_parent(start):
    child = f"{IGNORE}; import os, sys; os.write(1, b'up'); sys.stdin.read()"
    process = start.python(parent_of(child))
    root = procfs.process(process.pid)
    below = procfs.descendants(root.pid, procfs.processes())
    assert len(below) == 1
    results = {one.pid: one.how for one in ending.end([root], [root, *below], 0.1)}
    assert results == {root.pid: "exited on TERM", below[0].pid: "killed"}
    assert not procfs.alive(below[0].pid, below[0].start)


def test_a_child_that_ends_with_its_parent(start):
    child = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.write(1, b'up'); sys.stdin.read()"
    process = start.python(parent_of(child))
    root = procfs.process(process.pid)
    below = procfs.descendants(root.pid, procfs.processes())
    results = {one.pid: one.how for one in ending.end([root], [root, *below], 30)}
    assert results == {root.pid: "exited on TERM", below[0].pid: "exited with its parent"}


def test_children_that_outlive_their_parent_are_told_themselves(start):
    """SGLang's launcher in its first seconds: TERM ends it, and its workers know nothing of that.

    The grace is longer than a test may take: waiting for all of it would be the fault.
    """
    child = "import os, sys, time; os.write(1, b'up'); time.sleep(3600)"
    process = start.python(parent_of(f"import sys; {parent_of(child)}; import os; os.write(1, b'up'); child.wait()"))
    root = procfs.process(process.pid)
    worker, helper = procfs.descendants(root.pid, procfs.processes())
    said = []
    results = {one.pid: one.how for one in ending.end([root], [root, worker, helper], 3600, said.append)}
    assert results == dict.fromkeys((root.pid, worker.pid, helper.pid), "exited on TERM")
    # The helper of a worker is told when its worker is gone, not with it: that one may need it to end in order.
    assert said == [f"TERM to {one}" for one in (root.pid, worker.pid, helper.pid)]


def test_a_child_that_its_parent_still_waits_for_is_not_told(start):
    """A server that finishes its requests before it ends its workers."""
    ends_late = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(5), child.kill(), exit(0)))"
    child = "import os, time; os.write(1, b'up'); time.sleep(3600)"
    process = start.python(f"import sys; {parent_of(child)}; {ends_late}")
    root = procfs.process(process.pid)
    below = procfs.descendants(root.pid, procfs.processes())
    said = []
    results = {one.pid: one.how for one in ending.end([root], [root, *below], 3600, said.append)}
    assert said == [f"TERM to {root.pid}"]
    assert results == {root.pid: "exited on TERM", below[0].pid: "exited with its parent"}


def test_another_process_with_the_same_number_is_left_alone(start):
    process = start.python("")
    item = procfs.process(process.pid)
    earlier = dataclasses.replace(item, start=item.start - 1)
    assert not ending.send(earlier, signal.SIGKILL)
    (result,) = ending.end([earlier], [earlier], 0.1)
    assert result.how == "was gone"
    assert procfs.alive(item.pid, item.start)


def test_a_process_that_was_gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    zombie = procfs.process(process.pid)
    (result,) = ending.end([zombie], [zombie], 0.1)
    assert (result.how, result.gone, result.zombie_of) == ("was gone", True, os.getpid())
    process.wait()
    (result,) = ending.end([zombie], [zombie], 0.1)
    assert (result.how, result.gone, result.zombie_of) == ("was gone", True, None)


def test_what_may_not_be_signalled_is_left_and_said(start, monkeypatch):
    process = start.python("")
    item = procfs.process(process.pid)

    def refuse(*_arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse, raising=False)
    monkeypatch.setattr(os, "kill", refuse)
    (result,) = ending.end([item], [item], 0.1)
    assert not result.gone
    assert "not permitted" in result.how
    monkeypatch.undo()
    assert procfs.alive(item.pid, item.start)


@pytest.mark.parametrize("missing", [True, False], ids=["without pidfd", "with pidfd"])
def test_old_kernels_have_no_pidfd(start, monkeypatch, missing):
    process = start.python("")
    item = procfs.process(process.pid)
    if missing:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert ending.send(item, signal.SIGTERM)
    assert wait_dead(process) == -signal.SIGTERM


def test_waiting_tells_who_still_runs(start):
    process = start.python("")
    item = procfs.process(process.pid)
    assert ending.wait_gone([item], 0.0) == [item]
    process.kill()
    assert ending.wait_gone([item], 30) == [], "a zombie is gone: only we can reap it"
