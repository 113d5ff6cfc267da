# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the module llm_benchmark and, on a local connection, show how far it is.

The module keeps ``progress.json`` up to date next to the server's record. On other connections it runs silently: a
second connection for a line of progress could itself disturb what is measured.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils import files

display = Display()

MODULE = "groundstate.llm.llm_benchmark"
POLL_S = 0.5
SHOW_S = 5.0


class ActionModule(ActionBase):
    """The controller's half of llm_benchmark."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        shown = Shown(str((task_vars or {}).get("inventory_hostname", "?")), self._progress_file())
        shown.start()
        try:
            result.update(self._execute_module(module_name=MODULE, task_vars=task_vars))
        finally:
            shown.stop()
        return result

    def _progress_file(self) -> str | None:
        home, server = self._task.args.get("home"), self._task.args.get("server")
        if self._connection.transport != "local" or not home or not server or self._task.check_mode:
            return None
        return os.path.join(os.path.expanduser(str(home)), "servers", str(server), "progress.json")


class Shown(threading.Thread):
    """Displays a progress file: each phase as it begins, then a line every few seconds."""

    def __init__(self, host: str, path: str | None) -> None:
        super().__init__(daemon=True)
        self.host, self.path = host, path
        self.began = time.time()
        self._over = threading.Event()

    def run(self) -> None:
        phase, shown_at = "", 0.0
        while self.path is not None and not self._over.wait(POLL_S):
            try:
                told = files.read_json(self.path)
            except (OSError, ValueError):
                continue  # what cannot be read is not shown; the measurement does not depend on it
            # A file that a killed run left behind speaks of another measurement.
            if not isinstance(told, dict) or told.get("began", 0.0) < self.began:
                continue
            if told["phase"] != phase or time.monotonic() - shown_at >= SHOW_S:
                phase, shown_at = told["phase"], time.monotonic()
                display.display(f"{self.host}: {line(told)}")

    def stop(self) -> None:
        self._over.set()
        self.join()


def line(told: dict[str, Any]) -> str:
    """A progress document as a line, such as "measuring 3 of 5 requests, about 9 s left"."""
    words = [str(told["phase"])]
    if told.get("total"):
        # Warm-up goes on until the server is steady: it may take more requests than the declared least.
        words.append(f"{told['done']} of {max(told['total'], told['done'])} requests")
    if told.get("eta_s"):
        words.append(f"about {told['eta_s']:.0f} s left")
    return " ".join(words[:2]) + (f", {words[2]}" if len(words) > 2 else "")
