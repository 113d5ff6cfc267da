# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files that survive a kill: atomic writes, tolerant reads, and one way to hash a value."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from typing import Any


def canonical_json(value: Any) -> str:
    """The one text form that hashes are taken of: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 (64 hex digits) of :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def write_atomic(path: str, data: str | bytes, mode: int = 0o644) -> None:
    """Write a file so that a reader or a crash sees the old content or the new one, never a part.

    The folder is made (0755) when missing. Raises OSError.
    """
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
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
        with open(path, encoding="utf-8") as source:
            return json.load(source)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:  # the latter for thousands of brackets within each other
        raise ValueError(f"{path} is not valid JSON ({error}); remove or repair the file") from error


def tail(path: str, lines: int = 40, limit: int = 256 * 1024) -> list[str]:
    """The last lines of a text file, reading at most ``limit`` bytes; [] when it cannot be read."""
    try:
        with open(path, "rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - limit))
            text = source.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]
