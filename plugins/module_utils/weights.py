# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a file with weights is whole, by what its own header says of its size. Pure: reads headers, never weights."""

from __future__ import annotations

import os
import struct
from typing import Any, BinaryIO

from . import files
from .file_hashes import open_regular

_LARGEST_HEADER = 100 << 20  # safetensors' own limit
_LONGEST = 1 << 63  # no file is as long
_LFS = b"version https://git-lfs"

# --- safetensors -------------------------------------------------------------------------------------


def safetensors(path: str) -> tuple[str, frozenset[str]]:
    """(what is wrong with a safetensors file, "" when it is whole; names of its tensors). Raises OSError.

    Eight bytes with the header's length, the header (JSON), the tensors: the last one has to end with the file.
    """
    with open_regular(path) as source:
        size = os.fstat(source.fileno()).st_size
        head = source.read(8)
        if len(head) < 8 or head == _LFS[:8]:
            return _not_it(head + source.read(40), size), frozenset()
        length = struct.unpack("<Q", head)[0]
        if not 2 <= length <= _LARGEST_HEADER:
            return f"is no safetensors file (its header would have {length} bytes)", frozenset()
        if 8 + length > size:
            return f"was cut off in its header ({size} bytes)", frozenset()
        raw = source.read(length)
    try:
        header = files.decode_json(raw)
        tensors = {name: _offset(one["data_offsets"][1]) for name, one in header.items() if name != "__metadata__"}
        end = 8 + length + max(tensors.values(), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return "is damaged: its header cannot be read", frozenset()
    return _ends(size, end), frozenset(tensors)


def _offset(value: Any) -> int:
    """A place in a file. Raises ValueError for what is none: a text, a fraction, more than any file has."""
    if not isinstance(value, int) or not 0 <= value < _LONGEST:
        raise ValueError(value)
    return value


def _ends(size: int, end: int) -> str:
    if size < end:
        return f"was cut off: {size} of {end} bytes"
    return f"is damaged: {size - end} bytes more than its {end}" if size > end else ""


def _not_it(head: bytes, size: int) -> str:
    if head.startswith(_LFS):
        return "is a pointer of Git LFS and not the file itself: fetch it with 'git lfs pull'"
    return f"was cut off: {size} bytes"


# --- GGUF --------------------------------------------------------------------------------------------

# Bytes of the values that have a fixed size: type -> struct format.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# ggml's types: elements of a block, bytes of a block. One that is not here is only held against its beginning.
_BLOCKS = {
    **{0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36)},
    **{10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292)},
    **{24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2)},
}
_MOST = 1 << 24  # entries of one kind; a file that says more is damaged
_MOST_READ = 64 << 20  # bytes of a header without its arrays of numbers; those of large vocabularies have about 20 MiB
_DIMENSIONS = 8  # of a tensor; ggml itself has at most 4


class _Damaged(ValueError):
    """Numbers in a header that cannot be."""


class _Gguf:
    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._read = 0

    def _bytes(self, size: int) -> bytes:
        # Whatever a header counts is read in here, so that nothing it says can make it long to read.
        self._read += size
        if self._read > _MOST_READ:
            raise _Damaged(f"more than {_MOST_READ >> 20} MiB")
        return self._source.read(size)

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self._bytes(struct.calcsize("<" + form)))[0]

    def count(self) -> int:
        found = int(self.number("Q"))
        if found > _MOST:
            raise _Damaged(f"a count of {found}")
        return found

    def text(self) -> bytes:
        size = self.count()
        found = self._bytes(size)
        if len(found) < size:
            raise struct.error("the end")
        return found

    def value(self, kind: int, depth: int = 0) -> Any:
        """The value if it is a number or a string; arrays are passed over."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY or depth > 3:
            raise _Damaged(f"a value of type {kind}")
        inner, count = self.number("I"), self.count()
        if inner in _SCALARS:
            self._source.seek(count * struct.calcsize("<" + _SCALARS[inner]), os.SEEK_CUR)
        else:
            for _index in range(count):
                self.value(inner, depth + 1)
        return None

    def end(self) -> int:
        """Where the last tensor ends, in bytes from the file's beginning."""
        tensors, pairs = self.count(), self.count()
        alignment = 32
        for _index in range(pairs):
            key, found = self.text(), self.value(self.number("I"))
            if key == b"general.alignment" and isinstance(found, int) and found > 0:
                alignment = found
        last = 0
        for _index in range(tensors):
            self.text()
            dimensions, elements = self.number("I"), 1
            if dimensions > _DIMENSIONS:
                raise _Damaged(f"a tensor of {dimensions} dimensions")
            for _index in range(dimensions):
                elements *= self.number("Q")
            kind, offset = self.number("I"), self.number("Q")
            block, size = _BLOCKS.get(kind, (1, 0))
            last = max(last, offset + elements // block * size)
        here = self._source.tell()
        end = -(-here // alignment) * alignment + last
        if end >= _LONGEST:
            raise _Damaged(f"sizes of {end} bytes in all")
        return end


def gguf(path: str) -> str:
    """What is wrong with a GGUF file; "" when it is whole. Raises OSError."""
    with open_regular(path) as source:
        size = os.fstat(source.fileno()).st_size
        magic = source.read(4)
        if magic != b"GGUF":
            return _not_it(magic + source.read(40), size) if size < 64 or magic == _LFS[:4] else "is no GGUF file"
        reader = _Gguf(source)
        try:
            version = reader.number("I")
            if version not in (2, 3):
                return f"is GGUF version {version}, which is not known here"
            end = reader.end()
        except struct.error:
            return f"was cut off in its header ({size} bytes)"
        except (_Damaged, OverflowError) as error:
            return f"is damaged: its header holds {error}"
    # Some writers fill the last block up to the alignment.
    return f"was cut off: {size} of {end} bytes" if size < end else ""
