# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Locks of environments: those that the role ml_env ships, by name, and a user's own, by the path of their folder.

A lock is a folder with requirements.txt (names, versions, hashes), lock.yml (:data:`FIELDS`) and the scripts it names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import yaml

from . import specs

#: What lock.yml may say, and what holds of a user's lock that does not.
FIELDS: Mapping[str, Any] = {
    "description": "",
    "python": "",  # range of versions; "": any
    "platform": "",  # begin of the platform's name, linux-x86_64; "": any
    "scripts": [],  # names of files in the folder that become commands of the environment
    "links": {},  # name below bin/ -> path below site-packages
    "dist_info_aliases": [],  # {distribution, name}
    "forbidden": [],
    "imports": [],  # what proves a new environment
    "cuda": "",  # that torch is built with; "": for CPUs
    "compute_capability": "",  # the oldest that there is code for
    "size_mib": 0,
}


class LockError(Exception):
    """There is no such lock, or it says something that no lock says; the message is for the user."""


def shipped() -> list[str]:
    """Names of the locks that the role ml_env ships."""
    place = _place("")
    try:
        return sorted(name for name in os.listdir(place) if os.path.isfile(os.path.join(place, name, "lock.yml")))
    except OSError:
        return []


def folder(name: str) -> str:
    """Folder of a lock: a name is one that is shipped, a path (with a slash) is that of a user's own."""
    return os.path.expanduser(name) if "/" in name else _place(name)


def read(name: str) -> dict[str, Any]:
    """A lock by name or path: all of :data:`FIELDS`, ``folder``, the text of ``requirements``. Raises LockError."""
    where = folder(name).rstrip("/")
    if not os.path.isabs(where):
        raise LockError(f"{where} is no absolute path; begin it with {{{{ inventory_dir }}}}, say")
    for part in ("lock.yml", "requirements.txt"):
        if not os.path.isfile(os.path.join(where, part)):
            raise LockError(f"no lock is in {where}: it has no {part}; shipped are {', '.join(shipped())}")
    place = os.path.join(where, "lock.yml")
    try:
        found = yaml.safe_load(_text(place)) or {}
    except yaml.YAMLError as error:
        raise LockError(f"{place} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise LockError(f"{place} is no dictionary")
    for key, value in found.items():
        if key not in FIELDS:
            near = specs.nearest(str(key), FIELDS)
            raise LockError(f"{place}: no lock says {key}" + (f"; did you mean {near}?" if near else ""))
        if type(value) is not type(FIELDS[key]):
            raise LockError(f"{place}: {key} has to be of type {type(FIELDS[key]).__name__}, not {value!r}")
    for script in found.get("scripts", []):
        if not isinstance(script, str) or not os.path.isfile(os.path.join(where, script)):
            raise LockError(f"{place}: scripts: the folder has no file {script!r}")
    return {**FIELDS, **found, "folder": where, "requirements": _text(os.path.join(where, "requirements.txt"))}


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as source:
            return source.read()
    except (OSError, ValueError) as error:
        raise LockError(f"{path} cannot be read: {error}") from error


def _place(name: str) -> str:
    return os.path.join(specs.roles_folder(), "ml_env", "files", "locks", name)
