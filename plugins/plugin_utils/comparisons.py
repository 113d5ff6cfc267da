# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The document of a comparison: what is compared, which start comes next, which are done.

``<records_dir>/<host>/comparisons/<id>/comparison.json``, written atomically after every step. Each finished start is a
normal record besides, with ``comparison: {id, number, block, position, arm, ...}``, and is written first: a controller
that is killed between the two has lost nothing, because :func:`adopt` finds it. Only the start in flight is lost.
"""

from __future__ import annotations

import calendar
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ..module_utils import files, stats
from ..module_utils.fingerprint import under_load
from ..module_utils.measurement import new_id
from . import comparison_form, profile_in_force, records, verdict

SCHEMA = 1
FOLDER = "comparisons"
DOCUMENT = "comparison.json"
PAGE = "result.html"
LOOKS = (3, 5, 8, 10)
LEAST_BLOCKS, MOST_BLOCKS = 2, 100
#: No further start comes in these; a refused one goes on once its differences are accepted.
FINISHED = ("decided", "exhausted")
KINDS = ("compare", "speculation")

Document = dict[str, Any]

_SKEW_S = 86400.0  # by which the clock of a host may be behind the controller's


# --- order of the starts -----------------------------------------------------------------------------


def schedule(arms: Sequence[str], blocks: int) -> list[list[str]]:
    """The order of the starts: ``blocks`` lists, each with every arm once.

    Two arms take turns at being first (AB, BA, AB, ...). More are in the order of Williams' balanced Latin square, each
    row followed by its mirror image: over all rows every arm is in every position equally often, and after each other
    arm equally often; and a steady drift cancels within every two blocks.
    """
    count = len(arms)
    first = [0]
    for step in range(1, count):
        first.append((first[-1] + (step if step % 2 else -step)) % count)
    rows = [[(place + shift) % count for place in first] for shift in range(count)]
    if count % 2 == 0:
        rows = rows[: count // 2]  # the other half are their mirror images
    order = [row for one in rows for row in (one, one[::-1])]
    return [[arms[place] for place in order[number % len(order)]] for number in range(blocks)]


def check_looks(looks: Sequence[int]) -> None:
    """Raises ValueError unless these are numbers of blocks after which a comparison can be judged, ascending."""
    verdict.check_looks(looks, "blocks")
    if min(looks) < LEAST_BLOCKS:
        raise ValueError(f"one block says nothing of how much blocks differ; look after {LEAST_BLOCKS} at the earliest")
    if max(looks) > MOST_BLOCKS:
        raise ValueError(
            f"{max(looks)} blocks are more than anybody waits for; the last look is after {MOST_BLOCKS} at most"
        )


def planned(document: Document) -> list[dict[str, Any]]:
    """Every start of the plan as ``{number, block, position, arm}``, all counted from 1."""
    return [
        {"number": index * len(block) + place + 1, "block": index + 1, "position": place + 1, "arm": arm}
        for index, block in enumerate(document["blocks"])
        for place, arm in enumerate(block)
    ]


def remaining(document: Document) -> list[dict[str, Any]]:
    """The starts of the plan that are not done, in their order."""
    done = {one["number"] for one in document["starts"]}
    return [one for one in planned(document) if one["number"] not in done]


def complete_blocks(document: Document) -> int:
    """How many blocks, from the first on, have all their starts."""
    left = remaining(document)
    return left[0]["block"] - 1 if left else len(document["blocks"])


def reference(document: Document) -> str:
    """Name of the arm that the others are compared with: the first."""
    name: str = document["arms"][0]["name"]
    return name


# --- the document ------------------------------------------------------------------------------------


def new(
    host: str,
    kind: str,
    title: str,
    arms: Sequence[dict[str, Any]],
    declaration: dict[str, Any],
    tolerance: float,
    looks: Sequence[int],
) -> Document:
    """A new comparison, not written yet. ``arms``: ``{name, declared}``; ``declaration``: what :func:`find` goes by."""
    names = [arm["name"] for arm in arms]
    now = time.time()
    return {
        "schema": SCHEMA,
        "id": new_id(now),
        "host": host,
        "kind": kind,
        "title": title,
        "created_at": stamp(now),
        "declaration": declaration,
        "declaration_hash": files.digest(declaration),
        "tolerance": tolerance,
        "looks": list(looks),
        "arms": [{**arm, "resolved": None} for arm in arms],
        "differences": [],
        "blocks": schedule(names, max(looks)),
        "starts": [],
        "state": "running",
        "result": None,
        "speculation": None,
        # What was left on the host at the end; None: it is not over yet.
        "left": None,
    }


def stamp(when: float) -> str:
    """Seconds since 1970 as UTC text."""
    return time.strftime(comparison_form.TIME, time.gmtime(when))


def folder(records_dir: str, host: str, identifier: str = "") -> str:
    """The folder of a comparison, or of all of a host. Raises RecordError for an identifier that is none."""
    if identifier:
        records.record_path(records_dir, host, identifier)  # the same form
    return os.path.join(records.folder(records_dir, host), FOLDER, identifier)


def path(records_dir: str, host: str, identifier: str) -> str:
    """Path of the document."""
    return os.path.join(folder(records_dir, host, identifier), DOCUMENT)


def read(records_dir: str, host: str, identifier: str) -> Document | None:
    """A document; None when there is none. Raises RecordError when it is damaged or of another schema."""
    where = path(records_dir, host, identifier)
    try:
        found = files.read_json(where)
    except (ValueError, OSError) as error:
        raise records.RecordError(f"comparison {where} cannot be read: {error}") from error
    if found is None and not os.path.exists(where):
        return None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise records.RecordError(f"comparison {where} does not have schema {SCHEMA}: another version wrote it")
    damaged = comparison_form.wrong(found, records.is_id)
    if damaged or found["id"] != identifier:
        raise records.RecordError(f"comparison {where} is damaged ({', '.join(damaged) or 'id'}); move its folder away")
    if found["host"] != host:  # what is written would go to the other one
        raise records.RecordError(f"comparison {where} is of host {found['host']!r}, not {host}; move its folder away")
    return found


def write(records_dir: str, document: Document) -> str:
    """Write a document, atomically; returns its path. Raises RecordError."""
    where = path(records_dir, document["host"], document["id"])
    try:
        files.write_json(where, document)
    except OSError as error:
        raise records.RecordError(f"cannot write comparison {where}: {error}; check groundstate_records_dir") from error
    return where


def identifiers(records_dir: str, host: str) -> list[str]:
    """The ids of a host's comparisons, oldest first."""
    try:
        names = os.listdir(folder(records_dir, host))
    except OSError:
        return []
    return sorted(name for name in names if records.is_id(name))


