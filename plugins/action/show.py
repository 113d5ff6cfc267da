# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print lines as they are: a table in a debug task would come out as quoted strings with escapes."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display


class ActionModule(ActionBase):
    """Runs on the controller, without a connection to the host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print the title, underlined, and the lines."""
        super().run(tmp, task_vars)
        _spec, arguments = self.validate_argument_spec(
            argument_spec={
                "title": {"type": "str", "required": True},
                "lines": {"type": "list", "elements": "str", "default": []},
            }
        )
        title, lines = arguments["title"], arguments["lines"]
        # One call, so that the lines of several hosts do not mix.
        Display().display("\n".join(["", title, "-" * len(title), *lines, ""]))
        return {"changed": False}
