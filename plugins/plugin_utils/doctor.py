# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wrong with a host, from what the modules that only read have told of it. Pure: results in, findings out.

A finding has ``level`` (``problem``, or ``note`` for what is worth knowing and nothing wrong), ``what``, ``where`` (the
part of the host, or the variable) and ``fix``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..module_utils.fingerprint import compare

PROBLEM, NOTE = "problem", "note"
Finding = dict[str, str]
Result = Mapping[str, Any]

# Xid numbers after which a GPU, its memory or its links cannot be relied on (others are faults of a program).
_BAD_XID = {48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143, 154, 155, 156, 158}
_XID = re.compile(r"Xid \([^)]*\): (\d+)")
_HIDDEN_MIB = 1024  # in use by nobody who can be seen, before that is told
_SHOWN = 5
# Differences that can be seen without a load, and do not come and go by themselves.
_LASTING = {
    getattr(compare, rank) for rank in ("FILES", "SERVER", "PACKAGES", "MODEL", "GPU", "LIMITS", "KERNEL", "REST")
}


def finding(level: str, what: str, where: str, fix: str) -> Finding:
    """One finding."""
    return {"level": level, "what": what, "where": where, "fix": fix}


def told(result: Result) -> bool:
    """Whether a module was asked at all."""
    return bool(result) and not result.get("skipped")


def silent(result: Result, key: str, where: str) -> list[Finding]:
    """A finding when a module could not say what it was asked, which is in its result as ``key``."""
    if not told(result) or key in result:
        return []
    why = str(result.get("msg") or "it gave no message").strip().splitlines()
    what = f"this could not be told: {why[0]}"
    return [finding(PROBLEM, what, where, "Correct what it says, then ask again; -v shows all of it")]


def preflight(result: Result) -> list[Finding]:
    """The declaration against the host."""
    problems = [
        finding(PROBLEM, str(one["what"]), str(one["where"]) or "declaration", str(one["fix"]))
        for one in result.get("problems") or []
    ]
    return silent(result, "problems", "declaration") + problems


def leftovers(result: Result) -> list[Finding]:
    """What a reset would end and remove; ``result`` of gpu_reset in check mode."""
    found = silent(result, "ended", "GPUs")
    fix = "groundstate reset (--check --diff shows what it would do)"
    for one in result.get("ended") or []:
        gpus = ", ".join(map(str, one.get("gpus") or [])) or "none"
        command = str(one.get("cmdline") or "")[:80]
        what = f"process {one['pid']} ({command}) is left over: {one.get('why') or one.get('kind')}; GPUs: {gpus}"
        found.append(finding(PROBLEM, what, "GPUs", fix))
    files = list(map(str, result.get("removed") or []))
    if files:
        found.append(finding(PROBLEM, f"shared memory of ended processes: {_some(files)}", "memory", fix))
    for one in result.get("left") or []:
        what = f"process {one['pid']} ({str(one.get('cmdline') or '')[:80]}) shares the GPUs: {one.get('why')}"
        found.append(finding(NOTE, what, "GPUs", "A reset leaves it alone; gpu_state_policy can name it"))
    return found


def gpus(result: Result) -> list[Finding]:
    """The GPUs themselves; ``result`` of gpu_info. Whether there have to be any is for the preflight to say."""
    found = silent(result, "available", "GPUs")
    if result.get("available") == "unknown":
        fix = "Run nvidia-smi by hand; where it hangs, only a reboot of the host helps"
        found.append(finding(PROBLEM, f"the GPUs cannot be asked: {result.get('why')}", "driver", fix))
    for gpu in result.get("gpus") or []:
        used = int(gpu.get("memory_used") or 0) >> 20
        if not gpu.get("pids") and gpu.get("owner") in ("none", "not visible") and used >= _HIDDEN_MIB:
            what = f"GPU {gpu['index']}: {used} MiB are in use by nobody who can be seen from here"
            fix = "Look from the node (another container?), or wait: a process that ends gives it back late"
            found.append(finding(PROBLEM, what, "GPUs", fix))
    bad, other = [], []
    for line in result.get("xid") or []:
        number = _XID.search(line)
        (bad if not number or int(number.group(1)) in _BAD_XID else other).append(line.strip())
    if bad:
        fix = "Look it up in NVIDIA's Xid catalogue; reset the GPU or reboot, and have the board checked if it returns"
        found.append(finding(PROBLEM, f"the driver reported a fault: {bad[-1]}", "driver", fix))
    if other:
        fix = "Nothing, unless it repeats: most of these are faults of a program"
        found.append(finding(NOTE, f"the driver reported: {other[-1]}", "driver", fix))
    return found


