# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is installed in a site-packages folder, and what differs from what the wheels installed.

Reads the *.dist-info folders themselves: importlib.metadata would speak of the interpreter that runs us.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ..file_hashes import FileHashes

_CHUNK = 1 << 20

# Written or rewritten by installers after the wheel was unpacked: they differ without anything having changed.
_INSTALLER_FILES = {
    "INSTALLER",
    "REQUESTED",
    "RECORD",
    "RECORD.jws",
    "RECORD.p7s",
    "direct_url.json",
    "uv_cache.json",
    "uv_build.json",
}
# Put beside the distributions by the tools that make environments.
_TOOL_FILES = {"_virtualenv.py", "_virtualenv.pth"}
_CODE = (".py", ".so", ".pth")


@dataclass
class Distribution:
    """One installed distribution, as its dist-info folder tells."""

    name: str  # normalised as in PEP 503
    version: str
    record: dict[str, str] | None = None  # path below site-packages -> "sha256=..." or ""; None: no RECORD
    direct_url: dict = field(default_factory=dict)
    folder: str = ""  # name of its dist-info or egg-info


@dataclass
class Differences:
    """How the files differ from the RECORDs: path below site-packages -> distribution, or -> hash."""

    edited: dict[str, str] = field(default_factory=dict)  # path -> distribution
    missing: dict[str, str] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)  # path -> the distribution whose folder it is in, or ""
    hashes: dict[str, str | None] = field(default_factory=dict)  # of edited and added files
    unreadable: list[str] = field(default_factory=list)  # also: with a hash that nobody here can compute
    files: int = 0  # listed in the RECORDs and compared


