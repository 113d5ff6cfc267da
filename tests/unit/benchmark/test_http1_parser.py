"""The HTTP/1.1 response parser: any cut of the bytes gives the same response; what is not HTTP is refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.http1 import HEAD_LIMIT, HttpError, ResponseParser
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(__file__).parents[2] / "data" / "benchmark"


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(raw) + 1) for place in places}), len(raw)]
    return [raw[start:end] for start, end in itertools.pairwise(edges)]


def parse(pieces: list[bytes]) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    return parser, b"".join(parser.feed(piece) for piece in pieces)


def outcome(parser: ResponseParser, raw: bytes) -> str:
    try:
        body = parser.feed(raw)
    except HttpError as error:
        return error.kind
    assert len(body) <= len(raw)
    return "complete" if parser.complete else "waits"


def chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%X;note=1\r\n%s\r\n" % (len(part), part) for part in parts if part) + b"0\r\nx: y\r\n\r\n"


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_of_a_chunked_response_gives_its_body(parts, places):
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n" + chunked(parts)
    parser, body = parse(cut(raw, places))
    assert body == b"".join(parts)
    assert parser.complete
    assert parser.keep_alive
    assert (parser.status, parser.headers["x-a"]) == (200, "b")


@given(st.binary(max_size=60), st.lists(st.integers(0, 10_000), max_size=8))
def test_any_cut_of_a_response_with_a_length_gives_its_body(content, places):
    raw = b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content)
    parser, body = parse(cut(raw, places))
    assert (parser.status, body, parser.complete, parser.keep_alive) == (404, content, True, True)


@given(st.binary(max_size=300))
def test_hostile_bytes_are_refused_or_wait_and_never_crash(raw):
    parser = ResponseParser()
    assert outcome(parser, raw) in ("waits", "malformed")
    assert not parser.complete


@given(st.binary(max_size=200))
def test_hostile_chunks_are_refused_or_wait(raw):
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    assert outcome(parser, raw) in ("waits", "malformed", "complete")


def test_a_captured_response_of_llama_cpp_cut_at_every_byte():
    raw = (DATA / "llama_cpp-completion.http").read_bytes()
    whole, expected = parse([raw])
    assert whole.complete
    assert expected.count(b"data: ") == 6
    for place in range(len(raw)):
        parser, body = parse([raw[:place], raw[place:]])
        assert (parser.complete, body) == (True, expected)


def test_an_interim_response_is_passed_over():
    parser, body = parse([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"])
    assert (parser.status, body, parser.complete) == (200, b"ok", True)


def test_a_body_without_length_ends_with_the_connection():
    parser, body = parse([b"HTTP/1.1 200 OK\r\n\r\nabc"])
    assert not parser.complete
    parser.end()
    assert (parser.complete, body, parser.keep_alive) == (True, b"abc", False)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
def test_a_connection_closed_too_early_is_a_reset_and_no_short_answer(raw):
    parser, _body = parse([raw] if raw else [])
    with pytest.raises(HttpError, match="middle") as caught:
        parser.end()
    assert caught.value.kind == "reset"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "not an HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "status line"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "header line"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "content length"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "different content lengths"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n", "compressed"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n", "transfer encoding"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n+5\r\n", "chunk size"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x5\r\n", "chunk size"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1_0\r\n", "chunk size"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 2000, "a line of more than"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabcdef\r\n", "longer than it said"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * HEAD_LIMIT, "headers of more than"),
    ],
)
def test_what_is_not_http_is_refused_with_what_was_seen(raw, words):
    with pytest.raises(HttpError, match=words) as caught:
        parse([raw])
    assert caught.value.kind == "malformed"


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\n", True),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n", True),
    ],
)
def test_whether_a_connection_may_be_used_again(head, kept):
    parser, _body = parse([head + b"content-length: 0\r\n\r\n"])
    assert parser.keep_alive is kept


def test_bytes_after_the_response_spoil_the_connection():
    parser, _body = parse([b"HTTP/1.1 204 No Content\r\n\r\nleft over"])
    assert parser.complete
    assert not parser.keep_alive


def test_a_length_that_no_body_has_is_malformed():
    assert outcome(ResponseParser(), b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n") == "malformed"
