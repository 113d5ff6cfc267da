# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Records and baselines on the controller.

``<records_dir>/<host>/<measurement id>.json`` is one record, written once. ``<records_dir>/<group>/baseline.json``
says which records are the accepted baseline of which declaration; a host that shares its baselines with no other is its
own group:

    {"schema": 1, "baselines": {"<key>": {"label": "...", "records": ["<id>" or "<host>/<id>", ...]}}}

``<records_dir>/<host>/foreign/<id>.json`` are results of other tools, imported: they are history, never a baseline.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..module_utils import files, measurement
from ..module_utils.servers import SERVER_VARIABLE, START_VARIABLE

SCHEMA = 1
BASELINE_FILE = "baseline.json"
FOREIGN = "foreign"
# A baseline of fewer starts is provisional: the spread between starts is not known well enough.
ENOUGH_STARTS = 3

# What every record has besides the measurement, and its type.
_PARTS = {"id": str, "fingerprints": dict, "proof": dict, "ready": dict, "verdict": dict}

_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")


class RecordError(Exception):
    """A record or the baseline file cannot be used; the message says which and what to do."""


def is_id(name: str) -> bool:
    """Whether a name is the id of a record."""
    return bool(_ID.fullmatch(name))


def folder(records_dir: str, host: str) -> str:
    """The folder of one host's records. A host name is data from an inventory: it must stay one folder."""
    if not host or host.startswith(".") or "/" in host or not host.isprintable():
        raise RecordError(f"host name {host!r} cannot be a folder under {records_dir}")
    return os.path.join(os.path.expanduser(records_dir), host)


def record_path(records_dir: str, host: str, identifier: str) -> str:
    """Path of one record. Raises RecordError for an identifier that is none."""
    if not _ID.fullmatch(identifier):
        raise RecordError(f"measurement id {identifier!r} is not of the form YYYYMMDDTHHMMSSZ-6hex")
    return os.path.join(folder(records_dir, host), f"{identifier}.json")


def read_record(records_dir: str, host: str, identifier: str) -> dict[str, Any] | None:
    """One record; None when there is none. Raises RecordError when it is damaged or of another schema."""
    path = record_path(records_dir, host, identifier)
    try:
        found = files.read_json(path)
    except (ValueError, OSError) as error:
        raise RecordError(f"record {path} cannot be read: {error}") from error
    if found is None:
        return None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise RecordError(f"record {path} does not have schema {SCHEMA}: it was written by another version")
    damaged = [name for name, kind in _PARTS.items() if not isinstance(found.get(name), kind)]
    if not measurement.usable(found.get("measurement")):
        damaged.append("measurement")
    if damaged or found["id"] != identifier:
        raise RecordError(f"record {path} is damaged ({', '.join(damaged) or 'id'}); move it away")
    return found


def write_record(records_dir: str, host: str, record: dict[str, Any]) -> str:
    """Write a new record; returns its path. An existing one is never overwritten (RecordError)."""
    path = record_path(records_dir, host, record["id"])
    if os.path.exists(path):
        raise RecordError(f"record {path} exists already; records are never overwritten")
    try:
        files.write_json(path, record)
    except OSError as error:
        raise RecordError(f"cannot write record {path}: {error}; check groundstate_records_dir") from error
    return path


def arguments(server_section: dict[str, Any]) -> dict[str, Any]:
    """What was asked of the engine, without what may differ from start to start or host to host (port, markers)."""
    port = str(server_section.get("port") or "")
    environment = dict(server_section.get("environment") or {})
    for name in (SERVER_VARIABLE, START_VARIABLE):
        environment.pop(name, None)
    return {
        "engine": server_section.get("engine"),
        "argv": ["<port>" if port and one == port else one for one in server_section.get("argv") or []],
        "environment": environment,
    }


def baseline_key(server: str, fingerprint: dict[str, Any], workload_hash: str) -> str:
    """Measurements with the same key may be compared: same server, arguments, model and workload. 16 hex digits."""
    sections = fingerprint.get("sections") or {}
    return files.digest(
        {
            "server": server,
            "arguments": arguments(sections.get("server") or {}),
            "model": (fingerprint.get("hashes") or {}).get("model"),
            "workload": workload_hash,
        }
    )[:16]


