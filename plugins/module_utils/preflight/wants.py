# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a declaration wants of a host: the form in which the two halves of preflight speak to each other."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

ARGUMENTS: dict[str, dict[str, Any]] = {
    "home": {"type": "path"},
    "records_dir": {"type": "str"},
    "roles": {"type": "list", "elements": "str", "default": []},
    "known_variables": {"type": "list", "elements": "str", "default": []},
    "min_free_gib": {"type": "float", "default": 0},
    "min_memory_gib": {"type": "float", "default": 0},
    "environment": {"type": "dict", "default": {}},
    "server": {"type": "dict", "default": {}},
    "needs": {"type": "dict", "default": {}},
    "made_later": {"type": "list", "elements": "str", "default": []},
    "local_fact": {"type": "path"},
    "gpu_state": {"type": "bool", "default": False},
}

HOME = "~/.local/state/groundstate"
_DEFAULTS: dict[str, Any] = {
    "home": HOME,
    "environment": {
        "path": "",
        "lock": "",
        "locks": [],
        "python": "auto",
        "python_range": "",
        "platform": "",
        "cuda": "",
        "compute_capability": "",
        "size_mib": 0,
    },
    "server": {
        "name": "",
        "engine": "",
        "host": "",
        "port": 0,
        "models": {},
        "program": "",
        "gpus": "all",
        "gpus_needed": False,
        "env_needed": False,
        "tensor_parallel": 1,
        "launcher": "auto",
    },
    "needs": {"free_mib": 0, "memory_mib": 0},
    "local_fact": "",
    "gpu_state": False,
}


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """The wants with every key present, paths expanded, without the models and the program that a later step makes."""
    wants = copy.deepcopy(_DEFAULTS)
    for key, default in _DEFAULTS.items():
        value = given.get(key)
        if value is None:
            continue
        if isinstance(default, dict):
            wants[key].update({name: content for name, content in value.items() if content is not None})
        else:
            wants[key] = value
    wants["home"] = expand(wants["home"])
    wants["environment"]["path"] = expand(wants["environment"]["path"])
    made = [expand(path) for path in given.get("made_later") or []]
    models = {field: expand(path) for field, path in wants["server"]["models"].items()}
    wants["server"]["models"] = {field: path for field, path in models.items() if not _below(path, made)}
    if _below(expand(wants["server"]["program"]), made):
        wants["server"]["program"] = ""
    return wants


def expand(path: str) -> str:
    """A path with ~ and variables replaced, as Ansible does with arguments of type path; "" stays ""."""
    return os.path.normpath(os.path.expanduser(os.path.expandvars(path))) if path else ""


def _below(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders if folder)