def documents(records_dir: str, host: str, warnings: list[str] | None = None) -> list[Document]:
    """The readable comparisons of a host, newest first. ``warnings``: gets a sentence for each that is damaged."""
    found = []
    for identifier in reversed(identifiers(records_dir, host)):
        try:
            document = read(records_dir, host, identifier)
        except records.RecordError as error:
            if warnings is not None:
                warnings.append(str(error))
            continue
        if document is not None:
            found.append(document)
    return found


def find(
    records_dir: str, host: str, declaration: dict[str, Any], warnings: list[str] | None = None
) -> Document | None:
    """The newest comparison of a host with this very declaration, in whatever state; None when there is none.

    ``warnings``: as for :func:`documents`.
    """
    wanted = files.digest(declaration)
    found = documents(records_dir, host, warnings)
    return next((one for one in found if one.get("declaration_hash") == wanted), None)


# --- starts ------------------------------------------------------------------------------------------


def start_of(record: dict[str, Any]) -> dict[str, Any]:
    """What the document keeps of a start: all of it comes from its record, so that it can be made again."""
    part, measurement = record["comparison"], record["measurement"]
    level = measurement["levels"][0]
    return {
        **{name: part[name] for name in ("number", "block", "position", "arm", "seconds")},
        "record": record["id"],
        "value": measurement["headline"]["value"],
        "repeats": [one["decode_tok_s"] for one in level["repeats"] if one["decode_tok_s"]],
        "ready_s": (record.get("ready") or {}).get("elapsed_s"),
        "finished_at": record["created_at"],
        "accept_length": accept_length(level),
        "gpu": gpu_of(record),
        "state_hash": (record["fingerprints"].get("before") or {}).get("state_hash"),
        "proof": profile_in_force.verdict(record),
        "weak": part.get("weak") or [],
        "notes": part.get("notes") or [],
    }


