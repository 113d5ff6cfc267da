# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Locks in the form that pip and uv read: exactly pinned requirements, mostly with hashes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(
    r"^(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[[^\]]*\])?\s*==\s*"
    r"(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)\s*(?:;.*)?$"
)
_BOUND = re.compile(r"^(>=|<=|==|!=|<|>)\s*(\d+)(?:\.(\d+))?(?:\.(\d+))?(\.\*)?$")


def normal(name: str) -> str:
    """A distribution's name in its one normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Requirement:
    """One line of a lock."""

    name: str  # normal form
    version: str
    hashed: bool
    text: str  # as in the lock, on one line


def parse(text: str) -> list[Requirement]:
    """The requirements of a lock, in its order.

    Raises ValueError naming every line that is not ``name==version`` (with ``--hash`` options), and duplicates:
    indexes and other options are parameters, not part of a lock. One without any line is refused, too.
    """
    found: dict[str, Requirement] = {}
    problems = []
    joined = re.sub(r"\\\r?\n", " ", text)
    for raw in joined.splitlines():
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if not line:
            continue
        words = [word for word in line.split() if not word.startswith("--hash=")]
        match = _LINE.match(" ".join(words))
        if not match:
            problems.append(f"{line[:80]!r} is not 'name==version'")
            continue
        name = normal(match["name"])
        if name in found:
            problems.append(f"{name} is locked twice")
        found[name] = Requirement(name, match["version"], "--hash=" in line, " ".join(line.split()))
    if problems:
        raise ValueError("the lock is not usable: " + "; ".join(problems))
    if not found:
        raise ValueError(
            "the lock names no distribution: a 'uv pip compile ... > requirements.txt' that fails leaves such a file. "
            "Make it again, and look at what uv says"
        )
    return list(found.values())


def render(items: list[Requirement]) -> str:
    """The text of a requirements file."""
    return "".join(item.text + "\n" for item in items)


def same_version(locked: str, installed: str) -> bool:
    """Whether an installed version is the locked one, local part included ("2.13.0" is not "2.13.0+cpu")."""

    def form(version: str) -> str:
        public, _plus, local = version.lower().partition("+")
        # "1.0" and "1.0.0" are the same release to every index.
        release = re.sub(r"(\.0)+$", "", public)
        return release + "+" + re.sub(r"[-_]", ".", local)

    return form(locked) == form(installed)


def differences(items: list[Requirement], installed: dict[str, str]) -> list[str]:
    """What an environment lacks of a lock, as sentences; markers that exclude a line make it optional."""
    found = []
    for item in items:
        have = installed.get(item.name)
        if have is None:
            if ";" not in item.text:
                found.append(f"{item.name} {item.version} is not installed")
        elif not same_version(item.version, have):
            found.append(f"{item.name} is {have}, locked is {item.version}")
    return found


def check_range(text: str) -> list[tuple[str, tuple[int, ...], bool]]:
    """The bounds of a range such as ``>=3.10,<3.15`` or ``==3.11.*``. Raises ValueError for any other form."""
    bounds = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _BOUND.match(part)
        if not match:
            raise ValueError(f"{part!r} is not a bound of a Python version (such as '>=3.10', '<3.15', '==3.11.*')")
        bounds.append((match[1], tuple(int(one) for one in match.groups()[1:4] if one is not None), bool(match[5])))
    return bounds


def in_range(version: str, text: str) -> bool:
    """Whether a Python version ("3.11.7") lies in a range; an empty range holds all. Raises ValueError."""
    have = tuple(int(one) for one in re.findall(r"\d+", version)[:3])
    checks: dict[str, Any] = {
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
        "==": lambda a, b: a == b,
        "!=": lambda a, b: a != b,
        "<": lambda a, b: a < b,
        ">": lambda a, b: a > b,
    }
    for operator, bound, prefix in check_range(text):
        size = len(bound) if prefix else max(len(bound), len(have))
        left = (*have, 0, 0, 0)[:size]
        right = (*bound, 0, 0, 0)[:size]
        if not checks[operator](left, right):
            return False
    return True
