# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which processes a reset ends: a pure function of what was seen and of the policy.

Two grounds only: a process holds a GPU that was asked for, or it is ours by record or by the variables that we put into
its environment. A name alone is never one. Whatever is left although it holds a GPU is listed with the reason.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from .holders import Hold
from .procfs import Process

POLICIES = ("stale", "all", "only")

#: Patterns of program names that no reset touches: services of the driver, monitoring, display servers.
PROTECTED = (
    "nvidia-persistenced",
    "nvidia-fabricmanager",
    "nv-fabricmanager",
    "nv-hostengine",
    "dcgm*",
    "*exporter*",
    "nvidia-cuda-mps-*",
    "Xorg",
    "X",
    "Xwayland",
    "gnome-shell",
    "kwin_*",
    "mutter*",
    "weston",
    "sway",
)

_COMM_LENGTH = 15  # the kernel cuts a process name there
_NOTHING = Hold()


@dataclass(frozen=True)
class Traits:
    """What was found out about a process that matters, beyond its line in the process table."""

    names: frozenset[str] = frozenset()  # by which the protected patterns may match it
    engine: tuple[str, str] | None = None  # (engine, part) that its command line looks like
    python: bool = False
    marker: tuple[str, str] | None = None  # (server of ours, start id or "") in its environment
    same_namespace: bool | None = True
    unit: str = ""  # systemd service it belongs to
    container: str = ""  # LXC container it runs in


@dataclass(frozen=True)
class Server:
    """A recorded server of ours, as it stands."""

    name: str
    start_id: str = ""
    root: int | None = None  # pid of its process while that lives
    supervisor: int | None = None  # pid of the process that waits for it and writes its exit status
    unit: str = ""  # systemd unit that keeps it running
    gpus: frozenset[int] | None = None  # declared; None: all, or not known


@dataclass(frozen=True)
class View:
    """One look at a host."""

    table: Mapping[int, Process]
    traits: Mapping[int, Traits]
    holds: Mapping[int, Hold]
    servers: tuple[Server, ...] = ()
    me: int = 0  # the process that looks
    uid: int = 0  # its user


@dataclass(frozen=True)
class Policy:
    """What the reset was asked for."""

    name: str = "stale"
    asked: frozenset[int] = frozenset()  # indices of the GPUs in scope
    every_gpu: bool = True  # whether those are all there are
    keep: frozenset[str] = frozenset()
    protected: tuple[str, ...] = PROTECTED
    only: tuple[str, ...] = ()  # for the policy of that name: pids, systemd services, regular expressions
    container: str = ""  # LXC container whose processes alone are in scope; "": this PID namespace


@dataclass(frozen=True)
class Item:
    """A process with what is done about it and why.

    ``kind`` is the reason as a word. Of those that end: server, orphan, engine, python, holder. Of those that are left:
    kept, protected, self, zombie, namespace, scope, user, unnamed, doubtful.
    """

    process: Process
    kind: str
    why: str
    gpus: tuple[int, ...] = ()
    server: str = ""
    unit: str = ""

    def as_dict(self) -> dict[str, Any]:
        one = self.process
        return {
            "pid": one.pid,
            "start": one.start,
            "cmdline": one.cmdline or one.comm,
            "kind": self.kind,
            "why": self.why,
            "gpus": list(self.gpus),
            "server": self.server,
            "unit": self.unit,
        }


@dataclass
class Plan:
    """What to end, in order parents before children, and what is left although it holds a GPU in scope."""

    end: list[Item] = field(default_factory=list)
    left: list[Item] = field(default_factory=list)
    stop: list[Server] = field(default_factory=list)  # live servers of ours that end with it
    kept: frozenset[int] = frozenset()  # processes of servers that are kept

    @property
    def members(self) -> list[Process]:
        return [item.process for item in self.end]

    @property
    def roots(self) -> list[Process]:
        """Those to ask politely: the ones whose parent is not ended too."""
        pids = {item.process.pid for item in self.end}
        return [item.process for item in self.end if item.process.ppid not in pids]


def lineage(pid: int, table: Mapping[int, Process]) -> list[int]:
    """A process and its ancestors, nearest first."""
    found: list[int] = []
    while pid in table and pid not in found:
        found.append(pid)
        pid = table[pid].ppid
    return found


def protected_by(names: Iterable[str], patterns: Iterable[str]) -> str:
    """The first pattern that one of the names matches; "" when none does."""
    known = list(names)
    for pattern in patterns:
        for name in known:
            # Names are cut at 15 characters where only the kernel's is known.
            cut = len(name) == _COMM_LENGTH and pattern.startswith(name)
            if cut or fnmatch.fnmatchcase(name, pattern):
                return pattern
    return ""


