# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Editable installs: what the checkout behind one looks like."""

from __future__ import annotations

# Pure code: there is no AnsibleModule here whose run_command it could call.
# pylint: disable=ansible-bad-function
import os
import subprocess
from typing import Any
from urllib.parse import unquote, urlsplit

from .. import files
from ..file_hashes import FileHashes

_SKIPPED = {".git", "__pycache__", ".venv", "venv", "node_modules", "build", ".tox", ".mypy_cache", ".pytest_cache"}
_CODE = (".py", ".so")
_LIMIT = 50_000  # files; a folder with more is not a source tree
_TIMEOUT_S = 20.0


def folder_of(url: str) -> str | None:
    """The folder of a file:// URL; None for another kind of URL."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" and parts.path else None


def _git(folder: str, *arguments: str) -> str:
    """Output of a reading git command. Raises OSError with the reason."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", folder, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError as error:
        raise OSError("git is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise OSError(f"git did not answer within {_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise OSError(lines[0] if lines else f"git ended with status {done.returncode}")
    return done.stdout.decode("utf-8", "surrogateescape")


def git_state(folder: str) -> tuple[str, list[str]]:
    """(commit, changed and untracked files) of the checkout that a folder is in. Raises OSError with the reason."""
    commit = _git(folder, "rev-parse", "HEAD").strip()
    status = _git(folder, "status", "--porcelain=v1", "-z", "--untracked-files=normal", "--no-renames", "--", ".")
    return commit, sorted(entry[3:] for entry in status.split("\0") if entry)


def tree_hash(folder: str, cache: str | None) -> str:
    """One hash of all code (.py, .so) below a folder. Raises OSError for one that is none or too large."""
    found: list[tuple[str, os.stat_result]] = []
    top = os.path.realpath(folder)
    if not os.path.isdir(top):
        raise OSError(f"{folder} is not a folder")
    for here, names, content in os.walk(top):
        names[:] = [name for name in names if name not in _SKIPPED]
        for name in content:
            if name.endswith(_CODE):
                path = os.path.join(here, name)
                try:
                    found.append((os.path.relpath(path, top), os.stat(path)))
                except OSError:
                    continue  # a link to nowhere
        if len(found) > _LIMIT:
            raise OSError(f"more than {_LIMIT} code files below {folder}")
    hashes = FileHashes(top, cache)
    result = hashes.many(found)
    hashes.save()
    return files.digest(result)


def read(name: str, url: str, cache: str | None, unknown: dict[str, str]) -> dict[str, Any]:
    """State of one editable install: url, commit, dirty, changed (first 50 files), tree_hash."""
    where = f"python_env.editable.{name}"
    state: dict[str, Any] = {"name": name, "url": url, "commit": None, "dirty": None, "changed": [], "tree_hash": None}
    folder = folder_of(url)
    if folder is None:
        unknown[where] = f"{url} is not a folder of this host"
        return state
    try:
        state["tree_hash"] = tree_hash(folder, cache)
    except OSError as error:
        unknown[f"{where}.tree_hash"] = str(error)
    try:
        state["commit"], changed = git_state(folder)
        state["dirty"], state["changed"] = bool(changed), changed[:50]
    except OSError as error:
        unknown[f"{where}.commit"] = str(error)
    return state
