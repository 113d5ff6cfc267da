# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Writes the page of a comparison beside its document, on the controller."""

from __future__ import annotations

import os
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..plugin_utils import comparisons, records
from ..plugin_utils.pages import comparison_page, html


class ActionModule(ActionBase):
    """Runs without a connection to the host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller. Raises AnsibleActionFail with one sentence."""
        super().run(tmp, task_vars)
        _spec, arguments = self.validate_argument_spec(
            argument_spec={
                "records_dir": {"type": "path", "required": True},
                "id": {"type": "str", "required": True},
                "path": {"type": "path"},
            }
        )
        host, directory = (task_vars or {})["inventory_hostname"], arguments["records_dir"]
        try:
            page = comparison_page.of(directory, host, arguments["id"])
            path = arguments["path"] or os.path.join(
                comparisons.folder(directory, host, arguments["id"]), comparisons.PAGE
            )
            changed = html.write(path, page, self._task.check_mode)
        except (records.RecordError, html.PageError) as error:
            raise AnsibleActionFail(str(error)) from None  # Ansible would repeat the cause in its own words
        except OSError as error:
            raise AnsibleActionFail(f"cannot write the page of comparison {arguments['id']}: {error}") from error
        result: dict[str, Any] = {"changed": changed, "path": path, "charts": html.can_plot()}
        if not result["charts"]:
            result["warnings"] = [f"{path} has tables only: {html.NO_CHARTS}"]
        return result
