# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a declaration comes to on this host, its hash, and how it differs from what was launched. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import files
from .declaration import masked, secret_hash
from .engines import get_engine
from .server_env import BASE_NAMES
from .servers import ServerRecord


@dataclass(frozen=True)
class Plan:
    """One launch as it should be. ``environment`` is what the process gets; ``shown`` is the same without secrets."""

    declaration: dict[str, Any]
    argv: list[str]
    environment: dict[str, str]
    shown: dict[str, str]
    declared_names: frozenset[str]
    env_path: str
    env_hash: str
    launcher: str
    port: int
    base_url: str

    @property
    def hash(self) -> str:
        """What has to be the same for a running server to be the declared one."""
        return files.digest(
            {
                "engine": self.declaration["engine"],
                "argv": self.argv,
                "environment": {name: self.shown[name] for name in sorted(self.declared_names)},
                "env_hash": self.env_hash,
                "launcher": self.launcher,
            }
        )


def base_url(host: str, port: int) -> str:
    """Where a server is asked from its own host: an address that means "all" is no address to connect to."""
    name = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def make_plan(
    declaration: dict[str, Any],
    env_path: str,
    port: int,
    base: Mapping[str, str],
    nccl: Mapping[str, str],
    env_hash: str,
    launcher: str,
) -> Plan:
    """Put together argv and environment. Later wins: base, engine, NCCL profile, declared ``env``, secrets."""
    engine = get_engine(declaration["engine"])
    plain = {**engine.environment(declaration), **nccl, **declaration["env"]}
    secrets = engine.secrets(declaration)
    shown = {**base, **plain, **{name: secret_hash(value) for name, value in secrets.items()}}
    return Plan(
        declaration=declaration,
        argv=engine.argv(declaration, env_path, port),
        environment={**base, **plain, **secrets},
        shown=shown,
        declared_names=frozenset(plain) | frozenset(secrets),
        env_path=env_path,
        env_hash=env_hash,
        launcher=launcher,
        port=port,
        base_url=base_url(declaration["host"], port),
    )


def record_of(plan: Plan, start_id: str, log: str, unit: str) -> ServerRecord:
    """The record of a launch that is about to happen."""
    declaration = plan.declaration
    return ServerRecord(
        name=declaration["name"],
        start_id=start_id,
        state="launching",
        engine=declaration["engine"],
        declaration_hash=plan.hash,
        declaration=masked(declaration),
        argv=plan.argv,
        environment=plan.shown,
        env_hash=plan.env_hash,
        base_url=plan.base_url,
        host=declaration["host"],
        port=plan.port,
        model=declaration["model"],
        served_model_name=get_engine(declaration["engine"]).served_name(declaration),
        tensor_parallel=declaration["tensor_parallel"],
        env_path=plan.env_path,
        launcher=plan.launcher,
        unit=unit,
        log=log,
    )


def differences(old: ServerRecord, plan: Plan) -> list[str]:
    """What changed since the launch, in words; [] when the hashes agree."""
    if old.declaration_hash == plan.hash:
        return []
    found = []
    if old.engine != plan.declaration["engine"]:
        found.append(f"engine: {old.engine} -> {plan.declaration['engine']}")
    found += _changes("argument", _arguments(old.argv), _arguments(plan.argv))
    # Variables that nobody declares are not compared (see BASE_NAMES) unless one side did declare them.
    ignored = BASE_NAMES - plan.declared_names - set(old.declaration.get("env", {}))
    found += _changes(
        "environment",
        {name: value for name, value in old.environment.items() if name not in ignored},
        {name: value for name, value in plan.shown.items() if name not in ignored},
    )
    if old.env_hash != plan.env_hash:
        found.append(
            f"packages of the environment: {old.env_hash[:12] or 'unknown'} -> {plan.env_hash[:12] or 'unknown'}"
        )
    if old.launcher != plan.launcher:
        found.append(f"launcher: {old.launcher} -> {plan.launcher}")
    return found or ["order of the arguments"]


def _changes(what: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    found = []
    for name in sorted(set(old) | set(new)):
        before, after = old.get(name, "unset"), new.get(name, "unset")
        if before != after:
            if before.startswith("sha256:") or after.startswith("sha256:"):
                found.append(f"{what} {name}: the secret changed")
            else:
                found.append(f"{what} {name}: {before} -> {after}")
    return found


def _arguments(argv: list[str]) -> dict[str, str]:
    """Flag -> its values as text; words before the first flag under their position."""
    found: dict[str, str] = {}
    name = ""
    for index, word in enumerate(argv):
        if word.startswith("-") and not word[1:2].isdigit():
            name = word if word not in found else f"{word} (again)"
            found[name] = ""
        elif name:
            found[name] = f"{found[name]} {word}".strip()
        else:
            found[str(index)] = word
    return {key: value or "set" for key, value in found.items()}
