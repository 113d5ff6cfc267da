# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a start has come to: phases from log lines, and the order of probes that makes "ready". Pure: no clock, no I/O.

All times are seconds since the launch.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import Any

from . import files
from .engines.base import Engine, Request

FIRST_PHASE = "starting"
LONGEST_S = 366 * 86400.0
READY = "ready"
_STATUS = re.compile(r"\d{1,3}", re.ASCII)
#: What is known of a phase when it has ended.
MEASURED = ("seconds", "disk_bytes")


@dataclass
class Timeline:
    """The phases of one start, in the order in which they came; the last one is the current one."""

    phases: list[dict[str, Any]] = field(default_factory=lambda: [{"name": FIRST_PHASE, "at_s": 0.0}])
    progress: str = ""

    @property
    def current(self) -> str:
        return str(self.phases[-1]["name"])

    def enter(self, name: str, at_s: float) -> None:
        """Begin a phase. Times never go back: a line may be read after one that was written later."""
        if name == self.current:
            return
        at_s = round(max(at_s, self.phases[-1]["at_s"]), 3)
        self.phases[-1]["seconds"] = round(at_s - self.phases[-1]["at_s"], 3)
        self.phases.append({"name": name, "at_s": at_s})
        self.progress = ""

    def feed(self, engine: Engine, line: str, read_at_s: float, launched_at: float) -> None:
        """Take one log line.

        The line's own time bounds that of reading, which may be much later, where it has one that can be true (time
        zones and clocks may differ).
        """
        name = engine.phase_of(line)
        if name is None:
            done = engine.progress_of(self.current, line)
            if done:
                self.progress = f"{done[0]}/{done[1]}"
            return
        stamp = engine.line_time(line)
        at_s = read_at_s
        if stamp is not None and launched_at - 1.0 <= stamp <= launched_at + read_at_s + 1.0:
            earliest = max(0.0, stamp - launched_at)
            at_s = min(read_at_s, earliest + engine.stamp_resolution_s)
        self.enter(name, at_s)

    def finish(self, at_s: float) -> None:
        self.enter(READY, at_s)

    def report(self) -> list[dict[str, Any]]:
        """Phases with name, at_s, seconds and disk_bytes (None: not known, or it has not ended)."""
        return [
            {"name": one["name"], "at_s": one["at_s"], **{key: one.get(key) for key in MEASURED}} for one in self.phases
        ]


def check_seconds(**named: float) -> None:
    """Raises ValueError, naming the option, for what is no patience: negative, NaN, or longer than a year."""
    for name, value in named.items():
        if not 0.0 <= value <= LONGEST_S:
            raise ValueError(f"{name}: {value} is no number of seconds from 0 to {LONGEST_S:.0f}")


def split_lines(text: str, rest: str = "") -> tuple[list[str], str]:
    """Complete lines of a piece of a log, and the unfinished last one. Progress bars end their lines with a return."""
    parts = re.split(r"\r\n|\n|\r", rest + text)
    # What is kept of an unfinished line has a bound, too: some never end.
    return [files.plain(one) for one in parts[:-1] if one.strip()], parts[-1][: files.LONGEST_LINE]


@dataclass
class Probes:
    """The HTTP probes in their order: health, model list, own completion. A failure starts over.

    While the health request fails although something answers, the model list is asked for now and then: when it was
    there first is worth knowing (SGLang lists the model before its warm-up), and makes nothing ready.
    """

    engine: Engine
    declaration: dict[str, Any]
    first_s: dict[str, float] = field(default_factory=dict)
    last: str = "no request was answered yet"
    done: bool = False
    _step: int = 0
    _aside: bool = False

    STEPS = ("health", "models", "completion")
    #: Tokens of the completion: few, and exactly so many where the engine can be held to it.
    TOKENS = 2

    @property
    def step(self) -> str:
        return self.STEPS[self._step]

    def next_request(self) -> Request:
        if self._aside or self.step == "models":
            return Request(self.engine.models_path)
        if self.step == "health":
            return self.engine.health_probe()
        return self.engine.completion_probe(self.declaration, self.TOKENS)

    def take(self, status: int, reply: Any, error: str, at_s: float) -> None:
        """The answer to :meth:`next_request`: HTTP status (0: none), decoded JSON or None, and what went wrong."""
        if self._aside:
            self._aside = False
            if not self._judge("models", status, reply, error):
                self.first_s.setdefault("models", round(at_s, 3))
            return
        step = self.step
        why = self._judge(step, status, reply, error)
        if why:
            self.last = f"{step}: {why}"
            # A server that was up and no longer answers has to pass all of it again.
            self._step = 0
            self._aside = step == "health" and bool(status) and "models" not in self.first_s
            return
        self.first_s.setdefault(step, round(at_s, 3))
        self.last = f"{step}: ok"
        if step == self.STEPS[-1]:
            self.done = True
        else:
            self._step += 1

    def _judge(self, step: str, status: int, reply: Any, error: str) -> str:
        if error:
            return error
        if status == 404 and step == "health":
            return ""  # not every server has it; the completion decides
        if status != 200:
            return f"HTTP {status}" + (f" {_message(reply)}" if _message(reply) else "")
        if step == "models":
            names = [str(one.get("id")) for one in _entries(reply)]
            wanted = self.engine.served_name(self.declaration)
            told = files.plain(", ".join(names), 200) or "no model"
            return "" if wanted in names else f"the list names {told}, not {wanted}"
        return self._judge_completion(reply) if step == "completion" else ""

    def _judge_completion(self, reply: Any) -> str:
        usage = reply.get("usage") if isinstance(reply, dict) else None
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        choices = reply.get("choices") if isinstance(reply, dict) else None
        if tokens is None and choices:
            return ""  # a server without usage: it answered with a choice
        if not tokens:
            return "the reply has no tokens"
        if self.engine.supports_ignore_eos and tokens != self.TOKENS:
            return f"the reply has {tokens} tokens, {self.TOKENS} were asked for"
        return ""


def _entries(reply: Any) -> list[dict[str, Any]]:
    data = reply.get("data") if isinstance(reply, dict) else None
    return [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []


def _message(reply: Any) -> str:
    error = reply.get("error") if isinstance(reply, dict) else None
    text = error.get("message") if isinstance(error, dict) else error
    return files.plain(str(text), 200) if text else ""


def exit_words(text: str) -> str:
    """What the supervisor's "<status> <time>" means; also takes a signal's name in place of the status (systemd)."""
    status = text.split()[0] if text.split() else ""
    if _STATUS.fullmatch(status):
        number = int(status)
        if number > 128:
            return f"killed by {_signal_name(number - 128)} (exit status {number}){_hint(number - 128)}"
        return f"exit status {number}"
    if status:
        name = status if status.startswith("SIG") else f"SIG{status}"
        number = int(getattr(signal, name, 0))
        return f"killed by {name}{_hint(number)}"
    return "exit status not recorded"


def exit_signal(text: str) -> int:
    """The number of the signal that ended the process, 0 for none, from the same text as :func:`exit_words`."""
    status = text.split()[0] if text.split() else ""
    if _STATUS.fullmatch(status):
        return max(0, int(status) - 128)
    return int(getattr(signal, status if status.startswith("SIG") else f"SIG{status}", 0)) if status else 0


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _hint(number: int) -> str:
    return {
        int(signal.SIGKILL): ": by somebody, or by the kernel for want of memory",
        int(signal.SIGBUS): ": often /dev/shm is full or too small",
        int(signal.SIGSEGV): ": a crash in native code",
        int(signal.SIGABRT): ": the program gave up (abort), its reason is in the log",
    }.get(number, "")
