# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Could a folder be made and written to? Found out without leaving anything behind."""

from __future__ import annotations

import os
import tempfile


def nearest(path: str) -> str:
    """The path itself, or the nearest of the folders above it, that exists (a link to nowhere does)."""
    here = os.path.abspath(path)
    while not os.path.lexists(here):
        here = os.path.dirname(here)
    return here


def obstacle(path: str) -> str:
    """Why nothing could be written below this folder, or "" when it could; the folder need not exist yet."""
    there = nearest(path)
    if os.path.islink(there) and not os.path.exists(there):
        return f"{there} is a link to nowhere"
    if not os.path.isdir(there):
        return f"{there} is a file, not a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        # True also for root on a read-only filesystem, where modes say nothing.
        kind = "is on a read-only filesystem" if _read_only(there) else "may not be written to by this user"
        return f"{there} {kind}"
    try:
        # Modes do not tell all: /proc, a share that takes root for nobody, an immutable folder.
        os.rmdir(tempfile.mkdtemp(prefix=".groundstate-probe-", dir=there))
    except OSError as error:
        return f"nothing can be made in {there} ({error.strerror})"
    return ""


def _read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False
