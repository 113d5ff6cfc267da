# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of preflight: the variables of a host against all roles, then the host against the variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible import __version__ as ansible_version
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from ..module_utils import writable
from ..module_utils.preflight import checks
from ..module_utils.preflight.wants import ARGUMENTS
from ..plugin_utils import needs, specs

MODULE = "groundstate.llm.preflight"
# Paths are the host's: the controller must not expand them.
_ARGUMENTS = {
    name: {**option, "type": "str" if option["type"] == "path" else option["type"]}
    for name, option in ARGUMENTS.items()
}
OLDEST_CORE, UNTESTED_CORE = (2, 19), (2, 22)
UNDEFINED = "Define it, or correct the template"
_FAILED = object()  # a value that could not be templated; its problem is told


class ActionModule(ActionBase):
    """All problems of a host in one message, and nothing changed."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Raises AnsibleActionFail for wrong arguments of the task itself."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _result, arguments = self.validate_argument_spec(argument_spec=_ARGUMENTS)
        every = {name: specs.load(self._loader, name) for name in specs.role_names()}
        wrong = sorted(set(arguments["roles"]) - set(every))
        if wrong:
            raise AnsibleActionFail(f"roles: there is no role {', '.join(wrong)}; use some of {', '.join(every)}")
        chosen = arguments["roles"] or list(every)

        problems, warnings = core_version(ansible_version)
        problems += specs.unknown_names(variables, every.values(), arguments["known_variables"])
        warnings += specs.lookalikes(variables, every.values())
        values, wrong_values = self._values(chosen, every, variables)
        problems += wrong_values
        host = variables.get("inventory_hostname", "")
        derived, more, hints = needs.derive(values, chosen, arguments, self._loader)
        problems += more
        warnings += hints
        if arguments["records_dir"]:
            values["groundstate_records_dir"] = arguments["records_dir"]
        if "baseline" in chosen or arguments["records_dir"]:
            problems += records_folder(values.get("groundstate_records_dir"), host)
        return self._finish(host, problems, warnings, self._look(host, problems, derived, variables))

    # --- the variables ---------------------------------------------------------------------------

    def _values(
        self, chosen: list[str], every: Mapping[str, specs.Role], variables: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[dict[str, str]]]:
        """(variable -> value as its spec types it, problems); a variable with a problem is left out."""
        options: dict[str, dict[str, Any]] = {}
        defaults: dict[str, Any] = {}
        wanted_by: dict[str, list[str]] = {}
        for name in chosen:
            specs.merge(options, every[name].options)
            for option in every[name].options:
                wanted_by.setdefault(option, []).append(name)
        for role in every.values():
            defaults.update(role.defaults)
        ours = dict(defaults)
        for role in every.values():
            ours.update(role.internal)
        templar = self._templar.copy_with_new_env(available_variables={**ours, **variables})
        values: dict[str, Any] = {}
        problems: list[dict[str, str]] = []
        for name, option in options.items():
            raw = variables[name] if name in variables else defaults.get(name)
            if raw is None:
                if option.get("required") and name not in defaults:
                    roles = ", ".join(wanted_by[name])
                    problems.append(checks.problem("is not set for this host", name, f"Set it; {roles} needs it"))
                continue
            undefined: list[dict[str, str]] = []
            wrong: list[dict[str, str]] = []
            value = self._templated(templar, name, raw, undefined)
            if value is not _FAILED:
                value, wrong = specs.check_value(name, option, value, partial=bool(undefined))
                problems += wrong
            problems += undefined
            if not undefined and not wrong:
                values[name] = value
        return values, once(problems)

    def _templated(self, templar: Any, path: str, raw: Any, problems: list[dict[str, str]]) -> Any:
        """A value with its templates resolved, leaf by leaf, so that each that fails is named."""
        if isinstance(raw, Mapping):
            pairs = {key: self._templated(templar, f"{path}.{key}", item, problems) for key, item in raw.items()}
            return {key: item for key, item in pairs.items() if item is not _FAILED}
        if isinstance(raw, list):
            items = [self._templated(templar, f"{path}[{n}]", item, problems) for n, item in enumerate(raw)]
            return [item for item in items if item is not _FAILED]
        try:
            return templar.template(raw)
        except AnsibleError as error:
            problems.append(checks.problem(reason(error), specs.place(path, raw), UNDEFINED))
            return _FAILED

    # --- the host --------------------------------------------------------------------------------

    def _look(
        self, host: str, problems: list[dict[str, str]], arguments: dict[str, Any], variables: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            return self._execute_module(module_name=MODULE, module_args=arguments, task_vars=variables)
        except AnsibleConnectionFailure as error:
            if problems:
                # Both at once: whoever repairs the connection should not then be told of the next thing.
                raise AnsibleConnectionFailure(f"{error.message}\n{checks.message(problems, host)}") from error
            raise

    def _finish(
        self, host: str, problems: list[dict[str, str]], warnings: list[str], target: dict[str, Any]
    ) -> dict[str, Any]:
        if "problems" in target:
            problems = problems + target["problems"]
        elif target.get("failed") or target.get("unreachable"):
            if target.get("unreachable") and not problems:
                return target
            oldest = ".".join(map(str, checks.MINIMUM_PYTHON))
            fix = f"Correct ansible_python_interpreter (Python {oldest} or newer), the login or the connection"
            problems = [*problems, checks.problem(f"the host could not be checked: {last_words(target)}", "", fix)]
        result: dict[str, Any] = {
            "changed": False,
            "problems": problems,
            "warnings": warnings + list(target.get("warnings") or []),
        }
        if problems:  # without the facts: Ansible shows all of a failed result, and the message is what counts
            return {**result, "failed": True, "msg": checks.message(problems, host)}
        return {**result, "facts": target.get("facts", {})}


def last_words(result: Mapping[str, Any]) -> str:
    """Why a module could not run, in one line, from what Ansible makes of it."""
    summary = getattr(getattr(result.get("exception"), "event", None), "msg", "")
    for words in (result.get("module_stderr"), result.get("msg"), summary, result.get("exception")):
        lines = str(words or "").strip().splitlines()
        if lines:
            return lines[-1]
    return "it gave no message"


def once(problems: list[dict[str, str]]) -> list[dict[str, str]]:
    """Variables that fail for the same reason as one problem: what uses an undefined variable is undefined as well."""
    found: list[dict[str, str]] = []
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


def core_version(version: str) -> tuple[list[dict[str, str]], list[str]]:
    """(problems, warnings) of the version of ansible-core."""
    found = tuple(int(word) for word in version.split(".")[:2])
    if found < OLDEST_CORE:
        oldest = ".".join(map(str, OLDEST_CORE))
        return [checks.problem(f"ansible-core is {version}, {oldest} is needed", "controller", "Upgrade it")], []
    if found >= UNTESTED_CORE:
        return [], [f"ansible-core {version} is newer than what groundstate.llm was tested with"]
    return [], []


def records_folder(path: str | None, host: str) -> list[dict[str, str]]:
    """The folder of a host's records on the controller must be one that can be written to."""
    if not path:
        return []  # told already
    full = os.path.join(os.path.abspath(os.path.expanduser(os.path.expandvars(path))), host)
    why = writable.obstacle(full)
    if not why:
        return []
    fix = "Name a folder that may be written to, or correct the owner"
    return [
        checks.problem(
            f"records cannot be written to {full}: {why}", "groundstate_records_dir (on the controller)", fix
        )
    ]
