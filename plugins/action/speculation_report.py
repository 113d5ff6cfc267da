# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of speculation_report: reads a comparison and its records, adds what they say of speculation."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..plugin_utils import comparisons, records, speculation_analysis, speculation_lines

ARGUMENTS = {
    "records_dir": {"type": "path", "required": True},
    "id": {"type": "str", "required": True},
}


class ActionModule(ActionBase):
    """Analyse a comparison of kind speculation. It needs no connection to the host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller. Raises AnsibleActionFail with one sentence."""
        super().run(tmp, task_vars)
        _spec, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        host, directory = (task_vars or {})["inventory_hostname"], arguments["records_dir"]
        try:
            return self._report(directory, host, arguments["id"])
        except records.RecordError as error:
            raise AnsibleActionFail(str(error)) from error

    def _report(self, directory: str, host: str, identifier: str) -> dict[str, Any]:
        document = comparisons.read(directory, host, identifier)
        if document is None:
            raise records.RecordError(f"there is no comparison {identifier} of {host} in {directory}")
        if document["kind"] != "speculation":
            raise records.RecordError(
                f"comparison {identifier} of {host} is of kind {document['kind']}, not speculation; run speculation.yml"
            )
        found = speculation_analysis.analyse(document, _starts(directory, host, document))
        changed = found != document["speculation"]
        path = comparisons.path(directory, host, identifier)
        if changed and not self._task.check_mode:
            document["speculation"] = found
            comparisons.write(directory, document)
        return {"changed": changed, "speculation": found, "path": path, "summary": speculation_lines.lines(found)}


def _starts(directory: str, host: str, document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {}
    for start in document["starts"]:
        record = records.read_record(directory, host, start["record"])
        if record is None:
            raise records.RecordError(
                f"record {start['record']} of {host}, start {start['number']} of comparison {document['id']}, is gone"
            )
        found[start["record"]] = record
    return found
