# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""For which GPUs a compiled library has code: the section ``.nv_fatbin`` of an ELF file, read without cuobjdump.

The section holds containers (magic, header size, size), each with entries for machine code (an ELF file for one
architecture) or PTX (which the driver compiles for newer ones). Only headers are read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

SECTION = b".nv_fatbin"
_MAGIC = 0xBA55ED50
_PTX, _ELF = 1, 2
_LARGEST = 100_000  # entries; a file with more is damaged
_GAP = 4096  # bytes between two containers, at most


class Code(NamedTuple):
    """Code in a library. ``arch``: 90 for compute capability 9.0. ``kind``: "sm" (machine code) or "ptx"."""

    kind: str
    arch: int


def read(path: str) -> set[Code]:
    """The code in a library; empty when it holds none for GPUs.

    Raises ValueError when it is no 64-bit ELF file or damaged, OSError when it cannot be read.
    """
    try:
        with open(path, "rb") as source:
            found: set[Code] = set()
            for offset, size in _sections(source):
                found.update(_entries(source, offset, offset + size))
            return found
    except struct.error as error:
        raise ValueError(f"{path} is damaged ({error})") from error


def _part(source: BinaryIO, offset: int, length: int) -> bytes:
    # Numbers from the file: they may be anything.
    if offset > os.fstat(source.fileno()).st_size:
        return b""
    source.seek(offset)
    return source.read(length)


def _sections(source: BinaryIO) -> list[tuple[int, int]]:
    """(offset, size) of the sections with code for GPUs."""
    head = _part(source, 0, 64)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is not a 64-bit little-endian ELF file")
    table = struct.unpack_from("<Q", head, 40)[0]
    size, count, names = struct.unpack_from("<HHH", head, 58)
    rows = [struct.unpack("<IIQQQQ", _part(source, table + index * size, 40)) for index in range(count)]
    if names >= len(rows):
        return []
    strings = _part(source, rows[names][4], min(rows[names][5], 1 << 20))
    return [(row[4], row[5]) for row in rows if strings[row[0] :].split(b"\0", 1)[0] == SECTION]


def _entries(source: BinaryIO, at: int, end: int) -> Iterator[Code]:
    seen = gap = 0
    while at + 16 <= end:
        magic, _version, header, size = struct.unpack("<IHHQ", _part(source, at, 16))
        if magic != _MAGIC:
            at, gap = at + 8, gap + 8  # containers are aligned to eight bytes, with zeros between them
            if gap > _GAP:
                raise ValueError("its code for GPUs is damaged")
            continue
        gap = 0
        entry, last = at + header, at + header + size
        while entry + 32 <= min(last, end):
            kind, _version, own, payload = struct.unpack("<HHIQ", _part(source, entry, 16))
            arch = struct.unpack("<I", _part(source, entry + 28, 4))[0]
            seen += 1
            if own < 32 or seen > _LARGEST:
                raise ValueError("its code for GPUs is damaged")
            if kind in (_PTX, _ELF):
                yield Code("ptx" if kind == _PTX else "sm", arch)
            entry += own + payload
        at = max(last, at + 16)


def covers(found: Iterable[Code], capability: tuple[int, int]) -> str:
    """How code runs on a GPU: "machine code", "PTX" (compiled by the driver at the start), or "" for not at all.

    Machine code runs on its own compute capability and on later ones of the same major version.
    """
    wanted = capability[0] * 10 + capability[1]
    codes = list(found)
    if any(one.kind == "sm" and one.arch // 10 == capability[0] and one.arch <= wanted for one in codes):
        return "machine code"
    return "PTX" if any(one.kind == "ptx" and one.arch <= wanted for one in codes) else ""


def names(found: Iterable[Code]) -> str:
    """Codes for people: "sm_80, sm_90, ptx_90"."""
    return ", ".join(f"{one.kind}_{one.arch}" for one in sorted(found, key=lambda one: (one.arch, one.kind != "sm")))
