"""The table below the lines on a terminal, and which display a stream gets."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from groundstate import progress
from groundstate.durations import Durations


class Clock:
    """Time that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def terminal(tmp_path, clock, monkeypatch):
    """A terminal display that writes into memory and is drawn when the test asks."""
    durations = Durations(tmp_path)
    durations.add("deploy", "node1", [("ml_env: Build", 60.0), ("llm_server: Start", 4000.0)])
    # The thread that draws would use the clock that stands still.
    monkeypatch.setattr(progress.Live, "start", lambda self: None)
    monkeypatch.setattr(progress.Live, "stop", lambda self: None)
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100)
    return progress.Terminal(console, "deploy", durations)


def start(host: str, phase: str, step: str) -> dict:
    return {"event": "host_start", "host": host, "phase": phase, "step": step}


def drawn(terminal) -> list[str]:
    console = Console(file=io.StringIO(), color_system=None, width=100)
    console.print(terminal.table())
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_before_anything_it_is_starting(terminal):
    assert drawn(terminal) == ["Starting, 0 s"]


def test_each_host_has_its_step_how_far_it_is_and_what_is_left(terminal, clock):
    terminal.event({"event": "play_start", "play": "Deploy"})
    terminal.event(start("node2", "", "Show"))
    terminal.event(start("node1", "ml_env", "Build"))
    clock.now += 15
    terminal.event({"event": "host_progress", "host": "node1", "text": "2 of 9 wheels"})
    terminal.event({"event": "host_progress", "host": "gone", "text": "never began"})
    head, first, second = drawn(terminal)
    assert head == "Deploy, 15 s"
    assert " ".join(first.split()) == "node1 ml_env Build 2 of 9 wheels 15 s about 1:07:25 left"
    assert " ".join(second.split()) == "node2 Show 15 s"
    terminal.event({"event": "host_end", "host": "node1"})
    assert len(drawn(terminal)) == 2


def test_a_long_step_leaves_room_for_host_and_time(terminal, clock):
    terminal.event(start("node1", "nccl_profile", "Look " * 60))
    clock.now += 61
    _head, line = drawn(terminal)
    assert line.startswith("node1  nccl_profile  Look Look")
    assert line.endswith("1:01")
    assert len(line) <= 100


def test_many_hosts_are_counted_not_shown(terminal):
    for number in range(40):
        terminal.event(start(f"node{number:02}", "p", "s"))
    lines = drawn(terminal)
    assert len(lines) == 1 + progress.MOST_HOSTS
    assert lines[0].endswith("28 more hosts at work")


def test_lines_stay_as_they_are_and_progress_is_not_printed_twice(terminal):
    terminal.text("a [bold]word[/bold] " + "x" * 200)
    terminal.text("node1: loading", progress=True)
    assert terminal._console.file.getvalue() == "a [bold]word[/bold] " + "x" * 200 + "\n"


class Gone(io.StringIO):
    """A pipe whose reader has left."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise BrokenPipeError


@pytest.mark.parametrize("display", [progress.Plain, progress.Json])
def test_a_stream_that_is_gone_is_left_alone(display):
    stream = Gone()
    made = display(stream)
    for _time in range(3):
        made.text("x")
        made.event({"event": "output", "text": "x"})
    made.close()
    assert stream.tries == 1


def test_json_is_one_object_a_line():
    stream = io.StringIO()
    made = progress.Json(stream)
    made.text("not this")
    made.event({"event": "output", "text": "zwei\nZeilen ä"})
    assert stream.getvalue().count("\n") == 1
    assert json.loads(stream.getvalue()) == {"event": "output", "text": "zwei\nZeilen ä"}


class Terminals(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("term", "live"), [("xterm-256color", True), ("dumb", False), ("unknown", False), (None, False)]
)
def test_only_a_terminal_that_can_take_lines_back_gets_a_table(monkeypatch, term, live):
    monkeypatch.delenv("TERM", raising=False)
    if term:
        monkeypatch.setenv("TERM", term)
    assert progress.can_be_live(Terminals()) is live
    assert progress.can_be_live(io.StringIO()) is False
