"""What counts as a token, and where n comes from: captured streams of real engines, and the traps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.http1 import ResponseParser
from ansible_collections.groundstate.llm.plugins.module_utils.openai_stream import Stream, carries_token, error_text

DATA = Path(__file__).parents[2] / "data" / "benchmark"


def read(raw: bytes, size: int = 7) -> Stream:
    stream = Stream()
    for place in range(0, len(raw), size):
        stream.feed(float(place), raw[place : place + size])
    return stream


def event(value: dict) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def test_sglang_the_role_and_the_finish_chunk_are_no_tokens():
    stream = read((DATA / "sglang-0.5.11-chat.sse").read_bytes())
    assert len(stream.times) == 8
    assert (stream.completion_tokens, stream.prompt_tokens, stream.cached_tokens) == (8, 10, None)
    assert stream.finish_reason == "length"
    assert stream.done


def test_llama_cpp_chat_and_completion():
    chat = read((DATA / "llama_cpp-chat.sse").read_bytes())
    assert (len(chat.times), chat.completion_tokens, chat.cached_tokens, chat.done) == (3, 3, 0, True)
    body = ResponseParser().feed((DATA / "llama_cpp-completion.http").read_bytes())
    completion = read(body)
    assert (len(completion.times), completion.completion_tokens, completion.prompt_tokens) == (4, 4, 8)


@pytest.mark.parametrize(
    "choice",
    [
        {"text": " a"},
        {"delta": {"content": "a"}},
        {"delta": {"reasoning_content": "a"}},
        {"delta": {"reasoning": "a", "content": None}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}},
        {"delta": {"role": "assistant", "content": "a"}},
    ],
)
def test_content_of_any_kind_is_a_token(choice):
    assert carries_token(choice)


@pytest.mark.parametrize(
    "choice",
    [
        {"text": ""},
        {"delta": {}},
        {"delta": {"role": "assistant"}},
        {"delta": {"role": "assistant", "content": ""}},
        {"delta": {"reasoning_content": None, "tool_calls": []}, "finish_reason": "stop"},
        {"delta": None},
        None,
        "text",
    ],
)
def test_role_empty_and_finish_chunks_are_no_tokens(choice):
    assert not carries_token(choice)


def test_the_last_usage_counts_where_it_comes_with_every_chunk():
    stream = Stream()
    for number in (1, 2, 3):
        usage = {"prompt_tokens": 5, "completion_tokens": number, "prompt_tokens_details": {"cached_tokens": 2}}
        stream.feed(number, event({"choices": [{"text": "x"}], "usage": usage}))
    stream.feed(4, event({"choices": [], "usage": None}))
    assert (stream.completion_tokens, stream.prompt_tokens, stream.cached_tokens) == (3, 5, 2)
    assert stream.times == [1, 2, 3]


def test_counts_that_are_none_are_unknown_and_not_zero():
    stream = read(event({"choices": [], "usage": {"completion_tokens": True, "prompt_tokens": -1}}))
    assert (stream.completion_tokens, stream.prompt_tokens) == (None, None)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (event({"error": {"message": "no memory", "code": 500}}), "no memory"),
        (event({"error": "plain words"}), "plain words"),
        (b'event: error\ndata: {"detail": "gone"}\n\n', "gone"),
        (event({"object": "error", "message": "bad", "code": 400}), "bad"),
    ],
)
def test_an_error_inside_the_stream_is_seen(raw, message):
    assert read(raw).error == message


@pytest.mark.parametrize("raw", [b"data: {broken\n\n", b"data: \xff\xfe\n\n", b"data: [1]\n\n", b"data: 3\n\n"])
def test_what_is_no_such_stream_is_refused(raw):
    with pytest.raises(ValueError, match="an event of the stream is not"):
        read(raw)


def test_error_text_of_other_replies_is_empty():
    assert error_text({"object": "list", "data": []}) == ""
    assert error_text([1]) == ""
