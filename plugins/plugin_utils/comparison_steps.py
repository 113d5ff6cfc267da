# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The steps of a comparison: begin or go on, keep a start, see whether the arms differ as declared."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..module_utils import proof
from ..module_utils.fingerprint import explain, under_load
from . import (
    arm_state,
    comparison_run,
    comparison_verdict,
    comparisons,
    nothing_drafted,
    profile_in_force,
    records,
    verdict,
)


@dataclass
class Policy:
    """What decides about differences. ``profiles``: the NCCL profiles that are shipped."""

    covers: Sequence[Mapping[str, Any]] = ()
    allow: Sequence[str] = ()
    profiles: Mapping[str, Any] = field(default_factory=dict)


def begin(
    records_dir: str, made: comparisons.Document, policy: Policy, anew: bool, check: bool, leave: str = ""
) -> tuple[comparisons.Document, str, list[str]]:
    """The comparison to work on, whether it is new in words, and warnings.

    ``made``: a new one. The newest with its declaration takes its place unless ``anew``: a running one goes on where it
    was, a finished one stays as it is. ``leave``: what is to be left on the host at its end. Unless nothing is left to
    do, this run is noted as the one that compares on the host, before all else: raises RecordError when another one
    does. In check mode nothing is written, and that other one is a warning.
    """
    host = made["host"]
    warnings: list[str] = []
    damaged: list[str] = []

    def known() -> comparisons.Document | None:
        damaged.clear()
        return None if anew else comparisons.find(records_dir, host, made["declaration"], damaged)

    document = known()
    if document is None or not comparisons.over(document, leave):
        if check:
            warnings += comparison_run.told(records_dir, host)
        else:
            comparison_run.claim(records_dir, host, (document or made)["id"])
            document = known()  # the run before may have ended just now
    if document is None:
        # It may be the one that should have gone on.
        warnings += [f"{one}. This is a new comparison: it does not go on with that one" for one in damaged]
        document, fate = made, "new"
        other = _unfinished_namesake(records_dir, made)
        if other is not None:
            warnings.append(
                f"comparison {other['id']} has the same name ({made['title']}), another declaration, and is not "
                f"finished ({len(other['starts'])} starts are done); this is a new one. With its declaration it goes on"
            )
    elif document["state"] in comparisons.FINISHED:
        return document, f"{document['state']} already; -e compare_anew=true compares anew", warnings
    else:
        adopted = comparisons.adopt(records_dir, document)
        fate = f"goes on after {len(document['starts'])} starts"
        if adopted:
            fate += f" ({len(adopted)} of which had been recorded and not yet counted)"
    settle(records_dir, document, policy)
    comparison_verdict.look(document)
    if not check:
        comparisons.write(records_dir, document)
    return document, fate, warnings


def _unfinished_namesake(records_dir: str, made: comparisons.Document) -> comparisons.Document | None:
    for other in comparisons.documents(records_dir, made["host"]):
        same = other.get("title") == made["title"] and other["declaration_hash"] != made["declaration_hash"]
        if same and other["state"] not in comparisons.FINISHED:
            return other
    return None


def settle(records_dir: str, document: comparisons.Document, policy: Policy) -> None:
    """Bring ``resolved`` of the arms, ``differences`` and ``state`` up to the starts that are done.

    An arm that was not started yet has the differences of its declaration.
    """
    asked = _asked(document, policy)
    seen = {
        arm: arm_state.ran(_record_of(records_dir, document, start))
        for arm, start in comparisons.first_starts(document).items()
    }
    base = comparisons.reference(document)
    rows: list[arm_state.Row] = []
    for one in document["arms"]:
        name = one["name"]
        one["resolved"] = arm_state.resolved(seen[name]) if name in seen else None
        if name == base:
            continue
        if name in seen and base in seen:
            pair = (asked[base], asked[name]), (seen[base], seen[name])
            rows += arm_state.differences(name, *pair, policy.covers, policy.allow)
        else:
            rows += arm_state.planned(name, asked[base], asked[name])
    document["differences"] = rows + _refuted(records_dir, document, policy)
    rows = document["differences"]
    if arm_state.undeclared(rows):
        document["state"] = "refused"
    elif document["state"] == "refused":
        document["state"] = "running"


def _asked(document: comparisons.Document, policy: Policy) -> dict[str, arm_state.Flat]:
    """What each arm declares."""
    arms = document["declaration"]["arms"]
    return {one["name"]: arm_state.declared(one["variables"], policy.profiles) for one in arms}


def _record_of(records_dir: str, document: comparisons.Document, start: Mapping[str, Any]) -> dict[str, Any]:
    record = records.read_record(records_dir, document["host"], start["record"])
    if record is None:
        raise records.RecordError(
            f"comparison {document['id']} names record {start['record']}, which is gone; "
            "-e compare_anew=true compares anew"
        )
    return record


