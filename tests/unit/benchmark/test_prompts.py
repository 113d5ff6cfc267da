"""Prompts: a seed reproduces them, no prefix cache can serve them unless it may, lengths are exact, files are read."""

from __future__ import annotations

import asyncio
import json

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import prompts
from ansible_collections.groundstate.llm.plugins.module_utils.workload import WorkloadError
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, 2**40), st.integers(8, 300), st.integers(0, 50))
def test_prompts_have_their_length_and_come_again_from_the_same_seed(seed, length, index):
    ids = list(range(500, 700))
    first = prompts.Prompts(seed, "one", length, ids).make("measure", 1, 0, index)
    assert len(first) == length
    assert set(first) <= set(ids)
    assert first == prompts.Prompts(seed, "one", length, ids).make("measure", 1, 0, index)
    text = prompts.Prompts(seed, "one", length).make("measure", 1, 0, index)
    assert len(text.split()) == length


def test_no_two_prompts_begin_alike_and_no_two_measurements_send_the_same():
    ids = list(range(1000, 1100))
    one, two = (prompts.Prompts(0, name, 64, ids) for name in ("one", "two"))
    keys = [("measure", level, repeat, index) for level in (1, 16) for repeat in range(5) for index in range(16)]
    starts = {tuple(made.make(*key)[: prompts.NONCE_TOKENS]) for made in (one, two) for key in keys}
    assert len(starts) == 2 * len(keys)
    # Behind the nonce the seed alone decides, so that two measurements ask the same question.
    assert one.make(*keys[0])[prompts.NONCE_TOKENS :] == two.make(*keys[0])[prompts.NONCE_TOKENS :]


def test_special_tokens_at_the_edges_are_not_part_of_the_vocabulary():
    assert prompts.vocabulary([1, 7, 9, 7, 1, 8, 2]) == [7, 8, 9]
    assert prompts.vocabulary([]) == []


def fit(tokens_of, target: int) -> tuple[int, bool]:
    async def count(words: int) -> int:
        return tokens_of(words)

    return asyncio.run(prompts.fit_words(count, target))


def test_one_token_a_word_is_met_exactly_whatever_the_template_takes():
    assert fit(lambda words: words + 29, 128) == (99, True)
    assert fit(lambda words: words + 1, 4096) == (4095, True)


def test_several_tokens_a_word_come_close_and_say_that_they_are_not_exact():
    words, exact = fit(lambda words: 3 * words + 5, 128)
    assert (3 * words + 5, exact) == (128, True)
    words, exact = fit(lambda words: 3 * words + 6, 128)
    assert abs(3 * words + 6 - 128) <= 2
    assert not exact


def test_a_template_longer_than_the_prompt_is_refused():
    with pytest.raises(WorkloadError, match="about 200 tokens"):
        fit(lambda words: words + 200, 128)


def test_prompts_that_a_cache_may_serve_are_the_same_in_every_repeat_and_measurement():
    ids = list(range(1000, 1100))
    made = [prompts.Prompts(0, name, 64, ids, unique=False) for name in ("one", "two")]
    streams = [made[0].make("measure", 4, 0, index) for index in range(4)]
    assert len({tuple(prompt) for prompt in streams}) == 4
    assert {len(prompt) for prompt in streams} == {64}
    assert streams == [made[1].make("measure", 4, 3, index) for index in range(4)]


def test_texts_of_a_file_come_in_their_order_with_a_nonce_or_as_they_are():
    texts = ["first text", "second text"]
    plain = prompts.Prompts(0, "one", 64, texts=texts, unique=False)
    assert [plain.make("measure", 1, 0, index) for index in range(3)] == ["first text", "second text", "first text"]
    unique = prompts.Prompts(0, "one", 64, texts=texts)
    made = [unique.make("measure", 1, repeat, 0) for repeat in range(2)]
    assert made[0] != made[1]
    assert {" ".join(one.split()[prompts.NONCE_TOKENS :]) for one in made} == {"first text"}


def test_files_of_both_forms_are_read(tmp_path):
    lines = tmp_path / "prompts.txt"
    lines.write_text("one über\n\n  two\n")
    assert prompts.read_file(str(lines)) == ["one über", "  two"]
    objects = tmp_path / "prompts.jsonl"
    objects.write_text("".join(json.dumps({"prompt": text, "id": 1}) + "\n" for text in ("a\nb", "c")))
    assert prompts.read_file(str(objects)) == ["a\nb", "c"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"\n \n", "holds no prompts"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.jsonl", b'{"prompt": "x"}\nnot json\n', "line 2"),
        ("a.jsonl", b'{"text": "x"}\n', "line 1"),
        ("a.jsonl", b'{"prompt": 5}\n', "line 1"),
        ("a.jsonl", b"[]\n", "line 1"),
    ],
)
def test_files_without_prompts_are_refused_with_the_line(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=words):
        prompts.read_file(str(path))
