# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Unified diffs, as ``git diff`` and ``diff -u`` write them: read, applied without any fuzz, reversed, written. Pure.

Contents are bytes, and only a line feed ends a line: what a patch does not name stays as it is, byte for byte.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: .*)?")
_NOTHING = b"/dev/null"
_NO_BREAK = b"\\"  # "\ No newline at end of file", in whatever language
_SHOWN = 20  # lines of a hunk in a message
_CONTEXT = 3  # lines around a change, as difflib has them
# What git can say and we do not do, and what it is called.
_REFUSED = {
    b"rename from ": "renames a file",
    b"copy from ": "copies a file",
    b"old mode ": "changes the mode of a file",
    b"Binary files ": "holds a binary change",
    b"GIT binary patch": "holds a binary change",
    b"new file mode 12": "makes a link",
    b"new file mode 16": "makes a submodule",
}


class PatchError(ValueError):
    """A patch that cannot be read or does not apply; the message names the file and shows the hunk."""


@dataclass(frozen=True)
class Hunk:
    """One piece: lines with their line feeds, each with ``b" "``, ``b"-"`` or ``b"+"`` before it."""

    header: str
    old_start: int  # as in the header: from 1, and the line before it when there are no old lines
    new_start: int
    lines: tuple[tuple[bytes, bytes], ...]

    @property
    def old(self) -> list[bytes]:
        return [line for kind, line in self.lines if kind != b"+"]

    @property
    def new(self) -> list[bytes]:
        return [line for kind, line in self.lines if kind != b"-"]

    def reversed(self) -> Hunk:
        turned = {b" ": b" ", b"-": b"+", b"+": b"-"}
        return Hunk(self.header, self.new_start, self.old_start, tuple((turned[kind], one) for kind, one in self.lines))

    def text(self) -> str:
        """The hunk for a message."""
        shown = [kind + line.rstrip(b"\n") for kind, line in self.lines[:_SHOWN]]
        more = [f"... and {len(self.lines) - _SHOWN} lines more".encode()] if len(self.lines) > _SHOWN else []
        return "\n".join([self.header, *(one.decode("utf-8", "backslashreplace") for one in shown + more)])


@dataclass(frozen=True)
class FileChange:
    """What a patch does to one file. ``makes``: there is none before. ``deletes``: there is none after."""

    path: str
    hunks: tuple[Hunk, ...]
    makes: bool = False
    deletes: bool = False

    def reversed(self) -> FileChange:
        return FileChange(self.path, tuple(one.reversed() for one in self.hunks), self.deletes, self.makes)


