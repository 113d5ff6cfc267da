# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's own log: what each process said of its version, variables, communicators and choices. Pure: lines in.

The formats are those of NCCL 2.27 to 2.32; lines of other programs between them are passed over, so that a server's
whole log may be given. Most lines do not name their communicator: they belong to the one of their process that was
begun last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import files

_HEADER = re.compile(
    r"^(?:\[[^\]]*\] )?(?P<host>\S+):(?P<pid>\d+):(?P<tid>\d+) \[(?P<device>-?\d+)\] "
    r"(?:NCCL INFO |(?P<place>\S+:\d+(?: \([^)]*\))?) NCCL (?P<level>WARN|ERROR) )(?P<text>.*)$"
)
_SET = re.compile(r"^(NCCL_\w+) set by environment to\s+(.*)$")
_VERSION = re.compile(r"^NCCL version (\S+)")
_INIT = re.compile(r"^(\w+) comm (0x[0-9a-f]+) rank (\d+) nranks (\d+)\b(.*) - Init (START|COMPLETE)")
_COMMON_ID = re.compile(r"\bcommId (0x[0-9a-f]+)")
_NODES = re.compile(r"^comm (0x[0-9a-f]+) rank \d+ nRanks \d+ nNodes (\d+) localRanks (\d+)")
_CHANNELS = re.compile(r"^(\d+) coll channels,.*?\b(\d+) p2p channels,")
_VIA = re.compile(r"^Channel (\d+)(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(?:send|receive)\])? via (\S+)")
_CHOICE = re.compile(
    r"^(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)(?: channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})?",
)
_MATRIX_HEAD = re.compile(r"^\s*Function\s*\|([^|]*)\|(.*)$")
_MATRIX_ROW = re.compile(r"^\s*(\w+)\s*\|([\d\s]*\d[\d\s]*)\|([\d\s]*\d[\d\s]*)$")
# A value that NCCL says it does not take. The name is in the text, wherever.
_REFUSED = re.compile(
    r"Invalid value|Invalid NCCL_|Unrecognized element token|not a valid|unknown value", re.IGNORECASE
)
_NAME = re.compile(r"\bNCCL_[A-Z0-9_]+\b")

#: Older versions print numbers for these.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")

#: Variables that every communicator that is made reads, and so logs when it takes them (seen with 2.28.9): no line
#: means that NCCL did not take it. Others are logged only where their feature is used.
ALWAYS_LOGGED = frozenset(
    {
        "NCCL_ALGO",
        "NCCL_BUFFSIZE",
        "NCCL_CUMEM_ENABLE",
        "NCCL_MAX_NCHANNELS",
        "NCCL_NTHREADS",
        "NCCL_NVLS_ENABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_PROTO",
    }
)

#: Subsystems by how much is asked for. "start" costs some lines while the server starts; "tuning" writes a line for
#: each collective, and is for a start of its own.
SUBSYSTEMS = {"start": "INIT,ENV", "tuning": "INIT,ENV,GRAPH,TUNING"}
#: Processes, communicators, variables and values that are told apart: what has more was not written by NCCL.
MOST = 256
#: Below a server's folder.
FOLDER = "nccl"


def variables(folder: str, level: str) -> dict[str, str]:
    """What makes NCCL write a log for each process of the server with this folder. ``level``: start, tuning or off."""
    if level == "off":
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": SUBSYSTEMS[level],
        "NCCL_DEBUG_FILE": f"{folder}/{FOLDER}/%h.%p.log",
    }


