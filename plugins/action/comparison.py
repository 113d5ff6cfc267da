# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of comparison: the plan of the starts, each start as it begins and ends, the result."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars

from ..plugin_utils import (
    arms,
    comparison_lines,
    comparison_run,
    comparison_steps,
    comparison_verdict,
    comparisons,
    difference_lines,
    records,
    short_forms,
    specs,
    verdict,
)

display = Display()

ARGUMENTS = {
    "state": {"type": "str", "required": True, "choices": ["planned", "started", "recorded", "shown"]},
    "records_dir": {"type": "path", "required": True},
    "id": {"type": "str", "default": ""},
    "kind": {"type": "str", "default": "compare", "choices": list(comparisons.KINDS)},
    "title": {"type": "str", "default": ""},
    "ways": {"type": "dict", "default": {}},
    "profiles": {"type": "list", "elements": "str", "default": []},
    "tolerance": {"type": "raw", "default": 0.02},
    "looks": {"type": "list", "elements": "int", "default": list(comparisons.LOOKS)},
    "anew": {"type": "bool", "default": False},
    "covers": {"type": "list", "elements": "dict", "default": []},
    "allow": {"type": "list", "elements": "str", "default": []},
    "start": {"type": "dict", "default": {}},
    "began": {"type": "float", "default": 0.0},
    "launched": {"type": "dict", "default": {}},
    "measurement": {"type": "dict", "default": {}},
    "fingerprints": {"type": "dict", "default": {}},
    "proof": {"type": "dict", "default": {}},
    "ready": {"type": "dict", "default": {}},
    "profile": {"type": "str", "default": ""},
    "info": {"type": "dict", "default": {}},
    "left": {"type": "str", "default": ""},
}
#: The arm whose variables are facts; the role notes it with them.
HOLDS = "compare_arm_result"
#: Of the ways, the one that is read as it was written: the task has resolved it with the inventory's values.
WRITTEN = "compare_arms"


