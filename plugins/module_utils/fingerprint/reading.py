# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Small tolerant readers that the sections share."""

from __future__ import annotations

import os

Unknown = dict  # path of a value ("section.key") -> why it could not be read


def text(path: str) -> str | None:
    """The stripped content of a small file; None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read().strip("\0 \t\r\n")
    except OSError:
        return None


def value(path: str, unknown: Unknown, name: str) -> str | None:
    """Like :func:`text`, with the reason put into ``unknown[name]``. An empty file is unknown, too."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            content = source.read().strip("\0 \t\r\n")
    except OSError as error:
        unknown[name] = f"{path}: {error.strerror or error}"
        return None
    if not content:
        unknown[name] = f"{path} is empty"
        return None
    return content


def number(path: str) -> int | None:
    """The integer in a file; None when there is none."""
    content = text(path)
    try:
        return int(content) if content is not None else None
    except ValueError:
        return None


def mib(kib: int | None, step: int = 64) -> int | None:
    """KiB as MiB, rounded to steps: a kernel update moves the total by some pages, which explains no number."""
    return None if kib is None else round(kib / 1024 / step) * step


def keyed(content: str, separator: str = ":") -> dict[str, str]:
    """ "key: value" lines as a dictionary; the first of equal keys stays."""
    found: dict[str, str] = {}
    for line in content.splitlines():
        key, cut, rest = line.partition(separator)
        if cut:
            found.setdefault(key.strip(), rest.strip())
    return found


def entries(folder: str, prefix: str) -> list[str]:
    """Names in a folder that are the prefix and a number, in the order of the numbers; [] without the folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    chosen = [name for name in names if name.startswith(prefix) and name[len(prefix) :].isdigit()]
    return sorted(chosen, key=lambda name: int(name[len(prefix) :]))
