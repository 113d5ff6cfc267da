# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A record by what a person calls it, with what its group says of it today."""

from __future__ import annotations

import os
from typing import Any

from . import records, verdict

LATEST = "latest"


def find(records_dir: str, name: str) -> tuple[dict[str, Any], str]:
    """A record and its path, by its id, ``host/id``, ``host/latest``, the host alone, or the path of its file.

    Raises RecordError when there is none, saying where it was looked for.
    """
    host, identifier = _place(records_dir, name)
    found = records.read_record(records_dir, host, identifier)
    path = records.record_path(records_dir, host, identifier)
    if found is None:
        raise records.RecordError(f"there is no record {path}; 'groundstate history' lists all")
    return found, path


def _place(records_dir: str, name: str) -> tuple[str, str]:
    """Host and id of what a name means."""
    if name.endswith(".json"):
        return _of_path(records_dir, name)
    host, slash, identifier = name.rpartition("/")
    if slash and identifier != LATEST:
        return host, identifier
    if not slash:
        having = [one for one in records.hosts(records_dir) if name in records.identifiers(records_dir, one)]
        if len(having) > 1:
            raise records.RecordError(
                f"several hosts have a record {name}: {', '.join(having)}; name one as host/{name}"
            )
        if having:
            return having[0], name
        host = name
    known = records.identifiers(records_dir, host)
    if not known:
        raise records.RecordError(
            f"{records_dir} has no record {name!r} and no host of that name with records; name an id, host/id, "
            "host/latest or a file"
        )
    return host, known[-1]


def _of_path(records_dir: str, name: str) -> tuple[str, str]:
    """A record's file is where the records are: what lies elsewhere was copied, and has no group and no baseline."""
    where, file = os.path.split(os.path.realpath(os.path.expanduser(name)))
    top, host = os.path.split(where)
    if top != os.path.realpath(os.path.expanduser(records_dir)):
        raise records.RecordError(f"{name} is not in the records in {records_dir}; --records names their folder")
    return host, file[: -len(".json")]


#: (group, key) -> names of the records in that baseline, and how it stands.
Standings = dict[tuple[str, str], tuple[set[tuple[str, str]], dict[str, Any]]]


def with_standing(
    records_dir: str, record: dict[str, Any], known: Standings | None = None
) -> tuple[dict[str, Any], list[str]]:
    """A record as :mod:`.summary` wants it: with its place in the baseline and that baseline's standing; warnings.

    ``known``: of many records of a few baselines, so that each is read once.
    """
    known = {} if known is None else known
    group, key = record.get("group") or record["host"], record.get("key") or ""
    warnings: list[str] = []
    if (group, key) not in known:
        baseline, warnings = records.baseline_records(records_dir, group, key)
        names = {(str(one.get("host")), str(one["id"])) for one in baseline}
        known[group, key] = names, verdict.standing(baseline)
    names, standing = known[group, key]
    shown = {
        **record,
        "in_baseline": (record["host"], record["id"]) in names,
        "refused": verdict.refusals(record["measurement"]),
        "baseline": standing,
    }
    return shown, warnings
