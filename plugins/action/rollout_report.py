# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of rollout_report: hosts that are unlike their group, the table, the end of the rollout's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..plugin_utils import records, rollout_plan, rollout_report, rollout_state

ARGUMENTS = {
    "records_dir": {"type": "path", "required": True},
    "rollout": {"type": "str", "default": ""},
    "hosts": {"type": "dict", "required": True},
    "tolerance": {"type": "float", "default": 0.02},
}
GOOD = ("", "ok", rollout_plan.PASSED)


class ActionModule(ActionBase):
    """Runs once, in the end."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Raises AnsibleActionFail with one sentence."""
        super().run(tmp, task_vars)
        _spec, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        hostvars = (task_vars or {})["hostvars"]
        where, rollout = arguments["records_dir"], arguments["rollout"]
        try:
            if rollout:
                with rollout_state.changing(where, rollout) as state:
                    if state["state"] == rollout_state.RUNNING and all(
                        one["outcome"] for one in state["hosts"].values()
                    ):
                        state["state"] = rollout_state.COMPLETE
                    state["report"] = report = _report(where, state["hosts"], arguments["tolerance"])
            else:
                entries = {host: _told(host, hostvars, one) for host, one in arguments["hosts"].items()}
                for one in entries.values():
                    # Nobody measured or proved it: it is well as far as was looked.
                    one["outcome"] = "ok" if one["outcome"] == rollout_plan.PASSED else one["outcome"]
                state = {"id": "", "state": rollout_state.RUNNING, "hosts": entries}
                report = _report(where, entries, arguments["tolerance"])
        except records.RecordError as error:
            raise AnsibleActionFail(str(error)) from error
        bad = sorted(host for host, one in state["hosts"].items() if one["outcome"] not in GOOD)
        return {
            "changed": False,
            "state": state["state"],
            "title": _title(state),
            "bad": bad,
            "report": report,
            "lines": rollout_report.lines(state, report),
        }


def _told(host: str, hostvars: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
    told = (hostvars[host].get("rollout_host_result") or {}).get("entry") or planned
    return dict(told)


def _title(state: Mapping[str, Any]) -> str:
    if not state["id"]:
        return f"nothing was rolled out; {rollout_report.counts(state['hosts'])}"
    return f"{state['id']}: {state['state']}; {rollout_report.counts(state['hosts'])}"


def _report(where: str, entries: Mapping[str, Mapping[str, Any]], tolerance: float) -> dict[str, Any]:
    """Groups of the hosts that run what was rolled out, those that are too slow or not proved included."""
    found: dict[str, dict[str, Any]] = {}
    before: dict[str, float] = {}
    for host, entry in entries.items():
        if not entry.get("record") or entry["outcome"] in (rollout_plan.ROLLED_BACK, rollout_plan.NOT_ROLLED_BACK):
            continue
        record = records.read_record(where, host, entry["record"])
        if record is None:
            continue
        found[host] = record
        if entry.get("against"):
            before[host] = entry["before"]["value"]
    return {
        "groups": rollout_report.groups(found, before, tolerance),
        "drained": rollout_report.drained(entries),
    }
