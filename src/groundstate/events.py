"""What happens in a run, as small events: made of ansible-runner's, for the display, ``--json`` and the kept log.

The schema is in docs/cli.md. Results of modules are not in it but for what is named here: they may be large, and hold
what nobody should keep.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from .content import plugin

SCHEMA = 1
Event = dict[str, Any]

_ENDS = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_skipped": "skipped",
}
_COUNTS = {
    "ok": "ok",
    "changed": "changed",
    "unreachable": "dark",
    "failed": "failures",
    "skipped": "skipped",
    "rescued": "rescued",
    "ignored": "ignored",
}
# Of these, the lines are the callback's rendering of what the event itself says.
_RENDERED = re.compile(r"(playbook|runner)_")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def text_of(raw: Event) -> str:
    """What ansible-playbook printed with an event of ansible-runner, without the line's end."""
    return str(raw.get("stdout") or "").replace("\r\n", "\n")


class Translator:
    """Turns the events of one run into ours, in their order."""

    def __init__(self) -> None:
        self._words = plugin("plugin_utils.step_words")
        self._title: dict[str, tuple[str, str]] = {}
        self._times: defaultdict[tuple[str, str], int] = defaultdict(int)
        # host -> (phase, step, when it began there), of the steps that run.
        self.running: dict[str, tuple[str, str, float]] = {}

    def translate(self, raw: Event) -> Iterator[Event]:
        """The events that one of ansible-runner comes to."""
        kind, data = str(raw.get("event")), raw.get("event_data") or {}
        host = str(data.get("host", ""))
        if kind == "playbook_on_play_start":
            yield {"event": "play_start", "play": str(data.get("name", ""))}
        elif kind == "playbook_on_task_start":
            phase, step = self._title[str(data.get("task_uuid"))] = self._words.split(str(data.get("name", "")))
            yield {"event": "step_start", "phase": phase, "step": step}
        elif kind == "runner_on_start":
            phase, step = self._named(data)
            self._times[host, f"{phase}: {step}"] += 1
            if (number := self._times[host, f"{phase}: {step}"]) > 1:
                step = f"{step} ({number})"  # once more, as a handler or in another batch
            self.running[host] = (phase, step, time.monotonic())
            yield {"event": "host_start", "host": host, "phase": phase, "step": step}
        elif kind in _ENDS:
            yield from self._end(host, kind, data)
        elif kind == "playbook_on_stats":
            hosts = sorted(data.get("processed") or {})
            counts = {
                host: {ours: int((data.get(theirs) or {}).get(host, 0)) for ours, theirs in _COUNTS.items()}
                for host in hosts
            }
            yield {"event": "recap", "hosts": counts}
        elif not _RENDERED.match(kind):
            yield from self._said(_COLOURS.sub("", text_of(raw)))

    def _named(self, data: Event) -> tuple[str, str]:
        role, name = str(data.get("resolved_role") or data.get("role") or ""), str(data.get("task") or "")
        title = f"{role} : {name}" if role else name
        return self._title.get(str(data.get("task_uuid"))) or self._words.split(title)

    def _end(self, host: str, kind: str, data: Event) -> Iterator[Event]:
        given = data.get("res")
        result: Event = given if isinstance(given, dict) else {}
        phase, step, began = self.running.pop(host, (*self._named(data), time.monotonic()))
        status = _ENDS[kind]
        if status == "ok" and result.get("changed"):
            status = "changed"
        if status == "failed" and data.get("ignore_errors"):
            status = "ignored"
        told = {"phase": phase, "step": step, "status": status, "seconds": round(time.monotonic() - began, 3)}
        event = {"event": "host_end", "host": host, **told}
        if status in ("failed", "unreachable", "ignored"):
            event["msg"] = "\n".join(self._words.failure(result))
        yield event
        facts = result.get("ansible_facts")
        measured = facts.get("groundstate") if isinstance(facts, dict) else None
        if isinstance(measured, dict) and measured.get("verdict"):
            names = ("verdict", "metric", "value", "low", "high", "unit", "proof", "record")
            yield {"event": "verdict", "host": host, **{name: measured.get(name) for name in names}}
        findings = result.get("findings")
        for finding in findings if isinstance(findings, list) else []:
            if isinstance(finding, dict) and "fix" in finding:
                yield {"event": "finding", "host": host, **finding}

    def _said(self, text: str) -> Iterator[Event]:
        """Lines that were displayed: how far a host is ("node1: loading weights"), or anything else."""
        host, colon, rest = text.partition(": ")
        if colon and host in self.running and "\n" not in text:
            yield {"event": "host_progress", "host": host, "text": rest}
        elif text.strip():
            yield {"event": "output", "text": text}
