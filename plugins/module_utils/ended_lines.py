# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ended processes for people: those that differ in their numbers alone share a line.

A server of two ranks has 64 compile workers of torch; what is worth reading are the other five processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_LONGEST = 240  # characters of a command line


def alike(ended: Iterable[Mapping[str, Any]], attribute: str) -> list[tuple[str, str, str]]:
    """(numbers, command line, ``attribute``) of each kind of process, in the order of the first of each."""
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in ended:
        shape = re.sub(r"\d+", "0", one["cmdline"])
        kinds.setdefault((shape, str(one[attribute])), []).append(one)
    made = []
    for (_shape, told), these in kinds.items():
        first = these[0]["cmdline"]
        command = first if len(first) <= _LONGEST else f"{first[:_LONGEST]}..."
        more = f" and {len(these) - 1} like it" if len(these) > 1 else ""
        made.append((f"{these[0]['pid']}{more}", command, told))
    return made


def lines(ended: Iterable[Mapping[str, Any]]) -> list[str]:
    """How they ended."""
    return ["  ".join(one) for one in alike(ended, "how")]


def planned(ended: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why they are ended."""
    return [f"process {who}: {command} ({why})" for who, command, why in alike(ended, "why")]
