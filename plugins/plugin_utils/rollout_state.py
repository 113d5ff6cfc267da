# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a rollout has come to, on the controller: ``<records_dir>/rollouts/<id>.json``, written at every step of a host.

    {"schema": 1, "id": "rollout-...", "state": "running", "began_at": "...", "updated_at": "...",
     "hosts": {"<host>": {"declaration": "<hash>", "outcome": "passed", "why": [], "before": {...} or null, ...}},
     "gates": [{"batch": 0, "size": 1, "bad": {}, "allowed": 0, "stop": false}], "report": {...}}

``state``: ``running`` (or killed), ``stopped`` by its gate, ``complete``, ``superseded`` by one of another declaration.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..module_utils import files
from . import declared, records
from .rollout_plan import PASSED, ROLLED_BACK

SCHEMA = 1
FOLDER = "rollouts"
RUNNING, STOPPED, COMPLETE, SUPERSEDED = "running", "stopped", "complete", "superseded"
# Not the form of a measurement's id: no record is ever looked for among these.
_NAME = re.compile(r"rollout-\d{8}T\d{6}Z-[0-9a-f]{6}\.json")

# What is kept of what a host served before; see _before().
_BEFORE = ("record", "declaration", "declaration_hash", "server")

State = dict[str, Any]


def now() -> str:
    """The time, as records write it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _folder(records_dir: str) -> str:
    return records.folder(records_dir, FOLDER)


def path_of(records_dir: str, identifier: str) -> str:
    """Path of the file of a rollout."""
    return os.path.join(_folder(records_dir), f"{identifier}.json")


def read(path: str) -> State:
    """One rollout. Raises RecordError for a file that is none."""
    try:
        found = files.read_json(path)
    except (ValueError, OSError) as error:
        raise records.RecordError(f"rollout {path} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("hosts"), dict):
        raise records.RecordError(f"{path} is no rollout of schema {SCHEMA}; move it away")
    wrong = [f"hosts.{host}" for host, entry in found["hosts"].items() if not _usable(entry)]
    gates = found.get("gates")
    if not isinstance(gates, list) or not all(isinstance(one, dict) and "batch" in one for one in gates):
        wrong.append("gates")
    if found.get("state") not in (RUNNING, STOPPED, COMPLETE, SUPERSEDED):
        wrong.append("state")
    if found.get("id") != os.path.basename(path).removesuffix(".json"):  # it says which file is written
        wrong.append("id")
    if wrong:
        raise records.RecordError(
            f"rollout {path} is damaged ({', '.join(wrong)}); move it away, and the same command begins a new one"
        )
    return found


def _usable(entry: Any) -> bool:
    """Whether what a rollout knows of a host has the form that it is written in."""
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("declaration", "outcome")):
        return False
    before, why = entry.get("before"), entry.get("why")
    if not isinstance(why, list) or not all(isinstance(one, str) for one in why):
        return False
    if before is None:
        return True
    named = isinstance(before, dict) and all(isinstance(before.get(name), str) for name in _BEFORE)
    return named and records.is_id(before["record"]) and files.is_number(before.get("value"))


def earlier(records_dir: str) -> Iterator[State]:
    """All rollouts, the one that began last first. Raises RecordError at one that is damaged."""
    try:
        names = sorted(name for name in os.listdir(_folder(records_dir)) if _NAME.fullmatch(name))
    except OSError:
        return
    for name in reversed(names):
        yield read(os.path.join(_folder(records_dir), name))


def latest(records_dir: str) -> State | None:
    """The rollout that began last; None when there is none. Raises RecordError when it is damaged."""
    return next(earlier(records_dir), None)


@contextmanager
def changing(records_dir: str, identifier: str) -> Iterator[State]:
    """A rollout to be changed, alone; written when the block ends well. Raises RecordError."""
    path = path_of(records_dir, identifier)
    try:
        with records.alone(_folder(records_dir)):
            state = read(path)
            yield state
            _write(path, state)
    except OSError as error:
        raise records.RecordError(f"cannot write {path}: {error}; check groundstate_records_dir") from error


def _write(path: str, state: State) -> None:
    state["updated_at"] = now()
    files.write_json(path, state)


def going_on(last: State | None, hashes: Mapping[str, str]) -> bool:
    """Whether a run goes on with the last rollout: something is left to do, and no host is declared otherwise now.

    ``hashes``: host of this run -> hash of its declaration. Hosts that the rollout did not have join it, so that one
    which was complete for some (``--limit``) goes on with the others.
    """
    if last is None:
        return False
    known = last["hosts"]
    joined = last.get("state") == COMPLETE and not set(hashes) <= set(known)
    if last.get("state") not in (RUNNING, STOPPED) and not joined:
        return False
    return all(known[host].get("declaration") == value for host, value in hashes.items() if host in known)


def begin(
    records_dir: str, last: State | None, hashes: Mapping[str, str], resume: bool, write: bool
) -> tuple[State, bool]:
    """(the rollout that this run belongs to, whether it goes on with one). ``write``: on disk, too."""
    resumed = resume and going_on(last, hashes)
    if resumed and last is not None:
        state = {**last, "state": RUNNING}
    else:
        began = time.time()
        identifier = time.strftime("rollout-%Y%m%dT%H%M%SZ", time.gmtime(began)) + "-" + os.urandom(3).hex()
        state = {"schema": SCHEMA, "id": identifier, "state": RUNNING, "began_at": now(), "hosts": {}, "gates": []}
    joining = [host for host in hashes if host not in state["hosts"]]
    told = _told_last(records_dir, joining)
    for host, value in hashes.items():
        if host in joining:
            before = _before(records_dir, host, told.get(host))
            state["hosts"][host] = {"declaration": value, "outcome": "", "why": [], "before": before}
    if write:
        _begin_on_disk(records_dir, state, last, resumed)
    return state, resumed


def _begin_on_disk(records_dir: str, state: State, last: State | None, resumed: bool) -> None:
    try:
        with records.alone(_folder(records_dir)):
            if not resumed and last is not None and last["state"] in (RUNNING, STOPPED):
                _write(path_of(records_dir, last["id"]), {**last, "state": SUPERSEDED, "superseded_by": state["id"]})
            _write(path_of(records_dir, state["id"]), state)
    except OSError as error:
        where = _folder(records_dir)
        raise records.RecordError(f"cannot write to {where}: {error}; check groundstate_records_dir") from error


def _told_last(records_dir: str, hosts: Collection[str]) -> dict[str, dict[str, Any]]:
    """Host -> what the last rollout that had it knows of it."""
    found: dict[str, dict[str, Any]] = {}
    for state in earlier(records_dir):
        if len(found) == len(hosts):
            break
        found.update({host: state["hosts"][host] for host in hosts if host in state["hosts"] and host not in found})
    return found


def _before(records_dir: str, host: str, told: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a host served before the rollout: the way back. None when no declaration of it was kept.

    One that did not pass in its last rollout has that one's way back: what it serves now is not what anybody wants.
    """
    if told and told.get("outcome") not in (PASSED, ROLLED_BACK, ""):
        kept: dict[str, Any] | None = told.get("before")
        return kept
    for identifier in reversed(records.identifiers(records_dir, host)):
        try:
            record = records.read_record(records_dir, host, identifier)
        except records.RecordError:
            continue  # a damaged record is reported where it is asked for by name
        if record and declared.usable(record.get("declared")):
            measured = record["measurement"]
            return {
                "record": identifier,
                "declaration": record["declared"]["hash"],
                "declaration_hash": measured["server"]["declaration_hash"],
                "server": measured["server"]["name"],
                "key": record.get("key"),
                "value": measured["headline"]["value"],
            }
    return None
