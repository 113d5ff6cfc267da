# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A file as it is and as it should be: shown before it is done, done atomically, and undone.

A link is followed, so that what it points to changes and the link stays; owner and mode of a file that is there stay,
unless another mode is asked for.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
from dataclasses import dataclass

from . import files


@dataclass(frozen=True)
class Change:
    """``before`` and ``after`` are contents, None for no file; ``mode`` and ``mode_after`` its bits."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = 0o644
    mode_after: int = 0o644

    @property
    def needed(self) -> bool:
        return self.before != self.after or (self.after is not None and self.mode != self.mode_after)

    @property
    def diff(self) -> dict[str, str]:
        """For Ansible's diff mode."""
        return {
            "before_header": f"{self.path} (mode {self.mode:04o})" if self.before is not None else self.path,
            "after_header": f"{self.path} (mode {self.mode_after:04o})" if self.after is not None else self.path,
            "before": (self.before or b"").decode("utf-8", "replace"),
            "after": (self.after or b"").decode("utf-8", "replace"),
        }

    def do(self) -> None:
        """Make the file so. Raises OSError."""
        _make(self.path, self.after, self.mode_after)

    def undo(self) -> None:
        """Make the file as it was. Raises OSError."""
        _make(self.path, self.before, self.mode)


def read(path: str) -> tuple[bytes | None, int]:
    """Content and mode of a file; (None, 0o644) when there is none. Raises OSError."""
    try:
        return files.read_regular(path), os.stat(path).st_mode & 0o7777
    except FileNotFoundError:
        return None, 0o644


def change(path: str, after: bytes | None, mode: int | None = None) -> Change:
    """What has to be done for a file to have this content, and this mode (None: that which it has). Raises OSError."""
    before, now = read(path)
    return Change(path, before, after, now, now if mode is None else mode)


def _make(path: str, content: bytes | None, mode: int) -> None:
    real = os.path.realpath(path)
    try:
        state: os.stat_result | None = os.stat(real)
    except FileNotFoundError:
        state = None
    if content is None:
        if state is not None:
            os.unlink(real)
        _forget_bytecode(path)
        return
    us = os.geteuid()
    if state is not None and us not in (0, state.st_uid):
        raise PermissionError(errno.EPERM, "it belongs to another user", real)  # whose it would not be any more
    files.write_atomic(real, content, mode)
    if state is not None:
        if (state.st_uid, state.st_gid) != (us, os.getegid()):
            with contextlib.suppress(PermissionError):  # a group that its owner is no member of
                os.chown(real, state.st_uid, state.st_gid)
        # Python takes compiled code for that of a source of the same size and the same second.
        made = os.stat(real)
        later = max(made.st_mtime_ns, state.st_mtime_ns + 1_000_000_000)
        os.utime(real, ns=(made.st_atime_ns, later))


def _forget_bytecode(path: str) -> None:
    """Remove what Python compiled of a source that is gone, and the folder when that was all that it held."""
    stem, extension = os.path.splitext(os.path.basename(path))
    if extension != ".py":
        return
    cache = os.path.join(os.path.dirname(path), "__pycache__")
    for compiled in glob.glob(os.path.join(glob.escape(cache), f"{glob.escape(stem)}.*.pyc")):
        os.unlink(compiled)
    with contextlib.suppress(OSError):
        os.rmdir(cache)
