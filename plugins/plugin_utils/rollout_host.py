# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One host of a rollout: what it served before, what became of it, whether it is back. Entries in, entries out."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from typing import Any

from ..module_utils import files
from . import explanations, records, rollout_plan, rollout_report, rollout_state, verdict

Entry = dict[str, Any]
BEFORE = "declaration before"


def begin(entry: Mapping[str, Any], batch: int, seen: Mapping[str, Any]) -> Entry:
    """The entry of a host whose turn it is. ``seen``: what reading the record of its server came to (slurp).

    Whether there is a way back is only told at the first try: after it, the host serves what the rollout brought.
    """
    made = {**entry, "batch": batch, "outcome": "", "why": []}
    if not made.get("began_at"):
        made["way_back"] = _no_way_back(entry.get("before"), seen)
    made["began_at"] = rollout_state.now()
    return made


def _no_way_back(before: Mapping[str, Any] | None, seen: Mapping[str, Any]) -> str:
    """Why a host cannot go back to what it served; "" when it can."""
    if not before:
        return "no record tells what was declared for it before"
    try:
        server = files.decode_json(base64.b64decode(seen.get("content") or "", validate=True))
        hash_now = server.get("declaration_hash")
    except (ValueError, binascii.Error, AttributeError):
        return f"its server {before['server']} of record {before['record']} is gone"
    if hash_now != before["declaration_hash"]:
        return f"it was deployed again since record {before['record']}, and no record tells with what"
    return ""


def record_of(path: str) -> dict[str, Any] | None:
    """The record at a path that baseline_record returned; None for "". Raises RecordError."""
    if not path:
        return None
    where, name = os.path.split(path)
    top, host = os.path.split(where)
    return records.read_record(top, host, name.removesuffix(".json"))


def against_before(
    records_dir: str, before: Mapping[str, Any] | None, record: dict[str, Any], tolerance: float
) -> dict[str, Any] | None:
    """The verdict of a record against the declaration before; None where the two cannot be compared.

    Another declaration has another baseline, so that the record's own verdict says nothing of it. The workload has to
    be the same: then both are rates of the same requests on the same host.
    """
    if not before:
        return None
    old = records.read_record(records_dir, record["host"], before["record"])
    if old is None or old["measurement"]["workload_hash"] != record["measurement"]["workload_hash"]:
        return None
    if old["id"] == record["id"]:
        return None
    accepted, _warnings = records.baseline_records(records_dir, old.get("group") or record["host"], old["key"])
    own = [one for one in accepted if one["host"] == record["host"]] or [old]
    found = verdict.decide(record, own, tolerance, explanations.between(old, record))
    names = ("verdict", "ratio", "ratio_low", "ratio_high", "baseline_value", "unit", "reasons", "explanations")
    return {name: getattr(found, name) for name in names}


def end(
    entry: Mapping[str, Any],
    error: str,
    unreachable: bool,
    proof: Mapping[str, Any],
    proof_failed: bool,
    record: dict[str, Any] | None,
    against: Mapping[str, Any] | None,
    max_drop: float,
) -> Entry:
    """The entry of a host that was deployed, or could not be."""
    made = {**entry, "ended_at": rollout_state.now(), "proof": proof.get("verdict")}
    verdicts = []
    if record is not None:
        told = record["verdict"]
        made.update(
            record=record["id"],
            value=record["measurement"]["headline"]["value"],
            verdict=told["verdict"],
            against=dict(against) if against else None,
            group=rollout_report.group_of(record),
        )
        verdicts = [told, *([{**against, "what": BEFORE}] if against else [])]
    found = rollout_plan.judge(error, unreachable, proof, proof_failed, verdicts, max_drop)
    made.update(outcome=found.outcome, why=found.why)
    return made


def came_back(entry: Mapping[str, Any], error: str, proof: Mapping[str, Any], record: dict[str, Any] | None) -> Entry:
    """The entry of a host after a rollback: it has to serve what it served before, proved and measured."""
    before = entry["before"]
    seen = proof.get("verdict")
    wrong = error
    if not wrong and seen is not None and seen != "proved":
        wrong = f"the profile before is not proved: {seen}"
    if not wrong and record is None:
        wrong = "it was not measured"
    if not wrong and record is not None and record.get("key") != before["key"]:
        wrong = f"it does not serve what record {before['record']} tells (key {record.get('key')}, not {before['key']})"
    made = {**entry, "ended_at": rollout_state.now()}
    made["outcome"] = rollout_plan.NOT_ROLLED_BACK if wrong else rollout_plan.ROLLED_BACK
    if wrong or record is None:
        made["rolled_back"] = f"NOT back at record {before['record']}: {wrong}"
    else:
        rate = record["measurement"]["headline"]["value"]
        proved = f", {seen}" if seen else ""
        made["rolled_back"] = f"back at record {before['record']}{proved}, {rate:.1f} tok/s (was {before['value']:.1f})"
    return made
