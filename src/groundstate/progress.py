"""How a run is shown: as the lines of ansible-playbook, below them what every host does now, or as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
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

    def text(self, text: str) -> None:
        """Lines that ansible-playbook printed."""

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

    def text(self, text: str) -> None:
        self._out.line(text)

    def event(self, event: Event) -> None:
        """The lines say it."""

    def close(self) -> None:
        """Nothing is open."""


class Json:
    """Our events, one JSON object a line."""

    def __init__(self, stream: TextIO) -> None:
        self._out = _Out(stream)

    def text(self, text: str) -> None:
        """The events say it."""

    def event(self, event: Event) -> None:
        self._out.line(json.dumps(event, ensure_ascii=False))

    def close(self) -> None:
        """Nothing is open."""


class Terminal:
    """The lines, and below them what every host does now: step, phase, elapsed, and how long it still needs."""

    def __init__(self, console: Console, kind: str, durations: Durations) -> None:
        self._console, self._kind, self._durations = console, kind, durations
        self._began = time.monotonic()
        self._play = ""
        # host -> (phase and step, step's key, when it began, how far it is)
        self._now: dict[str, tuple[str, str, float, str]] = {}
        self._gone = False
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def text(self, text: str) -> None:
        if self._gone:
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
            key = step_key(event)
            self._now[host] = (": ".join(filter(None, (event["phase"], event["step"]))), key, time.monotonic(), "")
        elif kind == "host_progress" and host in self._now:
            self._now[host] = (*self._now[host][:3], event["text"])
        elif kind == "host_end":
            self._now.pop(host, None)

    def close(self) -> None:
        try:
            self._live.stop()
        except (OSError, ValueError):
            self._gone = True

    def _table(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for column in ("host", "step", "elapsed", "left"):
            numbers = column in ("elapsed", "left")
            table.add_column(no_wrap=True, justify="right" if numbers else "left", overflow="ellipsis")
        now = time.monotonic()
        hosts = sorted(self._now.items())  # a copy: this runs in a thread of the display
        for host, (title, key, began, far) in hosts[:MOST_HOSTS]:
            left = self._durations.remaining(self._kind, host, key, now - began)
            words = Text(title).append(f"  {far}", style="dim") if far else Text(title)
            table.add_row(Text(host, style="bold"), words, _short(now - began), f"~{_short(left)} left" if left else "")
        rest = len(hosts) - MOST_HOSTS
        head = f"{self._play}, {_short(now - self._began)}" + (f", {rest} more hosts at work" if rest > 0 else "")
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