def ownership(view: View) -> dict[int, tuple[str, bool]]:
    """pid -> (server of ours, whether it belongs to a start whose root lives).

    The root and its supervisor by the record; others by their own variables, or by their nearest ancestor that is ours.
    Variables without a start id (a process title overwrote the rest) count for the live start, if there is one.
    """
    servers = {one.name: one for one in view.servers}
    roots = {pid: one.name for one in view.servers for pid in (one.root, one.supervisor) if pid is not None}
    found: dict[int, tuple[str, bool]] = {}
    for pid in view.table:
        for ancestor in lineage(pid, view.table):
            if ancestor in roots:
                found[pid] = (roots[ancestor], servers[roots[ancestor]].root is not None)
                break
            marker = view.traits.get(ancestor, Traits()).marker
            if marker:
                server = servers.get(marker[0])
                alive = server is not None and server.root is not None and marker[1] in ("", server.start_id)
                found[pid] = (marker[0], alive)
                break
    return found


def make_plan(view: View, policy: Policy) -> Plan:
    """Decide about every process. Raises ValueError for an unknown policy."""
    if policy.name not in POLICIES:
        raise ValueError(f"unknown policy {policy.name!r}: use one of {', '.join(POLICIES)}")
    named_only = _names(view, policy)
    owned = ownership(view)
    kept = frozenset(pid for pid, (name, alive) in owned.items() if alive and name in policy.keep)
    excuse = _excuses(view, policy)
    end: dict[int, tuple[str, str]] = {}  # pid -> (kind, why)
    left: dict[int, tuple[str, str]] = {}

    def decide(pid: int, kind: str, why: str) -> None:
        reason = excuse(pid)
        if reason:
            left[pid] = reason
        else:
            end[pid] = (kind, why)

    stopping = _servers_in_scope(view, policy, owned, named_only)
    supervisors = {one.supervisor for one in view.servers}
    for pid, (name, alive) in owned.items():
        if pid in kept or pid in supervisors:
            continue  # a supervisor ends by itself, after it has written down how its server ended
        if alive and name in stopping:
            decide(pid, "server", f"server {name} of ours, not to be kept")
        elif not alive and pid in named_only and _in_scope(view.holds.get(pid, _NOTHING).gpus, policy):
            decide(pid, "orphan", f"left over from a dead start of server {name} of ours")

    for pid, hold in view.holds.items():
        if pid in owned or pid not in view.table:
            continue
        if not hold.gpus & policy.asked:
            if hold.doubtful & policy.asked:
                why = "has GPUs asked for and others open; the driver does not tell which it uses"
                left[pid] = excuse(pid) or ("doubtful", why)
            continue
        named = _named_by(policy, view.traits.get(pid, Traits()))
        if named and pid in named_only:
            decide(pid, *named)
        else:
            left[pid] = excuse(pid) or ("unnamed", f"policy {policy.name} does not name it")
    for pid, why in _engine_servers(view, end, owned).items():
        if pid in named_only:
            decide(pid, "engine", why)
    for pid in kept:
        if view.holds.get(pid, _NOTHING).gpus & policy.asked:
            left[pid] = ("kept", f"server {owned[pid][0]} is kept")

    def item(pid: int, reason: tuple[str, str]) -> Item:
        hold = view.holds.get(pid, _NOTHING)
        server = owned[pid][0] if pid in owned else ""
        gpus = tuple(sorted(hold.gpus or hold.doubtful))
        return Item(view.table[pid], *reason, gpus, server, view.traits.get(pid, Traits()).unit)

    ordered = sorted(end, key=lambda pid: (len(lineage(pid, view.table)), pid))
    return Plan(
        end=[item(pid, end[pid]) for pid in ordered],
        left=[item(pid, left[pid]) for pid in sorted(left)],
        stop=[one for one in view.servers if one.root is not None and one.root in end],
        kept=kept,
    )


def _in_scope(gpus: frozenset[int], policy: Policy) -> bool:
    """Whether something of ours that uses these GPUs is meant: it is not when it uses only others."""
    return policy.every_gpu or not gpus or bool(gpus & policy.asked)