def lines(content: bytes) -> list[bytes]:
    """The lines with their line feeds; a carriage return is a byte like any other."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


# --- reading -----------------------------------------------------------------------------------------


def parse(text: str, strip: int = 1) -> list[FileChange]:
    """The changes of a patch, in its order. ``strip``: leading folders to leave out of each name, as ``patch -p``.

    Raises PatchError for anything that is no such patch, for names that lead out of the folder, and for changes that
    are more than lines of files.
    """
    return _Reader(lines(text.encode("utf-8", "surrogateescape")), strip).read()


class _Reader:
    def __init__(self, content: list[bytes], strip: int) -> None:
        self._lines = content
        self._strip = strip
        self._at = 0
        self._found: list[FileChange] = []

    def _peek(self, ahead: int = 0) -> bytes:
        at = self._at + ahead
        return self._lines[at].rstrip(b"\r\n") if at < len(self._lines) else b""

    def read(self) -> list[FileChange]:
        makes = deletes = False
        name = b""
        while self._at < len(self._lines):
            line = self._peek()
            said = next((what for start, what in _REFUSED.items() if line.startswith(start)), None)
            if said:
                raise PatchError(f"line {self._at + 1} {said}: only lines of text files can be changed, added, deleted")
            if line.startswith(b"diff --git "):
                self._empty(name, makes, deletes)
                makes = deletes = False
                name = line.rpartition(b" b/")[2] and b"b/" + line.rpartition(b" b/")[2]
            elif line.startswith(b"new file mode "):
                makes = True
            elif line.startswith(b"deleted file mode "):
                deletes = True
            elif line.startswith(b"--- ") and self._peek(1).startswith(b"+++ "):
                self._file()
                name, makes, deletes = b"", False, False
                continue
            elif _HUNK.fullmatch(line):
                raise PatchError(f"line {self._at + 1} is a hunk that no file is named for")
            self._at += 1
        self._empty(name, makes, deletes)
        if not self._found:
            raise PatchError("it changes no file: a patch is what 'git diff' or 'diff -u' write")
        return self._found

    def _empty(self, name: bytes, makes: bool, deletes: bool) -> None:
        """A file without content, which git names in its header only."""
        if name and (makes or deletes):
            self._found.append(FileChange(self._path(name), (), makes, deletes))

    def _file(self) -> None:
        old, new = (self._peek(ahead)[4:].partition(b"\t")[0].rstrip() for ahead in (0, 1))
        self._at += 2
        if old == new == _NOTHING:
            raise PatchError(f"line {self._at} names no file")
        path = self._path(old if new == _NOTHING else new)
        hunks = []
        while _HUNK.fullmatch(self._peek()):
            hunks.append(self._hunk())
        if not hunks:
            raise PatchError(f"{path}: no hunk follows its name in line {self._at}")
        self._found.append(FileChange(path, tuple(hunks), old == _NOTHING, new == _NOTHING))

    def _hunk(self) -> Hunk:
        header = self._peek()
        match = _HUNK.fullmatch(header)
        if match is None:  # the caller looked
            raise PatchError(f"line {self._at + 1} begins no hunk")
        counts = {b"-": int(match[2] or 1), b"+": int(match[4] or 1)}
        left = dict(counts)
        shown = header.decode("utf-8", "backslashreplace")
        self._at += 1
        found: list[tuple[bytes, bytes]] = []
        while left[b"-"] > 0 or left[b"+"] > 0:
            if self._at >= len(self._lines):
                raise PatchError(f"it was cut off in the hunk {shown}")
            line = self._lines[self._at]
            # Editors and mail take the single space of an empty line away.
            kind, rest = (b" ", line) if line in (b"\n", b"\r\n") else (line[:1], line[1:])
            if kind == _NO_BREAK and found:
                found[-1] = (found[-1][0], found[-1][1][:-1])
            elif kind in (b" ", b"-", b"+"):
                for side in (b"-", b"+") if kind == b" " else (kind,):
                    left[side] -= 1
                found.append((kind, rest))
            else:
                raise PatchError(
                    f"line {self._at + 1} is not a part of the hunk {shown}, whose header counts more lines"
                )
            self._at += 1
        if self._peek()[:1] == _NO_BREAK and found:
            found[-1] = (found[-1][0], found[-1][1][:-1])
            self._at += 1
        rest = self._peek()
        more = rest[:1] in (b" ", b"+", b"-") and not rest.startswith((b"--- ", b"-- ")) and rest != b"--"
        if more or min(left.values()) < 0:
            raise PatchError(f"the hunk {shown} has more lines than its header counts")
        return Hunk(shown, int(match[1]), int(match[3]), tuple(found))

    def _path(self, name: bytes) -> str:
        shown = name.decode("utf-8", "backslashreplace")
        if name.startswith(b'"'):
            raise PatchError(f"{shown}: names in quotes are not supported")
        try:
            whole = name.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PatchError(f"{shown} is not UTF-8") from error
        parts = whole.split("/")
        # Before anything is left out: neither the whole name nor its rest may lead elsewhere.
        if whole.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in whole:
            raise PatchError(f"{shown!r} is not a path below the folder of the packages")
        if len(parts) <= self._strip:
            raise PatchError(f"{shown!r} has no {self._strip} folders to leave out (strip)")
        return "/".join(parts[self._strip :])


# --- applying ----------------------------------------------------------------------------------------


def apply(content: bytes | None, change: FileChange) -> bytes | None:
    """The content after a change; None stands for no file. Raises PatchError with the hunk that does not apply."""
    if (content is None) != change.makes:
        what = "is there already, and the patch makes it anew" if change.makes else "is not there"
        raise PatchError(f"{change.path} {what}")
    have = lines(content or b"")
    made: list[bytes] = []
    at = 0  # lines of ``have`` that are done with
    shift = 0  # how far earlier hunks were from where their headers said
    for number, hunk in enumerate(change.hunks, 1):
        old = hunk.old
        place = _place(have, old, hunk.old_start - bool(old) + shift, at)
        if place is None:
            raise PatchError(_misfit(change, number, hunk, have, hunk.old_start - bool(old) + shift))
        shift = place - (hunk.old_start - bool(old))
        made += have[at:place] + hunk.new
        at = place + len(old)
    made += have[at:]
    if any(not line.endswith(b"\n") for line in made[:-1]):
        raise PatchError(f"{change.path}: the patch would put lines behind one that has no line break")
    if change.deletes:
        if made:
            raise PatchError(f"{change.path}: the patch deletes it, and it holds {len(made)} lines more than that")
        return None
    return b"".join(made)


def _place(have: Sequence[bytes], old: list[bytes], expected: int, done: int) -> int | None:
    """Where a hunk belongs: where its header says, or the only other place where all of its old lines stand."""
    size = len(old)
    if done <= expected <= len(have) - size and list(have[expected : expected + size]) == old:
        return expected
    if not size:
        return None
    found = [at for at in range(done, len(have) - size + 1) if have[at] == old[0] and list(have[at : at + size]) == old]
    return found[0] if len(found) == 1 else None


def _misfit(change: FileChange, number: int, hunk: Hunk, have: Sequence[bytes], expected: int) -> str:
    there = list(have[max(0, expected) : max(0, expected) + len(hunk.old)])
    said = f"{change.path}: hunk {number} of {len(change.hunks)} does not apply"
    if [one.rstrip(b"\r\n") for one in there] == [one.rstrip(b"\r\n") for one in hunk.old]:
        said += ": it has other line ends (CRLF or LF, or none at the end) than the file"
    else:
        wrong = next((at for at, (a, b) in enumerate(zip(there, hunk.old)) if a != b), len(there))
        line = there[wrong].rstrip(b"\n").decode("utf-8", "backslashreplace") if wrong < len(there) else None
        said += f": line {expected + wrong + 1} of the file " + ("is not there" if line is None else f"is {line!r}")
    return f"{said}\n{hunk.text()}"


# --- writing -----------------------------------------------------------------------------------------


def render(path: str, before: bytes | None, after: bytes | None) -> bytes:
    """The patch that leads from one content to another, as ``git diff`` writes it; b"" when they are the same."""
    if before == after:
        return b""
    name = path.encode()
    made = [b"diff --git a/" + name + b" b/" + name + b"\n"]
    made += [b"new file mode 100644\n"] * (before is None) + [b"deleted file mode 100644\n"] * (after is None)
    old, new, skipped = _middle(lines(before or b""), lines(after or b""))
    body = difflib.diff_bytes(
        difflib.unified_diff,
        old,
        new,
        _NOTHING if before is None else b"a/" + name,
        _NOTHING if after is None else b"b/" + name,
        lineterm=b"\n",
    )
    for line in body:
        match = _HUNK.fullmatch(line.rstrip(b"\n")) if skipped else None
        if match:  # no line of a content begins so, each has a sign before it
            made.append(b"@@ -%s +%s @@\n" % (_range(match[1], match[2], skipped), _range(match[3], match[4], skipped)))
            continue
        made.append(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n")
    return b"".join(made)


def _middle(old: list[bytes], new: list[bytes]) -> tuple[list[bytes], list[bytes], int]:
    """Both without the lines that they begin and end with alike, but for the context of a hunk; how many went first.

    difflib takes minutes for a large table with many lines twice.
    """
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    left = shorter - head
    tail = next((at for at in range(left) if old[-1 - at] != new[-1 - at]), left)
    head, tail = max(0, head - _CONTEXT), max(0, tail - _CONTEXT)
    return old[head : len(old) - tail], new[head : len(new) - tail], head


def _range(start: bytes, count: bytes | None, skipped: int) -> bytes:
    return b"%d" % (int(start) + skipped) + (b"" if count is None else b"," + count)
