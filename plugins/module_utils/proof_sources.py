# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where the value of an NCCL variable in a worker came from. Pure.

NCCL logs a value from a file as it logs one from the environment, and puts it into the process's environment too: so
the places have to be told apart by what the process was given. What it was given at exec is /proc/PID/environ, when no
title overwrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .procfs import Environment

START = "environment of the start"
ENGINE = "the engine"
_NONE: Mapping[str, str] = MappingProxyType({})
STARTUP = "set inside the server (Python start-up or a wrapper)"
UNTOLD = "not known"


@dataclass(frozen=True)
class Sources:
    """What could have set a variable of one server."""

    #: What the server was started with.
    given: Mapping[str, str] = field(default_factory=dict)
    #: Names that the engine sets in its own process when they are unset.
    engine_sets: frozenset[str] = frozenset()
    #: (path, variables) of the nccl.conf files that NCCL reads in this worker, those that win first.
    files: tuple[tuple[str, Mapping[str, str]], ...] = ()
    #: (the place in words, variables) of a profile that was written to the start of the server's Python.
    startup: tuple[str, Mapping[str, str]] = ("", _NONE)


def source_of(name: str, value: str, initial: Environment, sources: Sources) -> str:
    """Which place gave a variable this value, in words.

    ``initial``: the worker's environment at exec.
    """
    if sources.given.get(name) == value:
        return START
    place, found = sources.startup
    if found.get(name) == value:
        # It comes before NCCL reads its files.
        return place
    if name in initial.variables:
        # Its parent had it, and was not started with it.
        return ENGINE if name in sources.engine_sets else STARTUP
    for path, variables in sources.files:
        if name in variables:
            if variables[name] == value:
                return path
            break
    if name in sources.engine_sets:
        return ENGINE
    return STARTUP if initial.complete else UNTOLD


def conflicts(names: Iterable[str], sources: Sources) -> list[str]:
    """Files that say something else than what a worker was started with, and so are passed over, as sentences."""
    found = []
    for name in names:
        for path, variables in sources.files:
            if name in variables and name in sources.given and variables[name] != sources.given[name]:
                found.append(f"{path} sets {name}={variables[name]}, which the environment overrides")
    return found