class ActionModule(ActionBase):
    """One step of a comparison. It needs no connection to the host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run on the controller. Raises AnsibleActionFail with one sentence, or with the table of differences."""
        super().run(tmp, task_vars)
        _spec, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        self.variables = task_vars or {}
        self.host: str = self.variables["inventory_hostname"]
        self.directory: str = arguments["records_dir"]
        self.roles = {name: specs.load(self._loader, name) for name in specs.role_names()}
        shipped = self.roles["nccl_profile"].internal["nccl_profile_shipped"]
        self.policy = comparison_steps.Policy(arguments["covers"], arguments["allow"], shipped)
        step = {
            "planned": self._plan,
            "started": self._begin,
            "recorded": self._record,
            "shown": self._show,
        }[arguments["state"]]
        try:
            return step(arguments)
        except (records.RecordError, ValueError) as error:
            # This play is over for the host; ansible-playbook may go on with others.
            comparison_run.release(self.directory, self.host)
            raise AnsibleActionFail(str(error)) from error

    def _document(self, arguments: dict[str, Any]) -> comparisons.Document:
        document = comparisons.read(self.directory, self.host, arguments["id"])
        if document is None:
            raise records.RecordError(f"there is no comparison {arguments['id']} of {self.host} in {self.directory}")
        return document

    def _say(self, text: str) -> None:
        display.display(f"{self.host}: {text}")

    # --- planned -----------------------------------------------------------------------------------

    def _plan(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self.variables.get(HOLDS):
            raise ValueError(
                f"variables of arm {self.variables[HOLDS]} of another comparison hold until this ansible-playbook "
                "ends, and would be taken for the inventory's; run this comparison with an ansible-playbook of its own"
            )
        try:
            comparisons.check_looks(arguments["looks"])
        except ValueError as error:
            raise ValueError(f"compare_looks: {error}") from error
        try:
            arguments["tolerance"] = verdict.read_tolerance(arguments["tolerance"])
        except ValueError as error:
            raise ValueError(f"compare_tolerance: {error}") from error
        ways = {**arguments["ways"], "compare_profiles": arms.of_profiles(arguments["profiles"])}
        options, inventory = self._known()
        if ways.get(WRITTEN) and WRITTEN in self.variables:
            ways[WRITTEN] = arms.written(self.variables[WRITTEN], inventory, self._final)
        chosen = arms.chosen(ways)
        short_forms.check(ways, lambda name: self._final(name, inventory.get(name), inventory))
        names = arms.names(chosen)
        self._refuse(chosen, names)
        made, values, clocks = self._made(arguments, chosen, names, options, inventory)
        check = self._task.check_mode
        document, fate, warnings = comparison_steps.begin(
            self.directory, made, self.policy, arguments["anew"], check, arguments["left"]
        )
        base = comparisons.reference(document)
        lines = comparison_lines.plan(document, fate)
        rows = difference_lines.table(document["differences"], base)
        lines += [f"{'' if index else 'differ in':<12}{line}" for index, line in enumerate(rows)]
        if document["state"] == "refused":
            raise ValueError(difference_lines.refusal(document["differences"], base))
        left = [] if document["state"] in comparisons.FINISHED else comparisons.remaining(document)
        first = {}
        looks = []
        for look in document["looks"]:
            starts = [one for one in left if one["block"] <= look and one["number"] not in first]
            first.update({one["number"]: one for one in starts})
            looks.append({"blocks": look, "starts": starts})
        result: dict[str, Any] = {
            "changed": document["state"] not in comparisons.FINISHED,
            "id": document["id"],
            "path": comparisons.path(self.directory, self.host, document["id"]),
            "arms": [one["name"] for one in document["arms"]],
            "reference": base,
            "over": document["state"] in comparisons.FINISHED,
            "left": document["left"] or "",
            "last_arm": document["starts"][-1]["arm"] if document["starts"] else "",
            "looks": [one for one in looks if one["starts"]],
            "differences": document["differences"],
            "variables": {arm: {name: one[name] for name in names} for arm, one in values.items()},
            "names": names,
            "env_differs": arms.differ(values.values(), "ml_env_"),
            "clocks": any(one.get(arms.CLOCKS) for one in values.values()) or arms.CLOCKS in names,
            "clocks_after": clocks if arms.differ([clocks, *values.values()], arms.CLOCKS) else {},
            "summary": lines,
            # The arms' variables may hold keys.
            "_ansible_no_log": True,
        }
        if warnings:
            result["warnings"] = warnings
        return result

    def _refuse(self, chosen: list[arms.Arm], names: list[str]) -> None:
        """Arms with variables that nobody knows, or that would have no effect."""
        problems = []
        for arm in chosen:
            for one in specs.unknown_names(arm["vars"], self.roles.values(), []):
                problems.append(f"arm {arm['name']}: {one['what']}: {one['where']}. {one['fix']}")
        if problems:
            raise ValueError("; ".join(problems))
        extra = sorted(set(names) & set(load_extra_vars(self._loader)))
        if extra:
            raise ValueError(
                f"{', '.join(extra)}: given with -e, which wins over every arm, so that the arms would not differ; put "
                "it into the inventory"
            )

    def _known(self) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """What the roles say of their variables, and all variables of the host, as they were written."""
        known: dict[str, Any] = {}
        options: dict[str, dict[str, Any]] = {}
        for role in self.roles.values():
            known.update({**role.defaults, **role.internal})
            specs.merge(options, role.options)
        return options, {**known, **self.variables}

    def _made(
        self,
        arguments: dict[str, Any],
        chosen: list[arms.Arm],
        names: list[str],
        options: dict[str, dict[str, Any]],
        inventory: dict[str, Any],
    ) -> tuple[comparisons.Document, dict[str, dict[str, Any]], dict[str, Any]]:
        """A new comparison, the final variables of its arms, and the clocks that the inventory declares."""
        deciding = sorted({*names, *(name for name in arms.deciding(options) if name in inventory)})
        values = {arm["name"]: arms.variables(arm, deciding, inventory, self._final) for arm in chosen}
        for name, one in values.items():
            arms.check_dictionaries(name, one, options)
        together = [name for name, one in values.items() if (one.get("llm_server") or {}).get("multi_host")]
        if together:
            raise ValueError(
                f"arm {together[0]}: llm_server.multi_host: a comparison is of one host; leave multi_host out, or "
                "deploy and measure each declaration by itself"
            )
        declared = [{"name": name, "variables": arms.masked(one, options)} for name, one in values.items()]
        own = {arm["name"]: arms.own(arm, inventory, self._final) for arm in chosen}
        title = arguments["title"] or " vs ".join(values)
        declaration = {
            "kind": arguments["kind"],
            "title": title,
            "arms": declared,
            "tolerance": arguments["tolerance"],
            "looks": arguments["looks"],
        }
        document = comparisons.new(
            self.host,
            arguments["kind"],
            title,
            [{"name": arm["name"], "declared": arms.masked(own[arm["name"]], options)} for arm in chosen],
            declaration,
            arguments["tolerance"],
            arguments["looks"],
        )
        clocks = [name for name in deciding if name.startswith(arms.CLOCKS)]
        none = {"name": "of the inventory", "vars": {}}
        return document, values, arms.variables(none, clocks, inventory, self._final)

    def _final(self, name: str, raw: Any, context: dict[str, Any]) -> Any:
        try:
            return self._templar.copy_with_new_env(available_variables=context).template(raw)
        except AnsibleError as error:
            raise ValueError(f"{name} cannot be resolved for an arm: {error.message}") from error

    # --- one start ---------------------------------------------------------------------------------

    def _begin(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._say(comparison_lines.begins(self._document(arguments), arguments["start"]))
        return {"changed": False, "began": time.time()}

    def _record(self, arguments: dict[str, Any]) -> dict[str, Any]:
        document = self._document(arguments)
        said_before = difference_lines.not_compared(document["differences"])
        kept = comparison_steps.keep(self.directory, document, arguments["start"], arguments, self.policy)
        self._say(comparison_lines.ended(document, kept))
        for line in difference_lines.not_compared(document["differences"]):
            if line not in said_before:
                self._say(line)
        if document["state"] == "refused":
            raise ValueError(difference_lines.refusal(document["differences"], comparisons.reference(document)))
        over = document["state"] in comparisons.FINISHED
        if document["result"] and document["result"]["blocks"] == kept["block"]:
            said = ", ".join(f"{one['arm']} {one['verdict']}" for one in document["result"]["pairs"])
            self._say(f"look at {document['result']['blocks']} blocks: {said}{'' if over else '; it goes on'}")
        return {"changed": True, "over": over, "arm": kept["arm"], "record": kept["record"], "state": document["state"]}

    # --- the result --------------------------------------------------------------------------------

    def _show(self, arguments: dict[str, Any]) -> dict[str, Any]:
        document = self._document(arguments)
        path = comparisons.path(self.directory, self.host, document["id"])
        changed = bool(arguments["left"]) and document["left"] != arguments["left"]
        if changed and not self._task.check_mode:
            document["left"] = arguments["left"]
            comparisons.write(self.directory, document)
        comparison_run.release(self.directory, self.host)
        return {
            "changed": changed,
            "state": document["state"],
            "result": document["result"] or comparison_verdict.judge(document),
            "title": document["title"],
            "path": path,
            "summary": comparison_lines.result(document, path),
        }
