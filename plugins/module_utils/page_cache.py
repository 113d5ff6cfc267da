# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How fast files come from their disk, and how much of them is in memory already: the kernel's page cache."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Iterable

_STEP = 1 << 30  # of a file, looked at or measured at once
_CHUNK = 8 << 20
_PAGE = mmap.PAGESIZE


def resident(path: str, offset: int = 0, length: int | None = None) -> int | None:
    """Bytes of a file (or of a part of it) that are in the page cache; None when that cannot be told. Raises OSError.

    ``offset`` is a multiple of the page size.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    found = 0
    with open(path, "rb") as source:
        size = os.fstat(source.fileno()).st_size
        end = size if length is None else min(size, offset + length)
        while offset < end:
            part = min(_STEP, end - offset)
            pages = (part + _PAGE - 1) // _PAGE
            states = (ctypes.c_ubyte * pages)()
            # A private writable mapping, because only of one that can be written to is the address given away.
            with mmap.mmap(source.fileno(), part, access=mmap.ACCESS_COPY, offset=offset) as area:
                first = ctypes.c_char.from_buffer(area)
                status = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(part), states)
                del first  # or the mapping cannot be closed
            if status:
                return None
            found += min(part, sum(state & 1 for state in states) * _PAGE)
            offset += part
    return found


def read_speed(paths: Iterable[str], limit: int = _STEP) -> float | None:
    """MiB/s with which a part of the largest file is read from its disk; None when it cannot be measured.

    What is in the page cache is dropped first (for this part of the file); when it stays there, because a process has
    it mapped, a reading would measure the memory, and nothing is said.
    """
    sizes = {path: os.path.getsize(path) for path in paths}
    if not any(sizes.values()):
        return None
    path = max(sizes, key=lambda one: sizes[one])
    length = min(limit, sizes[path])
    with open(path, "rb", buffering=0) as source:
        os.posix_fadvise(source.fileno(), 0, length, os.POSIX_FADV_DONTNEED)
        left = resident(path, 0, length)
        if left is None or left > length // 50:
            return None
        done, seconds = _read(source.fileno(), length)
    return done / (1 << 20) / seconds if done and seconds > 0 else None


def _read(handle: int, length: int) -> tuple[int, float]:
    buffer = bytearray(_CHUNK)
    done = 0
    started = time.monotonic()
    while done < length:
        got = os.readv(handle, [memoryview(buffer)[: min(_CHUNK, length - done)]])
        if not got:
            break
        done += got
    return done, time.monotonic() - started


def warm(paths: Iterable[str], budget: int) -> tuple[int, int]:
    """Read files into the page cache, in their order: (bytes that were read, bytes that are there after it).

    Stops before more than ``budget`` bytes were read. Raises OSError.
    """
    read = there = 0
    for path in paths:
        size = os.path.getsize(path)
        cached = resident(path) or 0
        if cached < size and read + size - cached <= budget:
            with open(path, "rb", buffering=0) as source:
                with contextlib.suppress(OSError):
                    os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                _read(source.fileno(), size)
            read += size - cached
            cached = resident(path) or size
        there += cached
    return read, there
