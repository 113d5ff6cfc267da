# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of rollout_gate: whether the next batch may begin, and which hosts of this one go back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..plugin_utils import records, rollout_plan, rollout_report, rollout_state

ARGUMENTS = {
    "records_dir": {"type": "path", "required": True},
    "rollout": {"type": "str", "default": ""},
    "batch": {"type": "dict", "required": True},
    "hosts": {"type": "dict", "required": True},
    "max_failed": {"type": "raw", "default": 0},
    "on_failure": {"type": "str", "choices": ["stop", "rollback"], "default": "stop"},
}
SILENT = "it stopped answering while its batch ran"


class ActionModule(ActionBase):
    """Runs once a batch, on the controller."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Raises AnsibleActionFail with one sentence."""
        super().run(tmp, task_vars)
        _spec, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        hostvars = (task_vars or {})["hostvars"]
        try:
            limit = rollout_plan.amount(arguments["max_failed"], "rollout_max_failed")
            if not arguments["rollout"]:
                # Nothing was deployed: all batches are gone through, whatever was found.
                told = {host: _told(host, hostvars, one) for host, one in arguments["hosts"].items()}
                return self._judge(arguments, limit, told, stops=False)
            with rollout_state.changing(arguments["records_dir"], arguments["rollout"]) as state:
                result = self._judge(arguments, limit, state["hosts"], stops=True)
                number = arguments["batch"]["number"]
                state["hosts"].update(result["entries"])
                state["gates"] = [one for one in state["gates"] if one["batch"] != number]
                state["gates"].append({"batch": number, **result["gate"]})
                if result["stop"]:
                    state["state"] = rollout_state.STOPPED
            return result
        except (ValueError, records.RecordError) as error:
            raise AnsibleActionFail(str(error)) from error

    def _judge(
        self, arguments: dict[str, Any], limit: rollout_plan.Amount, hosts: Mapping[str, Any], stops: bool
    ) -> dict[str, Any]:
        batch = arguments["batch"]
        entries = {host: dict(hosts[host]) for host in batch["hosts"]}
        for entry in entries.values():
            if not entry["outcome"]:  # Ansible lost it on the way
                entry.update(outcome=rollout_plan.UNREACHABLE, why=[SILENT])
        gate = rollout_plan.gate({host: one["outcome"] for host, one in entries.items()}, limit)
        stop = stops and gate.stop
        rolls = stop and arguments["on_failure"] == "rollback"
        back = self._to_roll_back(batch["run"], entries) if rolls else []
        return {
            "changed": False,
            "stop": stop,
            "gate": gate.as_dict(),
            "roll_back": back,
            "entries": entries,
            "lines": _lines(gate, entries, back if rolls else None),
        }

    @staticmethod
    def _to_roll_back(run: list[str], entries: Mapping[str, dict[str, Any]]) -> list[str]:
        found = []
        for host in run:
            entry = entries[host]
            if entry["outcome"] == rollout_plan.UNREACHABLE:
                entry["way_back"] = "it does not answer"
            if entry.get("way_back"):
                entry["rolled_back"] = f"not rolled back: {entry['way_back']}"
            else:
                found.append(host)
        return found


def _told(host: str, hostvars: Mapping[str, Any], planned: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a host told last, where no file does."""
    found: Mapping[str, Any] = (hostvars[host].get("rollout_host_result") or {}).get("entry") or planned
    return found


def _lines(gate: rollout_plan.Gate, entries: Mapping[str, dict[str, Any]], back: list[str] | None) -> list[str]:
    good = gate.size - len(gate.bad)
    found = [f"{good} of {gate.size} passed; {gate.allowed} may fail"]
    for host, outcome in gate.bad.items():
        found.append(f"{host}: {outcome}: {rollout_report.first_line('; '.join(entries[host]['why']))}")
    if gate.stop and back is not None:
        found.append(f"rolled back now: {', '.join(back) or 'none'}")
        found += [f"{host}: {one['rolled_back']}" for host, one in entries.items() if one.get("way_back")]
    return found
