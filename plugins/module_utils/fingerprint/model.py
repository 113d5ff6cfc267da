# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Section model: the files that the server loads."""

from __future__ import annotations

import os
from typing import Any

from ..file_hashes import FileHashes, sha256_file
from .reading import Unknown

# Reading a model of hundreds of GB would take minutes and push everything else out of the page cache.
WHOLE_FILE_LIMIT = 4 << 30
_HEAD = 16 << 20  # of a larger GGUF file: its header with all settings and the table of tensors
_SMALL = 32 << 20
_DESCRIBING = (".json", ".jinja", ".model", ".txt", ".py")  # what decides how weights are used, tokenizer included


def read(path: str, cache: str | None, unknown: Unknown, weights: bool = False) -> dict[str, Any]:
    """The section for a model's file or folder. ``config_hash`` is the hash of config.json, or of a single file.

    ``weights``: hash all files, however large: minutes the first time, then from the cache until they change.
    """
    section: dict[str, Any] = {
        "path": path or None,
        "files": None,
        "total_bytes": None,
        "config_hash": None,
        "config_hash_of": None,
    }
    if not path:
        unknown["model"] = "the server's record names no model"
        return section
    if os.path.isfile(path):
        _file(section, path, cache, unknown, weights)
    elif os.path.isdir(path):
        _folder(section, path, cache, unknown, weights)
    else:
        unknown["model"] = f"{path} does not exist"
    return section


def _file(section: dict[str, Any], path: str, cache: str | None, unknown: Unknown, weights: bool) -> None:
    size = os.path.getsize(path)
    section["files"] = [{"name": os.path.basename(path), "size": size}]
    section["total_bytes"] = size
    if size > WHOLE_FILE_LIMIT and not weights:
        try:
            section["config_hash"] = sha256_file(path, _HEAD)
        except OSError as error:
            unknown["model.config_hash"] = f"{path}: {error.strerror}"
            return
        section["config_hash_of"] = f"first {_HEAD >> 20} MiB"
        unknown["model.weights"] = f"{path} is larger than {WHOLE_FILE_LIMIT >> 30} GiB: only its head was hashed"
        return
    # The cache's root is the folder with its links resolved: a name below it finds the same file.
    hashes = FileHashes(os.path.dirname(os.path.realpath(path)), cache)
    section["config_hash"] = hashes.one(os.path.basename(os.path.realpath(path)))
    hashes.save()
    section["config_hash_of"] = "file"
    if section["config_hash"] is None:
        unknown["model.config_hash"] = f"{path} cannot be read"


def _folder(section: dict[str, Any], path: str, cache: str | None, unknown: Unknown, weights: bool) -> None:
    found: list[tuple[str, os.stat_result]] = []
    # Snapshots of the hub's cache are links to blobs: follow files, but not folders (they could lead back).
    for here, names, content in os.walk(path):
        names[:] = sorted(name for name in names if not name.startswith("."))
        for name in sorted(content):
            full = os.path.join(here, name)
            try:
                found.append((os.path.relpath(full, path), os.stat(full)))
            except OSError:
                unknown[f"model.files.{name}"] = f"{full} is a link to nowhere"
    hashes = FileHashes(path, cache)
    small = hashes.many(
        (name, stat) for name, stat in found if weights or (name.endswith(_DESCRIBING) and stat.st_size <= _SMALL)
    )
    hashes.save()
    section["files"] = [
        {"name": name, "size": stat.st_size, **({"sha256": small[name]} if name in small else {})}
        for name, stat in found
    ]
    section["total_bytes"] = sum(stat.st_size for _name, stat in found)
    section["config_hash"] = small.get("config.json")
    section["config_hash_of"] = "config.json"
    if section["config_hash"] is None:
        unknown["model.config_hash"] = f"{path} has no readable config.json"
    if not found:
        unknown["model.files"] = f"{path} is empty"
    if not weights:
        unknown["model.weights"] = "weights are compared by name and size only (hash_weights is false)"