def accept_length(level: dict[str, Any]) -> float | None:
    """Tokens per cycle of a level; None without speculation. Over all cycles, where the engine tells that."""
    told = level.get("speculation") or {}
    if told.get("drafts") != 0 and told.get("accept_length"):
        return float(told["accept_length"])
    found: float | None = (level.get("server_metrics") or {}).get("accept_length")
    return found


#: Our key of a start -> key of :func:`under_load.summary`. Of several GPUs the slowest, coolest-running one counts.
_GPU = {
    "sm_clock_mhz": "clock_sm",
    "memory_clock_mhz": "clock_memory",
    "power_w": "power",
    "temperature_c": "temperature",
    "utilisation": "utilisation",
}


def gpu_of(record: dict[str, Any]) -> dict[str, Any] | None:
    """What the GPUs were like under load; None where none were seen."""
    told = under_load.summary(record["measurement"], record.get("fingerprints"))
    found = {name: told[key] for name, key in _GPU.items() if key in told}
    return {**found, "reasons": told["reasons"]} if found else None


def log_rate(start: dict[str, Any]) -> float:
    """ln of a start's rate: the mean over its repeats, which share its luck."""
    return stats.mean(stats.log_rates(start["repeats"] or [start["value"]]))


def add(document: Document, start: dict[str, Any]) -> bool:
    """Add a start in its place; False when its number is there already or is none of the plan."""
    if all(start["number"] != one["number"] for one in remaining(document)):
        return False
    document["starts"] = sorted([*document["starts"], start], key=lambda one: one["number"])
    return True


#: Where in the plan a start is.
_PLACE = ("number", "block", "position", "arm")


def adopt(records_dir: str, document: Document) -> list[dict[str, Any]]:
    """Add the starts whose record was written, and the document not; returns them."""
    host, known = document["host"], {one["record"] for one in document["starts"]}
    places = planned(document)
    since = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(_seconds(document["created_at"]) - _SKEW_S))
    found = []
    for identifier in records.identifiers(records_dir, host):
        if identifier < since or identifier in known:
            continue
        try:
            record = records.read_record(records_dir, host, identifier)
        except records.RecordError:
            continue
        if record and (record.get("comparison") or {}).get("id") == document["id"]:
            try:
                start = start_of(record)
            except (LookupError, TypeError, AttributeError, ValueError):
                start = {}
            if not comparison_form.start(start) or {name: start[name] for name in _PLACE} not in places:
                path_of_record = records.record_path(records_dir, host, identifier)
                raise records.RecordError(
                    f"record {path_of_record} is damaged as a start of comparison {document['id']}; move it away and "
                    "the start is made again"
                )
            if add(document, start):
                found.append(start)
    return found


def _seconds(text: str) -> float:
    return float(calendar.timegm(time.strptime(text, comparison_form.TIME)))


def over(document: Document, leave: str = "") -> bool:
    """Whether nothing is left to do. ``leave``: what is to be left on the host at the end; "": whatever is there."""
    return document["state"] in FINISHED and (not leave or document["left"] == leave)


def first_starts(document: Document) -> dict[str, dict[str, Any]]:
    """Arm -> its first finished start."""
    found: dict[str, dict[str, Any]] = {}
    for start in document["starts"]:
        found.setdefault(start["arm"], start)
    return found


def spent_seconds(document: Document) -> float:
    """How long the starts took that are done, and of which it is known."""
    return sum(max(0.0, one["seconds"]) for one in document["starts"])


def mean_seconds(done: Iterable[dict[str, Any]]) -> float | None:
    """How long a start takes, from those that are done and of which it is known; None before the first."""
    known = [one["seconds"] for one in done if one["seconds"] > 0]
    return sum(known) / len(known) if known else None
