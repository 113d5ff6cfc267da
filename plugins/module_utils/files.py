# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files that survive a kill: atomic writes, tolerant reads, and one way to hash a value."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Characters of a line of a log that are looked at.
LONGEST_LINE = 4096
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def canonical_json(value: Any) -> str:
    """The one text form that hashes are taken of: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 (64 hex digits) of :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def is_number(value: Any) -> bool:
    """Whether a value that was read is a number to count with: no bool, no NaN, and no more than a float can hold."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # JSON has integers of any length
        return False


def decode_json(text: str | bytes) -> Any:
    """The value in a text that a stranger wrote. Raises ValueError for whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error


def write_atomic(path: str, data: str | bytes, mode: int = 0o644) -> None:
    """Write a file so that a reader or a crash sees the old content or the new one, never a part.

    The folder is made (0755) when missing. Raises OSError.
    """
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    if os.path.exists(path) and not os.path.isfile(path):  # as root, /dev/null would be gone
        raise _no_file(path)
    raw = data.encode("utf-8") if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(prefix="." + os.path.basename(path) + ".", dir=folder)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(raw)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException as error:
        # KeyboardInterrupt included: a half-written temporary file must not stay behind.
        if os.path.exists(temporary):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path  # a full disk is told by write(), which knows no name
        raise


def write_json(path: str, value: Any, mode: int = 0o644) -> None:
    """Write a value as indented JSON, atomically. Raises OSError, or ValueError for NaN."""
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n", mode)


def read_json(path: str) -> Any | None:
    """The value in a JSON file; None when there is no such file.

    Raises ValueError naming the file when it is not JSON, OSError when it cannot be read.
    """
    try:
        with open(path, encoding="utf-8", opener=regular) as source:
            return json.load(source)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:  # the latter for thousands of brackets within each other
        raise ValueError(f"{path} is not valid JSON ({error}); remove or repair the file") from error


class Busy(Exception):
    """Another process has held a lock for longer than one was ready to wait."""


@contextmanager
def folder_locked(path: str, timeout_s: float) -> Iterator[None]:
    """Let one process at a time into the block. Raises Busy when another one does not leave it, OSError without folder.

    The folder itself is locked: nothing has to be cleaned up, and the kernel unlocks it when a process is killed.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Busy(f"{path} has been locked by another process for {timeout_s:.0f} s") from None
                time.sleep(0.1)
        yield
    finally:
        os.close(handle)


def plain(line: str, longest: int = LONGEST_LINE) -> str:
    """A line that a stranger wrote, fit to be searched and shown: cut, without colours and other control characters.

    A terminal would obey them, and a pattern may take the square of a line's length.
    """
    return _CONTROL.sub("", line[:longest])


def regular(path: str, flags: int) -> int:
    """For ``open(opener=...)``: raises OSError for what is no file. A pipe waits for ever, a device never ends."""
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _no_file(path)
    return handle


def read_regular(path: str, limit: int = 16 << 20) -> bytes:
    """What is in a file. Raises OSError, also for what is no file (a device, a pipe) or is longer than ``limit``."""
    with open(path, "rb", opener=regular) as source:
        raw = source.read(limit + 1)
    if len(raw) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", path)
    return raw


def _no_file(path: str) -> OSError:
    return OSError(errno.EINVAL, "it is no regular file", path)


def tail(path: str, lines: int = 40, limit: int = 256 * 1024) -> list[str]:
    """The last lines of a text file as :func:`plain` leaves them, from its last ``limit`` bytes; [] when unreadable."""
    try:
        with open(path, "rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - limit))
            text = source.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [plain(line) for line in text.splitlines()[-lines:]]
