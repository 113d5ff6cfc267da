# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The variables of a host as the roles will get them: defaults filled in, templates resolved, types as specified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleError

from ..module_utils.preflight import checks
from . import specs

UNDEFINED = "Define it, or correct the template"
_FAILED = object()  # a value that could not be templated; its problem is told

Problems = list[dict[str, str]]


def every_role(loader: Any) -> dict[str, specs.Role]:
    """All roles of the collection by name. ``loader``: Ansible's DataLoader."""
    return {name: specs.load(loader, name) for name in specs.role_names()}


def read(
    templar: Any, chosen: Iterable[str], every: Mapping[str, specs.Role], variables: Mapping[str, Any]
) -> tuple[dict[str, Any], Problems]:
    """(variable -> value as its spec types it, problems) of the chosen roles; one with a problem is left out.

    ``templar``: that of the action; ``variables``: its raw task_vars.
    """
    options: dict[str, dict[str, Any]] = {}
    defaults: dict[str, Any] = {}
    wanted_by: dict[str, list[str]] = {}
    for name in chosen:
        specs.merge(options, every[name].options)
        for option in every[name].options:
            wanted_by.setdefault(option, []).append(name)
    for role in every.values():
        defaults.update(role.defaults)
    ours = internals(every)
    own_templar = templar.copy_with_new_env(available_variables={**ours, **variables})
    values: dict[str, Any] = {}
    problems: Problems = []
    for name, option in options.items():
        raw = variables[name] if name in variables else defaults.get(name)
        if raw is None:
            if option.get("required") and name not in defaults:
                roles = ", ".join(wanted_by[name])
                problems.append(checks.problem("is not set for this host", name, f"Set it; {roles} needs it"))
            continue
        undefined: Problems = []
        wrong: Problems = []
        value = _templated(own_templar, name, raw, undefined)
        if value is not _FAILED:
            value, wrong = specs.check_value(name, option, value, partial=bool(undefined))
            problems += wrong
        problems += undefined
        if not undefined and not wrong:
            values[name] = value
    return values, once(problems)


def internals(every: Mapping[str, specs.Role]) -> dict[str, Any]:
    """What the roles' own files say, raw: defaults, and vars before them."""
    ours: dict[str, Any] = {}
    for role in every.values():
        ours.update(role.defaults)
    for role in every.values():
        ours.update(role.internal)
    return ours


def _templated(templar: Any, path: str, raw: Any, problems: Problems) -> Any:
    """A value with its templates resolved, leaf by leaf, so that each that fails is named."""
    if isinstance(raw, Mapping):
        pairs = {key: _templated(templar, f"{path}.{key}", item, problems) for key, item in raw.items()}
        return {key: item for key, item in pairs.items() if item is not _FAILED}
    if isinstance(raw, list):
        items = [_templated(templar, f"{path}[{n}]", item, problems) for n, item in enumerate(raw)]
        return [item for item in items if item is not _FAILED]
    try:
        return templar.template(raw)
    except AnsibleError as error:
        problems.append(checks.problem(reason(error), specs.place(path, raw), UNDEFINED))
        return _FAILED


def once(problems: Problems) -> Problems:
    """Variables that fail for the same reason as one problem: what uses an undefined variable is undefined as well."""
    found: Problems = []
    first: dict[str, dict[str, str]] = {}
    for one in problems:
        if one["fix"] == UNDEFINED and one["what"] in first:
            first[one["what"]]["where"] += f", {one['where']}"
        else:
            found.append(one)
            first.setdefault(one["what"], one)
    return found


def reason(error: AnsibleError) -> str:
    """What a template lacks, in one line."""
    text = " ".join(str(getattr(error, "message", error)).split())
    return text.rstrip(".")
