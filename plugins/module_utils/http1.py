# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""HTTP/1.1 responses, incrementally: however the bytes are cut, the same body comes out. Knows nothing of sockets."""

from __future__ import annotations

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
    """One response, fed in pieces of any size.

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
            raise _malformed(f"the response is compressed ({coding[:40]!r}) though that was not asked for")
        transfer = self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self.complete = True
        elif transfer == "chunked":
            self._state = "chunk-size"
        elif transfer:
            raise _malformed(f"unknown transfer encoding {transfer[:40]!r}")
        elif length is None:
            self._state = "until-close"
        elif not (length.isascii() and length.isdigit() and len(length) < 20):
            raise _malformed(f"not a content length: {length[:40]!r}")
        else:
            self._state, self._left = "length", int(length)
            self.complete = self._left == 0
