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
        try:
            patience = float(arguments.get("timeout_s", 600))
        except (TypeError, ValueError):
            patience = 0.0  # the module refuses the value in its own words
        deadline = time.monotonic() + patience
        shown = Shown(host)
        failures = 0
        while True:
            if patience:
                arguments["timeout_s"] = max(0.0, deadline - time.monotonic())
            try:
                answer = self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars)
            except AnsibleConnectionFailure as error:
                failures += 1
                if failures > RETRIES or time.monotonic() >= deadline:
                    raise
                display.display(f"{host}: connection lost ({error}); trying again")
                time.sleep(min(2.0 * failures, 10.0))
                continue
            failures = 0
            if not answer.get("already_ready"):
                shown.show(answer)
            if answer.get("failed") or answer.get("skipped") or answer.get("ready"):
                result.update(answer)
                return result
            if "ready" not in answer:
                result.update(answer, failed=True, msg=answer.get("msg", f"{MODULE} gave no answer"))
                return result


class Shown:
    """What has been displayed of the phases: each one once, and a sign of life when a slice brings nothing new."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.names: list[tuple[str, float]] = []

    def show(self, answer: dict[str, Any]) -> None:
        """Display what is new in an answer."""
        phases = answer.get("phases") or []
        new = False
        for one in phases:
            key = (one["name"], one["at_s"])
            if key not in self.names:
                self.names.append(key)
                new = True
                display.display(f"{self.host}: {one['name']} (at {one['at_s']:.1f} s)")
        if phases and not new and not answer.get("ready"):
            progress = f" {answer['progress']}" if answer.get("progress") else ""
            waiting = f", waiting for {answer['waiting_for']}" if answer.get("waiting_for") else ""
            display.display(f"{self.host}: {phases[-1]['name']}{progress} {answer['elapsed_s']:.1f} s{waiting}")
