# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Server-sent events, incrementally: however the bytes are cut, the same events come out.

Works on bytes until an event is whole, so that a character cut in two is never decoded by halves. Follows the
WHATWG text: lines end with LF, CRLF or CR; a colon begins a comment; an event ends with an empty line; what follows
the last empty line is not an event.
"""

from __future__ import annotations

from typing import NamedTuple

EVENT_LIMIT = 16 * 1024 * 1024


class Event(NamedTuple):
    """One event; ``data`` is the UTF-8 text of its data lines, joined by line feeds."""

    name: str  # "message" unless the stream names it
    data: bytes


class Parser:
    """Feed bytes, get the events that they complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False
        self._data: list[bytes] = []
        self._name = ""
        self._size = 0
        self._begun = False

    def feed(self, piece: bytes) -> list[Event]:
        """Events completed by this piece. Raises ValueError for one of more than EVENT_LIMIT bytes."""
        if not piece:
            return []
        if self._after_cr and piece.startswith(b"\n"):  # the CRLF was cut between its two bytes
            piece = piece[1:]
            if not piece:
                self._after_cr = False
                return []
        self._after_cr = False
        # For bytes, splitlines() knows exactly the three line ends of the format.
        lines = (self._rest + piece).splitlines(keepends=True)
        self._rest = b""
        events: list[Event] = []
        for line in lines:
            text = line.rstrip(b"\r\n")
            if len(text) == len(line):
                self._rest = line
                break
            self._line(text, events)
        else:
            self._after_cr = lines[-1].endswith(b"\r")
        if self._size + len(self._rest) > EVENT_LIMIT:
            raise ValueError(f"an event of more than {EVENT_LIMIT} bytes")
        return events

    def _line(self, text: bytes, events: list[Event]) -> None:
        if not self._begun:
            self._begun = True
            if text.startswith(b"\xef\xbb\xbf"):  # a byte order mark may open the stream
                text = text[3:]
        if not text:
            if self._data:
                events.append(Event(self._name or "message", b"\n".join(self._data)))
            self._data, self._name, self._size = [], "", 0
            return
        field, _colon, value = text.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        # id and retry concern reconnecting, which a measurement never does; comments keep connections alive.
