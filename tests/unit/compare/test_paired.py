"""Paired blocks and the drift between them: against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import paired
from hypothesis import given
from hypothesis import strategies as st

logs = st.floats(-1, 1)


def test_three_blocks_by_hand():
    """Differences 1, 2, 3 %: mean 2, s 1, t(.975, 2) = 4.3027: 2 ± 4.3027 / √3."""
    found = paired.pair([0.01, 0.02, 0.03], 0.05)
    assert found.value == pytest.approx(0.02)
    assert found.sd == pytest.approx(0.01)
    assert (found.low, found.high) == pytest.approx((0.02 - 0.024841, 0.02 + 0.024841), abs=1e-6)
    # t(.8, 2) = 1.0607
    assert found.mde == pytest.approx((4.3027 + 1.0607) * 0.01 / math.sqrt(3), rel=1e-4)
    assert paired.half_width(0.01, 3, 0.05) == pytest.approx(0.024841, abs=1e-6)


def test_one_block_has_no_interval_and_none_is_an_error():
    assert paired.pair([0.1], 0.05) == paired.Pair(0.1, None, None, None, 1, None)
    with pytest.raises(ValueError, match="no block"):
        paired.pair([], 0.05)


def test_what_moves_both_arms_of_a_block_cancels():
    calm = paired.pair([0.01, 0.02, 0.03], 0.05)
    moved = [(5 + 0.01, 5.0), (3 + 0.02, 3.0), (4 + 0.03, 4.0)]
    assert paired.pair([new - old for new, old in moved], 0.05).low == pytest.approx(calm.low)


def test_a_pure_drift_is_found_exactly_whatever_the_arms_do():
    starts = [(arm, place, 4.0 + 0.3 * (arm == "B") - 0.01 * place) for place, arm in enumerate("ABBAAB")]
    found = paired.drift(starts)
    assert found.value == pytest.approx(-0.01)
    assert found.low == pytest.approx(-0.01)
    assert found.high == pytest.approx(-0.01)
    assert found.p < 1e-6


def test_the_drift_of_four_starts_by_hand():
    """A at 0 and 3 with 0 and 4, B at 1 and 2 with 1 and 1: within the arms x = -1.5 1.5 -.5 .5, y = -2 2 0 0.

    Slope 6/5; rest (-.2)² + .2² + .6² + .6² = 0.8 with one degree of freedom, over Σx² = 5: error 0.4; t(.975, 1) =
    12.7062.
    """
    found = paired.drift([("A", 0, 0.0), ("B", 1, 1.0), ("B", 2, 1.0), ("A", 3, 4.0)])
    assert found.value == pytest.approx(1.2)
    assert found.high - found.value == pytest.approx(12.7062 * 0.4, rel=1e-4)
    assert found.p == pytest.approx(0.2048, abs=1e-4)  # two-sided, t = 3 with one degree of freedom


@pytest.mark.parametrize("starts", [[], [("A", 1, 0.0)], [("A", 1, 0.0), ("B", 2, 0.0), ("A", 3, 0.0)]])
def test_too_few_starts_have_no_drift(starts):
    assert paired.drift(starts) is None


def test_starts_at_one_moment_have_no_drift():
    assert paired.drift([("A", 1, 0.1), ("A", 1, 0.2), ("A", 1, 0.3)]) is None


@given(st.lists(logs, min_size=2, max_size=12), st.floats(0.001, 0.5))
def test_the_interval_holds_the_mean(differences, alpha):
    found = paired.pair(differences, alpha)
    assert found.low <= found.value <= found.high
    assert found.mde >= 0


@given(st.lists(st.tuples(st.sampled_from("AB"), logs), min_size=6, max_size=20))
def test_any_run_has_a_drift_within_its_interval(values):
    found = paired.drift([(arm, float(place), value) for place, (arm, value) in enumerate(values)])
    assert found.low <= found.value <= found.high
    assert 0.0 <= found.p <= 1.0
