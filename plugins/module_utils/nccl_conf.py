# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's configuration files as NCCL itself reads them, and which of its sources wins. Pure.

NCCL puts each line ``NAME=value`` of a file into the environment unless that name is there already. So the first one
wins: the environment, then the user's file, then /etc/nccl.conf, and within a file the first line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from . import marked_block

ENVIRONMENT = "environment"
CONF_VARIABLE = "NCCL_CONF_FILE"
USER_FILE = "~/.nccl.conf"
SYSTEM_FILE = "/etc/nccl.conf"

_COMMENTS_SINCE = (2, 26, 2)  # before, a comment that holds "=" is a variable with a strange name
_CRLF_SINCE = (2, 30)  # before, the carriage return is part of the value
_LONGEST = 1023  # bytes of a name or a value, the rest is cut off


def parse(text: str, version: tuple[int, ...] | None = None) -> dict[str, str]:
    """What NCCL of this version (None: a current one) takes out of such a file.

    Nothing is trimmed, quotes are part of the value, ``export X=1`` sets "export X". A line without ``=`` is nothing.
    """
    found: dict[str, str] = {}
    comments = version is None or version >= _COMMENTS_SINCE
    crlf = version is None or version >= _CRLF_SINCE
    for line in text.split("\n"):
        if comments and line.startswith("#"):
            continue
        line = line.partition("\0")[0]
        if crlf and line.endswith("\r"):
            line = line[:-1]
        name, equals, value = line.partition("=")
        if equals and name:
            found.setdefault(_cut(name), _cut(value))
    return found


def _cut(text: str) -> str:
    raw = text.encode("utf-8", "surrogateescape")
    return text if len(raw) <= _LONGEST else raw[:_LONGEST].decode("utf-8", "surrogateescape")


def render(variables: Mapping[str, str]) -> str:
    """Lines that every NCCL reads back as these variables, sorted.

    Raises ValueError naming the variable whose value cannot be written so that NCCL reads it back.
    """
    lines = []
    for name in sorted(variables):
        line = f"{name}={variables[name]}"
        if "\n" in line or parse(line) != {name: variables[name]} or parse(line, (0,)) != {name: variables[name]}:
            raise ValueError(
                f"{name}: NCCL would not read {variables[name]!r} back from an nccl.conf (line breaks, a carriage "
                f"return at the end and more than {_LONGEST} bytes are not possible there)"
            )
        lines.append(line + "\n")
    return "".join(lines)


def merge(existing: str | None, variables: Mapping[str, str], owner: str = "profile", note: str = "") -> str:
    """The file's text with these variables in the block of ``owner``; all other lines stay as they are.

    A new block goes to the top, because the first line that sets a variable wins. ``existing`` is None when there is
    no file; ``note`` see :mod:`.marked_block`. Raises ValueError like :func:`render`.
    """
    return marked_block.put(existing, owner, render(variables), top=True, note=note)


def search_order(environment: Mapping[str, str], home: str) -> list[tuple[str, str]]:
    """(source, path) in the order in which NCCL asks; the environment has no path.

    ``home``: the home folder of the server's user, "" when it has none (NCCL up to 2.29 asks the user database, from
    2.30.3 on only ``HOME``). A NCCL_CONF_FILE that does not exist still takes the place of ``~/.nccl.conf``.
    """
    order = [(ENVIRONMENT, "")]
    if environment.get(CONF_VARIABLE):
        order.append((CONF_VARIABLE, environment[CONF_VARIABLE]))
    elif home:
        order.append((USER_FILE, os.path.join(home, ".nccl.conf")))
    return [*order, (SYSTEM_FILE, SYSTEM_FILE)]


def winners(sources: list[tuple[str, Mapping[str, str]]]) -> dict[str, list[tuple[str, str]]]:
    """Per variable of NCCL the (source, value) pairs that there are: the first wins, the others are shadowed.

    ``sources``: (source, what it would yield) in the order of :func:`search_order`. A variable that is set and empty
    wins too; NCCL then takes its default.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for source, variables in sources:
        for name in variables:
            if name.startswith("NCCL_"):
                found.setdefault(name, []).append((source, variables[name]))
    return dict(sorted(found.items()))
