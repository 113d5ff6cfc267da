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
        batch, hostvars = arguments["batch"], (task_vars or {})["hostvars"]
        entries = {host: dict(arguments["hosts"][host]) for host in batch["hosts"]}
        for host in batch["run"]:
            entries[host] = _entry(host, hostvars, entries[host])
        try:
            limit = rollout_plan.amount(arguments["max_failed"], "rollout_max_failed")
            gate = rollout_plan.gate({host: one["outcome"] for host, one in entries.items()}, limit)
            back = self._to_roll_back(batch["run"], entries) if gate.stop else []
            if arguments["rollout"]:
                self._write(arguments, gate, entries)
        except (ValueError, records.RecordError) as error:
            raise AnsibleActionFail(str(error)) from error
        # Without a file nothing was deployed: all batches are gone through.
        stop = gate.stop and bool(arguments["rollout"])
        rolls = stop and arguments["on_failure"] == "rollback"
        return {
            "changed": False,
            "stop": stop,
            "gate": gate.as_dict(),
            "roll_back": back if rolls else [],
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

    @staticmethod
    def _write(arguments: dict[str, Any], gate: rollout_plan.Gate, entries: Mapping[str, dict[str, Any]]) -> None:
        with rollout_state.changing(arguments["records_dir"], arguments["rollout"]) as state:
            number = arguments["batch"]["number"]
            state["gates"] = [one for one in state["gates"] if one["batch"] != number]
            state["gates"].append({"batch": number, **gate.as_dict()})
            state["hosts"].update(entries)
            if gate.stop:
                state["state"] = rollout_state.STOPPED


def _entry(host: str, hostvars: Mapping[str, Any], planned: dict[str, Any]) -> dict[str, Any]:
    """What a host told last; a host that Ansible lost on the way told nothing."""
    told = hostvars[host].get("rollout_host_result") or {}
    if "entry" in told:
        return dict(told["entry"])
    begun = (hostvars[host].get("rollout_begin_result") or {}).get("entry") or planned
    return {**begun, "outcome": rollout_plan.UNREACHABLE, "why": [SILENT]}


def _lines(gate: rollout_plan.Gate, entries: Mapping[str, dict[str, Any]], back: list[str] | None) -> list[str]:
    good = gate.size - len(gate.bad)
    found = [f"{good} of {gate.size} passed; {gate.allowed} may fail"]
    for host, outcome in gate.bad.items():
        found.append(f"{host}: {outcome}: {rollout_report.first_line('; '.join(entries[host]['why']))}")
    if gate.stop and back is not None:
        found.append(f"rolled back now: {', '.join(back) or 'none'}")
        found += [f"{host}: {one['rolled_back']}" for host, one in entries.items() if one.get("way_back")]
    return found
