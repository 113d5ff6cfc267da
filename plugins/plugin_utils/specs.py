# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The roles' argument specs: load them, and check the variables of a host against all of them at once."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values
from ansible.module_utils.errors import UnsupportedError

from ..module_utils.preflight.checks import problem

# This file is <collection>/plugins/plugin_utils/specs.py, in a checkout, a wheel and an installed tarball alike.
COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PREFIXES = ("groundstate_", "nccl_profiles_")  # those that are no role's name; "<role>_" are added
# Ansible's own names, which are near none of ours but would cost time to compare.
_FOREIGN = ("ansible_", "inventory_", "playbook_", "role_", "play_", "group", "hostvars", "omit", "vars")


@dataclass(frozen=True)
class Role:
    """What a role accepts: options of all its entry points, defaults, and variables of its own."""

    name: str
    options: dict[str, dict[str, Any]]
    defaults: dict[str, Any]
    internal: dict[str, Any]


def roles_folder() -> str:
    return os.path.join(COLLECTION, "roles")


def role_names() -> list[str]:
    """Roles of this collection that have argument specs."""
    folder = roles_folder()
    return sorted(
        name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name, "meta", "argument_specs.yml"))
    )


def load(loader: Any, name: str) -> Role:
    """One role. ``loader``: Ansible's DataLoader. Raises AnsibleError for a file that is no YAML."""

    def read(*path: str) -> dict[str, Any]:
        where = os.path.join(roles_folder(), name, *path)
        # Templates in our own files are to be trusted; without that they would stay text.
        return (loader.load_from_file(where, trusted_as_template=True) or {}) if os.path.isfile(where) else {}

    options: dict[str, dict[str, Any]] = {}
    for entry in read("meta", "argument_specs.yml").get("argument_specs", {}).values():
        merge(options, entry.get("options") or {})
    return Role(name, options, read("defaults", "main.yml"), read("vars", "main.yml"))


def merge(into: dict[str, dict[str, Any]], options: Mapping[str, dict[str, Any]]) -> None:
    """Add options; of two of one name the one that knows the dictionary's keys counts, required if either is."""
    for name, option in options.items():
        known = into.get(name)
        if known is None:
            into[name] = dict(option)
            continue
        better = known if known.get("options") or not option.get("options") else option
        required = bool(known.get("required")) or bool(option.get("required"))
        into[name] = {**better, "required": required}
        if required:
            into[name].pop("default", None)  # the validator takes one or the other


# --- where a value comes from ------------------------------------------------------------------------


def origin(value: Any) -> str:
    """ "file:line" that a value of the inventory or a play was written at; "" when Ansible does not tell."""
    try:
        from ansible._internal._datatag._tags import Origin
    except ImportError:  # an internal of ansible-core: nice to have, never needed
        return ""
    tag = Origin.get_tag(value)
    if tag is None and isinstance(value, (list, Mapping)):
        # Containers that were put together anew carry no tag, what is in them does.
        return next((text for text in map(origin, value) if text), "")
    if tag is None or not tag.path or not tag.line_num:
        return ""
    relative = os.path.relpath(tag.path)
    return f"{tag.path if relative.startswith('..') else relative}:{tag.line_num}"


def place(name: str, *values: Any) -> str:
    """A variable's name with the first origin that is known of these values."""
    found = next((text for text in map(origin, values) if text), "")
    return f"{name} ({found})" if found else name


