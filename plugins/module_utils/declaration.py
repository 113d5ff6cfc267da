# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The declaration of a server: its fields as data, completed, checked, and without its secrets."""

from __future__ import annotations

import copy
import re
from typing import Any

from . import files, multi_host
from .engines import ENGINES, get_engine
from .engines.base import is_local_path
from .servers import check_name

#: In the form of an Ansible argument spec: the module, the role's argument_specs and the checks here agree on it.
OPTIONS: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "engine": {"type": "str", "required": True, "choices": sorted(ENGINES)},
    "model": {"type": "str", "required": True},
    "served_model_name": {"type": "str", "default": ""},
    "host": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "default": 0},
    "port_from": {"type": "int", "default": 18000},
    "gpus": {"type": "raw", "default": "all"},
    "tensor_parallel": {"type": "int", "default": 1},
    "pipeline_parallel": {"type": "int", "default": 1},
    "multi_host": {
        "type": "dict",
        "default": {},
        "options": {
            "hosts": {"type": "list", "elements": "str"},
            "this": {"type": "str"},
            "head": {"type": "str"},
            "port": {"type": "int"},
        },
    },
    "threads": {"type": "int", "default": 0},
    "context_length": {"type": "int", "default": 0},
    "memory_fraction": {"type": "float", "default": 0.0},
    "trust_remote_code": {"type": "bool", "default": False},
    "speculation": {
        "type": "dict",
        "default": {},
        "options": {
            "algorithm": {"type": "str"},
            "draft_model": {"type": "str"},
            "num_steps": {"type": "int"},
            "topk": {"type": "int"},
            # Said in so many words: a name with "token" is else taken for a secret.
            "draft_tokens": {"type": "int", "no_log": False},
        },
    },
    "extra_args": {"type": "dict", "default": {}},
    "env": {"type": "dict", "default": {}},
    "secret_env": {"type": "dict", "default": {}, "no_log": True},
    "api_key": {"type": "str", "default": "", "no_log": True},
    "command": {"type": "list", "elements": "str", "default": []},
}

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "dict": (dict,),
    "list": (list,),
    "raw": (str, list, int),
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def complete(raw: dict[str, Any]) -> dict[str, Any]:
    """A declaration with every field present, values in their final form. The input is not changed.

    Raises ValueError with all unknown, missing and wrongly typed fields in one message.
    """
    wrong = [f"{name}: no such field" for name in sorted(set(raw) - set(OPTIONS))]
    made: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        value = raw.get(name)
        if value is None:
            if option.get("required"):
                wrong.append(f"{name}: required")
            made[name] = copy.deepcopy(option.get("default"))
            continue
        kinds = _TYPES[option["type"]]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wrong.append(f"{name}: {value!r} is not of type {option['type']}")
        made[name] = copy.deepcopy(value)
    if not wrong:
        wrong += [
            f"{field}.{name}: a text or a number is needed, not a {type(value).__name__}"
            for field in ("env", "secret_env")
            for name, value in made[field].items()
            if isinstance(value, (dict, list))
        ]
        for field in ("speculation", "multi_host"):
            unknown = sorted(set(made[field]) - set(OPTIONS[field]["options"]))
            wrong += [f"{field}.{name}: no such field" for name in unknown]
    if wrong:
        raise ValueError("llm_server: " + "; ".join(wrong))
    made["memory_fraction"] = float(made["memory_fraction"])
    # An Ansible argument spec fills in None for what was not declared.
    made["speculation"] = {key: value for key, value in made["speculation"].items() if value is not None}
    made["multi_host"] = multi_host.complete(made["multi_host"])
    made["gpus"] = _gpus(made["gpus"])
    for name in ("env", "secret_env"):
        made[name] = {str(key): _text(value) for key, value in made[name].items()}
    return made


def _gpus(value: Any) -> Any:
    if isinstance(value, str):
        value = value.strip()
        return value if value in ("all", "") else [one.strip() for one in value.split(",") if one.strip()]
    return [str(one) for one in (value if isinstance(value, list) else [value])]