def normalise(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def without_credentials(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _headers(path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            for line in source:
                if not line.strip() or len(found) == 2:
                    break
                key, separator, rest = line.partition(":")
                if separator and key in ("Name", "Version"):
                    found[key] = rest.strip()
    except OSError:
        pass
    return found


def _record(path: str) -> dict[str, str] | None:
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as source:
            return {
                os.path.normpath(row[0]): row[1] if len(row) > 1 else "" for row in csv.reader(source) if row and row[0]
            }
    except (OSError, csv.Error):
        return None


def installed(site: str) -> list[Distribution]:
    """All distributions of a site-packages folder, by folder name. Raises OSError when it cannot be listed."""
    found = []
    for entry in sorted(os.listdir(site)):
        folder = os.path.join(site, entry)
        stem, _dot, kind = entry.rpartition(".")
        if kind not in ("dist-info", "egg-info") or not stem:
            continue
        metadata = folder
        if os.path.isdir(folder):
            metadata = os.path.join(folder, "METADATA" if kind == "dist-info" else "PKG-INFO")
        headers = _headers(metadata)
        name, _dash, version = stem.partition("-")
        one = Distribution(normalise(headers.get("Name", name)), headers.get("Version", version), folder=entry)
        if kind == "dist-info":
            one.record = _record(os.path.join(folder, "RECORD"))
            one.direct_url = _direct_url(os.path.join(folder, "direct_url.json"))
        found.append(one)
    return found


def _direct_url(path: str) -> dict:
    try:
        with open(path, encoding="utf-8") as source:
            raw = json.load(source)
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _walk(site: str) -> dict[str, os.DirEntry]:
    """Path below the folder -> entry, of all files but those in __pycache__."""
    found: dict[str, os.DirEntry] = {}
    left = [(site, "")]
    while left:
        folder, below = left.pop()
        try:
            with os.scandir(folder) as listing:
                for entry in listing:
                    # A linked folder is not entered: it could lead anywhere, even back.
                    if not entry.is_dir(follow_symlinks=False):
                        found[below + entry.name] = entry
                    elif entry.name != "__pycache__":
                        left.append((entry.path, f"{below}{entry.name}/"))
        except OSError:
            continue  # what cannot be listed is missing to the comparison
    return found


def _checked(path: str) -> bool:
    """Whether a path of a RECORD is one that nobody but the wheel should have written."""
    parts = path.split("/")
    if path.endswith(".pyc") or "__pycache__" in parts:
        return False
    if parts[-2:-1] and parts[-2].endswith(".dist-info") and parts[-1] in _INSTALLER_FILES:
        return False
    # Scripts get the interpreter's path in their first line; some installers list them with the hash from before.
    return not (parts[0] == ".." and len(parts) > 1 and parts[-2] in ("bin", "Scripts"))


def encoded(hexadecimal: str) -> str:
    """A hash as a RECORD has it: URL-safe base64 without padding."""
    return _entry("sha256", bytes.fromhex(hexadecimal))


def _entry(algorithm: str, value: bytes) -> str:
    return f"{algorithm}=" + base64.b64encode(value, b"-_").rstrip(b"=").decode("ascii")


def is_told(content: bytes, told: Iterable[str]) -> bool:
    """Whether a content is what one of several entries of RECORDs tells."""
    hashers = _hashers(told)
    for one in hashers.values():
        one.update(content)
    return any(_entry(name, one.digest()) in told for name, one in hashers.items())


def _hashers(told: Iterable[str]) -> dict[str, Any]:
    """Algorithm -> its fresh object, of those in entries of RECORDs that this Python has."""
    made: dict[str, Any] = {}
    for name in {one.partition("=")[0] for one in told}:
        if name in hashlib.algorithms_guaranteed and not name.startswith("shake"):  # those have no length of their own
            with contextlib.suppress(ValueError):  # not in FIPS mode
                made[name] = hashlib.new(name)
    return made


def claims(found: Iterable[Distribution]) -> dict[str, dict[str, str]]:
    """Path below site-packages -> name of each distribution that lists it -> its hash there ("" for none).

    Several may bring a file of one name, with different content: the one installed last wins, and none is edited.
    """
    made: dict[str, dict[str, str]] = {}
    for one in found:
        for path, value in (one.record or {}).items():
            made.setdefault(path, {})[one.name] = value.rstrip("=")
    return made


def compare(site: str, found: list[Distribution], hashes: FileHashes, *, added: bool = True) -> Differences:
    """Compare the files of a site-packages folder with the RECORDs of its distributions.

    ``hashes`` must have ``site`` as its root. Byte code, scripts and what installers write are left out. Added files
    are code (.py, .so, .pth) that no RECORD knows, in a folder that can be imported; ``added`` says whether they are
    looked for. A file that several distributions list is as installed when it is that of any of them.
    """
    result = Differences()
    expected = claims(found)
    owner = {path: list(values)[-1] for path, values in expected.items()}
    present = _walk(site)
    wanted: list[tuple[str, os.stat_result]] = []
    for path, values in expected.items():
        if not _checked(path):
            continue
        result.files += 1
        entry = present.get(path)
        try:
            # Files outside site-packages (data, headers) and those under linked folders were not walked.
            stat = entry.stat() if entry is not None else os.stat(os.path.join(site, path))
        except FileNotFoundError:
            result.missing[path] = owner[path]
            continue
        except (OSError, ValueError):  # ValueError: a damaged RECORD can hold what is no path at all
            result.unreadable.append(path)
            continue
        if all(value.startswith("sha256=") for value in values.values()):
            wanted.append((path, stat))
        elif all(values.values()):
            _compare_others(site, path, list(values.values()), owner[path], result)
    # Whose code lies in folders that no RECORD knows cannot be told beside a distribution that has none.
    complete = all(one.record is not None for one in found)
    folders = {path.rpartition("/")[0]: name for path, name in owner.items() if not path.startswith("../")}
    tops = {path.partition("/")[0] for path in owner}
    for path, entry in (present if added else {}).items():
        if path in owner or path in _TOOL_FILES:
            continue
        if not path.endswith(_CODE) and (path in tops or not _is_linked_package(path, entry)):
            continue
        folder = os.path.dirname(path)
        while folder and folder not in folders:
            folder = os.path.dirname(folder)
        if not folder and "/" in path and not (complete and path.partition("/")[0].isidentifier()):
            continue  # nothing imports from such names: what pip could not remove, eggs
        result.added[path] = folders[folder] if folder else ""
        try:
            wanted.append((path, entry.stat()))
        except OSError:  # a link to nowhere: still somebody's doing, with nothing to hash
            result.hashes[path] = None
    for path, actual in hashes.many(wanted).items():
        if path in result.added:
            result.hashes[path] = actual
        elif actual is None:
            result.unreadable.append(path)
        elif encoded(actual) not in expected[path].values():
            result.edited[path] = owner[path]
            result.hashes[path] = actual
    return result


def _is_linked_package(path: str, entry: os.DirEntry) -> bool:
    """Whether it is a link to a folder that can be imported."""
    return path.isidentifier() and entry.is_symlink() and entry.is_dir()


def _compare_others(site: str, path: str, told: list[str], owner: str, result: Differences) -> None:
    """Compare a file with entries of RECORDs of which one has another hash than SHA-256, which is what is cached."""
    hashers = _hashers({*told, "sha256="})
    try:
        with open(os.path.join(site, path), "rb") as source:
            while piece := source.read(_CHUNK):
                for one in hashers.values():
                    one.update(piece)
    except OSError:
        result.unreadable.append(path)
        return
    if any(_entry(name, one.digest()) in told for name, one in hashers.items()):
        return
    if any(one.partition("=")[0] not in hashers for one in told):
        result.unreadable.append(path)
        return
    result.edited[path] = owner
    result.hashes[path] = hashers["sha256"].hexdigest()
