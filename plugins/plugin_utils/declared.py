# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is declared for a host, as a document: the same hash means the same declaration, and it can be deployed again.

    {"schema": 1, "hash": "<64 hex>", "variables": {"llm_server": {...}, ...}, "secrets": {"<path>": "sha256:..."},
     "lock": {"name": "vllm_cu13", "digest": "<64 hex>"} or null}

Secrets are only there as hashes. A lock comes with the collection, or is a folder of the user's, and may be another one
by the time somebody wants back: ``<records_dir>/.locks/<digest>/`` keeps the files of each that was deployed.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from ..module_utils import files
from ..module_utils.declaration import secret_hash
from . import locks, specs

SCHEMA = 1
LOCKS = ".locks"
#: The options that say what is to run and be measured. All others say how to get there (indexes, patience, protected
#: processes) or what to make of it (tolerance, group).
OPTIONS = (
    *("ml_env_lock", "ml_env_path", "ml_env_python", "ml_env_pristine", "ml_env_patches", "ml_env_models"),
    *("ml_env_tiny_model", "nccl_profile_name", "nccl_profiles", "nccl_profile_places", "nccl_profile_conf_path"),
    *("nccl_profile_python", "nccl_profile_python_method", "nccl_profile_proof", "nccl_profile_log"),
    *("llm_server", "llm_server_launcher", "baseline_workload"),
)
#: Roles whose options these are.
ROLES = ("ml_env", "nccl_profile", "llm_server", "baseline")
_REMOVED = object()
_DIGEST = re.compile(r"[0-9a-f]{64}")


class DeclaredError(Exception):
    """A kept declaration cannot be used; the message says why."""


def document(
    values: Mapping[str, Any], every: Mapping[str, specs.Role], lock_folder: str | None = None
) -> dict[str, Any]:
    """The document of a host's values (see :func:`.role_values.read`), without any secret.

    ``lock_folder``: where the lock's files are, when they are not where its name or path says.
    """
    options: dict[str, dict[str, Any]] = {}
    for name in ROLES:
        specs.merge(options, every[name].options)
    secrets: dict[str, str] = {}
    variables = {}
    for name in OPTIONS:
        # The only one without a default is ml_env_patches; a host that is to go back to none has to be told [].
        variables[name] = _without_secrets(options[name], values.get(name, []), name, secrets)
    # The chosen profile alone, as it is now: a shipped one may be another in the next version.
    profile = variables["nccl_profile_name"]
    profiles = {**every["nccl_profile"].internal["nccl_profile_shipped"], **variables["nccl_profiles"]}
    variables["nccl_profiles"] = {profile: profiles[profile]} if profile in profiles else {}
    name = variables["ml_env_lock"]
    lock = {"name": name, "digest": lock_digest(lock_folder or locks.folder(name))} if name else None
    found = files.decode_json(files.canonical_json({"variables": variables, "secrets": secrets, "lock": lock}))
    return {"schema": SCHEMA, "hash": files.digest(found), **found}


def _without_secrets(option: Mapping[str, Any], value: Any, path: str, secrets: dict[str, str]) -> Any:
    if option.get("no_log"):
        if value:
            secrets[path] = secret_hash(value if isinstance(value, str) else files.canonical_json(value))
        return _REMOVED
    inner = option.get("options")
    if inner and isinstance(value, Mapping):
        pairs = {key: _without_secrets(inner.get(key, {}), one, f"{path}.{key}", secrets) for key, one in value.items()}
        # What is not set is the same as what is left out.
        return {key: one for key, one in pairs.items() if one is not _REMOVED and one is not None}
    if inner and isinstance(value, list):
        return [_without_secrets(option, one, f"{path}[{n}]", secrets) for n, one in enumerate(value)]
    return value


def deployed(variables: Mapping[str, Any]) -> bool:
    """Whether the play of these variables brought the host to its declaration: environment, profile and server."""
    steps = ["nccl_profile_result", "llm_server_result", *(["ml_env_result"] if variables.get("ml_env_lock") else [])]
    results = [variables.get(name) or {} for name in steps]
    return all(one and not one.get("skipped") and not one.get("failed") for one in results)


