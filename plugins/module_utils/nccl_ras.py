# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ask NCCL's own health service (RAS, NCCL >= 2.24) which ranks of a communicator are missing or fail."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from . import files

ADDRESS = "127.0.0.1:28028"
VARIABLE = "NCCL_RAS_ADDR"
#: It waits for its peers: 5 s a leg by default.
TIMEOUT_S = 8.0
_LIMIT = 4 * 1024 * 1024
#: Of a report that is shown: complaints, and characters of one.
_MOST, _LONGEST = 100, 2000
_REQUEST = b"verbose status\n"
_COMMUNICATOR = re.compile(r"^#\d+-\d+ \(\w+\) ([A-Z,]+)$")
_RANK = re.compile(r"^\s+Rank (\d+) -- (GPU .+ managed by process \d+ on node \S+|.+)$")
_PROCESS = re.compile(r"^\s+(Process \d+ on node \S+.*)$")


@dataclass(frozen=True)
class Finding:
    """One complaint of RAS: what it says, and whom it names (ranks and their processes, or processes)."""

    status: str  # INCOMPLETE, MISMATCH, ERROR, DEAD, ...
    text: str
    ranks: tuple[int, ...] = ()
    named: tuple[str, ...] = ()

    def words(self) -> str:
        return f"{self.status}: {self.text}" + (f" ({'; '.join(self.named)})" if self.named else "")


def address(environment: Mapping[str, str]) -> tuple[str, int]:
    """(host, port) of the service of a server with this environment."""
    host, _colon, port = (environment.get(VARIABLE) or ADDRESS).rpartition(":")
    number = int(port) if re.fullmatch(r"\d{1,5}", port, re.ASCII) else 0
    return (host.strip("[]") or "127.0.0.1", number) if 0 < number < 65536 else address({})


def ask(where: tuple[str, int], timeout_s: float = TIMEOUT_S) -> str:
    """The report as text; "" when nothing answers there (no NCCL yet, RAS switched off, another program).

    ``timeout_s``: of the whole answer. Anybody on the host may listen at this port, and answer anything, slowly.
    """
    end = time.monotonic() + timeout_s
    try:
        with socket.create_connection(where, timeout=min(1.0, timeout_s)) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(_REQUEST)
            parts, size = [], 0
            while size < _LIMIT:
                connection.settimeout(max(0.001, end - time.monotonic()))
                part = connection.recv(65536)
                if not part:
                    break
                parts.append(part)
                size += len(part)
    except (OSError, ValueError):  # the latter for a host that is no name
        return ""
    text = b"".join(parts).decode("utf-8", "replace")
    return text if "NCCL version" in text or "Communicators" in text else ""


def parse(text: str) -> list[Finding]:
    """What the sections Errors and Warnings complain about, in their order; [] when all is well."""
    found: list[Finding] = []
    status, said = "", ""
    ranks: list[int] = []
    named: list[str] = []

    def close() -> None:
        if status and said:
            found.append(Finding(status, said, tuple(ranks), tuple(named)))

    _head, errors, rest = text.partition("\nErrors\n")
    for raw in rest.splitlines() if errors else []:
        line = files.plain(raw)
        if len(found) >= _MOST:
            break
        header = _COMMUNICATOR.match(line) or re.match(r"^([A-Z]+(?:,[A-Z]+)*)$", line)
        rank, process = _RANK.match(line), _PROCESS.match(line)
        if header:
            close()
            status, said, ranks, named = header.group(1), "", [], []
        elif rank:
            ranks.append(int(rank.group(1)))
            named.append(line.strip())
        elif process:
            named.append(process.group(1))
        elif line.startswith("  ") and status:
            if ranks or named:  # the next complaint about the same communicator
                close()
                said, ranks, named = "", [], []
            said = (f"{said}; {line.strip()}" if said else line.strip())[:_LONGEST]
    close()
    return found