def beside(own: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """``wanted`` (see :func:`variables`) without what somebody set; nothing of it when they have a log of their own."""
    if own.get("NCCL_DEBUG") or own.get("NCCL_DEBUG_FILE"):
        return {}
    return {name: value for name, value in wanted.items() if name not in own}


def added_by_us(given: Mapping[str, str], folder: str) -> dict[str, str]:
    """Those of :func:`variables` that a server was started with: nobody else has to declare them."""
    if given.get("NCCL_DEBUG_FILE") != variables(folder, "start")["NCCL_DEBUG_FILE"]:
        return {}
    sets = [variables(folder, level) for level in SUBSYSTEMS]
    return {name: given[name] for name in sets[0] if given.get(name) in {one[name] for one in sets}}


def names_variables(given: Mapping[str, str]) -> bool:
    """Whether a log written with this environment names every variable that NCCL takes."""
    if given.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
        return False
    wanted = given.get("NCCL_DEBUG_SUBSYS") or "INIT,BOOTSTRAP,ENV"
    parts = {part.strip().upper() for part in wanted.lstrip("^").split(",")}
    return not parts & {"ENV", "ALL"} if wanted.startswith("^") else bool(parts & {"ENV", "ALL"})


@dataclass
class Communicator:
    """One communicator as one process made it. Counts are None where the log does not say."""

    address: str
    rank: int
    ranks: int
    identity: str = ""  # commId: the same in all its ranks
    call: str = ""
    complete: bool = False
    nodes: int | None = None
    channels: int | None = None
    p2p_channels: int | None = None
    #: "0 -> 1" -> {transport -> number of channels}, e.g. {"P2P/IPC": 16}.
    transports: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Function -> {"protocols": [], "algorithms": []} that NCCL may choose (rank 0, with TUNING).
    enabled: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    #: (function, algorithm, protocol) -> [smallest, largest number of bytes, lines] (rank 0, with TUNING).
    chosen: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        names = ("function", "algorithm", "protocol", "min_bytes", "max_bytes", "lines")
        chosen = [dict(zip(names, (*key, *counts))) for key, counts in sorted(self.chosen.items())]
        return {**self.__dict__, "chosen": chosen}


@dataclass
class ProcessLog:
    """All that one process said."""

    host: str
    pid: int  # in the process's own PID namespace
    version: str = ""
    #: Name -> values it was set to, in the order they were first logged.
    variables: dict[str, list[str]] = field(default_factory=dict)
    #: Name -> what NCCL said when it did not take a value.
    refused: dict[str, str] = field(default_factory=dict)
    communicators: list[Communicator] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    last: str = ""

    @property
    def complete(self) -> bool:
        """Whether it made at least one communicator of several ranks, and began none that it did not finish."""
        return any(one.ranks > 1 for one in self.communicators) and all(one.complete for one in self.communicators)


def parse(lines: Iterable[str]) -> dict[int, ProcessLog]:
    """The logs in these lines by pid (that of the process's own namespace)."""
    found: dict[int, ProcessLog] = {}
    now: ProcessLog | None = None
    head: tuple[list[str], list[str]] | None = None  # protocols and algorithms of a matrix that is being read
    for raw in lines:
        line = files.plain(raw.rstrip("\r\n"))
        header = _HEADER.match(line)
        if header:
            pid, head = int(header["pid"]), None
            if pid not in found and len(found) >= MOST:
                continue
            now = found.setdefault(pid, ProcessLog(header["host"], pid))
            _message(now, header["text"], header["level"] or "")
        elif now is not None:
            # The matrix is one message of several lines: only its first has a header.
            names = _MATRIX_HEAD.match(line)
            row = _MATRIX_ROW.match(line) if head else None
            if names:
                head = (names[1].split(), names[2].split())
            elif row and head and now.communicators:
                flags = ([int(one) for one in row[2].split()], [int(one) for one in row[3].split()])
                now.communicators[-1].enabled[row[1]] = {
                    "protocols": [name for name, on in zip(head[0], flags[0]) if on],
                    "algorithms": [name for name, on in zip(head[1], flags[1]) if on],
                }
    return found


def _message(log: ProcessLog, text: str, level: str) -> None:
    log.last = text.strip() or log.last
    if level or _REFUSED.search(text):
        if text not in log.warnings and len(log.warnings) < 50:
            log.warnings.append(text)
        if _REFUSED.search(text):
            for name in _NAME.findall(text) or (["NCCL_ALGO or NCCL_PROTO"] if "token" in text else []):
                log.refused.setdefault(name, text)
    setting, init, nodes = _SET.match(text), _INIT.match(text), _NODES.match(text)
    if setting:
        # Integers end with a full stop, words do not.
        value = re.sub(r"^(-?\d+)\.$", r"\1", setting[2].strip())
        if setting[1] not in log.variables and len(log.variables) >= MOST:
            return
        values = log.variables.setdefault(setting[1], [])
        if value not in values and len(values) < MOST:
            values.append(value)
    elif init:
        _init(log, init)
    elif nodes:
        for one in log.communicators:
            if one.address == nodes[1] and not one.complete:
                one.nodes = int(nodes[2])
    else:
        version = _VERSION.match(text)
        if version:
            log.version = version[1]
        elif log.communicators:
            _detail(log.communicators[-1], text)


def _init(log: ProcessLog, init: re.Match[str]) -> None:
    call, address, rank, ranks, rest, what = init.groups()
    one = next((item for item in log.communicators if item.address == address and not item.complete), None)
    if one is None:
        if len(log.communicators) >= MOST:
            return
        one = Communicator(address, int(rank), int(ranks), call=call)
        log.communicators.append(one)
    identity = _COMMON_ID.search(rest)
    one.identity = identity[1] if identity else one.identity
    one.complete = what == "COMPLETE"


def _detail(one: Communicator, text: str) -> None:
    counts, via, choice = _CHANNELS.match(text), _VIA.match(text), _CHOICE.match(text)
    if counts:
        one.channels, one.p2p_channels = int(counts[1]), int(counts[2])
    elif via:
        name = "/".join(via[4].split("/")[:2])
        to = one.transports.setdefault(f"{via[2]} -> {via[3]}", {})
        to[name] = to.get(name, 0) + 1
    elif choice:
        key = (choice[1], _named(choice[3], _ALGORITHMS), _named(choice[4], _PROTOCOLS))
        size = int(choice[2])
        seen = one.chosen.setdefault(key, [size, size, 0])
        seen[:] = [min(seen[0], size), max(seen[1], size), seen[2] + 1]


def _named(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdigit() and int(text) < len(names) else text.upper()


def same_value(declared: str, logged: str) -> bool:
    """Whether NCCL's account of a value is the declared one: the same word, or the same number as C reads it."""
    if declared == logged:
        return True
    try:
        return int(declared, 0) == int(logged, 0)
    except ValueError:
        return False
