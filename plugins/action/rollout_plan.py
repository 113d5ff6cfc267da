# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller half of rollout_plan: batches, what is done already, what would change, the way back."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

from ..plugin_utils import declared, records, rollout_plan, rollout_state

ARGUMENTS = {
    "records_dir": {"type": "path", "required": True},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "canaries": {"type": "list", "elements": "str", "default": []},
    "batches": {"type": "list", "elements": "raw", "default": []},
    "max_failed": {"type": "raw", "default": 0},
    "on_failure": {"type": "str", "choices": ["stop", "rollback"], "default": "stop"},
    "resume": {"type": "bool", "default": True},
    "partial": {"type": "bool", "default": False},
    "puts_back": {"type": "bool", "default": False},
}
_SHOWN = 12  # differences of one declaration


class ActionModule(ActionBase):
    """One plan for all hosts of the play; it begins the rollout's file, or goes on with it."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Raises AnsibleActionFail with one sentence, before anything is changed."""
        super().run(tmp, task_vars)
        _spec, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        hostvars = (task_vars or {})["hostvars"]
        told = {host: hostvars[host].get("rollout_declaration_result") or {} for host in arguments["hosts"]}
        try:
            return self._plan(arguments, told, write=not (self._task.check_mode or arguments["partial"]))
        except (ValueError, records.RecordError) as error:
            raise AnsibleActionFail(str(error)) from error

    def _plan(self, arguments: dict[str, Any], told: dict[str, Any], write: bool) -> dict[str, Any]:
        where, hosts = arguments["records_dir"], arguments["hosts"]
        limit = rollout_plan.amount(arguments["max_failed"], "rollout_max_failed")
        sizes = [rollout_plan.amount(raw, "rollout_batches") for raw in arguments["batches"]]
        parts = rollout_plan.units(hosts, {host: told[host]["together"] for host in hosts})
        cut = rollout_plan.batches(parts, arguments["canaries"], sizes)
        hashes = {host: told[host]["declared"]["hash"] for host in hosts}
        last = rollout_state.latest(where)
        state, resumed = rollout_state.begin(where, last, hashes, arguments["resume"], write=False)
        before = {host: _declared_before(where, host, state["hosts"][host]) for host in hosts}
        if arguments["on_failure"] == "rollback":
            self._check_ways_back(told, before)
        if write:  # only now that nothing is refused any more
            state, resumed = rollout_state.begin(where, last, hashes, arguments["resume"], write=True)
        done = {host for host in hosts if resumed and _done(state["hosts"][host], arguments["puts_back"])}
        batches = [
            {"number": number, "hosts": batch, "run": [host for host in batch if host not in done]}
            for number, batch in enumerate(cut)
        ]
        return {
            "changed": False,
            "id": state["id"] if write else "",
            "path": rollout_state.path_of(where, state["id"]) if write else "",
            "resumed": resumed,
            "batches": batches,
            "hosts": {host: state["hosts"][host] for host in hosts},
            "lines": _lines(batches, done, arguments, limit, told, before, state["id"] if resumed else ""),
        }

    def _check_ways_back(self, told: dict[str, Any], before: dict[str, Any]) -> None:
        """What is given with -e wins over everything: a rollback could not change it back."""
        fixed = sorted(set(load_extra_vars(self._loader)) & set(declared.OPTIONS))
        for host, old in before.items():
            if told[host]["together"]:
                raise AnsibleActionFail(
                    f"rollout_on_failure: {host} shares its server with others, which is not rolled back; use stop"
                )
            now = told[host]["declared"]["variables"]
            stuck = [name for name in fixed if old and old["variables"].get(name) != now[name]]
            if stuck:
                raise AnsibleActionFail(
                    f"rollout_on_failure: {host} could not be rolled back: {', '.join(stuck)} is given with -e, "
                    "which wins over everything; declare it in the inventory, or use stop"
                )


def _done(entry: dict[str, Any], puts_back: bool) -> bool:
    """Whether a host has had its turn; one that passed when its run was killed may have to be put back yet."""
    return entry["outcome"] == rollout_plan.PASSED and not (puts_back and entry.get("drained"))


def _declared_before(where: str, host: str, entry: dict[str, Any]) -> dict[str, Any] | None:
    """The document of the declaration before; None when there is none."""
    if not entry["before"]:
        return None
    record = records.read_record(where, host, entry["before"]["record"])
    kept = (record or {}).get("declared")
    return kept if declared.usable(kept) else None


def _lines(
    batches: list[dict[str, Any]],
    done: set[str],
    arguments: dict[str, Any],
    limit: rollout_plan.Amount,
    told: dict[str, Any],
    before: dict[str, Any],
    resumed: str,
) -> list[str]:
    canaries = set(arguments["canaries"])
    found = [f"goes on with {resumed}: {len(done)} of {len(told)} hosts have passed"] if resumed else []
    for batch in batches:
        run, passed = batch["run"], [host for host in batch["hosts"] if host in done]
        what = "canaries" if canaries & set(batch["hosts"]) else f"{len(batch['hosts'])} of {len(told)}"
        text = f"batch {batch['number'] + 1} ({what}): {', '.join(run) or 'nothing to do'}"
        found.append(text + (f"; passed already: {', '.join(passed)}" if passed else ""))
    share = f"{arguments['max_failed']} of a batch" if limit.share is not None else str(limit.number)
    then = "stops" if arguments["on_failure"] == "stop" else "stops and the batch is rolled back"
    found.append(f"with more than {share} failed, slower, unproved or unreachable, the rollout {then}")
    return found + _changes(told, before)


def _changes(told: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What changes on which hosts: hosts with the same changes together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for host, one in told.items():
        old = before[host]
        if old is None:
            key: tuple[str, ...] = ("no declaration of before is kept: no way back",)
        else:
            key = tuple(declared.differences(old, one["declared"])) or ("nothing changes in the declaration",)
        alike.setdefault(key, []).append(host)
    found = []
    for texts, hosts in alike.items():
        found += ["", f"{', '.join(hosts)}:", *(f"  {text}" for text in texts[:_SHOWN])]
        if len(texts) > _SHOWN:
            found.append(f"  ... and {len(texts) - _SHOWN} more")
    return found
