# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of rollout_declaration: what is declared for a host, checked and as a document."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils.preflight import checks
from ..plugin_utils import declared, role_values, specs


class ActionModule(ActionBase):
    """It asks nothing of the host, so that a fleet is checked before any of it is touched."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fails with all problems of the host's variables in one message."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _spec, arguments = self.validate_argument_spec(
            argument_spec={
                "roles": {"type": "list", "elements": "str", "default": []},
                "known_variables": {"type": "list", "elements": "str", "default": []},
            }
        )
        every = role_values.every_role(self._loader)
        chosen = [name for name in arguments["roles"] or every if name in every]
        problems = specs.unknown_names(variables, every.values(), arguments["known_variables"])
        values, wrong = role_values.read(self._templar, {*chosen, *declared.ROLES, "rollout"}, every, variables)
        problems += wrong
        if problems:
            return {"failed": True, "msg": checks.message(problems, variables.get("inventory_hostname", ""))}
        together = (values["llm_server"].get("multi_host") or {}).get("hosts") or []
        kept = declared.document(values, every, declared.lock_folder(variables))
        return {"changed": False, "declared": kept, "together": together}