def _text(value: Any) -> str:
    """A variable's value; YAML's true and 1.0 become what a shell user would have typed."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return "" if value is None else str(value)


def problems(declaration: dict[str, Any]) -> list[str]:
    """Everything that is wrong with a complete declaration in itself, as sentences that name the field."""
    found: list[str] = []
    try:
        check_name(declaration["name"])
    except ValueError as error:
        found.append(f"name: {error}")
    if declaration["engine"] not in ENGINES:
        found.append(f"engine: {declaration['engine']!r} is none of {', '.join(sorted(ENGINES))}")
    for name in ("port", "port_from"):
        if not (0 if name == "port" else 1) <= declaration[name] <= 65535:
            found.append(f"{name}: {declaration[name]} is not a TCP port" + (" (0: a free one)" * (name == "port")))
    for name in ("tensor_parallel", "pipeline_parallel"):
        if declaration[name] < 1:
            found.append(f"{name}: {declaration[name]} is below 1")
    found += multi_host.problems(declaration)
    for name in ("threads", "context_length"):
        if declaration[name] < 0:
            found.append(f"{name}: {declaration[name]} is below 0")
    if not 0.0 <= declaration["memory_fraction"] <= 1.0:
        found.append(f"memory_fraction: {declaration['memory_fraction']} is not between 0 and 1")
    gpus = declaration["gpus"]
    if isinstance(gpus, list):
        if len(set(gpus)) != len(gpus):
            found.append(f"gpus: {', '.join(gpus)} names a GPU twice")
        needed = multi_host.local_ranks(declaration)
        if gpus and needed > len(gpus):
            found.append(f"tensor_parallel: {needed} ranks need as many GPUs, and gpus names {len(gpus)}")
    if declaration["speculation"] and not declaration["speculation"].get("algorithm"):
        found.append("speculation.algorithm: required when speculation is declared")
    found += _variable_problems(declaration)
    found += _argument_problems(declaration)
    if declaration["engine"] in ENGINES:
        found += get_engine(declaration["engine"]).problems(declaration)
    return found


def _variable_problems(declaration: dict[str, Any]) -> list[str]:
    found = []
    for field in ("env", "secret_env"):
        for name, value in declaration[field].items():
            if not _VARIABLE.fullmatch(name):
                found.append(f"{field}: {name!r} cannot be the name of a variable")
            elif name.startswith("GROUNDSTATE_"):
                found.append(f"{field}.{name}: names that begin with GROUNDSTATE_ are ours")
            if "\n" in value or "\0" in value:
                found.append(f"{field}.{name}: the value has a line break or a NUL")
    for name in sorted(set(declaration["env"]) & set(declaration["secret_env"])):
        found.append(f"env.{name}: declared in secret_env too")
    return found


def _argument_problems(declaration: dict[str, Any]) -> list[str]:
    found = []
    for name, value in declaration["extra_args"].items():
        if not re.fullmatch(r"-{0,2}[A-Za-z][A-Za-z0-9._-]*", str(name)):
            found.append(f"extra_args: {name!r} cannot be a flag; write the flag's name without dashes")
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value)):
            found.append(f"extra_args.{name}: a value, true, or a list of values is needed (JSON goes in as text)")
    if not found and declaration["engine"] in ENGINES:
        # A flag that is given twice would win over what everything else goes by: port, model, name.
        words = get_engine(declaration["engine"]).argv({**declaration, "extra_args": {}}, "", declaration["port"])
        taken = {_flag(word) for word in words[len(declaration["command"]) :] if word.startswith("--")}
        found += [
            f"extra_args.{name}: this flag is made from another field of the declaration; set it there"
            for name in declaration["extra_args"]
            if _flag(str(name)) in taken
        ]
    return found


def _flag(word: str) -> str:
    """A flag without its dashes and its value, in the one spelling that Python's programs take for the same."""
    return word.lstrip("-").partition("=")[0].replace("_", "-")


def local_paths(declaration: dict[str, Any]) -> dict[str, str]:
    """Field -> path, of everything that the declaration names and that must exist on the host."""
    found = {}
    if is_local_path(declaration["model"]):
        found["model"] = declaration["model"]
    draft = declaration["speculation"].get("draft_model") or ""
    if is_local_path(draft):
        found["speculation.draft_model"] = draft
    return found


def secret_hash(value: str) -> str:
    """What stands for a secret in records: enough to see that it changed."""
    return "sha256:" + files.digest(value)[:16]


def masked(declaration: dict[str, Any]) -> dict[str, Any]:
    """A copy in which every secret is replaced by its hash."""
    made = copy.deepcopy(declaration)
    made["secret_env"] = {key: secret_hash(value) for key, value in declaration["secret_env"].items()}
    made["api_key"] = secret_hash(declaration["api_key"]) if declaration["api_key"] else ""
    return made
