"""Share of 4-grams that were there before: worked out by hand, and for any text."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import repetition
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "before", "share"),
    [
        ("a b c d", "", 0.0),
        ("a b c d a b c d", "", 1 / 5),  # abcd bcda cdab dabc abcd
        ("a a a a a a a", "", 3 / 4),
        ("a b c d", "x a b c d y", 1.0),
        ("a b c d e", "a b c d", 1 / 2),
        ("a b c", "", None),
        ("", "", None),
    ],
)
def test_by_hand(text, before, share):
    assert repetition.share(text.split(), before.split()) == share


def test_token_ids_of_a_prompt_and_words_of_an_answer():
    prompt, answer = repetition.of_request([1, 2, 3, 4, 1, 2, 3, 4], "The cat sat. The cat sat. The cat sat.")
    assert prompt == 1 / 5
    assert answer == 5 / 9  # nine 4-grams, the four of the cycle once each


def test_an_answer_that_copies_its_prompt_repeats_it():
    assert repetition.of_request("one two three four five", "two three four five") == (0.0, 1.0)


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text(prompt, answer):
    for share in repetition.of_request(prompt, answer):
        assert share is None or 0.0 <= share <= 1.0


@given(st.lists(st.integers(0, 3), min_size=8, max_size=60))
def test_said_twice_is_repeated_by_half_at_least(items):
    assert repetition.share(items * 2) >= 0.5 - 4 / len(items)
