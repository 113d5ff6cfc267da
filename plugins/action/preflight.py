# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of preflight: the variables of a host against all roles, then the host against the variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible import __version__ as ansible_version
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from ..module_utils import writable
from ..module_utils.preflight import checks
from ..module_utils.preflight.wants import ARGUMENTS
from ..plugin_utils import needs, role_values, specs

MODULE = "groundstate.llm.preflight"
# Paths are the host's: the controller must not expand them.
_ARGUMENTS = {
    name: {**option, "type": "str" if option["type"] == "path" else option["type"]}
    for name, option in ARGUMENTS.items()
}
OLDEST_CORE, UNTESTED_CORE = (2, 19), (2, 22)


class ActionModule(ActionBase):
    """All problems of a host in one message, and nothing changed."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Raises AnsibleActionFail for wrong arguments of the task itself."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _result, arguments = self.validate_argument_spec(argument_spec=_ARGUMENTS)
        every = role_values.every_role(self._loader)
        wrong = sorted(set(arguments["roles"]) - set(every))
        if wrong:
            raise AnsibleActionFail(f"roles: there is no role {', '.join(wrong)}; use some of {', '.join(every)}")
        chosen = arguments["roles"] or list(every)

        problems, warnings = core_version(ansible_version)
        problems += specs.unknown_names(variables, every.values(), arguments["known_variables"])
        warnings += specs.lookalikes(variables, every.values())
        values, wrong_values = role_values.read(self._templar, chosen, every, variables)
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
