# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of baseline_record: verdict and record. It needs no connection to the host."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils import measurement
from ..plugin_utils import declared, explanations, index, records, role_values, summary, verdict

ARGUMENTS = {
    "records_dir": {"type": "path", "required": True},
    "measurement": {"type": "dict", "required": True},
    "fingerprints": {"type": "dict", "required": True},
    "proof": {"type": "dict", "default": {}},
    "ready": {"type": "dict", "default": {}},
    "profile": {"type": "str", "default": ""},
    "tolerance": {"type": "float", "default": 0.02},
    "accept": {"type": "bool", "default": False},
    "group": {"type": "str", "default": ""},
    "looks": {"type": "list", "elements": "int", "default": list(verdict.LOOKS)},
    "history_url": {"type": "str", "default": "", "no_log": True},
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
        for check_value, name in ((verdict.check_looks, "looks"), (verdict.check_tolerance, "tolerance")):
            try:
                check_value(arguments[name])
            except ValueError as error:
                raise AnsibleActionFail(f"{name}: {error}") from error
        try:
            return self._record(host, arguments, check, task_vars or {})
        except records.RecordError as error:
            raise AnsibleActionFail(str(error)) from error

    def _record(self, host: str, arguments: dict[str, Any], check: bool, variables: dict[str, Any]) -> dict[str, Any]:
        directory, measured = arguments["records_dir"], arguments["measurement"]
        group = arguments["group"] or host
        fingerprint = arguments["fingerprints"].get("before") or {}
        key = records.baseline_key(measured["server"]["name"], fingerprint, measured["workload_hash"])
        path = records.record_path(directory, host, measured["id"])
        record = records.read_record(directory, host, measured["id"])
        baseline, warnings = records.baseline_records(directory, group, key)
        result: dict[str, Any] = {"changed": False, "record": path, "key": key}

        if record is None:
            record = {
                "schema": records.SCHEMA,
                "id": measured["id"],
                "host": host,
                "group": group,
                "key": key,
                "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "profile": arguments["profile"],
                "proof": arguments["proof"],
                "ready": arguments["ready"],
                "fingerprints": arguments["fingerprints"],
                "measurement": measured,
            }
            before = [] if check else self._history(directory, arguments["history_url"], host, key, warnings)
            record["verdict"] = self._decide(directory, record, baseline, before, arguments).as_dict()
            if not check:
                record["declared"] = self._declared(directory, measured, variables)
                records.write_record(directory, host, record)
            result["changed"] = True

        in_baseline = any((one.get("host"), one["id"]) == (host, record["id"]) for one in baseline)
        refused = verdict.refusals(measured)
        if refused and arguments["accept"]:
            raise AnsibleActionFail(f"record {path} cannot become (part of) a baseline: {'; '.join(refused)}")
        if not in_baseline and not refused and (arguments["accept"] or not baseline):
            if not check:
                label = "{name} {served_model_name}".format_map(measured["server"])
                records.add_to_baseline(directory, group, key, label, host, record["id"])
            warnings += _mixed(baseline, record)
            baseline.append(record)
            in_baseline = result["changed"] = True
        if result["changed"] and not check:
            self._history(directory, arguments["history_url"], host, key, warnings)

        standing = verdict.standing(baseline)
        shown = {**record, "in_baseline": in_baseline, "refused": refused, "baseline": standing}
        result.update(
            verdict=record["verdict"],
            in_baseline=in_baseline,
            baseline=standing,
            summary=summary.lines(shown, path, arguments["reused"]),
            ansible_facts={"groundstate": self._facts(shown, path)},
        )
        if warnings:
            result["warnings"] = sorted(set(warnings))
        return result

    def _declared(self, directory: str, measured: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any] | None:
        """What was declared for the measured server, a rollout's way back; None when this play did not deploy it."""
        launched = variables.get("llm_server_result") or {}
        if not declared.deployed(variables) or launched["declaration_hash"] != measured["server"]["declaration_hash"]:
            return None
        every = role_values.every_role(self._loader)
        values, problems = role_values.read(self._templar, declared.ROLES, every, variables)
        if problems:
            return None
        folder = declared.lock_folder(variables)
        found = declared.document(values, every, folder)
        try:
            declared.keep_lock(directory, found, folder)
        except OSError as error:
            raise records.RecordError(f"cannot keep the lock in {directory}: {error}") from error
        return found

    @staticmethod
    def _history(directory: str, url: str, host: str, key: str, warnings: list[str]) -> list[dict[str, Any]]:
        """Rows of what this host measured for this declaration, oldest first. The index may fail, records may not."""
        try:
            history = index.open_index(directory, url)
            warnings += history.refresh([host])
            return history.rows(headlines=True, host=host, baseline_key=key)
        except index.HistoryError as error:
            warnings.append(f"{error}; the records are complete, and 'groundstate history --rebuild' makes it anew")
            return []

    @staticmethod
    def _decide(
        directory: str,
        record: dict[str, Any],
        baseline: list[dict[str, Any]],
        history: list[dict[str, Any]],
        arguments: dict[str, Any],
    ) -> verdict.Verdict:
        if not baseline:
            return _without_baseline(directory, record, arguments)
        state = verdict.state(record)
        accepted = {(one.get("host"), one["id"]) for one in baseline}
        earlier = []
        for row in history[-2 * max(arguments["looks"]) :]:
            if row["state_hash"] == state and (row["host"], row["id"]) not in accepted:
                earlier.append(records.read_record(directory, row["host"], row["id"]))
        found = verdict.decide(
            record,
            baseline,
            arguments["tolerance"],
            explanations.between(baseline[-1], record),
            earlier=[one for one in earlier if one is not None],
            looks=arguments["looks"],
        )
        found.drift = verdict.drift([*history, verdict.as_row(record)])
        return found

    @staticmethod
    def _facts(record: dict[str, Any], path: str) -> dict[str, Any]:
        told = record["verdict"]
        return {
            **measurement.short(record["measurement"]),
            "proof": (record.get("proof") or {}).get("verdict", "off"),
            **{name: told[name] for name in ("verdict", "ratio", "ratio_low", "ratio_high", "mde", "drift")},
            "baseline_value": told["baseline_value"],
            "in_baseline": record["in_baseline"],
            "provisional": record["baseline"]["provisional"],
            "explanations": told["explanations"][:3],
            "record": path,
        }


def _mixed(baseline: list[dict[str, Any]], record: dict[str, Any]) -> list[str]:
    """A warning when a record of another state than its host's last one in the baseline joins it."""
    last = next((one for one in reversed(baseline) if one["host"] == record["host"]), None)
    if last is None or verdict.state(last) == verdict.state(record):
        return []
    differs = (explanations.between(last, record) or ["see their fingerprints"])[0]
    return [
        f"record {record['id']} is now part of a baseline whose last start was in another state ({differs}); to "
        "compare with the new state alone, move baseline.json away and accept its starts anew"
    ]


def _without_baseline(directory: str, record: dict[str, Any], arguments: dict[str, Any]) -> verdict.Verdict:
    """The first measurement of a declaration: of nothing, or after one of another declaration."""
    measured, tolerance = record["measurement"], arguments["tolerance"]
    other = records.last_of_server(directory, record["host"], measured["server"]["name"])
    changed = explanations.between(other, record) if other is not None else []
    # One of this declaration that became no baseline is nothing to compare with, and nothing to warn of.
    if other is None or other.get("key") == record["key"]:
        return verdict.decide(record, [], tolerance, changed, looks=arguments["looks"])
    if other["measurement"]["workload_hash"] != measured["workload_hash"]:
        changed.insert(0, "the workload differs")
    reason = (
        f"the last record ({other['id']}, {other['measurement']['headline']['value']:.1f} tok/s) is of another "
        "declaration; this one begins a baseline of its own"
    )
    return verdict.decide(record, [], tolerance, changed, incomparable=[reason], looks=arguments["looks"])
