"""Outliers: hand-computed scores, and what must not matter."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import outliers
from hypothesis import given, settings
from hypothesis import strategies as st


def test_scores_are_distances_in_robust_deviations():
    # Median 100, absolute deviations 0 1 1 2 20, of these the median is 1: 20 / 1.4826.
    values = {"a": 99.0, "b": 100.0, "c": 101.0, "d": 102.0, "e": 80.0}
    assert outliers.robust_z(values) == pytest.approx(
        {"a": -0.6745, "b": 0.0, "c": 0.6745, "d": 1.349, "e": -13.49}, abs=1e-3
    )
    assert outliers.outliers(values, 0.02) == {"e": (pytest.approx(-13.49, abs=1e-3), pytest.approx(-0.2))}


def test_when_most_are_equal_the_mean_deviation_stands_in():
    # Median 10, mean absolute deviation 5/5 = 1: 5 / 1.2533.
    values = {"a": 10.0, "b": 10.0, "c": 10.0, "d": 10.0, "e": 15.0}
    assert outliers.robust_z(values)["e"] == pytest.approx(3.989, abs=1e-3)
    assert list(outliers.outliers(values, 0.02)) == ["e"]


# A busy machine is no failure.
SOME = settings(max_examples=60)


@SOME
@given(st.lists(st.floats(50, 150), min_size=4, max_size=20), st.floats(0.1, 100))
def test_the_unit_does_not_matter(values, unit):
    named = {str(place): value for place, value in enumerate(values)}
    scaled = outliers.robust_z({name: unit * value for name, value in named.items()})
    for name, score in outliers.robust_z(named).items():
        if abs(score) < 1e6:  # beyond, what is left of a spread is the rounding of the numbers
            assert scaled[name] == pytest.approx(score, rel=1e-3, abs=1e-3)
