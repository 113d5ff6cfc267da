# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Calm output of a playbook: one line a step, failures in words, one table at the end."""

from __future__ import annotations

DOCUMENTATION = """
name: baseline
type: stdout
author:
  - Groundstate contributors (@groundstate)
short_description: One line a step, failures in words, one table at the end
version_added: 0.1.0
description:
  - >-
    Shows a step when it is over on all its hosts, in one line: what came of it, the seconds it took, its role and its
    name. Steps that were skipped on every host, and those that only print or remember something, have no line.
  - A failure is shown at once, as the message that the module gave, without the result around it.
  - >-
    The table at the end is Ansible's own recap, with the seconds that each host worked and, where a server was
    measured, the verdict and the rate.
  - >-
    Warnings, differences (C(--diff)) and messages of M(ansible.builtin.debug) are shown as by the callback
    P(ansible.builtin.default#callback). With C(-v) and more, everything is.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - Set as stdout in configuration, C(stdout_callback = groundstate.llm.baseline); the ansible.cfg of a checkout does
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from ansible import constants as C
from ansible.plugins.callback.default import CallbackModule as Default
from ansible.utils.color import colorize, hostcolor

from ..plugin_utils import step_words


def _calm(method: Callable[..., None]) -> Callable[..., None]:
    """Leave an event to the default callback when more output is asked for (-v)."""
    default = getattr(Default, method.__name__)

    @wraps(method)
    def either(self: CallbackModule, *arguments: Any, **named: Any) -> None:
        (default if self._display.verbosity else method)(self, *arguments, **named)

    return either


class Step:
    """A task on the hosts of a play, from its first start to its last result."""

    def __init__(self, title: str, action: str) -> None:
        self.phase, self.name = step_words.split(title)
        self.action = action
        self.began = time.monotonic()
        self.ended = self.began
        self.waiting: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def begin(self, host: str) -> None:
        """A host begins with it."""
        self.waiting[host] = time.monotonic()

    def end(self, host: str, outcome: str) -> float:
        """A host is through with it; the seconds that it took there."""
        self.ended = time.monotonic()
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        return self.ended - self.waiting.pop(host, self.began)


class CallbackModule(Default):
    """The callback; each event is one of the documented ``v2_`` methods."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "groundstate.llm.baseline"

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[str, Step] = {}
        self._seconds: dict[str, float] = {}
        self._told: dict[str, str] = {}

    # --- plays and steps -------------------------------------------------------------------------

    @_calm
    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._flush()
        self._play = play
        name = play.get_name().strip() or "Play"
        note = " (check mode: nothing is changed)" if play.check_mode else ""
        self._display.display(f"\n{name}{note}", color=C.COLOR_HIGHLIGHT)

    @_calm
    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._flush()
        # Its name is templated now, and no longer when its results come.
        self._steps.setdefault(task._uuid, Step(task.get_name(), task.action))

    @_calm
    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        self._flush()
        self._steps.setdefault(task._uuid, Step(task.get_name(), task.action))

    @_calm
    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        self._step(task).begin(host.get_name())

    @_calm
    def v2_playbook_on_include(self, included_file: Any) -> None:
        """The steps that come of it speak for themselves."""

    @_calm
    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """The failures were shown, the table counts them."""

    def _step(self, task: Any) -> Step:
        return self._steps.setdefault(task._uuid, Step(task.get_name(), task.action))

    def _flush(self) -> None:
        """Show the steps that are over. With other strategies than linear, others may still be under way."""
        for key, step in list(self._steps.items()):
            if step.waiting:
                continue
            del self._steps[key]
            if step_words.worth_a_line(step.action, step.counts):
                text = step_words.line(step.counts, step.ended - step.began, step.phase, step.name)
                self._display.display(text, color=_COLOURS[step_words.worst(step.counts)])

    # --- results ---------------------------------------------------------------------------------

    def _end(self, result: Any, outcome: str) -> None:
        host = result.host.get_name()
        seconds = self._step(result.task).end(host, outcome)
        self._seconds[host] = self._seconds.get(host, 0.0) + seconds

    @_calm
    def v2_runner_on_ok(self, result: Any) -> None:
        self._handle_warnings(result.result)
        self._end(result, "changed" if result.result.get("changed") else "ok")
        told = step_words.verdict(result.result)
        if told:
            self._told[result.host.get_name()] = told
        if result.task.action in step_words.SPEAKING:
            self._say(result)

    @_calm
    def v2_runner_on_skipped(self, result: Any) -> None:
        self._handle_warnings(result.result)
        self._end(result, "skipped")

    @_calm
    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._handle_warnings(result.result)
        self._end(result, "ignored" if ignore_errors else "failed")
        if not (result.task.loop and "results" in result.result):  # of a loop, its items were shown
            self._fail(result, "failed, ignored" if ignore_errors else "failed")

    @_calm
    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._handle_warnings(result.result)
        self._end(result, "unreachable")
        self._fail(result, "unreachable")

    @_calm
    def v2_runner_item_on_ok(self, result: Any) -> None:
        self._handle_warnings(result.result)
        if result.task.action in step_words.SPEAKING:
            self._say(result)

    @_calm
    def v2_runner_item_on_skipped(self, result: Any) -> None:
        self._handle_warnings(result.result)

    @_calm
    def v2_runner_item_on_failed(self, result: Any) -> None:
        self._handle_warnings(result.result)
        self._fail(result, f"failed for {self._get_item_label(result.result)}")

    @_calm
    def v2_runner_retry(self, result: Any) -> None:
        tries, most = result.result.get("attempts", "?"), result.result.get("retries", "?")
        self._display.display(f"{self.host_label(result)}: try {tries} of {most} failed, trying again")

    @_calm
    def v2_on_file_diff(self, result: Any) -> None:
        results = result.result.get("results", []) if result.task.loop else [result.result]
        for one in results:
            if isinstance(one, Mapping) and one.get("changed") and one.get("diff"):
                text = self._get_diff(one["diff"])
                if text:
                    self._display.display(f"{self.host_label(result)}: {self._step(result.task).name}\n{text}")

    def _say(self, result: Any) -> None:
        """What a debug task has to say."""
        text = result.result.get("msg")
        if not isinstance(text, str):
            self._clean_results(result.result, result.task.action)
            text = self._dump_results(result.result)
        self._display.display(f"{self.host_label(result)}: {text}")

    def _fail(self, result: Any, outcome: str) -> None:
        step = self._step(result.task)
        where = result.task.get_path()
        if where:
            where = min(where, os.path.relpath(where), key=len)
        phase = f"{step.phase}: " if step.phase else ""
        lines = [f"{self.host_label(result)}: {outcome}: {phase}{step.name}", *step_words.failure(result.result)]
        lines += [f"  (task in {where}; -v shows all of its result)"] if where else []
        colour = C.COLOR_UNREACHABLE if outcome == "unreachable" else C.COLOR_ERROR
        # One call, so that the lines of several hosts do not mix.
        self._display.display("\n".join(lines), color=colour, stderr=self.get_option("display_failed_stderr"))

    # --- the end ---------------------------------------------------------------------------------

    @_calm
    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._flush()
        self._display.banner("PLAY RECAP")
        for host in sorted(stats.processed):
            counts = stats.summarize(host)
            for shown in (True, False):  # on the screen, in the log file
                columns = " ".join(
                    colorize(name, counts[key], getattr(C, colour) if shown else None) for name, key, colour in _RECAP
                )
                label = hostcolor(host, counts, shown)
                more = f"{self._seconds.get(host, 0.0):7.1f} s  {self._told.get(host, '')}".rstrip()
                self._display.display(f"{label} : {columns} {more}", screen_only=shown, log_only=not shown)
        self._display.display("", screen_only=True)


_COLOURS = {
    "unreachable": C.COLOR_UNREACHABLE,
    "failed": C.COLOR_ERROR,
    "ignored": C.COLOR_WARN,
    "changed": C.COLOR_CHANGED,
    "ok": C.COLOR_OK,
    "skipped": C.COLOR_SKIP,
}
_RECAP = (
    ("ok", "ok", "COLOR_OK"),
    ("changed", "changed", "COLOR_CHANGED"),
    ("unreachable", "unreachable", "COLOR_UNREACHABLE"),
    ("failed", "failures", "COLOR_ERROR"),
    ("skipped", "skipped", "COLOR_SKIP"),
    ("rescued", "rescued", "COLOR_OK"),
    ("ignored", "ignored", "COLOR_WARN"),
)