# --- checks ------------------------------------------------------------------------------------------


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name that is most like this one, or ""."""
    found = difflib.get_close_matches(name, list(known), 1, cutoff)
    return found[0] if found else ""


def _unknown(
    label: str, name: str, known: Iterable[str], what: str, nested: Mapping[str, str] | None = None
) -> dict[str, str]:
    """``nested``: name as somebody may write it -> as it is."""
    names, nested = sorted(known), nested or {}
    near = nearest(name, [*names, *nested])
    near = nested.get(near, near)
    fix = f"Did you mean {near}?" if near else f"Use one of {', '.join(names)}" if len(names) <= 30 else "Remove it"
    return problem(f"no such {what}", label, fix)


def unknown_names(variables: Mapping[str, Any], roles: Iterable[Role], allowed: Iterable[str]) -> list[dict[str, str]]:
    """Variables with the prefix of one of our roles that none of them knows."""
    roles = list(roles)
    options = {name for role in roles for name in role.options}
    known = options | {name for role in roles for name in (*role.defaults, *role.internal)} | set(allowed)
    prefixes = (*_PREFIXES, *(f"{role.name}_" for role in roles))
    nested = {
        f"{name}_{key}": f"{name}.{key}"
        for role in roles
        for name, option in role.options.items()
        for key in option.get("options") or {}
    }
    return [
        _unknown(place(name, name, variables[name]), name, options, "variable in any role of groundstate.llm", nested)
        for name in sorted(variables)
        # Results that roles register end in _result.
        if name.startswith(prefixes) and name not in known and not name.endswith("_result")
    ]


def lookalikes(variables: Mapping[str, Any], roles: Iterable[Role]) -> list[str]:
    """Warnings for variables outside our prefixes that look like a misspelt one of ours."""
    roles = list(roles)
    options = {name for role in roles for name in role.options}
    prefixes = (*_PREFIXES, *(f"{role.name}_" for role in roles), *_FOREIGN, "_")
    found = []
    for name in sorted(variables):
        near = "" if name in options or name.startswith(prefixes) else nearest(name, options, 0.88)
        if near:
            found.append(f"{place(str(name), name)}: is not a variable of groundstate.llm; {near} is. Was that meant?")
    return found


def unknown_keys(option: Mapping[str, Any], value: Any, path: str) -> list[dict[str, str]]:
    """Keys inside a dictionary (or a list of them) that its spec does not know, at any depth."""
    options = option.get("options")
    if not options:
        return []
    if isinstance(value, list):
        return [one for index, item in enumerate(value) for one in unknown_keys(option, item, f"{path}[{index}]")]
    if not isinstance(value, Mapping):
        return []
    found = []
    for key, content in value.items():
        if key not in options:
            found.append(_unknown(place(f"{path}.{key}", key, content), str(key), options, f"key in {path}"))
        else:
            found += unknown_keys(options[key], content, f"{path}.{key}")
    return found


def check_value(
    name: str, option: Mapping[str, Any], value: Any, partial: bool = False
) -> tuple[Any, list[dict[str, str]]]:
    """(the value as the spec types it, problems) of one variable. Secrets never are in the problems.

    ``partial``: some keys are left out because they could not be templated, so that none is missed here.
    """
    found = unknown_keys(option, value, name)
    checked = _nothing_required(option) if partial else dict(option)
    result = ArgumentSpecValidator({name: checked}).validate({name: value})
    texts = [
        remove_values(error.msg, result._no_log_values)
        for error in result.errors.errors
        if not isinstance(error, UnsupportedError)
    ]
    # What is no dictionary at all gives several messages that all say so.
    whole = [text for text in texts if (match := _TYPE.search(text)) and match["key"] == name and not match["inside"]]
    found += [_readable(text, name, option, value) for text in whole[:1] or texts]
    return result.validated_parameters.get(name), found


def _nothing_required(option: Mapping[str, Any]) -> dict[str, Any]:
    relaxed = {**option, "required": False}
    if option.get("options"):
        relaxed["options"] = {key: _nothing_required(inner) for key, inner in option["options"].items()}
    return relaxed


# What Ansible's validator says, and the path inside the variable ("found in 'a -> b'") that it says it of.
_INSIDE = r"(?: found in '?(?P<inside>[^'.]+)'?)?"
_TYPE = re.compile(
    rf"(?:argument|Elements value for option) '(?P<key>[^']+)' is of type .*?{_INSIDE}\.? and we were unable"
)
_CHOICE = re.compile(
    rf"value of (?P<key>\S+) must be one(?: or more)? of: (?P<choices>.*)[,.] [gG]ot.*?: (?P<got>.*?){_INSIDE}$"
)
_REQUIRED = re.compile(rf"missing required arguments: (?P<key>.*?){_INSIDE}$")


def _readable(text: str, name: str, option: Mapping[str, Any], value: Any) -> dict[str, str]:
    """A message of Ansible's validator as a problem of ours; one that has another form is kept as it is."""
    for pattern, tell in ((_TYPE, _wrong_type), (_CHOICE, _wrong_choice), (_REQUIRED, _missing)):
        found = pattern.search(text)
        if found:
            folders = (found["inside"] or "").split(" -> ") if found["inside"] else []
            path = ".".join([*folders, *(found["key"].split(", ") if pattern is not _REQUIRED else [])])
            return tell(
                found, text, place(path or name, *_leaf(value, path, name), value), _shown(option, value, path, name)
            )
    return problem(text.rstrip(". "), place(name, value), "")


def _leaf(value: Any, path: str, name: str) -> list[Any]:
    """The value at a path inside a variable, as a list of one; [] when it is not there."""
    for key in path.split(".")[1:] if path.startswith(f"{name}.") else []:
        if not isinstance(value, Mapping) or key not in value:
            return []
        value = value[key]
    return [value]


def _shown(option: Mapping[str, Any], value: Any, path: str, name: str) -> str:
    """The value at a path as text; "the value" when it is or may hold a secret."""
    inner: Mapping[str, Any] = option
    for key in path.split(".")[1:] if path.startswith(f"{name}.") else []:
        if inner.get("no_log"):
            break
        inner = (inner.get("options") or {}).get(key, {"no_log": True})
    leaf = _leaf(value, path, name)
    if inner.get("no_log") or inner.get("options") or not leaf or not _plain(leaf[0]):
        return "the value"
    text = repr(leaf[0])
    return text if len(text) <= 60 else text[:57] + "..."


def _plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, (str, int, float)) for one in value)
    return isinstance(value, (str, int, float))


def _wrong_type(found: re.Match, text: str, where: str, shown: str) -> dict[str, str]:
    wanted = re.search(r"unable to convert to (\w+)", text)
    kind = wanted[1] if wanted else "its spec"
    what = f"has an element that is not of type {kind}" if text.startswith("Elements") else f"is not of type {kind}"
    return problem(f"{shown} {what}", where, "Correct it")


def _wrong_choice(found: re.Match, text: str, where: str, shown: str) -> dict[str, str]:
    choices = [one for one in found["choices"].split(", ") if one]
    near = nearest(found["got"], choices)
    return problem(f"{found['got']!r} is none of {', '.join(choices)}", where, f"Did you mean {near}?" if near else "")


def _missing(found: re.Match, text: str, where: str, shown: str) -> dict[str, str]:
    return problem(f"{found['key']} is required", where, "Set it")
