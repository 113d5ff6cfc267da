# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Facts of a target host against what a declaration needs: every problem, each with its remedy. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

MINIMUM_PYTHON = (3, 9)
# Always wanted on the filesystem of the home: logs, records of servers, caches.
RESERVE_MIB = 100
FOLDER_ENGINES = ("vllm", "sglang")


def problem(what: str, where: str, fix: str) -> dict[str, str]:
    """One problem: what is wrong, the variable or place that it is about, how to fix it."""
    return {"what": what, "where": where, "fix": fix}


def sentence(one: Mapping[str, str]) -> str:
    """A problem as text."""
    where = f"{one['where']}: " if one["where"] else ""
    fix = one["fix"] and f" {one['fix']}" + ("" if one["fix"].endswith("?") else ".")
    return f"{where}{one['what']}.{fix}"


def message(problems: list[dict[str, str]], host: str = "") -> str:
    """All problems as one numbered text."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"{count}{f' on {host}' if host else ''}, nothing was changed:"]
    return "\n".join(lines + [f"  {number}. {sentence(one)}" for number, one in enumerate(problems, 1)])


def check(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[list[dict[str, str]], list[str]]:
    """(problems, warnings) of a host. ``facts`` are those of :func:`.facts.gather`."""
    problems = [one for rule in _RULES for one in rule(wants, facts)]
    warnings = [
        f"llm_server.port: {wants['server']['port']} is taken by process {use['pid']} ({use['cmdline'][:120]}), "
        "which the role gpu_state will end before the start"
        for use in facts["port_users"]
        if use["cleared"]
    ]
    return problems, warnings


def _python(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    version = tuple(int(word) for word in facts["python"].split(".")[:2])
    if version < MINIMUM_PYTHON:
        needed = ".".join(map(str, MINIMUM_PYTHON))
        yield problem(
            f"the modules run with Python {facts['python']} on the host, {needed} is the oldest they work with",
            "ansible_python_interpreter",
            f"Install Python {needed} or newer there and name it",
        )


def _home(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    home = facts["home"]
    if home["obstacle"]:
        yield problem(
            f"{wants['home']} cannot be used: {home['obstacle']}",
            "groundstate_home",
            "Name a folder that the login user may write to, or correct the owner",
        )
    elif facts["record"]:
        yield problem(
            f"the record of the server cannot be read: {facts['record']}",
            f"{wants['home']}/servers/{wants['server']['name']}",
            "Repair or remove it",
        )


def _disk(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    home, environment = facts["home"], facts["environment"]
    asked = wants["needs"]["free_mib"]
    yield from _space(home, asked or RESERVE_MIB, "groundstate_home")
    build = wants["environment"]
    if build["lock"] and environment is not None and not environment["exists"]:
        yield from _space(
            environment, asked or build["size_mib"], "ml_env_path", f" for the environment {build['lock']}"
        )
        if environment["obstacle"] and environment["obstacle"] != home["obstacle"]:
            yield problem(
                f"{build['path']} cannot be made: {environment['obstacle']}",
                "ml_env_path",
                "Name a folder that the login user may write to, or correct the owner",
            )


def _space(place: Mapping[str, Any], needed_mib: int, where: str, purpose: str = "") -> Iterator[dict[str, str]]:
    if place["free_mib"] is not None and place["free_mib"] < needed_mib:
        yield problem(
            f"{place['free_mib']} MiB are free at {place['path']}, {needed_mib} MiB are needed{purpose}",
            where,
            "Free some space, or name a folder on another filesystem",
        )
    elif place["files_left"] == 0:
        yield problem(
            f"the filesystem of {place['path']} has no inode left",
            where,
            "Remove files that are not needed, or name a folder on another filesystem",
        )


def _memory(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    needed = wants["needs"]["memory_mib"]
    if facts["running"]:
        return  # it has its memory already
    known = {
        "available": facts["memory"]["available_mib"],
        "allowed by the control group": facts["memory"]["limit_mib"],
    }
    for kind, amount in known.items():
        if amount is not None and amount < needed:
            yield problem(
                f"{amount} MiB of memory are {kind}, {needed} MiB are needed",
                "preflight_min_memory_gib",
                "End what uses the memory, raise the limit, or set preflight_min_memory_gib to what the model needs",
            )


def _environment(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    build, place = wants["environment"], facts["environment"]
    if not build["lock"]:
        if wants["server"]["env_needed"] and (place is None or not place["exists"]):
            yield problem(
                f"{build['path'] or '(empty)'} does not exist on the host, and no lock is named to make it from",
                "ml_env_path",
                f"Correct the path, or choose a lock with ml_env_lock ({', '.join(build['locks']) or 'none shipped'})",
            )
        return
    if facts["env_python"].get("error"):
        yield problem(facts["env_python"]["error"], "ml_env_python", "")  # the remedy is part of it
    if build["platform"] and not facts["platform"].startswith(build["platform"]):
        yield problem(
            f"the lock {build['lock']} is for {build['platform']}, the host is {facts['platform']}",
            "ml_env_lock",
            "Choose another lock or another host",
        )


def _program(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    place = facts["environment"]
    if place is not None and not place["exists"] and wants["server"]["env_needed"]:
        return  # told already
    if facts["program"] is False:
        yield problem(
            f"the program {wants['server']['program']} cannot be run on the host",
            "llm_server.command" if wants["server"]["engine"] == "generic" else "ml_env_path",
            "Correct the path, or install the engine there",
        )


def _models(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    engine = wants["server"]["engine"]
    for field, found in facts["models"].items():
        where, path = f"llm_server.{field}", found["path"]
        if found["kind"] in ("missing", "link to nowhere"):
            what = "does not exist on the host" if found["kind"] == "missing" else "is a link to nowhere"
            yield problem(f"{path} {what}", where, "Copy the model there, or correct the path")
        elif found["kind"] == "unreadable":
            yield problem(f"{path} may not be read by the login user", where, "Correct its owner or mode")
        elif engine in FOLDER_ENGINES and found["kind"] == "folder" and not found["config"]:
            what = "is an empty folder" if not found["names"] else "has no config.json"
            yield problem(
                f"{path} {what}", where, f"Name the folder that the model's files lie in, as {engine} loads it"
            )
        elif engine == "llama_cpp" and found["kind"] == "folder":
            yield problem(f"{path} is a folder", where, "Name the GGUF file in it")
        elif engine == "llama_cpp" and found["magic"] != "GGUF":
            yield problem(
                f"{path} is not a GGUF file ({found['size']} bytes)", where, "Copy the model again, or correct the path"
            )


def _port(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    port = wants["server"]["port"]
    if 0 < port < facts["low_ports_from"] and not facts["root"]:
        yield problem(
            f"ports below {facts['low_ports_from']} need root",
            "llm_server.port",
            f"Take one from {facts['low_ports_from']} up, or 0 for a free one",
        )
    for use in facts["port_users"]:
        if use["cleared"]:
            continue
        who = f"process {use['pid']} ({use['cmdline'][:200]})" if use["pid"] else "a process that this user may not see"
        yield problem(
            f"port {port} is taken ({use['state']}) by {who}",
            "llm_server.port",
            "End that process, or declare another port (0: a free one)",
        )


def _privileges(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    if facts["systemd"]:
        yield problem(
            f"systemd cannot be used: {facts['systemd']}",
            "llm_server_launcher",
            "Use auto or process, or become root",
        )
    if facts["local_fact"]:
        yield problem(
            f"{wants['local_fact']} cannot be written: {facts['local_fact']}",
            "baseline_local_fact",
            'Become root, name a path in groundstate_home, or leave it empty ("")',
        )


def _gpus(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    server, gpus = wants["server"], facts["gpus"]
    if gpus is None:
        return
    if not gpus["available"]:
        yield problem(
            f"{server['engine']} needs GPUs, and {gpus['why']}",
            "llm_server.gpus",
            "Install or repair the driver (in a container: pass the devices in), or declare gpus: [] to use none",
        )
        return
    if gpus.get("wrong"):
        yield problem(gpus["wrong"], "llm_server.gpus", "Name GPUs that are there")
    elif gpus["chosen"] is not None and server["tensor_parallel"] > gpus["chosen"]:
        yield problem(
            f"{server['tensor_parallel']} ranks need as many GPUs, the host has {gpus['count']}"
            + (f" of which {gpus['chosen']} are declared" if gpus["chosen"] != gpus["count"] else ""),
            "llm_server.tensor_parallel",
            "Lower it, or declare more GPUs",
        )
    if gpus["closed"]:
        yield problem(
            f"{', '.join(gpus['closed'])} may not be opened by the login user",
            "llm_server.gpus",
            "Add the user to the group that owns the devices, or become root",
        )


def _cuda(wants: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """A lock that this driver or these GPUs cannot run installs well and fails when the engine starts."""
    lock, gpus = wants["environment"], facts["gpus"]
    if gpus is None or not gpus["available"]:
        return
    have, need = _numbers(gpus.get("cuda")), _numbers(lock["cuda"])
    # Within a major version every driver runs what a newer toolkit of it built.
    if have and need and have[0] < need[0]:
        yield problem(
            f"the lock {lock['lock']} is built with CUDA {lock['cuda']}, driver {gpus['driver']} runs CUDA up to "
            f"{gpus['cuda']}",
            "ml_env_lock",
            f"Update the driver to one that runs CUDA {need[0]}, or choose a lock for CUDA {have[0]}",
        )
    least = _numbers(lock["compute_capability"])
    for name, capability in sorted((gpus.get("capabilities") or {}).items()):
        if least and _numbers(capability) < least:
            yield problem(
                f"the lock {lock['lock']} has code for compute capability {lock['compute_capability']} and newer, "
                f"{name} has {capability}",
                "ml_env_lock",
                "Choose a lock with an older engine, or other GPUs (llm_server.gpus)",
            )


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", version or "")[:2])


_RULES = (_python, _home, _disk, _memory, _environment, _program, _models, _port, _privileges, _gpus, _cuda)
