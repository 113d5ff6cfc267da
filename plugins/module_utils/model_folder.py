# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A folder that is there whole or not at all, and is known by a manifest to be ours."""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import Any

from . import files
from .file_hashes import sha256_file

MANIFEST = "groundstate-model.json"


def manifest(path: str) -> dict[str, Any] | None:
    """The manifest of a folder of ours; None when nothing (or an empty folder) is there.

    Raises ValueError when something is there that is not ours.
    """
    if not os.path.lexists(path) or (os.path.isdir(path) and not os.listdir(path)):
        return None
    raw = files.read_json(os.path.join(path, MANIFEST)) if os.path.isdir(path) else None
    if not isinstance(raw, dict):
        raise ValueError(f"{path} exists and was not made by Groundstate: choose another path")
    return raw


def intact(path: str, known: dict[str, Any]) -> bool:
    """Whether every file of the manifest is there as it was written."""
    for name, digest in known.get("files", {}).items():
        try:
            if sha256_file(os.path.join(path, name)) != digest:
                return False
        except OSError:
            return False
    return bool(known.get("files"))


def replace(path: str, content: dict[str, bytes], identity: dict[str, Any]) -> None:
    """Put a new folder in place of the old one. A kill in between leaves the old, none, or the new: never a part.

    The names beside it are fixed, so that the next call clears what a killed one left. Raises OSError.
    """
    new, old = f"{path}.building", f"{path}.replaced"
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    for name, raw in content.items():
        files.write_atomic(os.path.join(new, name), raw)
    digests = {name: hashlib.sha256(raw).hexdigest() for name, raw in content.items()}
    files.write_json(os.path.join(new, MANIFEST), {**identity, "files": digests})
    if os.path.lexists(path):
        os.rename(path, old)
    os.rename(new, path)
    shutil.rmtree(old, ignore_errors=True)


def remove(path: str) -> None:
    """Remove a folder of ours and what a killed call left beside it."""
    for one in (path, f"{path}.building", f"{path}.replaced"):
        shutil.rmtree(one, ignore_errors=True)
