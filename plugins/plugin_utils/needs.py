# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From the checked variables of a host to what is needed of it: the arguments of preflight's target half."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ..module_utils import declaration, gpu_settings, multi_host, nccl_places, nccl_profiles, workload
from ..module_utils.engines import get_engine
from ..module_utils.preflight.checks import problem
from ..module_utils.venvs import bundle
from . import locks, specs, verdict

# What the engine and its smallest models were seen to use; a larger model is for preflight_min_memory_gib to say.
MEMORY_MIB = {"llama_cpp": 512, "vllm_cpu": 3072}

Derived = tuple[dict[str, Any], list[dict[str, str]], list[str]]


def derive(values: Mapping[str, Any], roles: list[str], arguments: Mapping[str, Any], loader: Any) -> Derived:
    """(arguments of the module, problems, warnings). What could not be derived is not asked of the host."""
    problems: list[dict[str, str]] = []
    warnings: list[str] = []
    _paths(values, problems)
    declared = None
    if "llm_server" in roles and values.get("llm_server") is not None:
        declared = _declared(values["llm_server"], problems, warnings)
    if "baseline" in roles and "baseline_workload" in values:
        try:
            workload.resolve(values["baseline_workload"])
        except workload.WorkloadError as error:
            problems += _split("baseline_workload", str(error).partition(": ")[2])
    if "baseline" in roles:
        for check, name in ((verdict.check_looks, "baseline_looks"), (verdict.check_tolerance, "baseline_tolerance")):
            try:
                if name in values:
                    check(values[name])
            except ValueError as error:
                problems.append(problem(str(error), name, ""))
    if "nccl_profile" in roles and "nccl_profile_name" in values and "nccl_profiles" in values:
        _profile(values, loader, problems)
    if "gpu_clocks" in roles:
        try:
            gpu_settings.wanted(values.get("gpu_clocks") or {})
        except ValueError as error:
            where, _space, what = str(error).partition(" ")
            problems.append(problem(what, where, ""))
    environment = {}
    if "ml_env" in roles:
        _bundle(values, problems)
        environment = _environment(values, problems)
    elif "llm_server" in roles:
        # The server alone: nothing makes its environment, so that it has to be there, whatever lock it came from.
        environment = _environment({**values, "ml_env_lock": ""}, problems)
    tiny = (values.get("ml_env_tiny_model") or {}).get("path")
    made = [path for path in (environment.get("path") if environment.get("lock") else "", tiny) if path]
    server = _server(declared, values, environment) if declared is not None else {}
    if "ml_env" in roles and not {"ml_env_lock", "ml_env_path"} <= set(values):
        # What is made later is not known then: do not miss it.
        server.update(program="", models={}, env_needed=False)
    derived = {
        "home": values.get("groundstate_home"),
        "environment": environment,
        "server": server,
        "needs": {
            "free_mib": round(arguments["min_free_gib"] * 1024),
            "memory_mib": round(arguments["min_memory_gib"] * 1024) or _memory(server, environment),
        },
        "made_later": made,
        "local_fact": values.get("baseline_local_fact") if "baseline" in roles else None,
        "gpu_state": "gpu_state" in roles,
    }
    for name in ("environment", "server", "needs"):
        derived[name] = {**derived[name], **arguments[name]}
    for name in ("home", "made_later", "local_fact", "gpu_state"):
        derived[name] = arguments[name] or derived[name]
    return {name: value for name, value in derived.items() if value is not None}, problems, warnings


def _paths(values: Mapping[str, Any], problems: list[dict[str, str]]) -> None:
    """Paths that also stand in first lines of scripts and in units: what means nothing or something else there."""
    for name in ("groundstate_home", "ml_env_path"):
        path = str(values.get(name) or "")
        odd = [one for one in path if one in '"$`\\' or not one.isprintable()]
        if odd:
            fix = "Name another folder (a leading ~ is the home of the login user)"
            problems.append(problem(f"{path!r} has the character {odd[0]!r}, special to shells and units", name, fix))
            return
        if path and path[0] not in "/~":
            fix = f"Name an absolute path, such as /srv/{path} or ~/{path}"
            problems.append(problem(f"{path!r} is relative, to a folder that nobody can know", name, fix))
            return


def _split(where: str, text: str) -> list[dict[str, str]]:
    """One problem for each "field: what" of a message that joins them with semicolons."""
    found = []
    for part in text.split("; "):
        field, colon, what = part.partition(": ")
        known = colon and " " not in field
        found.append(problem(what if known else part, f"{where}.{field}" if known else where, ""))
    return found


