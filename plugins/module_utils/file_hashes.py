# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""SHA-256 of files, remembered for files that did not change.

One cache file a root folder (an environment, a model): path below the root -> size, mtime, ctime and inode, and the
hash that belongs to them. A cache that is damaged or missing only costs time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat as stat_bits
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from . import files

SCHEMA = 1
_CHUNK = 1 << 20
_KEPT = 10_000  # entries of files that nobody asked for this time


def open_regular(path: str) -> BinaryIO:
    """A file, opened to be read. Raises OSError, also for what is none: a pipe waits for ever, a device never ends."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat_bits.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return os.fdopen(handle, "rb")


def sha256_file(path: str, limit: int | None = None) -> str:
    """SHA-256 (hex) of a file, or of its first ``limit`` bytes. Raises OSError."""
    total = hashlib.sha256()
    left = limit
    with open_regular(path) as source:
        while left is None or left > 0:
            piece = source.read(_CHUNK if left is None else min(_CHUNK, left))
            if not piece:
                break
            total.update(piece)
            left = None if left is None else left - len(piece)
    return total.hexdigest()


def _stamp(stat: os.stat_result) -> str:
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


def _settled(stat: os.stat_result, now_ns: int) -> bool:
    """Whether a write after our reading would surely have changed the time stamps.

    A file that was changed within the clock's last tick could be changed again without a new stamp. Filesystems that
    keep whole seconds only tick that slowly.
    """
    coarse = stat.st_ctime_ns % 1_000_000_000 == 0 and stat.st_mtime_ns % 1_000_000_000 == 0
    return now_ns - max(stat.st_ctime_ns, stat.st_mtime_ns) > (2_500_000_000 if coarse else 100_000_000)


class FileHashes:
    """Hashes of the files below one root folder.

    ``folder`` is where the cache file lies (``<home>/cache``); None: remember nothing. Several who ask for different
    files of one folder share it: entries of files that were not asked for are kept while the files are as they were.
    """

    def __init__(self, root: str, folder: str | None, workers: int | None = None) -> None:
        self.root = os.path.realpath(root)
        self.path = None
        self.hashed = 0  # files that had to be read this time
        self.why: dict[str, str] = {}  # files that could not be read -> the reason
        self._workers = workers or min(8, os.cpu_count() or 1)
        self._old: dict[str, str] = {}
        self._new: dict[str, str] = {}
        if folder is not None:
            name = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
            self.path = os.path.join(folder, f"hashes-{name}.json")
            self._old = self._load(self.path)

    def _load(self, path: str) -> dict[str, str]:
        try:
            raw = files.read_json(path)
        except (OSError, ValueError):
            return {}
        if not isinstance(raw, dict) or raw.get("schema") != SCHEMA or raw.get("root") != self.root:
            return {}
        entries = raw.get("entries")
        return entries if isinstance(entries, dict) else {}

    def many(self, wanted: Iterable[tuple[str, os.stat_result]]) -> dict[str, str | None]:
        """Path below the root -> hash for (path, stat) pairs; None for a file that cannot be read."""
        found: dict[str, str | None] = {}
        unknown: list[str] = []
        for path, stat in wanted:
            stamp = _stamp(stat)
            known = self._old.get(path)
            if isinstance(known, str) and known.startswith(stamp + " "):
                self._new[path] = known
                found[path] = known[len(stamp) + 1 :]
            else:
                unknown.append(path)
        self.hashed += len(unknown)
        if len(unknown) > 1 and self._workers > 1:
            # hashlib lets go of the interpreter's lock while it works.
            with ThreadPoolExecutor(self._workers) as pool:
                found.update(zip(unknown, pool.map(self._compute, unknown)))
        else:
            found.update((path, self._compute(path)) for path in unknown)
        return found

    def one(self, path: str) -> str | None:
        """The hash of one file below the root; None when it cannot be read."""
        try:
            stat = os.stat(os.path.join(self.root, path))
        except OSError as error:
            self.why[path] = str(error.strerror)
            return None
        return self.many([(path, stat)])[path]

    def _compute(self, path: str) -> str | None:
        full = os.path.join(self.root, path)
        try:
            before = os.stat(full)
            value = sha256_file(full)
            after = os.stat(full)
        except OSError as error:
            self.why[path] = str(error.strerror)
            return None
        if _stamp(before) == _stamp(after) and _settled(after, time.time_ns()):
            self._new[path] = f"{_stamp(after)} {value}"
        return value

    def _keep(self) -> None:
        """Take over old entries that are still right, up to a number: nobody may ask for them again."""
        left = _KEPT
        for path, known in self._old.items():
            if path in self._new or not isinstance(known, str) or left <= 0:
                continue
            left -= 1
            with contextlib.suppress(OSError, ValueError):  # ValueError: a damaged cache may hold what is no path
                if known.startswith(_stamp(os.stat(os.path.join(self.root, path))) + " "):
                    self._new[path] = known

    def save(self) -> None:
        """Write the cache file (0600) when something changed. A folder that cannot be written is no error."""
        if self.path is None:
            return
        self._keep()
        if self._new == self._old:
            return
        text = json.dumps({"schema": SCHEMA, "root": self.root, "entries": self._new}, separators=(",", ":"))
        try:
            files.write_atomic(self.path, text, 0o600)
        except OSError:
            return
