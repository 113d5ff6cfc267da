# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""HTTP/1.1 for measuring: an incremental response parser, and an asyncio client that stamps bytes on arrival.

Why not a library: the standard one blocks a thread a request (at 256 streams it reported twice the true time to the
first token), the others are not on a target. A protocol class is called by the event loop with the bytes, so the
time stamp is taken before any task has to be woken. No proxies, no redirects, no compression: each would stand
between the clock and the server.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import Callable
from urllib.parse import urlsplit

now = time.perf_counter

HEAD_LIMIT = 64 * 1024
LINE_LIMIT = 1024


class HttpError(Exception):
    """A request that got no complete, well-formed response. ``kind``: connect, timeout, reset or malformed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def _malformed(message: str) -> HttpError:
    return HttpError("malformed", message)


class ResponseParser:
    """One response, fed in pieces of any size. Knows nothing of sockets.

    ``feed`` returns the body bytes that a piece brought; ``complete`` tells when the response has ended. Raises
    HttpError (malformed) for what is not HTTP/1.x, and for compressed bodies (none was asked for).
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self.rest = b""  # bytes after the end of the response; there must be none
        self._buffer = bytearray()
        self._state = "head"  # head, length, chunk-size, chunk-data, chunk-end, trailer, until-close
        self._left = 0
        self._old = False  # HTTP/1.0

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may carry another request after this response."""
        wish = self.headers.get("connection", "").lower()
        usable = self.complete and self._state != "until-close" and not self.rest
        return usable and "close" not in wish and (not self._old or "keep-alive" in wish)

    def feed(self, data: bytes) -> bytes:
        if self.complete:
            self.rest += data
            return b""
        self._buffer += data
        body = []
        while not self.complete:
            piece = self._step()
            if piece is None:
                break
            if piece:
                body.append(piece)
        if self.complete:
            self.rest = bytes(self._buffer)
        return body[0] if len(body) == 1 else b"".join(body)

    def end(self) -> None:
        """The peer closed. Completes a body without a length; raises HttpError (reset) for anything cut off."""
        if self._state == "until-close":
            self.complete = True
        if not self.complete:
            raise HttpError("reset", f"the connection was closed in the middle of the response ({self._state})")

    def _line(self, limit: int) -> bytes | None:
        place = self._buffer.find(b"\n")
        if place < 0:
            if len(self._buffer) > limit:
                raise _malformed(f"a line of more than {limit} bytes")
            return None
        line = bytes(self._buffer[:place])
        del self._buffer[: place + 1]
        return line[:-1] if line.endswith(b"\r") else line

    def _step(self) -> bytes | None:
        """Advance by one element: body bytes, b"" for other progress, None when more input is needed."""
        state = self._state
        if state == "head":
            return self._head()
        if state == "chunk-size":
            line = self._line(LINE_LIMIT)
            return None if line is None else self._chunk_size(line)
        if state == "chunk-end":
            line = self._line(2)
            if line is None:
                return None
            if line:
                raise _malformed(f"a chunk is longer than it said: {line[:40]!r}")
            self._state = "chunk-size"
            return b""
        if state == "trailer":
            line = self._line(HEAD_LIMIT)
            if line is None:
                return None
            self.complete = not line
            return b""
        if not self._buffer:
            return None
        if state == "until-close":
            piece = bytes(self._buffer)
            self._buffer.clear()
            return piece
        piece = bytes(self._buffer[: self._left])  # length, chunk-data
        del self._buffer[: self._left]
        self._left -= len(piece)
        if not self._left:
            if state == "length":
                self.complete = True
            else:
                self._state = "chunk-end"
        return piece

    def _chunk_size(self, line: bytes) -> bytes:
        text = line.partition(b";")[0].strip()
        # int() would also take signs, underscores and 0x.
        if not text or len(text) > 16 or not all(byte in b"0123456789abcdefABCDEF" for byte in text):
            raise _malformed(f"not a chunk size: {line[:40]!r}")
        self._left = int(text, 16)
        self._state = "chunk-data" if self._left else "trailer"
        return b""

    def _head(self) -> bytes | None:
        place = self._buffer.find(b"\r\n\r\n")
        if self._buffer and not b"HTTP/1.".startswith(bytes(self._buffer[:7])):
            raise _malformed(f"not an HTTP/1.x response: {bytes(self._buffer[:40])!r}")
        if place < 0:
            if len(self._buffer) > HEAD_LIMIT:
                raise _malformed(f"response headers of more than {HEAD_LIMIT} bytes")
            return None
        lines = bytes(self._buffer[:place]).decode("latin-1").split("\r\n")
        del self._buffer[: place + 4]
        version, _space, rest = lines[0].partition(" ")
        code = rest[:3]
        if not (code.isascii() and code.isdigit() and len(code) == 3):
            raise _malformed(f"not a status line: {lines[0][:80]!r}")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise _malformed(f"not a header line: {line[:80]!r}")
            name, value = name.strip().lower(), value.strip()
            if name == "content-length" and headers.get(name, value) != value:
                raise _malformed("two different content lengths")
            headers[name] = value
        if 100 <= int(code) < 200:
            return b""  # an interim response: the real one follows
        self.status, self.headers, self._old = int(code), headers, version == "HTTP/1.0"
        self._body_follows()
        return b""

    def _body_follows(self) -> None:
        coding = self.headers.get("content-encoding", "identity").lower()
        if coding not in ("", "identity"):
            raise _malformed(f"the response is compressed ({coding}) though that was not asked for")
        transfer = self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self.complete = True
        elif transfer == "chunked":
            self._state = "chunk-size"
        elif transfer:
            raise _malformed(f"unknown transfer encoding {transfer!r}")
        elif length is None:
            self._state = "until-close"
        elif not (length.isascii() and length.isdigit()):
            raise _malformed(f"not a content length: {length!r}")
        else:
            self._state, self._left = "length", int(length)
            self.complete = self._left == 0


@dataclass
class Response:
    """A complete response and its times (seconds of :func:`time.perf_counter`)."""

    status: int
    headers: dict[str, str]
    body: bytes  # empty when the body went to ``on_body``
    sent_at: float  # when the request was handed to an open connection
    ended_at: float  # when its last byte arrived
    connect_s: float  # time to open the connection, 0 for one that was kept open


class _Connection(asyncio.Protocol):
    """One connection: one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.parser: ResponseParser | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.on_body: Callable[[float, bytes], None] = lambda when, data: None
        self.got_bytes = False
        self.ended_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # asyncio's signature says BaseTransport; a TCP connection always brings a Transport.
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        when = now()
        parser = self.parser
        if parser is None:  # bytes that nobody asked for: this connection cannot be trusted any more
            self.abort()
            return
        self.got_bytes = True
        try:
            body = parser.feed(data)
            if body:
                self.on_body(when, body)
        except Exception as error:  # from the parser or from whoever reads the body: the request fails with it
            self.finish(error)
            self.abort()
            return
        if parser.complete:
            self.ended_at = when
            self.finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self.parser is None:
            return
        try:
            self.parser.end()
        except HttpError as error:
            self.finish(HttpError("reset", f"{error}: {exc}") if exc else error)
        else:
            self.ended_at = now()
            self.finish(None)

    def finish(self, error: Exception | None) -> None:
        if self.waiter is not None and not self.waiter.done():
            if error is None:
                self.waiter.set_result(None)
            else:
                self.waiter.set_exception(error)

    def abort(self) -> None:
        self.closed = True
        if self.transport is not None:
            self.transport.abort()


