# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A TCP or TLS connection in an event loop whose bytes carry the time at which the *kernel* got them.

A client that stamps bytes when it reads them adds its own lateness to every figure: at 256 streams one read has to wait
for 255 others. The kernel stamps each packet as it arrives (SO_TIMESTAMPNS), so how late we read it does not matter.
Where the kernel does not do that, the stamp is the moment of reading, and :attr:`Wire.stamped` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from typing import Any, Callable

now = time.perf_counter

READ_SIZE = 256 * 1024
#: Linux' number where the constant is missing from Python; other systems do not set it, and are not asked.
SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size)
#: An older stamp than this is a clock that was set in between, not a late reader.
MAX_AGE_S = 60.0


def arrival(ancillary: list[tuple[int, int, bytes]]) -> float | None:
    """When the last byte of a read arrived, on the clock of :func:`time.perf_counter`; None without a stamp.

    The two clocks are read one after the other; whatever comes between them makes the stamp later, never earlier than
    the truth.
    """
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanos = _TIMESPEC.unpack(data)
            age = (time.time_ns() - seconds * 1_000_000_000 - nanos) * 1e-9
            when = now()
            return when - age if 0.0 <= age <= MAX_AGE_S else None
    return None


class Wire:
    """An open connection. ``on_data(when, data)`` and ``on_lost(error or None)`` are called in the loop.

    Made by :meth:`connect` or :meth:`adopt`. Nothing is called any more after :meth:`abort`.
    """

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.sock, self._loop = sock, loop
        self.on_data: Callable[[float, bytes], None] = lambda when, data: None
        self.on_lost: Callable[[Exception | None], None] = lambda error: None
        #: Seconds between arrival and reading of the last bytes.
        self.late_s = 0.0
        self.closed = False
        self._pending = bytearray()
        self._tls: ssl.SSLObject | None = None
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            #: Whether time stamps are the kernel's.
            self.stamped = True
        except OSError:
            self.stamped = False

    @classmethod
    async def connect(cls, host: str, port: int, context: ssl.SSLContext | None = None) -> Wire:
        """Connect to the first address that answers. Raises OSError (ssl.SSLError is one)."""
        loop = asyncio.get_running_loop()
        failure: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _name, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            wire = cls(sock, loop)
            try:
                await loop.sock_connect(sock, address)
                if context is not None:
                    await wire._handshake(context, host)
            except OSError as error:
                failure = error
                wire.abort()
                continue
            except BaseException:  # cancelled: whoever gave up on us does not know the socket
                wire.abort()
                raise
            wire._start()
            return wire
        raise failure

    @classmethod
    async def adopt(
        cls, sock: socket.socket, made: Callable[[Wire], object], context: ssl.SSLContext | None = None
    ) -> Wire:
        """A connection that was accepted; ``made`` gets it before the first bytes.

        Raises OSError when its TLS handshake fails.
        """
        wire = cls(sock, asyncio.get_running_loop())
        try:
            if context is not None:
                await wire._handshake(context, None)
        except BaseException:
            wire.abort()
            raise
        made(wire)
        wire._start()
        return wire

    async def _handshake(self, context: ssl.SSLContext, host: str | None) -> None:
        self._tls = context.wrap_bio(self._in, self._out, server_side=host is None, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
                await self._loop.sock_sendall(self.sock, self._out.read())
                return
            except ssl.SSLWantReadError:
                await self._loop.sock_sendall(self.sock, self._out.read())
                data = await self._loop.sock_recv(self.sock, READ_SIZE)
                if not data:
                    raise ConnectionResetError("the peer closed during the TLS handshake") from None
                self._in.write(data)

    def _start(self) -> None:
        self._loop.add_reader(self.sock, self._readable)
        if self._in.pending > 0:  # came with the last bytes of the handshake
            self._decrypt(now(), b"")

    def _readable(self) -> None:
        try:
            data, ancillary, _flags, _address = self.sock.recvmsg(READ_SIZE, _ANCILLARY)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        read_at = now()
        when = arrival(ancillary) if self.stamped else None
        self.late_s = 0.0 if when is None else max(0.0, read_at - when)
        if not data:
            self._lost(None)
        elif self._tls is None:
            self.on_data(when or read_at, data)
        else:
            self._decrypt(when or read_at, data)

    def _decrypt(self, when: float, data: bytes) -> None:
        if self._tls is None:
            raise TypeError("what is not encrypted cannot be decrypted")
        self._in.write(data)
        plain = []
        error: Exception | None = None
        over = False
        try:
            while True:
                piece = self._tls.read(READ_SIZE)
                if not piece:
                    over = True
                    break
                plain.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            over = True
        except ssl.SSLError as problem:
            over, error = True, problem
        self._flush()  # an answer of the protocol itself, such as a new key
        if plain:
            self.on_data(when, b"".join(plain))
        if over and not self.closed:
            self._lost(error)

    def write(self, data: bytes) -> None:
        """Send, at once as far as the kernel takes it and the rest when it can. A lost peer shows in ``on_lost``."""
        if self.closed:
            return
        if self._tls is None:
            self._send(data)
        else:
            self._tls.write(data)
            self._flush()

    def _flush(self) -> None:
        if self._out.pending > 0:
            self._send(self._out.read())

    def _send(self, data: bytes) -> None:
        if not self._pending:
            try:
                sent = self.sock.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                return  # the reader gets the reason
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self.sock, self._writable)
        self._pending += data

    def _writable(self) -> None:
        try:
            sent = self.sock.send(self._pending)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            sent = len(self._pending)
        del self._pending[:sent]
        if not self._pending:
            self._loop.remove_writer(self.sock)

    def _lost(self, error: Exception | None) -> None:
        tell = self.on_lost
        self._close()
        tell(error)

    def close(self) -> None:
        """Close in order: what was written is delivered."""
        if self._tls is not None and not self.closed:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()
        self._close()

    def abort(self, reset: bool = False) -> None:
        """Close at once; with ``reset`` the peer sees that it was no orderly end."""
        if reset and not self.closed:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close()

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True

        def nothing(*_unused: Any) -> None:
            """Who asked is no longer there."""

        self.on_data = self.on_lost = nothing
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._loop.remove_reader(self.sock)
            self._loop.remove_writer(self.sock)
        self.sock.close()
