"""Server-sent events: the same events however the bytes are cut; the format's corners; hostile input."""

from __future__ import annotations

import itertools

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import sse
from hypothesis import given
from hypothesis import strategies as st

END = st.sampled_from([b"\n", b"\r\n", b"\r"])
TEXT = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=12)


def events(pieces: list[bytes]) -> list[sse.Event]:
    parser = sse.Parser()
    return [event for piece in pieces for event in parser.feed(piece)]


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(raw) + 1) for place in places}), len(raw)]
    return [raw[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(st.tuples(TEXT, END, END), max_size=6), st.lists(st.integers(0, 5000), max_size=20))
def test_any_cut_gives_the_events_that_were_written(written, places):
    raw = b"".join(b"data: " + text.encode() + first + b": comment" + first + second for text, first, second in written)
    found = events(cut(raw, places))
    # "\r" + "\n" of two neighbours read as one CRLF: the event then ends with the next one's empty line.
    if not any(first == b"\r" and second == b"\n" for _text, first, second in written):
        assert [event.data.decode() for event in found] == [text for text, _first, _second in written]
    assert found == events([raw])


@given(st.binary(max_size=300), st.lists(st.integers(0, 5000), max_size=20))
def test_any_cut_of_any_bytes_gives_the_same_events(raw, places):
    assert events(cut(raw, places)) == events([raw]) == events([raw[i : i + 1] for i in range(len(raw))])


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: a\n\n", [("message", b"a")]),
        (b"data:a\n\n", [("message", b"a")]),
        (b"data:  a\n\n", [("message", b" a")]),
        (b"data: a\ndata: b\n\n", [("message", b"a\nb")]),
        (b"data\n\n", [("message", b"")]),
        (b"event: error\ndata: x\n\ndata: y\n\n", [("error", b"x"), ("message", b"y")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("message", b"a")]),
        (b": only a comment\n\n", []),
        (b"event: nothing\n\n", []),
        (b"id: 1\nretry: 5\ndata: a\n\n", [("message", b"a")]),
        (b"data: unfinished\n", []),
        (b"data: \xe5\xad\x97\x0b\x1c\xc2\x85\n\n", [("message", b"\xe5\xad\x97\x0b\x1c\xc2\x85")]),
    ],
)
def test_the_corners_of_the_format(raw, expected):
    assert events([raw]) == expected


def test_an_event_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr(sse, "EVENT_LIMIT", 1000)
    parser = sse.Parser()
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        parser.feed(b"data: 0123456789\n" * 100)