_SERVER = {
    "absent": (NOTE, "was never launched here", "groundstate deploy starts it"),
    "stopped": (NOTE, "was stopped", "groundstate deploy starts it"),
    "starting": (NOTE, "is starting", "groundstate deploy waits for it and shows its phases"),
    "dead": (PROBLEM, "has ended by itself", "Read the end of its log; groundstate deploy starts it anew"),
}
_STUCK = "groundstate reset ends it, groundstate deploy starts it anew; its log may tell why"


def server(result: Result, name: str) -> list[Finding]:
    """The server of this name; ``result`` of llm_server_info."""
    found = silent(result, "health", "server")
    health = str(result.get("health", "healthy"))
    if health not in ("healthy", "busy"):
        level, words, fix = _SERVER.get(health, (PROBLEM, f"is {health}", _STUCK))
        why = "; ".join(map(str, result.get("why") or []))
        what = f"server {name} {words}{f': {why}' if why and level == PROBLEM else ''}"
        found.append(finding(level, what, "server", fix))
    for note in result.get("notes") or []:
        found.append(finding(NOTE, str(note), "server", "Correct llm_server, if it was not meant so"))
    return found


def proof(result: Result) -> list[Finding]:
    """The NCCL profile; ``result`` of nccl_proof."""
    found = silent(result, "verdict", "NCCL profile")
    verdict = result.get("verdict")
    why = "; ".join(map(str, result.get("why") or [])) or "see groundstate verify"
    if verdict == "contradicted":
        fix = "groundstate verify shows it worker by worker; groundstate deploy restarts the server with the profile"
        found.append(finding(PROBLEM, f"the declared profile is not in force: {why}", "NCCL profile", fix))
    elif verdict == "unknown":
        found.append(finding(NOTE, f"whether it is in force is unknown: {why}", "NCCL profile", "groundstate verify"))
    found += [finding(NOTE, str(one), "NCCL profile", "See docs/nccl.md") for one in result.get("flags") or []]
    return found


def environment(result: Result, launched: bool) -> list[Finding]:
    """The engine's environment; ``result`` of python_env_info. ``launched``: a server was launched from it."""
    if told(result) and "checks" not in result and not launched:
        why = str(result.get("msg") or "it gave no message").strip().splitlines()[0]
        return [finding(NOTE, why, "environment", "groundstate deploy makes it, where a lock is declared")]
    found = silent(result, "checks", "environment")
    levels = {"failed": PROBLEM, "unknown": NOTE}
    for one in result.get("checks") or []:
        if one["verdict"] in levels:
            fix = "groundstate deploy --tags ml_env, or repair it by hand"
            found.append(finding(levels[one["verdict"]], f"{one['name']}: {one['detail']}", "environment", fix))
    return found


def changes(result: Result, baseline: Result | None) -> list[Finding]:
    """What differs from the state in which the baseline was measured; ``result`` of host_fingerprint."""
    found = silent(result, "fingerprint", "fingerprint")
    if not told(result) or found:
        return found
    if baseline is None:
        fix = "groundstate deploy measures one"
        return [finding(NOTE, "there is no baseline of this server to compare with", "baseline", fix)]
    before = baseline["fingerprints"].get("before") or {}
    fix = "Put it back, or measure the new state and accept it: groundstate bench -e baseline_accept=true"
    lasting = [one.text for one in compare.findings(before, result["fingerprint"]) if one.rank in _LASTING]
    what = f"changed since the baseline of {baseline.get('created_at', '?')}"
    return [finding(PROBLEM, f"{what}: {text}", "fingerprint", fix) for text in lasting]


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def ordered(found: list[Finding]) -> list[Finding]:
    """Problems first, each once."""
    once = list({tuple(sorted(one.items())): one for one in found}.values())
    return sorted(once, key=lambda one: one["level"] != PROBLEM)


def count(found: list[Finding]) -> str:
    """ "2 problems, 1 note", or "nothing is wrong"."""
    numbers = {level: sum(one["level"] == level for one in found) for level in (PROBLEM, NOTE)}
    words = [f"{n} {level}{'s' if n > 1 else ''}" for level, n in numbers.items() if n]
    return ", ".join(words if numbers[PROBLEM] else ["nothing is wrong", *words])


def lines(found: list[Finding]) -> list[str]:
    """The findings for a person, two lines each."""
    made = []
    for one in found:
        made += [f"{one['level']:<8} {one['where']}: {one['what']}", f"{'fix':>8} {one['fix']}"]
    return made