def _refuted(records_dir: str, document: comparisons.Document, policy: Policy) -> list[arm_state.Row]:
    """The rows of the starts, of any block, whose profile was proved not to be in force."""
    whys = {}
    for one in document["starts"]:
        if one.get("proof") == proof.CONTRADICTED:
            record = _record_of(records_dir, document, one)
            whys[one["number"]] = "; ".join((record.get("proof") or {}).get("why") or [])
    base, *others = (one["name"] for one in document["arms"])
    return profile_in_force.rows(base, others, document["starts"], whys, policy.allow)


def keep(
    records_dir: str, document: comparisons.Document, start: Mapping[str, Any], found: Mapping[str, Any], policy: Policy
) -> dict[str, Any]:
    """Write the record of a finished start, then the document; returns the start as the document has it.

    ``found``: ``began`` (seconds since 1970), ``launched`` (what llm_server said), ``measurement``, ``fingerprints``,
    ``proof``, ``ready``, ``profile`` and ``info`` (what llm_server_info said). The record is written first: see
    :func:`comparisons.adopt`. Raises RecordError for a start that cannot count; nothing is written then.
    """
    if all(start["number"] != one["number"] for one in comparisons.remaining(document)):
        raise records.RecordError(
            f"comparison {document['id']} has start {start['number']} already: another run works on it; let it end"
        )
    _check_server(document, start, found)
    record = _record(records_dir, document, start, found)
    records.write_record(records_dir, document["host"], record)
    kept = comparisons.start_of(record)
    comparisons.add(document, kept)
    settle(records_dir, document, policy)
    comparison_verdict.look(document)
    comparisons.write(records_dir, document)
    return kept


#: What llm_server did when the server is one that this start launched.
_LAUNCHED = ("started", "restarted")


def _check_server(document: comparisons.Document, start: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises RecordError unless the server that was measured is the one that this start launched."""
    launched, measured = found.get("launched") or {}, found["measurement"]["server"]
    if launched.get("action") not in _LAUNCHED:
        what = "was there already when it was to be launched"
    elif any(launched.get(name) != measured.get(name) for name in ("start_id", "declaration_hash")):
        what = "is not the one that this start launched"
    else:
        return
    raise records.RecordError(
        f"start {start['number']} (arm {start['arm']}) of comparison {document['id']} is not kept: the server "
        f"{measured['name']} that was measured {what}; something else launched it. Let nothing else start servers on "
        f"{document['host']} meanwhile: the same command makes this start again, and what is done stays"
    )


def _record(
    records_dir: str, document: comparisons.Document, start: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:
    """A normal record that belongs to no baseline: it has a key of its own, and is judged in the comparison."""
    measured, info = found["measurement"], found["info"]
    server = f"{measured['server']['name']} in comparison {document['id']}"
    before = found["fingerprints"].get("before") or {}
    record = {
        "schema": records.SCHEMA,
        "id": measured["id"],
        "host": document["host"],
        "group": document["host"],
        "key": records.baseline_key(server, before, measured["workload_hash"]),
        "created_at": comparisons.stamp(time.time()),
        "profile": found["profile"],
        "proof": found["proof"],
        "ready": found["ready"],
        "fingerprints": found["fingerprints"],
        "measurement": measured,
    }
    judged = f"start {start['number']} of comparison {document['id']}, which judges it"
    headline = measured["headline"]
    told = verdict.Verdict("incomparable", [judged], document["tolerance"], headline["value"], headline["unit"])
    weak = verdict.refusals(measured) + under_load.throttled(measured, found["fingerprints"])
    record["verdict"] = told.as_dict()
    record["comparison"] = {
        "id": document["id"],
        **{name: start[name] for name in ("number", "block", "position", "arm")},
        # 0 when the clock was set back meanwhile: not known.
        "seconds": round(max(0.0, time.time() - found["began"]), 1),
        "adjustments": list(info.get("adjustments") or []),
        "resolved_otherwise": list(info.get("differences") or []),
        "weak": weak,
        "notes": [],
    }
    if (measured.get("warmup") or {}).get("steady") is False:
        record["comparison"]["notes"] = ["not steady after the warm-up"]
    differing = profile_in_force.differs([one["variables"] for one in document["declaration"]["arms"]])
    record["comparison"]["notes"] += filter(None, [profile_in_force.note(record, differing)])
    record["comparison"]["notes"] += nothing_drafted.notes(document["declaration"], start["arm"], measured)
    record["comparison"]["notes"] += _changed_since(records_dir, document, record)
    return record


def _changed_since(records_dir: str, document: comparisons.Document, record: Mapping[str, Any]) -> list[str]:
    """A sentence when a start was in another state than the first of its arm: something changed in between."""
    first = comparisons.first_starts(document).get(record["comparison"]["arm"])
    state = verdict.state(dict(record))
    if first is None or first["state_hash"] == state:
        return []
    before = records.read_record(records_dir, document["host"], first["record"])
    if before is None:
        return []
    fingerprints = [one["fingerprints"].get("before") or {} for one in (before, record)]
    told = explain.explain(*fingerprints) or ["see their fingerprints"]
    return [f"in another state than start {first['number']} of its arm: {told[0]}"]
