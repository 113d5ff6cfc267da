# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of rollout_host: one step of one host, written to the file of the rollout."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..plugin_utils import declared, records, rollout_host, rollout_plan, rollout_state

ARGUMENTS = {
    "records_dir": {"type": "path", "required": True},
    "rollout": {"type": "str", "default": ""},
    "entry": {"type": "dict", "default": {}},
    "step": {"type": "str", "required": True, "choices": ["begin", "drained", "undrained", "end", "restore", "back"]},
    "batch": {"type": "int", "default": 0},
    "seen": {"type": "dict", "default": {}},
    "error": {"type": "str", "default": ""},
    "proof": {"type": "dict", "default": {}},
    "record": {"type": "str", "default": ""},
    "max_drop": {"type": "float", "default": 0.1},
    "tolerance": {"type": "float", "default": 0.02},
}


class ActionModule(ActionBase):
    """It needs no connection to the host: what the host did is in its arguments."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Raises AnsibleActionFail with one sentence."""
        super().run(tmp, task_vars)
        _spec, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        host = (task_vars or {})["inventory_hostname"]
        try:
            return self._step(host, arguments)
        except (records.RecordError, declared.DeclaredError) as error:
            raise AnsibleActionFail(str(error)) from error

    def _step(self, host: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if not arguments["rollout"]:  # check mode, or only some tags: nothing is written
            return self._changed(host, arguments["entry"], arguments)
        with rollout_state.changing(arguments["records_dir"], arguments["rollout"]) as state:
            result = self._changed(host, state["hosts"][host], arguments)
            state["hosts"][host] = result["entry"]
        return result

    def _changed(self, host: str, entry: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of the step, the new entry among it."""
        step, where = arguments["step"], arguments["records_dir"]
        seen, proof = arguments["seen"], arguments["proof"]
        result: dict[str, Any] = {"changed": False}
        if step == "begin":
            made = rollout_host.begin(entry, arguments["batch"], seen)
            if seen.get("unreachable"):
                result.update(failed=True, msg=f"{seen.get('msg') or 'it did not answer'}")
        elif step in ("drained", "undrained"):
            made = {**entry, "drained": step == "drained"}
        elif step == "restore":
            made = entry
            result["variables"] = self._restored(where, host, entry)
        else:
            record = rollout_host.record_of(arguments["record"])
            if step == "end":
                against = (
                    rollout_host.against_before(where, entry.get("before"), record, arguments["tolerance"])
                    if record
                    else None
                )
                unreachable = bool(seen.get("unreachable"))
                made = rollout_host.end(
                    entry,
                    arguments["error"],
                    unreachable,
                    {} if proof.get("skipped") else proof,
                    bool(proof.get("failed")),
                    record,
                    against,
                    arguments["max_drop"],
                )
            else:
                made = rollout_host.came_back(entry, arguments["error"], proof, record)
            result["good"] = made["outcome"] in (rollout_plan.PASSED, rollout_plan.ROLLED_BACK)
        return {**result, "entry": made}

    @staticmethod
    def _restored(where: str, host: str, entry: dict[str, Any]) -> dict[str, Any]:
        record = records.read_record(where, host, entry["before"]["record"])
        kept = (record or {}).get("declared")
        if not declared.usable(kept):
            raise AnsibleActionFail(f"record {entry['before']['record']} of {host} has no declaration to go back to")
        return declared.restored(kept, where)
