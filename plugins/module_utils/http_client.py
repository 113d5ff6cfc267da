# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An HTTP/1.1 client for measuring: connections opened ahead, bytes stamped on arrival (wire.py).

Why not a library: the standard one blocks a thread a request (at 256 streams it reported twice the true time to the
first token), the others are not on a target. No proxies, no redirects, no compression: each would stand between the
clock and the server.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from array import array
from dataclasses import dataclass
from typing import Callable
from urllib.parse import urlsplit

from .http1 import HttpError, ResponseParser
from .wire import Wire, now

#: Bytes of an answer that is kept as a whole.
BODY_LIMIT = 16 * 1024 * 1024


@dataclass
class Response:
    """A complete response and its times (seconds of :func:`time.perf_counter`)."""

    status: int
    headers: dict[str, str]
    body: bytes  # empty when the body went to ``on_body``
    sent_at: float  # when the request was handed to an open connection
    ended_at: float  # when its last byte arrived
    connect_s: float  # time to open the connection, 0 for one that was kept open


class _Connection:
    """One connection: one request at a time."""

    def __init__(self, wire: Wire, lates: array[float]) -> None:
        self.wire = wire
        self.lates = lates
        self.parser: ResponseParser | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.on_body: Callable[[float, bytes], None] = lambda when, data: None
        self.got_bytes = False
        self.ended_at = 0.0
        wire.on_data, wire.on_lost = self._data, self._lost

    @property
    def closed(self) -> bool:
        return self.wire.closed

    def _data(self, when: float, data: bytes) -> None:
        parser = self.parser
        if parser is None:  # bytes that nobody asked for: this connection cannot be trusted any more
            self.abort()
            return
        self.got_bytes = True
        self.lates.append(self.wire.late_s)
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

    def _lost(self, exc: Exception | None) -> None:
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
        self.wire.abort()


def proxy_hint() -> str:
    """What to know when a connection fails on a host whose programs use a proxy; begins with "; " or is empty."""
    names = [name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]
    if not names:
        return ""
    return f"; {min(names)} is set, but a measurement never goes through a proxy: it would measure the proxy"


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
        #: Seconds between the arrival of bytes and their reading, of every read of a response.
        self.lates: array[float] = array("d")
        #: Whether the times of arrival are the kernel's.
        self.stamped = True

    async def _connect(self, timeout_s: float) -> _Connection:
        try:
            wire = await asyncio.wait_for(Wire.connect(self.host, self.port, self.tls), timeout_s)
        except asyncio.TimeoutError:
            raise HttpError("connect", f"no connection to {self.host}:{self.port} within {timeout_s:g} s") from None
        except OSError as error:  # ssl.SSLError is one
            raise HttpError("connect", f"cannot connect to {self.host}:{self.port}: {error}{proxy_hint()}") from error
        self.stamped = self.stamped and wire.stamped
        return _Connection(wire, self.lates)

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
        kept = 0

        def deliver(when: float, data: bytes) -> None:
            nonlocal kept
            if on_body is not None and 200 <= parser.status < 300:
                on_body(when, data)
                return
            kept += len(data)
            if kept > BODY_LIMIT:
                raise HttpError("malformed", f"{method} {path} is answered with more than {BODY_LIMIT} bytes")
            collected.append(data)

        connection.parser, connection.on_body, connection.got_bytes = parser, deliver, False
        connection.waiter = loop.create_future()
        length = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\n{length}".encode("latin-1")
        if connection.closed:
            raise HttpError("reset", f"{method} {path}: the connection to {self.host}:{self.port} is closed")
        late = HttpError("timeout", f"{method} {path} was not answered completely within {timeout_s:g} s")
        timer = loop.call_later(timeout_s, connection.finish, late)
        sent_at = now()
        connection.wire.write(head + self._head + b"\r\n" + body)
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
            connection.wire.close()
        self._idle.clear()
