# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bound sockets that do not listen: no table of /proc/net has them, but the kernel's socket diagnosis (6.8+) does."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_DONE, _ERROR = 3, 2
_BOUND_INACTIVE = 1 << 13
_TIMEOUT_S = 2.0

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_ASK = struct.Struct("=BBBBI48x")  # family, protocol, extensions, padding, states, socket id (any)
_ANSWER = struct.Struct("=4xH2x44x12xII")  # source port (in network order), uid, inode


def bound(port: int) -> set[int] | None:
    """Inodes of the TCP sockets that are bound to this port and do nothing else; None when the kernel cannot tell.

    An empty set from a kernel before 6.8 means nothing: it knows no such state.
    """
    found: set[int] = set()
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            for body in _dump(_ASK.pack(family, socket.IPPROTO_TCP, 0, 0, _BOUND_INACTIVE)):
                number, _uid, inode = _ANSWER.unpack_from(body)
                if socket.ntohs(number) == port:
                    found.add(inode)
    except (OSError, struct.error, AttributeError):
        return None
    return found


def _dump(question: bytes) -> Iterable[bytes]:
    """The bodies of all answers to one question. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(_TIMEOUT_S)
        link.send(_HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + question)
        while True:
            data = link.recv(1 << 17)
            while len(data) >= _HEADER.size:
                length, kind, _flags, _sequence, _sender = _HEADER.unpack_from(data)
                if kind == _DONE:
                    return
                if kind == _ERROR or length < _HEADER.size:
                    raise OSError(f"socket diagnosis: {os.strerror(_error(data))}")
                yield data[_HEADER.size : length]
                data = data[(length + 3) & ~3 :]


def _error(data: bytes) -> int:
    return -int(struct.unpack_from("=i", data, _HEADER.size)[0]) if len(data) >= _HEADER.size + 4 else 5