def _declared(raw: dict[str, Any], problems: list[dict[str, str]], warnings: list[str]) -> dict[str, Any] | None:
    """The complete declaration; None when it has none of the required fields."""
    try:
        made = declaration.complete({key: value for key, value in raw.items() if value is not None})
    except ValueError as error:
        problems += _split("llm_server", str(error).partition(": ")[2])
        return None
    for text in declaration.problems(made):
        field, _colon, what = text.partition(": ")
        # Some begin with the field and its value: then all of it is worth reading.
        known = " " not in field
        problems.append(problem(what if known else text, f"llm_server.{field.split(' ')[0]}", ""))
    warnings += [f"llm_server: {text}" for text in get_engine(made["engine"]).warnings(made)]
    return made


def _profile(values: Mapping[str, Any], loader: Any, problems: list[dict[str, str]]) -> None:
    shipped = specs.load(loader, "nccl_profile").internal.get("nccl_profile_shipped") or {}
    name = values["nccl_profile_name"]
    try:
        # What it warns of, the module that writes the profile tells.
        resolved = nccl_profiles.resolve(name, {**shipped, **values["nccl_profiles"]})
    except ValueError as error:
        where = specs.place("nccl_profiles" if name in values["nccl_profiles"] else "nccl_profile_name", name)
        problems.append(problem(str(error), where, "Correct the profile, or choose another"))
        return
    python = values.get("nccl_profile_python") or values.get("ml_env_path") or ""
    places = tuple(values.get("nccl_profile_places", [nccl_places.SERVER]))
    server = str((values.get("llm_server") or {}).get("name", ""))
    wish = nccl_places.Wish("", server, places, values.get("nccl_profile_conf_path") or "/", python)
    try:
        nccl_places.check(wish, resolved.variables)
    except nccl_places.PlaceError as error:
        problems.append(problem(str(error), "nccl_profile_places", "Correct the places of the profile"))


def _bundle(values: Mapping[str, Any], problems: list[dict[str, str]]) -> None:
    """A bundle on the controller is read here, where it is, before any host copies it."""
    path = os.path.expanduser(values.get("ml_env_bundle") or "")
    if not path or re.match(r"https?://", path):
        return
    try:
        bundle.read_manifest(path)
    except FileNotFoundError:
        fix = "Make it with playbooks/bundle.yml, or correct the path (it is one on the controller)"
        problems.append(problem(f"{path} does not exist", "ml_env_bundle", fix))
    except (bundle.Unusable, OSError) as error:
        problems.append(problem(str(error), "ml_env_bundle", ""))  # the remedy is part of it


def _lock(name: str, problems: list[dict[str, str]]) -> Mapping[str, Any]:
    """What a lock says; of none, or one that cannot be used, nothing."""
    where = specs.place("ml_env_lock", name)
    shipped = locks.shipped()
    if name and "/" not in name and name not in shipped:
        near = specs.nearest(name, shipped)
        fix = f"Did you mean {near}?" if near else "A lock of your own is the path of its folder"
        problems.append(problem(f"{name!r} is none of {', '.join(shipped)}", where, fix))
    elif name:
        try:
            return locks.read(name)
        except locks.LockError as error:
            problems.append(problem(str(error), where, ""))  # the remedy is part of it
    return locks.FIELDS


def _environment(values: Mapping[str, Any], problems: list[dict[str, str]]) -> dict[str, Any]:
    lock = values.get("ml_env_lock") or ""
    data = _lock(lock, problems)
    return {
        "path": values.get("ml_env_path") or "",
        "lock": lock,
        "locks": locks.shipped(),
        "python": values.get("ml_env_python") or "auto",
        "python_range": data["python"],
        "platform": data["platform"],
        "cuda": data["cuda"],
        "compute_capability": data["compute_capability"],
        # The one before stays while the new one is built, and the wheels are downloaded first.
        "size_mib": 2 * data["size_mib"] + 512,
    }


def _server(declared: dict[str, Any], values: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    on_cpu = bool(environment.get("lock") and not environment["cuda"]) or declared["extra_args"].get("device") == "cpu"
    gpus = declared["gpus"]
    asked = isinstance(gpus, list) and bool(gpus)
    engine = get_engine(declared["engine"])
    argv = engine.argv(declared, environment.get("path", ""), declared["port"] or declared["port_from"])
    return {
        "name": declared["name"],
        "engine": declared["engine"],
        "host": declared["host"],
        "port": declared["port"],
        "models": declaration.local_paths(declared),
        "program": argv[0] if argv and not argv[0].startswith("-") else "",
        "gpus": gpus,
        "gpus_needed": asked or (declared["engine"] in ("vllm", "sglang") and gpus == "all" and not on_cpu),
        "env_needed": declared["engine"] != "generic" and not declared["command"],
        "tensor_parallel": multi_host.local_ranks(declared),
        "launcher": values.get("llm_server_launcher") or "auto",
    }


def _memory(server: Mapping[str, Any], environment: Mapping[str, Any]) -> int:
    return MEMORY_MIB.get(environment.get("lock", ""), MEMORY_MIB.get(server.get("engine", ""), 0))
