"""Workloads: defaults, all problems at once, prompts that a seed reproduces and no prefix cache can serve."""

from __future__ import annotations

import asyncio

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import workload
from hypothesis import given
from hypothesis import strategies as st


def test_defaults_are_the_single_stream():
    found = workload.resolve({})
    assert found == workload.DEFAULTS
    assert workload.total_requests(found) == 5
    assert workload.resolve(None) == found


def test_a_single_concurrency_and_whole_floats_are_taken():
    found = workload.resolve({"concurrency": 4, "prompt_tokens": 64.0, "warmup_cap_s": 3})
    assert (found["concurrency"], found["prompt_tokens"], found["warmup_cap_s"]) == ([4], 64, 3.0)
    assert isinstance(found["prompt_tokens"], int)
    assert isinstance(found["warmup_cap_s"], float)


def test_all_problems_are_named_at_once():
    bad = {
        "prompt_tokens": 3,
        "output_tokens": "many",
        "concurrency": [1, 1],
        "repeats": 2.5,
        "api": "embeddings",
        "promt": 1,
        "max_error_share": 1.5,
        "seed": True,
    }
    with pytest.raises(workload.WorkloadError) as caught:
        workload.resolve(bad)
    for name in bad:
        assert f"{name}:" in str(caught.value)


@pytest.mark.parametrize("levels", [[], [0], [1.5], ["2"], [workload.MAX_CONCURRENCY + 1], "x"])
def test_impossible_levels_are_refused(levels):
    with pytest.raises(workload.WorkloadError, match="concurrency"):
        workload.resolve({"concurrency": levels})


def test_total_requests_counts_streams_requests_and_repeats():
    assert workload.total_requests(workload.resolve({"concurrency": [1, 8], "requests": 2, "repeats": 3})) == 54


@given(st.integers(0, 2**40), st.integers(8, 300), st.integers(0, 50))
def test_prompts_have_their_length_and_come_again_from_the_same_seed(seed, length, index):
    ids = list(range(500, 700))
    first = workload.Prompts(seed, "one", length, ids).make("measure", 1, 0, index)
    assert len(first) == length
    assert set(first) <= set(ids)
    assert first == workload.Prompts(seed, "one", length, ids).make("measure", 1, 0, index)
    text = workload.Prompts(seed, "one", length).make("measure", 1, 0, index)
    assert len(text.split()) == length


def test_no_two_prompts_begin_alike_and_no_two_measurements_send_the_same():
    ids = list(range(1000, 1100))
    one, two = (workload.Prompts(0, name, 64, ids) for name in ("one", "two"))
    keys = [("measure", level, repeat, index) for level in (1, 16) for repeat in range(5) for index in range(16)]
    starts = {tuple(prompts.make(*key)[: workload.NONCE_TOKENS]) for prompts in (one, two) for key in keys}
    assert len(starts) == 2 * len(keys)
    # Behind the nonce the seed alone decides, so that two measurements ask the same question.
    assert one.make(*keys[0])[workload.NONCE_TOKENS :] == two.make(*keys[0])[workload.NONCE_TOKENS :]


def test_special_tokens_at_the_edges_are_not_part_of_the_vocabulary():
    assert workload.vocabulary([1, 7, 9, 7, 1, 8, 2]) == [7, 8, 9]
    assert workload.vocabulary([]) == []


def fit(tokens_of, target: int) -> tuple[int, bool]:
    async def count(words: int) -> int:
        return tokens_of(words)

    return asyncio.run(workload.fit_words(count, target))


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
    with pytest.raises(workload.WorkloadError, match="about 200 tokens"):
        fit(lambda words: words + 200, 128)
