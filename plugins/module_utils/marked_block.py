# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Our lines in a file of others: put in, replaced, and taken out so that the file is as it was. Pure.

A block stands between ``# BEGIN groundstate NAME`` and ``# END groundstate NAME``. What has to be undone with it is
noted in its first line, so that nothing else has to be remembered: that there was no file before, that the file's last
line had no line break, which mode it had. No marker holds ``=``, which old releases of NCCL would read as a variable.
"""

from __future__ import annotations

import re

NO_FILE = "no file before"
_NO_BREAK = "no line break before"
_BLOCK = re.compile(
    r"^# BEGIN groundstate (?P<name>[A-Za-z0-9_-]+)(?: \((?P<notes>[^()\n]*)\))?\n"
    r"(?P<body>(?:(?!# BEGIN groundstate ).*\n)*?)# END groundstate (?P=name)\n",
    re.MULTILINE,
)


def names(text: str) -> list[str]:
    """Whose blocks are in it, in their order."""
    return [found["name"] for found in _BLOCK.finditer(text)]


def body(text: str, name: str) -> str | None:
    """The lines of a block; None when there is none of this name."""
    found = _find(text, name)
    return found["body"] if found else None


def notes(text: str, name: str) -> list[str]:
    """What is noted in the first line of a block."""
    found = _find(text, name)
    return _notes(found) if found else []


def put(text: str | None, name: str, lines: str, top: bool = False, note: str = "") -> str:
    """The text with this block. One that is there keeps its place; a new one goes to the top or to the end.

    ``text`` is None when there is no file. ``note`` is kept in a new block's first line.
    """
    found = _find(text, name) if text else None
    if text and found:
        return text[: found.start()] + _render(name, lines, _notes(found)) + text[found.end() :]
    noted = [note] if note else []
    if text is None:
        return _render(name, lines, [*noted, NO_FILE])
    if top:
        return _render(name, lines, noted) + text
    if text and not text.endswith("\n"):
        return text + "\n" + _render(name, lines, [*noted, _NO_BREAK])
    return text + _render(name, lines, noted)


def take(text: str, name: str) -> str | None:
    """The text without this block; None when nothing is left of a file that was made for it.

    Notes go over to another block of ours that is still there, which then undoes the rest when it is taken out.
    """
    found = _find(text, name)
    if not found:
        return text
    noted = _notes(found)
    before, after = text[: found.start()], text[found.end() :]
    if _NO_BREAK in noted and not after:
        before, noted = before[:-1], []
    elif _NO_BREAK in noted and not _BLOCK.match(after):
        noted.remove(_NO_BREAK)  # others went on below it: the line break is theirs now
    rest = before + after
    if not rest and NO_FILE in noted:
        return None
    heir = _BLOCK.search(rest) if _NO_BREAK not in noted else _BLOCK.match(rest, len(before))
    if noted and heir:
        kept = _render(heir["name"], heir["body"], [*_notes(heir), *noted])
        rest = rest[: heir.start()] + kept + rest[heir.end() :]
    return rest


def _find(text: str, name: str) -> re.Match[str] | None:
    return next((one for one in _BLOCK.finditer(text) if one["name"] == name), None)


def _notes(found: re.Match[str]) -> list[str]:
    return (found["notes"] or "").split("; ") if found["notes"] else []


def _render(name: str, lines: str, noted: list[str]) -> str:
    said = f" ({'; '.join(noted)})" if noted else ""
    return f"# BEGIN groundstate {name}{said}\n{lines}# END groundstate {name}\n"
