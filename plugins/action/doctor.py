# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of doctor: findings from results. It needs no connection to the host."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils import doctor, records

RESULTS = ("preflight", "reset", "gpus", "info", "proof", "environment", "fingerprint")
ARGUMENTS = {
    **{name: {"type": "dict", "default": {}} for name in RESULTS},
    "server": {"type": "str", "default": ""},
    "records_dir": {"type": "path", "default": ""},
    "group": {"type": "str", "default": ""},
}


class ActionModule(ActionBase):
    """Reads results and records, changes nothing."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller. Damaged records are findings, too."""
        super().run(tmp, task_vars)
        _spec, given = self.validate_argument_spec(argument_spec=ARGUMENTS)
        host = (task_vars or {})["inventory_hostname"]
        info = given["info"]
        launched = doctor.told(info) and info.get("health") != "absent"
        found = doctor.preflight(given["preflight"])
        found += doctor.gpus(given["gpus"]) + doctor.leftovers(given["reset"])
        found += doctor.environment(given["environment"], launched) if doctor.told(given["environment"]) else []
        found += doctor.server(info, given["server"]) + doctor.proof(given["proof"])
        try:
            baseline = self._baseline(given["records_dir"], host, given["group"] or host, given["server"])
            found += doctor.changes(given["fingerprint"], baseline)
        except records.RecordError as error:
            found.append(doctor.finding(doctor.PROBLEM, str(error), "records", "Move the file away, or restore it"))
        found = doctor.ordered(found)
        problems = sum(one["level"] == doctor.PROBLEM for one in found)
        return {
            "changed": False,
            "findings": found,
            "problems": problems,
            "count": doctor.count(found),
            "lines": doctor.lines(found),
        }

    @staticmethod
    def _baseline(directory: str, host: str, group: str, server: str) -> dict[str, Any] | None:
        """The newest record of the baseline of a server, this host's before those of its group."""
        if not directory or not server:
            return None
        named = records.baseline_names(directory, group)
        for one, identifier in sorted(named, key=lambda name: (name[0] == host, name[1]), reverse=True):
            record = records.read_record(directory, one, identifier)
            if record and record["measurement"]["server"]["name"] == server:
                return record
        return None
