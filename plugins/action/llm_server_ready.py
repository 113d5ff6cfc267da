# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Call the module llm_server_ready in slices and show each phase as it comes."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

MODULE = "groundstate.llm.llm_server_ready"
#: A connection may drop while a model loads for minutes; the server does not depend on it.
RETRIES = 5


class ActionModule(ActionBase):
    """The controller's half of llm_server_ready."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        host = str((task_vars or {}).get("inventory_hostname", "?"))
        arguments = dict(self._task.args)
        begin = time.monotonic()
        # None until it is known: 0 leaves the patience to the module, which knows the model.
        deadline = begin + patience if (patience := _seconds(arguments.get("timeout_s", 0))) else None
        shown = Shown(host)
        failures = 0
        while True:
            if deadline is not None:
                arguments["timeout_s"] = max(0.001, deadline - time.monotonic())
            try:
                answer = self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars)
            except AnsibleConnectionFailure as error:
                failures += 1
                if failures > RETRIES or (deadline is not None and time.monotonic() >= deadline):
                    raise
                display.display(f"{host}: connection lost ({error}); trying again")
                time.sleep(min(2.0 * failures, 10.0))
                continue
            failures = 0
            if deadline is None and answer.get("timeout_s"):
                deadline = begin + float(answer["timeout_s"])
            if not answer.get("already_ready"):
                shown.show(answer)
            if answer.get("failed") or answer.get("skipped") or answer.get("ready"):
                result.update(answer)
                return result
            if "ready" not in answer:
                result.update(answer, failed=True, msg=answer.get("msg", f"{MODULE} gave no answer"))
                return result


def _seconds(value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        return 0.0  # the module refuses the value in its own words
    return found if 0.0 < found < float("inf") else 0.0  # as it does these


class Shown:
    """What has been displayed of the phases: each one once, what took unusually long or short, and signs of life."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.seen: set[tuple[str, float]] = set()
        self.noted: set[tuple[str, float]] = set()

    def show(self, answer: dict[str, Any]) -> None:
        """Display what is new in an answer."""
        phases = answer.get("phases") or []
        new = False
        for one in phases:
            key = (one["name"], one["at_s"])
            if key not in self.seen:
                self.seen.add(key)
                new = True
                self._say(f"{one['name']} (at {one['at_s']:.1f} s)")
            if one.get("note") and key not in self.noted:
                self.noted.add(key)
                self._say(f"  {one['note']}")
        if phases and not new and answer.get("ready") is False:
            self._say(self._life(phases[-1], answer))

    def _life(self, phase: dict[str, Any], answer: dict[str, Any]) -> str:
        """How far the phase is: "loading weights 12/62 (19 %) for 45 s, last time 96 s, waiting for ..."."""
        was = f", last time {phase['was_s']:.0f} s" if phase.get("was_s") else ""
        waiting = f", waiting for {answer['waiting_for']}" if answer.get("waiting_for") else ""
        spent = answer["elapsed_s"] - phase["at_s"]
        return f"{phase['name']}{_share(answer.get('progress') or '')} for {spent:.0f} s{was}{waiting}"

    def _say(self, text: str) -> None:
        display.display(f"{self.host}: {text}")


def _share(progress: str) -> str:
    """ "12/62" -> " 12/62 (19 %)"."""
    done, _slash, total = progress.partition("/")
    if not total.isdigit() or not done.isdigit() or not int(total):
        return f" {progress}" if progress else ""
    return f" {progress} ({100 * int(done) // int(total)} %)"
