"""Words of one token, from the files that real models bring: every spelling of a space, hostile files, none at all."""

from __future__ import annotations

import base64
import json
import os

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import model_vocabulary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WORDS = ["the", "of", "zebra"]


def huggingface(vocabulary, **more) -> str:
    return json.dumps({"model": {"vocab": vocabulary}, **more})


@pytest.mark.parametrize("space", ["\u0120", "\u2581", " "])
def test_every_spelling_of_the_space_is_understood(tmp_path, space):
    (tmp_path / "tokenizer.json").write_text(huggingface({f"{space}the": 5, f"{space}of": 6, "the": 7, "zebra": 8}))
    found = model_vocabulary.read(str(tmp_path), WORDS)
    assert (found.ids, found.anywhere) == ({"the": 5, "of": 6}, ["the"])
    assert (found.source, found.why) == ("tokenizer.json", "")


def test_a_unigram_vocabulary_counts_by_place_and_special_tokens_are_left_out(tmp_path):
    pieces = [["<s>", 0.0], ["\u2581the", -1.5], ["\u2581of", -2.0]]
    (tmp_path / "tokenizer.json").write_text(huggingface(pieces, added_tokens=[{"content": "\u2581of", "id": 2}]))
    assert model_vocabulary.read(str(tmp_path), WORDS).ids == {"the": 1}


def test_the_file_of_tiktoken(tmp_path):
    lines = [f"{base64.b64encode(piece).decode()} {rank}" for rank, piece in enumerate([b"\xff", b" the", b"the"])]
    (tmp_path / "tiktoken.model").write_text("\n".join(lines) + "\n")
    found = model_vocabulary.read(str(tmp_path), WORDS)
    assert (found.ids, found.anywhere, found.source) == ({"the": 1}, ["the"], "tiktoken.model")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", "{", "cannot be read: Expecting property name"),
        ("tokenizer.json", "[]", "it is no tokenizer.json with a vocabulary"),
        ("tokenizer.json", '{"model": {"vocab": {"the": 1}}}', "knows none of the common English words"),
        ("tokenizer.json", '{"model": {"vocab": [1]}}', "it is no tokenizer.json with a vocabulary"),
        ("qwen.tiktoken", "dGhl", "'dGhl' is not a piece and its id"),
        ("config.json", "{}", "there is no tokenizer.json or tiktoken file in "),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    found = model_vocabulary.read(str(tmp_path), WORDS)
    assert (found.ids, found.anywhere) == ({}, [])
    assert words in found.why


def test_a_name_instead_of_a_folder_has_no_vocabulary():
    assert model_vocabulary.read("org/model", WORDS).why
    assert model_vocabulary.read("", WORDS).why


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES | st.dictionaries(st.sampled_from(["\u0120the", "the", "x"]), VALUES), VALUES)
def test_hostile_files_never_raise_and_ids_are_ids(tmp_path, vocabulary, special):
    (tmp_path / "tokenizer.json").write_text(huggingface(vocabulary, added_tokens=special))
    found = model_vocabulary.read(str(tmp_path), WORDS)
    assert all(type(one) is int and one >= 0 for one in found.ids.values())
    assert bool(found.ids) != bool(found.why)


@pytest.mark.parametrize("name", ["tokenizer.json", "tiktoken.model"])
def test_a_pipe_is_told_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert model_vocabulary.read(str(tmp_path), ["the"]).why.startswith(f"{tmp_path / name} cannot be read")