def name_kind(name: str) -> str:
    """What a name of the policy ``only`` is: ``pid``, ``unit`` or ``regex``. Raises ValueError for a bad expression."""
    if name.isascii() and name.isdigit():
        if int(name) <= 1:
            raise ValueError(f"process {name} is the ancestor of all: name the processes, or use policy all")
        return "pid"
    if re.fullmatch(r"[\w:.@\\-]+\.service", name):
        return "unit"
    try:
        re.compile(name)
    except re.error as error:
        raise ValueError(
            f"{name!r} is neither a process number, nor a .service, nor a regular expression: {error}"
        ) from error
    if not name:
        raise ValueError("'' names every process: use policy all, or name some")
    return "regex"


def _names(view: View, policy: Policy) -> set[int]:
    """The processes that ``only`` names; all of them under another policy.

    A number names the process and what descends from it, a service its processes, an expression is searched in command
    lines, titles and kernel names.
    """
    if policy.name != "only":
        return set(view.table)
    kinds = {name: name_kind(name) for name in policy.only}
    numbers = {int(name) for name, kind in kinds.items() if kind == "pid"}
    units = {name for name, kind in kinds.items() if kind == "unit"}
    expressions = [re.compile(name) for name, kind in kinds.items() if kind == "regex"]
    return {
        pid
        for pid, item in view.table.items()
        if numbers.intersection(lineage(pid, view.table))
        or view.traits.get(pid, Traits()).unit in units
        or any(one.search(text) for one in expressions for text in (item.cmdline, item.comm))
    }


def _servers_in_scope(
    view: View, policy: Policy, owned: Mapping[int, tuple[str, bool]], named_only: set[int]
) -> set[str]:
    """Names of the live servers of ours that this reset ends. One of which a process is named ends as a whole."""
    found = set()
    for server in view.servers:
        if server.root is None or server.name in policy.keep:
            continue
        members = {pid for pid, owner in owned.items() if owner == (server.name, True)}
        used = set(server.gpus or ())
        for pid in members:
            used |= view.holds.get(pid, _NOTHING).gpus
        if members & named_only and _in_scope(frozenset(used), policy):
            found.add(server.name)
    return found


def _excuses(view: View, policy: Policy) -> Callable[[int], tuple[str, str] | None]:
    """A function that tells (kind, why) of a process that is left alone whatever the policy says, else None."""
    mine = set(lineage(view.me, view.table))

    def excuse(pid: int) -> tuple[str, str] | None:
        traits = view.traits.get(pid, Traits())
        process = view.table[pid]
        if pid in mine or pid == 1:
            return "self", "this run is one of its descendants"
        if process.zombie:
            return "zombie", "zombie: its memory is freed, only its parent can remove it"
        pattern = protected_by(traits.names | {process.comm}, policy.protected)
        if pattern:
            return "protected", f"protected ({pattern})"
        if policy.container:
            if traits.container != policy.container:
                where = f"container {traits.container}" if traits.container else "the host itself"
                return "scope", f"of {where}, not of container {policy.container}"
        elif traits.same_namespace is False:
            return "namespace", "in another container (PID namespace): reset it there"
        if view.uid != 0 and process.uid is not None and process.uid != view.uid:
            return "user", f"of another user (uid {process.uid}): run as that user or as root"
        return None

    return excuse


def _named_by(policy: Policy, traits: Traits) -> tuple[str, str] | None:
    """(kind, why) when the policy names a process that holds a GPU in scope, else None."""
    if traits.engine:
        return "engine", f"{traits.engine[0]} {traits.engine[1]} that holds the GPU"
    if traits.python:
        return "python", "Python process that holds the GPU"
    return ("holder", "holds the GPU") if policy.name in ("all", "only") else None


def _engine_servers(view: View, end: Iterable[int], owned: Mapping[int, tuple[str, bool]]) -> dict[int, str]:
    """Servers of engines whose worker is ended: they hold the GPU through it, and would fail or start it again."""
    found: dict[int, str] = {}
    ends = set(end)
    for pid in ends:
        engine = view.traits.get(pid, Traits()).engine
        if not engine or pid in owned:
            continue
        for ancestor in lineage(pid, view.table)[1:]:
            theirs = view.traits.get(ancestor, Traits()).engine
            if not theirs or theirs[0] != engine[0] or ancestor in owned:
                break
            if ancestor not in ends:
                found[ancestor] = f"{theirs[0]} {theirs[1]} that holds the GPU through process {pid}"
    return found


def describe(item: Process) -> str:
    """One process as messages name it."""
    text = item.cmdline or item.comm
    return f"{item.pid} ({text if len(text) <= 80 else text[:77] + '...'})"
