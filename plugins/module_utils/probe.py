# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Small blocking HTTP requests to a server on this host; never through a proxy."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import urllib.parse
from dataclasses import dataclass
from typing import Any

from . import files
from .engines.base import Request

#: A reply of a probe is small; more than this is not read.
LIMIT = 4 * 1024 * 1024


@dataclass(frozen=True)
class Reply:
    """status 0: no HTTP reply came, and ``error`` says why."""

    status: int
    text: str = ""
    error: str = ""

    @property
    def json(self) -> Any | None:
        """The decoded body, or None when it is not JSON."""
        try:
            return files.decode_json(self.text)
        except ValueError:
            return None


def ask(base_url: str, request: Request, api_key: str = "") -> Reply:
    """One GET (body None) or POST (JSON). Raises nothing: what went wrong is in the reply.

    The whole reply has to be there within the request's time: a server that drips is one that does not answer.
    """
    parts = urllib.parse.urlsplit(base_url)
    headers = {"Connection": "close"}
    body = None
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    if request.body is not None:
        headers["Content-Type"] = "application/json"
        body = json.dumps(request.body)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=request.timeout_s)
    late = threading.Event()
    timer: threading.Timer | None = None
    silent = Reply(0, error=f"no reply within {request.timeout_s:g} s")
    try:
        connection.connect()
        timer = threading.Timer(request.timeout_s, _cut, (connection.sock, late))
        timer.daemon = True
        timer.start()
        connection.request("GET" if body is None else "POST", request.path, body=body, headers=headers)
        reply = connection.getresponse()
        text = reply.read(LIMIT).decode("utf-8", "replace")
        return silent if late.is_set() else Reply(reply.status, text)
    except ConnectionRefusedError:
        return Reply(0, error="connection refused")
    except socket.timeout:
        return silent
    except (OSError, http.client.HTTPException, ValueError) as error:
        return silent if late.is_set() else Reply(0, error=files.plain(str(error), 200) or type(error).__name__)
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()


def _cut(sock: socket.socket, late: threading.Event) -> None:
    """End a connection whose time is over, whoever reads from it."""
    late.set()
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class Background:
    """One request at a time in a thread, so that a server that hangs cannot hide its own death from us."""

    def __init__(self, base_url: str, api_key: str = "") -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._thread: threading.Thread | None = None
        self._reply: Reply | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None

    def start(self, request: Request) -> None:
        """Send a request; only when not :attr:`busy`."""

        def work() -> None:
            self._reply = ask(self._base_url, request, self._api_key)

        self._reply = None
        # A daemon: the module may end while a hung server still holds the connection.
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def result(self) -> Reply | None:
        """The reply, once, when it has come; None while it has not."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        return self._reply

    def wait(self, timeout_s: float) -> None:
        """Return when the reply is there or the time is over, whichever is first."""
        if self._thread is not None:
            self._thread.join(timeout_s)
