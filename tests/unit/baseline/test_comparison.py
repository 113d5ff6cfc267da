"""Comparison of starts: against results known from elsewhere; what simulation checks is in tests/bench."""

from __future__ import annotations

import math
import random

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import comparison, stats
from hypothesis import given
from hypothesis import strategies as some

VALUES = some.lists(some.floats(-5, 5), min_size=1, max_size=6)


def single(*values):
    return [[value] for value in values]


def test_two_groups_as_the_textbook_has_it():
    """Student's own sleep data (1908): t = -1.8608, df = 18, p = 0.07919, interval -3.363874 to 0.203874."""
    first = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
    second = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)
    found = comparison._by_t(stats.mean(first) - stats.mean(second), second, first, 0.05, "starts")
    assert (found.low, found.high) == (pytest.approx(-3.363874, abs=1e-6), pytest.approx(0.203874, abs=1e-6))
    assert found.p == pytest.approx(0.07919, abs=1e-5)


def test_one_new_start_gets_the_prediction_interval():
    old = (1.0, 1.2, 0.9, 1.1, 1.05)
    found = comparison.difference(single(*old), single(1.5))
    expected = stats.prediction_interval(old)
    assert (found.basis, found.method) == ("starts", "t")
    assert found.value - found.low == pytest.approx(expected.half_width)
    assert found.mde == pytest.approx(stats.mde(expected.sd, 5, 1))


def test_repeats_within_a_start_narrow_nothing_but_their_own_part():
    few = comparison.difference([[1.0], [1.2], [0.9]], [[1.1]])
    many = comparison.difference([[1.0] * 50, [1.2] * 50, [0.9] * 50], [[1.1] * 50])
    assert (many.low, many.high) == (pytest.approx(few.low), pytest.approx(few.high))


def test_one_start_against_one_rests_on_repeats_and_says_so():
    found = comparison.difference([[1.0, 1.01, 0.99]], [[0.9, 0.91, 0.89]])
    assert found.basis == "repeats"
    assert found.low < found.value < found.high < 0
    assert comparison.difference([[1.0]], [[0.9, 0.8]]).basis == "none"


def test_starts_that_are_all_alike():
    same = comparison.difference(single(1.0, 1.0, 1.0), single(1.0))
    assert (same.low, same.high, same.p) == (0.0, 0.0, 1.0)
    assert comparison.difference(single(1.0, 1.0, 1.0), single(2.0)).p == 0.0


@given(VALUES, VALUES)
def test_an_interval_holds_its_own_value_and_turns_with_the_sides(old, new):
    found = comparison.difference(single(*old), single(*new))
    turned = comparison.difference(single(*new), single(*old))
    assert found.value == pytest.approx(-turned.value, abs=1e-12)
    if found.basis == "starts":
        assert found.low <= found.value <= found.high
        assert 0.0 <= found.p <= 1.0
        assert found.low == pytest.approx(-turned.high, abs=1e-9)


def test_from_eight_starts_on_it_is_a_bootstrap_that_anybody_can_repeat():
    dice = random.Random(3)
    old = [[dice.gauss(0, 0.015) + dice.gauss(0, 0.003) for _ in range(3)] for _ in range(8)]
    new = [[-0.05 + one for one in cluster] for cluster in old]
    found = comparison.difference(old, new)
    assert found.method == "bootstrap"
    assert comparison.difference(old, new) == found
    assert comparison.difference(old[:7], new).method == "t"
    t = comparison._by_t(
        found.value, [stats.mean(one) for one in old], [stats.mean(one) for one in new], 0.05, "starts"
    )
    assert found.low < -0.05 < found.high
    assert (found.high - found.low) == pytest.approx(t.high - t.low, rel=0.25)
    alone = comparison.interval(old)
    assert alone.half_width == pytest.approx(stats.mean_interval([stats.mean(one) for one in old]).half_width, rel=0.25)


def test_the_interval_of_few_starts_is_students():
    assert comparison.interval(single(1.0, 1.2, 0.9)) == stats.mean_interval([1.0, 1.2, 0.9])


def test_holm_as_in_his_paper():
    found = comparison.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == {
        "d": pytest.approx(0.02),
        "a": pytest.approx(0.03),
        "c": pytest.approx(0.06),
        "b": pytest.approx(0.06),
    }
    assert comparison.holm({}) == {}


def test_cusum_finds_a_shift_where_it_began_and_in_its_direction():
    dice = random.Random(5)
    calm = [dice.gauss(0, 0.01) for _ in range(12)]
    assert comparison.cusum(calm) is None
    for sign in (-1, 1):
        found = comparison.cusum(calm + [sign * 0.03 + dice.gauss(0, 0.01) for _ in range(8)])
        assert found.since <= 13
        assert 12 <= found.alarm < 20
        assert math.copysign(1, found.change) == sign


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0] * 30])
def test_cusum_of_too_little_or_without_spread(values):
    assert comparison.cusum(values) is None


@given(some.lists(some.floats(-1e6, 1e6), max_size=30))
def test_cusum_takes_anything(values):
    found = comparison.cusum(values)
    assert found is None or 2 <= found.since <= found.alarm < len(values)
