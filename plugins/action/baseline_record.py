# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of baseline_record: verdict and record. It needs no connection to the host."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils import measurement
from ..module_utils.fingerprint import compare
from ..plugin_utils import records, summary, verdict

ARGUMENTS = {
    "records_dir": {"type": "path", "required": True},
    "measurement": {"type": "dict", "required": True},
    "fingerprints": {"type": "dict", "required": True},
    "proof": {"type": "dict", "default": {}},
    "ready": {"type": "dict", "default": {}},
    "profile": {"type": "str", "default": ""},
    "tolerance": {"type": "float", "default": 0.02},
    "accept": {"type": "bool", "default": False},
    "reused": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):
    """Write one record, once; compare it with the baseline of its declaration."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller. Raises AnsibleActionFail with one sentence."""
        super().run(tmp, task_vars)
        _spec, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        host = (task_vars or {})["inventory_hostname"]
        check = self._task.check_mode
        if not arguments["measurement"]:
            if check:
                return {"changed": False, "msg": "Nothing was measured in check mode, so there is nothing to record"}
            raise AnsibleActionFail("measurement is empty: run groundstate.llm.llm_benchmark before baseline_record")
        try:
            return self._record(host, arguments, check)
        except records.RecordError as error:
            raise AnsibleActionFail(str(error)) from error

    def _record(self, host: str, arguments: dict[str, Any], check: bool) -> dict[str, Any]:
        directory, measured = arguments["records_dir"], arguments["measurement"]
        fingerprint = arguments["fingerprints"].get("before") or {}
        key = records.baseline_key(measured["server"]["name"], fingerprint, measured["workload_hash"])
        path = records.record_path(directory, host, measured["id"])
        record = records.read_record(directory, host, measured["id"])
        baseline, warnings = records.baseline_records(directory, host, key)
        result: dict[str, Any] = {"changed": False, "record": path, "key": key}

        if record is None:
            decided = self._decide(directory, host, key, measured, fingerprint, baseline, arguments["tolerance"])
            record = {
                "schema": records.SCHEMA,
                "id": measured["id"],
                "host": host,
                "key": key,
                "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "profile": arguments["profile"],
                "proof": arguments["proof"],
                "ready": arguments["ready"],
                "fingerprints": arguments["fingerprints"],
                "measurement": measured,
                "verdict": decided.as_dict(),
            }
            if not check:
                records.write_record(directory, host, record)
            result["changed"] = True

        in_baseline = any(one["id"] == record["id"] for one in baseline)
        refused = verdict.refusals(measured)
        if refused and arguments["accept"]:
            raise AnsibleActionFail(f"record {path} cannot become (part of) a baseline: {'; '.join(refused)}")
        if not in_baseline and not refused and (arguments["accept"] or not baseline):
            if not check:
                label = "{name} {served_model_name}".format_map(measured["server"])
                records.add_to_baseline(directory, host, key, label, record["id"])
            in_baseline = result["changed"] = True

        shown = {**record, "in_baseline": in_baseline, "refused": refused}
        result.update(
            verdict=record["verdict"],
            in_baseline=in_baseline,
            summary=summary.lines(shown, path, arguments["reused"]),
            ansible_facts={"groundstate": self._facts(record, path, in_baseline)},
        )
        if warnings:
            result["warnings"] = warnings
        return result

    @staticmethod
    def _decide(
        directory: str,
        host: str,
        key: str,
        measured: dict[str, Any],
        fingerprint: dict[str, Any],
        baseline: list[dict[str, Any]],
        tolerance: float,
    ) -> verdict.Verdict:
        if baseline:
            before = baseline[-1]["fingerprints"].get("before") or {}
            return verdict.decide(measured, baseline, tolerance, compare.differences(before, fingerprint))
        other = records.last_of_server(directory, host, measured["server"]["name"])
        # One of this declaration that became no baseline is nothing to compare with, and nothing to warn of.
        if other is None or other.get("key") == key:
            return verdict.decide(measured, [], tolerance, [])
        before = other["fingerprints"].get("before") or {}
        changed = compare.differences(before, fingerprint)
        if other["measurement"]["workload_hash"] != measured["workload_hash"]:
            changed.insert(0, "the workload differs")
        reason = (
            f"the last record ({other['id']}, {other['measurement']['headline']['value']:.1f} tok/s) is of another "
            "declaration; this one begins a baseline of its own"
        )
        return verdict.decide(measured, [], tolerance, changed, incomparable=[reason])

    @staticmethod
    def _facts(record: dict[str, Any], path: str, in_baseline: bool) -> dict[str, Any]:
        return {
            **measurement.short(record["measurement"]),
            "proof": (record.get("proof") or {}).get("verdict", "off"),
            "verdict": record["verdict"]["verdict"],
            "ratio": record["verdict"]["ratio"],
            "in_baseline": in_baseline,
            "record": path,
        }
