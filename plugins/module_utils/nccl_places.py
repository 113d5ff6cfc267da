# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where the profile of a server is written: its environment, an nccl.conf, the start of its Python.

``<home>/servers/<name>/nccl.env`` holds what the server gets as its environment. What is written elsewhere stands in
``nccl.json`` beside it, before it is written, so that it is found and taken away again when the profile, the places or
the server go, even after a run that was killed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import (
    file_change,
    files,
    marked_block,
    nccl_conf,
    nccl_profiles,
    python_startup,
    python_startup_proof,
    servers,
    writable,
)
from .file_change import Change

SERVER, CONF, PYTHON = "server", "conf", "python_startup"
PLACES = (SERVER, CONF, PYTHON)
#: In the server's environment, so that it is restarted when that changed which its environment does not show.
_MODE = re.compile(r"mode ([0-7]{1,4}) before")
MARK = "GROUNDSTATE_NCCL_PROFILE"


class PlaceError(Exception):
    """One sentence for the user: what, where, how to fix it."""


@dataclass(frozen=True)
class Wish:
    """Where the profile of one server should stand."""

    home: str
    server: str
    places: tuple[str, ...]
    conf_path: str = ""  # "": nccl.conf in the server's folder
    python: str = ""
    method: str = python_startup.PTH

    @property
    def folder(self) -> str:
        return servers.folder(self.home, self.server)

    @property
    def conf(self) -> str:
        return self.conf_path or os.path.join(self.folder, nccl_profiles.CONF_NAME)


@dataclass
class Plan:
    """All that has to be done, and what there is then."""

    environment: dict[str, str]  # of nccl.env
    variables: dict[str, str]
    record: dict[str, Any]  # of nccl.json; {} when nothing is written elsewhere
    before: dict[str, Any]  # the record that there is
    changes: list[Change] = field(default_factory=list)  # without the record's file
    python: list[Change] = field(default_factory=list)  # those of the interpreter's start, which are proved
    interpreter: python_startup.Interpreter | None = None

    @property
    def needed(self) -> list[Change]:
        return [one for one in (*self.changes, *self.python) if one.needed]


def plan(wish: Wish, profile: str, variables: Mapping[str, str]) -> Plan:
    """What has to be done for a profile to stand in exactly the places that are asked for.

    Raises PlaceError, StartupError, ValueError or OSError, before anything is changed.
    """
    check(wish, variables)
    elsewhere = [one for one in (CONF, PYTHON) if one in wish.places] if variables else []
    record: dict[str, Any] = {}
    if elsewhere:
        record = {"profile": profile, "variables": dict(variables), "places": []}
        if CONF in elsewhere:
            record["places"].append({"place": CONF, "path": wish.conf})
        if PYTHON in elsewhere:
            record["places"].append({"place": PYTHON, "python": wish.python, "method": wish.method})
    environment = dict(variables) if SERVER in wish.places else {}
    if CONF in elsewhere and wish.conf != nccl_conf.SYSTEM_FILE:
        environment[nccl_conf.CONF_VARIABLE] = wish.conf
    if elsewhere:
        environment[MARK] = files.digest(record)[:16]
    made = Plan(environment, dict(variables), record, load_record(wish.home, wish.server))
    text = nccl_profiles.render(profile, environment)
    made.changes.append(file_change.change(nccl_profiles.path(wish.home, wish.server), text.encode(), 0o644))
    if CONF in elsewhere:
        made.changes.append(_conf(wish.conf, wish.server, variables))
    if PYTHON in elsewhere:
        made.interpreter = python_startup.inspect(wish.python)
        made.python = python_startup.changes(made.interpreter, wish.server, variables, wish.method)
    made.changes.extend(_obsolete(wish.server, made.before, record))
    for one in made.needed:
        reason = writable.obstacle(os.path.dirname(os.path.realpath(one.path)))
        if reason:
            raise PlaceError(f"{one.path} cannot be written: {reason}; run as root or as its owner")
    return made


def do(made: Plan, wish: Wish) -> list[python_startup_proof.Row]:
    """Do it; the table that proves the interpreter's start ([] without that place).

    Raises StartupError when that cannot be proved (it is put back then), OSError for a file that cannot be written.
    """
    path = os.path.join(wish.folder, nccl_profiles.RECORD_NAME)
    both = {**made.record, "places": _together(made.record, made.before)}
    if both["places"] and both != made.before:
        files.write_json(path, both)
    rows: list[python_startup_proof.Row] = []
    try:
        if made.interpreter:
            rows = python_startup_proof.establish(made.interpreter, made.python, made.variables)
    except python_startup.StartupError:
        _write_record(path, made.before)  # nothing was changed
        raise
    for one in made.changes:
        if one.needed:
            one.do()
    if made.record != both:
        _write_record(path, made.record)
    return rows


def _write_record(path: str, record: Mapping[str, Any]) -> None:
    if record:
        files.write_json(path, record)
    elif os.path.exists(path):
        os.unlink(path)