def read_baselines(records_dir: str, group: str) -> dict[str, dict[str, Any]]:
    """Baselines of a group by key; {} when none was ever accepted. Raises RecordError when the file is damaged."""
    path = os.path.join(folder(records_dir, group), BASELINE_FILE)
    try:
        found = files.read_json(path)
    except (ValueError, OSError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    if found is None:
        return {}
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("baselines"), dict):
        raise RecordError(f"{path} does not have schema {SCHEMA}; move it away to begin with new baselines")
    for key, entry in found["baselines"].items():
        named = entry.get("records") if isinstance(entry, dict) else None
        if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
            raise RecordError(f"{path} is damaged (baseline {key}); move it away to begin with new baselines")
    return found["baselines"]


@contextmanager
def read_as_it_is(what: str) -> Iterator[None]:
    """Something is made of what files hold. What is of another kind in them than we write is told as their damage.

    ``what`` names them. Raises RecordError in place of what Python raises for such values.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise RecordError(f"{what} is damaged ({error!r}); move it away") from error


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Hosts of one group may be recorded at the same time; the folder itself is locked, so nothing is left behind."""
    os.makedirs(path, exist_ok=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def add_to_baseline(records_dir: str, group: str, key: str, label: str, host: str, identifier: str) -> None:
    """Make a host's record part of the baseline of its key."""
    where = folder(records_dir, group)
    path = os.path.join(where, BASELINE_FILE)
    try:
        with alone(where):
            baselines = read_baselines(records_dir, group)
            entry = baselines.setdefault(key, {"label": label, "records": []})
            name = identifier if host == group else f"{host}/{identifier}"
            if name not in entry["records"]:
                entry["records"].append(name)
                files.write_json(path, {"schema": SCHEMA, "baselines": baselines})
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error}; check groundstate_records_dir") from error


def baseline_names(records_dir: str, group: str, key: str | None = None) -> list[tuple[str, str]]:
    """(host, id) of all records in the baseline of a key, or in any baseline of the group."""
    baselines = read_baselines(records_dir, group)
    chosen = baselines.values() if key is None else [baselines[key]] if key in baselines else []
    return [_host_and_id(group, name) for entry in chosen for name in entry["records"]]


def _host_and_id(group: str, name: str) -> tuple[str, str]:
    host, slash, identifier = name.rpartition("/")
    return (host, identifier) if slash else (group, name)


def baseline_records(records_dir: str, group: str, key: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of a baseline, and a warning for each that is named but cannot be used."""
    found, warnings = [], []
    for host, identifier in baseline_names(records_dir, group, key):
        try:
            record = read_record(records_dir, host, identifier)
        except RecordError as error:
            warnings.append(str(error))
            continue
        if record is None:
            warnings.append(f"baseline of {group} names record {identifier} of {host}, which is gone")
        else:
            found.append(record)
    return found, warnings


def hosts(records_dir: str) -> list[str]:
    """All hosts (and groups) that have a folder."""
    top = os.path.expanduser(records_dir)
    try:
        names = [entry.name for entry in os.scandir(top) if entry.is_dir()]
    except OSError:
        return []
    # What folder() refuses is none of ours.
    return sorted(name for name in names if not name.startswith(".") and name.isprintable())


def identifiers(records_dir: str, host: str, kind: str = "") -> list[str]:
    """The ids of a host's records, oldest first; ``kind``: "" or :data:`FOREIGN`."""
    try:
        names = os.listdir(os.path.join(folder(records_dir, host), kind))
    except OSError:
        return []
    stems = (name[: -len(".json")] for name in names if name.endswith(".json"))
    return sorted(stem for stem in stems if _ID.fullmatch(stem))


def write_foreign(records_dir: str, host: str, result: dict[str, Any]) -> tuple[str, bool]:
    """Keep an imported result; (path, whether it is new)."""
    path = foreign_path(records_dir, host, result["id"])
    if os.path.exists(path):
        return path, False
    try:
        files.write_json(path, result)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error}; check the folder of the records") from error
    return path, True


def foreign_path(records_dir: str, host: str, identifier: str) -> str:
    """Path of an imported result. Raises RecordError for an identifier that is none."""
    where, name = os.path.split(record_path(records_dir, host, identifier))
    return os.path.join(where, FOREIGN, name)


def last_of_server(records_dir: str, host: str, server: str) -> dict[str, Any] | None:
    """The newest readable record of a server, whatever its declaration; None when there is none."""
    for identifier in reversed(identifiers(records_dir, host)):
        try:
            record = read_record(records_dir, host, identifier)
        except RecordError:
            continue  # a damaged record is reported where it is asked for by name
        # A start of a comparison is of an arm, which need not be the declaration that is deployed.
        if record and "comparison" not in record and record["measurement"]["server"]["name"] == server:
            return record
    return None