def lock_folder(variables: Mapping[str, Any]) -> str | None:
    """Where the files of the lock are, when a rollback said so; None for where its name or path says."""
    given = variables.get("ml_env_lock_folder")
    # The role's own value is a template that only the role can resolve.
    return given if isinstance(given, str) and "{{" not in given else None


def usable(found: Any) -> bool:
    """Whether a value that was read is a document of this schema, whole and unchanged."""
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return False
    parts = {name: found.get(name) for name in ("variables", "secrets", "lock")}
    if not isinstance(parts["variables"], dict) or not isinstance(parts["secrets"], dict):
        return False
    return found.get("hash") == files.digest(parts)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed from one document to another, an option a sentence; [] when they are the same."""
    was, now = dict(_leaves(old["variables"])), dict(_leaves(new["variables"]))
    found = [
        f"{path}: {_show(was, path)} -> {_show(now, path)}"
        for path in sorted({*was, *now})
        if was.get(path) != now.get(path)
    ]
    if (old["lock"] or {}).get("name") == (new["lock"] or {}).get("name") and old["lock"] != new["lock"]:
        found.append(f"ml_env_lock: {new['lock']['name']} has other packages now")
    secrets = sorted({*old["secrets"], *new["secrets"]})
    found += [f"{path}: the secret changed" for path in secrets if old["secrets"].get(path) != new["secrets"].get(path)]
    return found


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from _leaves(one, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for number, one in enumerate(value):
            yield from _leaves(one, f"{path}[{number}]")
    else:
        yield path, value


def _show(leaves: Mapping[str, Any], path: str) -> str:
    if path not in leaves:
        return "not set"
    text = files.canonical_json(leaves[path])
    return text if len(text) <= 80 else text[:77] + "..."


# --- locks -------------------------------------------------------------------------------------------


def lock_digest(folder: str) -> str:
    """SHA-256 of the names and contents of a lock's files; "" when there is none."""
    try:
        names = sorted(os.listdir(folder))
        return files.digest({name: files.read_regular(os.path.join(folder, name)).hex() for name in names})
    except OSError:
        return ""


def keep_lock(records_dir: str, kept: Mapping[str, Any], lock_folder: str | None = None) -> None:
    """Keep the files of a document's lock, once. Raises OSError. ``lock_folder``: see :func:`document`."""
    if not kept["lock"] or not kept["lock"]["digest"]:
        return
    place = _lock_place(records_dir, kept["lock"]["digest"])
    if os.path.isdir(place):
        return
    os.makedirs(os.path.dirname(place), exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(place))
    try:
        shutil.copytree(lock_folder or locks.folder(kept["lock"]["name"]), temporary, dirs_exist_ok=True)
        os.chmod(temporary, 0o755)
        try:
            os.rename(temporary, place)
        except OSError:
            if not os.path.isdir(place):  # else another host's task was first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _lock_place(records_dir: str, digest: str) -> str:
    return os.path.join(os.path.expanduser(records_dir), LOCKS, digest)


def restored(kept: Mapping[str, Any], records_dir: str) -> dict[str, Any]:
    """The variables that deploy a document again: :data:`OPTIONS` without secrets, and where the lock is.

    Raises DeclaredError when its lock is neither there any more nor kept.
    """
    folder = ""
    lock = kept["lock"]
    if lock:
        folder = locks.folder(lock["name"])
        if lock_digest(folder) != lock["digest"]:
            folder = _lock_place(records_dir, lock["digest"]) if _DIGEST.fullmatch(lock["digest"]) else ""
            if not folder or lock_digest(folder) != lock["digest"]:
                theirs = "/" in lock["name"]
                fix = "put that one back" if theirs else "install the version of groundstate.llm that shipped it"
                raise DeclaredError(
                    f"the lock {lock['name']} is another one now, and {folder or 'no copy'} has the files of the one "
                    f"before; {fix}"
                )
        folder += "/"
    return {**kept["variables"], "ml_env_lock_folder": folder}