def beside(home: str, server: str) -> dict[str, str]:
    """Variables of NCCL that we set besides those of the profile, and where they point to. Raises ValueError."""
    places = load_record(home, server).get("places", [])
    paths = [one["path"] for one in places if one["place"] == CONF and one["path"] != nccl_conf.SYSTEM_FILE]
    return {nccl_conf.CONF_VARIABLE: paths[0]} if paths else {}


def absent(home: str, server: str) -> list[Change]:
    """What has to be done so that nothing of a server's profile is left, the record's file last. Raises OSError."""
    record = load_record(home, server)
    found = [file_change.change(nccl_profiles.path(home, server), None), *_obsolete(server, record, {})]
    found.append(file_change.change(os.path.join(servers.folder(home, server), nccl_profiles.RECORD_NAME), None))
    return [one for one in found if one.needed]


def load_record(home: str, server: str) -> dict[str, Any]:
    """What nccl.json says; {} when there is none. Raises ValueError for a damaged one."""
    path = os.path.join(servers.folder(home, server), nccl_profiles.RECORD_NAME)
    raw = files.read_json(path)
    if raw is None:
        return {}
    places = raw.get("places") if isinstance(raw, dict) else None
    variables = raw.get("variables") if isinstance(raw, dict) else None
    if not (
        isinstance(places, list)
        and all(map(_is_place, places))
        and isinstance(variables, dict)
        and all(isinstance(value, str) for value in variables.values())
    ):
        raise ValueError(
            f"{path} is damaged; look for lines between 'BEGIN groundstate {server}' in nccl.conf files and "
            "sitecustomize.py, take them out, and remove the file"
        )
    return dict(raw)


def _is_place(one: Any) -> bool:
    """Whether a value of nccl.json is a place with all that is asked of it later."""
    needs = {CONF: ("path",), PYTHON: ("python", "method")}
    wanted = needs.get(str(one.get("place"))) if isinstance(one, dict) else None
    return wanted is not None and all(isinstance(one.get(name), str) for name in wanted)


def check(wish: Wish, variables: Mapping[str, str]) -> None:
    """Raises PlaceError for a wish that nobody can fulfil; looks at nothing on the host."""
    if not wish.places:
        raise PlaceError(f"the profile of server {wish.server!r} has no place: name one of {', '.join(PLACES)}")
    if CONF in wish.places and not os.path.isabs(wish.conf):
        raise PlaceError(
            f"conf_path {wish.conf_path!r} is no whole path, and NCCL would look in any folder: write it so"
        )
    if CONF in wish.places and nccl_conf.CONF_VARIABLE in variables:
        raise PlaceError(
            f"the profile sets {nccl_conf.CONF_VARIABLE}, which the place 'conf' sets by itself: take it out of the "
            "profile, and name the file in conf_path"
        )
    if PYTHON in wish.places and not wish.python:
        raise PlaceError("the place 'python_startup' needs the Python that the server runs with: set python")


def _conf(path: str, owner: str, variables: Mapping[str, str]) -> Change:
    before, mode = file_change.read(path)
    text = None if before is None else before.decode("utf-8", "surrogateescape")
    note = "" if before is None or mode == 0o644 else f"mode {mode:o} before"
    merged = nccl_conf.merge(text, variables, owner, note)
    return file_change.change(path, merged.encode("utf-8", "surrogateescape"), 0o644)


def _conf_without(path: str, owner: str) -> Change:
    before, mode = file_change.read(path)
    text = None if before is None else before.decode("utf-8", "surrogateescape")
    if text is None or owner not in marked_block.names(text):
        return Change(path, before, before, mode, mode)
    left = marked_block.take(text, owner)
    noted = [found[1] for one in marked_block.notes(text, owner) if (found := _MODE.fullmatch(one))]
    others = left is not None and bool(marked_block.names(left))
    back = int(noted[0], 8) & 0o777 if noted and not others else mode
    return file_change.change(path, None if left is None else left.encode("utf-8", "surrogateescape"), back)


def _obsolete(owner: str, before: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[Change]:
    """What takes away that which an earlier profile left in places that are none any more."""
    kept = record.get("places", [])
    confs = [one["path"] for one in kept if one["place"] == CONF]
    pythons = [one["python"] for one in kept if one["place"] == PYTHON]
    for one in before.get("places", []):
        if one["place"] == CONF and one["path"] not in confs:
            yield _conf_without(one["path"], owner)
        elif one["place"] == PYTHON and one["python"] not in pythons:
            try:
                interpreter = python_startup.inspect(one["python"])
            except python_startup.StartupError:
                continue  # what does not run (any more) sets nothing
            yield from python_startup.changes(interpreter, owner, {}, one["method"])


def _together(record: Mapping[str, Any], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    places = [*record.get("places", []), *before.get("places", [])]
    return list({json.dumps(one, sort_keys=True): one for one in places}.values())