def tls_context(validate: bool = True, ca_path: str | None = None) -> ssl.SSLContext:
    """The context for https. Without validation any certificate is taken. Raises OSError for a bad ``ca_path``."""
    context = ssl.create_default_context(cafile=ca_path or None)
    if not validate:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Client:
    """Requests to one server over connections that are kept open.

    ``base_url`` is http(s)://host[:port][/prefix]; raises ValueError for anything else.
    """

    def __init__(
        self, base_url: str, headers: dict[str, str] | None = None, validate: bool = True, ca_path: str | None = None
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is not a URL like http://host:port")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.prefix = parts.path.rstrip("/")
        self.tls = tls_context(validate, ca_path) if parts.scheme == "https" else None
        host = parts.netloc.rpartition("@")[2]
        lines = {"host": host, "user-agent": "groundstate", "accept": "*/*", **(headers or {})}
        for name, value in lines.items():
            if any(bad in name + value for bad in "\r\n\0"):
                raise ValueError(f"header {name!r} holds a line break")
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("latin-1")
        self._idle: list[_Connection] = []

    async def _connect(self, timeout_s: float) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _transport, connection = await asyncio.wait_for(
                loop.create_connection(_Connection, self.host, self.port, ssl=self.tls), timeout_s
            )
        except asyncio.TimeoutError:
            raise HttpError("connect", f"no connection to {self.host}:{self.port} within {timeout_s:g} s") from None
        except (OSError, ssl.SSLError) as error:
            raise HttpError("connect", f"cannot connect to {self.host}:{self.port}: {error}") from error
        return connection

    async def open(self, count: int, timeout_s: float = 30.0) -> None:
        """Have ``count`` idle connections ready, so that connecting is not part of what is measured."""
        self._idle = [one for one in self._idle if not one.closed]
        missing = max(0, count - len(self._idle))
        self._idle.extend(await asyncio.gather(*(self._connect(timeout_s) for _index in range(missing))))

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        timeout_s: float = 30.0,
        on_body: Callable[[float, bytes], None] | None = None,
    ) -> Response:
        """Send one request and wait for the whole response, at most ``timeout_s`` seconds.

        ``on_body(when, data)`` gets the body bytes of a 2xx response as they arrive; what it raises fails the
        request. Other responses are collected, so that their message can be shown. Raises HttpError.
        """
        connect_s = 0.0
        while True:
            connection = self._take()
            reused = connection is not None
            if connection is None:
                begin = now()
                connection = await self._connect(timeout_s)
                connect_s = now() - begin
            try:
                return await self._exchange(connection, method, path, body, timeout_s, on_body, connect_s)
            except HttpError as error:
                # The server may close an idle connection just when we use it. No answer has begun: try another.
                if not (reused and error.kind == "reset" and not connection.got_bytes):
                    raise

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    async def _exchange(
        self,
        connection: _Connection,
        method: str,
        path: str,
        body: bytes,
        timeout_s: float,
        on_body: Callable[[float, bytes], None] | None,
        connect_s: float,
    ) -> Response:
        loop = asyncio.get_running_loop()
        parser = ResponseParser()
        collected: list[bytes] = []

        def deliver(when: float, data: bytes) -> None:
            if on_body is not None and 200 <= parser.status < 300:
                on_body(when, data)
            else:
                collected.append(data)

        connection.parser, connection.on_body, connection.got_bytes = parser, deliver, False
        connection.waiter = loop.create_future()
        length = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\n{length}".encode("latin-1")
        if connection.transport is None:
            raise HttpError("reset", f"{method} {path}: the connection to {self.host}:{self.port} is closed")
        late = HttpError("timeout", f"{method} {path} was not answered completely within {timeout_s:g} s")
        timer = loop.call_later(timeout_s, connection.finish, late)
        sent_at = now()
        connection.transport.write(head + self._head + b"\r\n" + body)
        reusable = False
        try:
            await connection.waiter
            reusable = parser.keep_alive
            return Response(parser.status, parser.headers, b"".join(collected), sent_at, connection.ended_at, connect_s)
        finally:
            timer.cancel()
            connection.parser = connection.waiter = None
            if reusable and not connection.closed:
                self._idle.append(connection)
            else:
                connection.abort()

    async def close(self) -> None:
        """Close what is open."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)
