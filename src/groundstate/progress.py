"""How a run is shown: as the lines of ansible-playbook, below them what every host does now, or as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .durations import Durations
from .events import Event

MOST_HOSTS = 12  # in the live table


class Display(Protocol):
    """Shows a run."""

    def text(self, text: str, progress: bool = False) -> None:
        """Lines that ansible-playbook printed. ``progress``: they only say how far a host is, an event says it, too."""

    def event(self, event: Event) -> None:
        """One of our events."""

    def close(self) -> None:
        """The run is over."""


class _Out:
    """A stream that may go away (a closed terminal, `| head`): a run goes on without it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.gone = False

    def line(self, text: str) -> None:
        if self.gone:
            return
        try:
            self.stream.write(text + "\n")
            self.stream.flush()
        except (OSError, ValueError):
            self.gone = True


class Plain:
    """The lines as they come: for files, pipes and terminals that can do nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._out = _Out(stream)

    def text(self, text: str, progress: bool = False) -> None:
        self._out.line(text)

    def event(self, event: Event) -> None:
        """The lines say it."""

    def close(self) -> None:
        """Nothing is open."""


class Json:
    """Our events, one JSON object a line."""

    def __init__(self, stream: TextIO) -> None:
        self._out = _Out(stream)

    def text(self, text: str, progress: bool = False) -> None:
        """The events say it."""

    def event(self, event: Event) -> None:
        self._out.line(json.dumps(event, ensure_ascii=False))

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class _Row:
    """What a host does now."""

    event: Event  # its host_start
    began: float
    far: str = ""


class Terminal:
    """The lines, and below them what every host does now: step, phase, elapsed, and how long it still needs."""

    def __init__(self, console: Console, kind: str, durations: Durations) -> None:
        self._console, self._kind, self._durations = console, kind, durations
        self._began = time.monotonic()
        self._play = ""
        self._rows: dict[str, _Row] = {}
        self._gone = False
        self._live = Live(get_renderable=self.table, console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def text(self, text: str, progress: bool = False) -> None:
        if self._gone or progress:
            return
        try:
            self._console.print(Text.from_ansi(text), soft_wrap=True, highlight=False)
        except (OSError, ValueError):
            self._gone = True

    def event(self, event: Event) -> None:
        kind, host = event["event"], event.get("host", "")
        if kind == "play_start":
            self._play = event["play"]
        elif kind == "host_start":
            self._rows[host] = _Row(event, time.monotonic())
        elif kind == "host_progress" and host in self._rows:
            self._rows[host].far = event["text"]
        elif kind == "host_end":
            self._rows.pop(host, None)

    def close(self) -> None:
        try:
            self._live.stop()
        except (OSError, ValueError):
            self._gone = True

    def table(self) -> Group:
        """What is shown below the lines. It is called from a thread of the display."""
        rows = sorted(self._rows.items(), key=lambda item: item[0])
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1, style="dim")
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, justify="right")
        now = time.monotonic()
        for host, row in rows[:MOST_HOSTS]:
            spent = now - row.began
            left = self._durations.remaining(self._kind, host, step_key(row.event), spent)
            words = [host, row.event["phase"], row.event["step"], row.far, _short(spent)]
            table.add_row(*map(Text, words), f"about {_short(left)} left" if left else "")
        rest = len(rows) - MOST_HOSTS
        more = f", {rest} more hosts at work" if rest > 0 else ""
        head = f"{self._play or 'Starting'}, {_short(now - self._began)}{more}"
        return Group(Text(head, style="dim"), table)


def step_key(event: Event) -> str:
    """What durations of a step are kept by."""
    return f"{event['phase']}: {event['step']}"


def _short(seconds: float) -> str:
    """12 s, 3:05, 1:02:03."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def can_be_live(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which lines can be taken back."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def display(as_json: bool, kind: str, durations: Durations) -> Display:
    """The display that fits."""
    if as_json:
        return Json(sys.stdout)
    if can_be_live(sys.stdout):
        return Terminal(Console(), kind, durations)
    return Plain(sys.stdout)
