# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A bundle: all wheels of a lock for one Python and platform in one file, for hosts without a network.

A tar that is not compressed (wheels are):

    manifest.json       schema, lock, tag, platform, key of the lock, and SHA-256 and size of every other file
    requirements.txt    the lock
    wheels/*.whl

Nothing in it is believed: names, sizes and hashes are held against the manifest, and the manifest against the lock.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import posixpath
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from .. import files
from .requirements import Requirement, render

SCHEMA = 1
MANIFEST = "manifest.json"
LOCK = "requirements.txt"
WHEELS = "wheels"
_CHUNK = 1 << 20
_AGAIN = "copy it again, or make it again with playbooks/bundle.yml"
_LARGEST_MANIFEST = 4 << 20


class Unusable(ValueError):
    """A bundle that is damaged, incomplete or for something else; the message names it and says what to do."""


@dataclass(frozen=True)
class Target:
    """What compiled wheels are made for."""

    tag: str  # cpython-311
    platform: str  # linux-x86_64


@dataclass(frozen=True)
class Manifest:
    """What a bundle says of itself."""

    lock: str  # name, for people
    key: str  # of the lock: see :func:`lock_key`
    tag: str
    platform: str
    files: dict[str, dict[str, Any]]  # path inside -> sha256, size
    schema: int = SCHEMA

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(int(one["size"]) for one in self.files.values())


def lock_key(items: Iterable[Requirement]) -> str:
    """Hash of a lock's lines, in whatever order."""
    return files.digest(sorted(item.text for item in items))


def file_name(lock: str, items: Iterable[Requirement], target: Target) -> str:
    """Name of the bundle of a lock: another lock, Python or platform has another name."""
    return f"{lock}-{target.tag}-{target.platform}-{lock_key(items)[:8]}.tar"


def write(path: str, lock: str, items: list[Requirement], target: Target, wheels: str) -> Manifest:
    """Write the bundle of a folder of wheels (on the same filesystem), atomically. Raises OSError.

    The same input gives the same bytes.
    """
    names = sorted(name for name in os.listdir(wheels) if name.endswith(".whl"))
    text = render(items).encode()
    listed: dict[str, dict[str, Any]] = {LOCK: {"sha256": hashlib.sha256(text).hexdigest(), "size": len(text)}}
    for name in names:
        place = os.path.join(wheels, name)
        with open(place, "rb") as source:
            listed[f"{WHEELS}/{name}"] = {"sha256": _sha256(source), "size": os.path.getsize(place)}
    manifest = Manifest(lock, lock_key(items), target.tag, target.platform, listed)
    # A name of its own: somebody else may be making the same bundle. Beside the wheels, with which a killed run's is
    # cleared away.
    handle, temporary = tempfile.mkstemp(prefix=".bundle-", dir=os.path.dirname(os.path.abspath(wheels)))
    try:
        with os.fdopen(handle, "wb") as raw, tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
            _add(tar, MANIFEST, (json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n").encode())
            _add(tar, LOCK, text)
            for name in names:
                place = os.path.join(wheels, name)
                with open(place, "rb") as source:
                    tar.addfile(_entry(f"{WHEELS}/{name}", os.path.getsize(place)), source)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return manifest


def read_manifest(path: str) -> Manifest:
    """The manifest of a bundle. Raises Unusable for anything that is no bundle; OSError."""
    try:
        with tarfile.open(path, "r:") as tar:
            return _manifest(path, tar, tar.next())
    except Unusable:
        raise
    except (tarfile.TarError, ValueError) as error:  # ValueError: numbers in headers that are none
        raise Unusable(f"{path} is no bundle, or was cut off while it was copied ({error}): {_AGAIN}") from error


def check(path: str, manifest: Manifest, items: Iterable[Requirement], target: Target) -> None:
    """Hold the manifest against the lock and the host. Raises Unusable."""
    problems = []
    if manifest.key != lock_key(items):
        problems.append(f"it was made from another lock than the one declared (its own is named {manifest.lock!r})")
    if manifest.tag != target.tag:
        problems.append(f"it is for {manifest.tag}, the environment for {target.tag}")
    if manifest.platform != target.platform:
        problems.append(f"it is for {manifest.platform}, the host is {target.platform}")
    if problems:
        raise Unusable(f"{path} does not fit: {'; '.join(problems)}; make one that does with playbooks/bundle.yml")


def unpack(path: str, manifest: Manifest, folder: str | None) -> None:
    """Read the whole bundle once, hold every file against the manifest, and put it into ``folder`` (None: only check).

    Raises Unusable naming the file that is damaged, missing, or not in the manifest; OSError for a full disk.
    """
    left = dict(manifest.files)
    try:
        with tarfile.open(path, "r:") as tar:
            _manifest(path, tar, tar.next())
            for member in iter(tar.next, None):
                # A link, a device or a path out of the folder is in no manifest of ours.
                wanted = left.pop(member.name, None) if member.isreg() else None
                if wanted is None:
                    raise Unusable(f"{path}: {member.name} is not in its manifest, or is in it twice: {_AGAIN}")
                source = tar.extractfile(member)
                whole = source is not None and member.size == wanted["size"]
                if not whole or _copy(source, member.name, folder) != wanted["sha256"]:
                    raise Unusable(f"{path}: {member.name} is damaged (its SHA-256 is not the one made): {_AGAIN}")
    except Unusable:
        raise
    except (tarfile.TarError, EOFError, ValueError) as error:  # ValueError: numbers in headers that are none
        raise Unusable(f"{path} was cut off while it was copied ({error}): {_AGAIN}") from error
    if left:
        raise Unusable(f"{path} is incomplete, it lacks {', '.join(sorted(left))}: {_AGAIN}")


def _manifest(path: str, tar: tarfile.TarFile, first: tarfile.TarInfo | None) -> Manifest:
    if first is None or first.name != MANIFEST or not first.isreg() or first.size > _LARGEST_MANIFEST:
        raise Unusable(f"{path} is no bundle: it does not begin with {MANIFEST}; {_AGAIN}")
    source = tar.extractfile(first)
    try:
        raw = files.decode_json(source.read()) if source else None
        if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        made = Manifest(**{name: raw[name] for name in ("lock", "key", "tag", "platform", "files", "schema")})
        _check_files(made.files)
        if made.size > os.path.getsize(path):  # nothing is compressed: the rest would be holes that fill the disk
            raise ValueError("its files are larger than the bundle")
    except (ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{path}: its manifest cannot be read ({error}): {_AGAIN}") from error
    return made


def _check_files(listed: Any) -> None:
    if not isinstance(listed, Mapping) or LOCK not in listed:
        raise ValueError(f"it does not list {LOCK}")
    for name, one in listed.items():
        folder, base = posixpath.split(name)
        plain = base not in ("", ".", "..") and "\\" not in base and "\0" not in base
        if not (name == LOCK or (folder == WHEELS and plain and base.endswith(".whl"))):
            raise ValueError(f"it lists {name!r}")
        size = one["size"]
        if not isinstance(one["sha256"], str) or not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError(f"it lists {name!r} without size and hash")


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_entry(name, len(data)), io.BytesIO(data))


def _sha256(source: Any) -> str:
    total = hashlib.sha256()
    for piece in iter(lambda: source.read(_CHUNK), b""):
        total.update(piece)
    return total.hexdigest()


def _copy(source: Any, name: str, folder: str | None) -> str:
    """Copy a file of the tar below the folder; its SHA-256."""
    if folder is None:
        return _sha256(source)
    place = os.path.join(folder, *name.split("/"))
    os.makedirs(os.path.dirname(place), exist_ok=True)
    total = hashlib.sha256()
    out: BinaryIO
    with open(place, "xb") as out:
        for piece in iter(lambda: source.read(_CHUNK), b""):
            total.update(piece)
            out.write(piece)
    return total.hexdigest()
