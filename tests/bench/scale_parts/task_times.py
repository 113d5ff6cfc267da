"""A callback that writes when each task of a play began, as JSON lines; enabled by scale.py alone."""

from __future__ import annotations

import json
import os
import time

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: task_times
type: aggregate
short_description: When each task began
description: One JSON line each, in the file that SCALE_TIMES names.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "task_times"
    CALLBACK_NEEDS_ENABLED = True

    def _note(self, name: str) -> None:
        with open(os.environ["SCALE_TIMES"], "a", encoding="utf-8") as out:
            out.write(json.dumps([name, time.perf_counter()]) + "\n")

    def v2_playbook_on_play_start(self, play):
        self._note("(play)")

    def v2_playbook_on_task_start(self, task, is_conditional):
        self._note(task.get_name())

    def v2_playbook_on_stats(self, stats):
        self._note("(end)")
