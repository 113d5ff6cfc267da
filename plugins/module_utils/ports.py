# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""TCP ports of this host: who has one, and which one is free.

A server may bind its port minutes before it listens (vLLM does, before it loads the model). Such a socket is in no
table of /proc/net, so the only sure test is to try to bind. Whose it is only newer kernels tell (6.8 and up).
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from . import holders, procfs, sock_diag
from .procfs import PortUse

LAST_PORT = 65535
#: How long another launch may keep its turn; it takes well under a second.
TURN_S = 20.0
_TURN = "\0groundstate-launch"
_TIME_WAIT = "06"


def _addresses(host: str) -> list[tuple[int, str]]:
    """(family, address) pairs that a server on this host name would bind; "" means all interfaces."""
    if not host:
        return [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []  # the name does not resolve here: /proc/net still tells about listeners
    return sorted({(int(one[0]), str(one[4][0])) for one in found})


def _bind_error(family: int, address: str, port: int) -> int:
    """0 when the address could be bound just now, else the errno. Deliberately without SO_REUSEADDR:
    with it, Linux lets us bind beside a socket that has it too and does not listen yet."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((address, port))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def unusable(host: str) -> str:
    """Why no server of this host can listen on a host name, in words that follow it; "" when one can."""
    addresses = _addresses(host)
    if not addresses:
        return "does not resolve to an address here"
    errors = {_bind_error(family, address, 0) for family, address in addresses}
    return "" if 0 in errors else f"cannot be listened on here ({os.strerror(min(errors))})"


def _local_states(port: int, proc: str) -> set[str]:
    """States (hexadecimal, as in /proc/net/tcp) of all sockets with this local port."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"{proc}/net/{table}", encoding="ascii") as source:
                lines = source.read().splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            if int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[3])
    return found


def who_has(port: int, host: str = "", proc: str = procfs.PROC) -> list[PortUse]:
    """Who has a TCP port on this host's address (default: any interface); [] when a server could take it.

    ``state`` is ``listening`` or ``bound`` (taken by a socket that does not listen yet, or that no longer does). A port
    of which only TIME_WAIT connections remain counts as free: servers set SO_REUSEADDR. Raises ValueError for a number
    that is no port.
    """
    if not 1 <= port <= LAST_PORT:
        raise ValueError(f"{port} is not a TCP port (1 to {LAST_PORT})")
    errors = {_bind_error(family, address, port) for family, address in _addresses(host)}
    if errors == {0}:
        return []
    listening = procfs.listeners(port, proc)
    if listening or errno.EADDRINUSE not in errors:
        return listening
    states = _local_states(port, proc)
    if states and states <= {_TIME_WAIT}:
        return []
    return _bound(port, proc)


def _bound(port: int, proc: str) -> list[PortUse]:
    """Whose sockets that do not listen have the port; one entry without a process when that is not known."""
    inodes = sock_diag.bound(port)
    owners = procfs.socket_owners(proc) if inodes else {}
    found = []
    for pid in sorted({owners[inode] for inode in inodes or () if inode in owners}):
        item = procfs.process(pid, proc)
        found.append(PortUse(port, "bound", pid, item.cmdline if item else ""))
    return found or [PortUse(port, "bound", None, "")]


def waiting(port: int, proc: str = procfs.PROC) -> bool:
    """Whether ended connections keep the port in TIME_WAIT; a server can take it all the same."""
    return _TIME_WAIT in _local_states(port, proc)


def tell(port: int, proc: str = procfs.PROC) -> list[dict[str, Any]]:
    """Who has a port, as the modules return it: with the systemd service, and ``time_wait`` where only that is left.

    Raises ValueError for a number that is no port.
    """
    uses = who_has(port, proc=proc)
    if not uses and waiting(port, proc):
        uses = [PortUse(port, "time_wait", None, "")]
    return [{**asdict(use), "unit": _unit(use.pid, proc)} for use in uses]


def _unit(pid: int | None, proc: str) -> str:
    return "" if pid is None else holders.unit(holders.main_group(holders.cgroups(pid, proc)))


def free_port(start: int, taken: Collection[int] = (), host: str = "") -> int:
    """The first port from ``start`` up that can be bound now and is not in ``taken``.

    Raises ValueError when there is none up to 65535. Another process may still take it before its use: whoever binds it
    must be ready for that.
    """
    for port in range(max(1, start), LAST_PORT + 1):
        if port in taken:
            continue
        errors = {_bind_error(family, address, port) for family, address in _addresses(host)}
        # A host without IPv6 refuses "::" with another errno than EADDRINUSE; that does not make a port taken.
        if 0 in errors and errno.EADDRINUSE not in errors:
            return port
    raise ValueError(f"no free TCP port from {start} to {LAST_PORT}")


@contextmanager
def turn(timeout_s: float = TURN_S) -> Iterator[bool]:
    """Let one launch at a time choose a port, whoever runs it: an engine binds its port long after it was chosen.

    Held by an abstract socket: it has the scope of the ports themselves (the network namespace) and ends with its
    process. Yields False when another process kept its turn for too long: going on without it is the lesser evil.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        deadline = time.monotonic() + timeout_s
        mine = False
        while not mine and time.monotonic() < deadline:
            try:
                held.bind(_TURN)
                mine = True
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    break  # no such sockets here
                time.sleep(0.02)
        yield mine
