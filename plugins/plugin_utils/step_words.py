# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Words for the steps of a playbook: lines, failures, verdicts. The callback and the command line both use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# From the worst on: what a line is coloured by.
OUTCOMES = ("unreachable", "failed", "ignored", "changed", "ok", "skipped")
_TOLD = ("ok", "changed", "failed", "unreachable", "ignored", "skipped")  # the order in a line
SPEAKING = frozenset({"ansible.builtin.debug", "debug"})
# They print, remember or fetch something on the controller: fine is not worth a line.
_SILENT = SPEAKING | {
    f"{collection}{name}"
    for collection, names in (
        ("groundstate.llm.", ("show",)),
        *((prefix, ("assert", "set_fact", "meta", "validate_argument_spec")) for prefix in ("", "ansible.builtin.")),
        *((prefix, ("include_role", "include_tasks", "include_vars")) for prefix in ("", "ansible.builtin.")),
    )
    for name in names
}
_TAIL = 20  # lines of what a program said
_WIDTH = {True: 10, False: 26}  # of the outcome, of one host alone or of several


def split(title: str) -> tuple[str, str]:
    """(phase, name) of a task's title: "groundstate.llm.ml_env : Build it" -> ("ml_env", "Build it")."""
    role, colon, name = title.strip().partition(" : ")
    return (role.rpartition(".")[2].strip(), name.strip()) if colon else ("", role)


def worst(counts: Mapping[str, int]) -> str:
    """The outcome that a step is coloured by, of {outcome: hosts}."""
    return next((name for name in OUTCOMES if counts.get(name)), "skipped")


def worth_a_line(action: str, counts: Mapping[str, int]) -> bool:
    """Whether a step has a line: not when it was skipped everywhere, nor when it only printed something."""
    return worst(counts) != "skipped" and not (action in _SILENT and worst(counts) == "ok")


def line(counts: Mapping[str, int], seconds: float, phase: str, name: str) -> str:
    """One step: "changed       1.2 s  ml_env        Build it"; of several hosts "8 ok, 2 changed  1.2 s ..."."""
    known = [name for name in _TOLD if counts.get(name)]
    alone = sum(counts.values()) == 1
    outcome = known[0] if alone else ", ".join(f"{counts[name]} {name}" for name in known)
    return f"{outcome:<{_WIDTH[alone]}} {seconds:6.1f} s  {f'{phase:<13} ' if phase else ''}{name}"


def failure(result: Mapping[str, Any]) -> list[str]:
    """Why a task failed, in lines: its message, and what a program said last. Never empty."""
    if result.get("censored"):
        return [str(result["censored"])]
    lines = str(result.get("msg") or "").rstrip().splitlines()
    items = result.get("results")
    for one in items if isinstance(items, list) else []:
        if isinstance(one, Mapping) and one.get("failed"):
            lines += [f"{_line(one.get('item'))}:", *(f"  {line}" for line in failure(one))]
    if result.get("assertion"):
        lines.append(f"assertion: {_line(result['assertion'])}")
    if "cmd" in result and "rc" in result:
        command = result["cmd"]
        words = " ".join(map(str, command)) if isinstance(command, list) else command
        lines.append(f"command: {_line(words)} (exit status {_line(result['rc'])})")
    for key in ("stderr", "module_stderr", "stdout", "module_stdout"):
        said = str(result.get(key) or "").rstrip().splitlines()
        if said:
            lines += [f"{key.rpartition('_')[2]}:", *(f"  {one}" for one in said[-_TAIL:])]
    return lines or ["it gave no message"]


def _line(value: Any) -> str:
    """Whatever it is, such as a script of shell, in one line."""
    return " ".join(str(value).split())


def verdict(result: Mapping[str, Any]) -> str:
    """What a measurement came to, from a result with the fact ``groundstate``: "same, 70.1 tok/s"; else ""."""
    facts = result.get("ansible_facts")
    told = facts.get("groundstate") if isinstance(facts, Mapping) else None
    if not isinstance(told, Mapping) or not isinstance(told.get("value"), (int, float)):
        return ""
    rate = f"{told['value']:.1f} {told.get('unit', '')}".rstrip()
    return f"{told['verdict']}, {rate}" if told.get("verdict") else rate
