"""The t quantile against printed tables; intervals, prediction and detectable effect against known results."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import stats
from hypothesis import given
from hypothesis import strategies as st

# Printed tables of Student's t (two-sided 95 %, one-sided 80 %, two-sided 99 %).
T_975 = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 9: 2.2622, 10: 2.2281, 30: 2.0423, 120: 1.9799}
T_80 = {1: 1.3764, 2: 1.0607, 4: 0.9410, 8: 0.8889, 14: 0.8681}
T_995 = {1: 63.6567, 2: 9.9248, 5: 4.0321, 30: 2.7500}


@pytest.mark.parametrize(
    ("p", "df", "expected"),
    [(0.975, df, t) for df, t in T_975.items()]
    + [(0.8, df, t) for df, t in T_80.items()]
    + [(0.995, df, t) for df, t in T_995.items()],
)
def test_t_quantile_equals_the_printed_tables(p, df, expected):
    assert stats.t_quantile(p, df) == pytest.approx(expected, abs=6e-5)


def test_one_and_two_degrees_of_freedom_have_closed_forms():
    for p in (0.001, 0.2, 0.6, 0.9, 0.9999):
        assert stats.t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9)
        closed = (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
        assert stats.t_quantile(p, 2) == pytest.approx(closed, rel=1e-9)


def test_many_degrees_of_freedom_approach_the_normal_distribution():
    assert stats.t_quantile(0.975, 1e7) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-6)


@given(st.floats(0.0005, 0.9995), st.floats(0.5, 500))
def test_quantile_is_the_inverse_of_the_distribution(p, df):
    assert stats.t_cdf(stats.t_quantile(p, df), df) == pytest.approx(p, abs=1e-9)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (-1, 3), (0.5, 0), (0.9, -2)])
def test_impossible_arguments_are_refused(p, df):
    with pytest.raises(ValueError, match="must"):
        stats.t_quantile(p, df)


def test_mean_interval_by_hand():
    # mean 10, sd 1, n 4: half width = 3.1824 * 1 / 2
    found = stats.mean_interval([9.0, 9.0 + 2 / 3, 10.0, 11.0 + 1 / 3])
    assert found.mean == pytest.approx(10.0)
    assert found.sd == pytest.approx(statistics.stdev([9.0, 9.0 + 2 / 3, 10.0, 11.0 + 1 / 3]))
    assert found.half_width == pytest.approx(3.18245 * found.sd / 2, rel=1e-5)
    assert found.n == 4


def test_too_few_values_give_no_bounds_instead_of_wrong_ones():
    assert stats.mean_interval([]) == stats.Interval(None, None, None, 0, None)
    assert stats.mean_interval([5.0]) == stats.Interval(5.0, None, None, 1, None)
    assert stats.prediction_interval([5.0]).low is None
    assert stats.mde(0.01, 1) is None


def test_the_interval_covers_the_truth_as_often_as_it_says():
    source = random.Random(7)
    hits = 0
    for _ in range(2000):
        found = stats.mean_interval([source.gauss(3.0, 0.5) for _ in range(5)])
        hits += found.low <= 3.0 <= found.high
    assert 0.935 <= hits / 2000 <= 0.965


def test_the_prediction_interval_covers_one_new_value():
    source = random.Random(11)
    hits = 0
    for _ in range(2000):
        found = stats.prediction_interval([source.gauss(0.0, 1.0) for _ in range(5)])
        hits += found.low <= source.gauss(0.0, 1.0) <= found.high
    assert 0.935 <= hits / 2000 <= 0.965


def test_five_starts_at_one_percent_allow_three_percent():
    # A new start against five with s = 1 %: ±3.0 %; with s = 2.5 %: ±7.6 %.
    for sd, limit in ((0.01, 0.030), (0.025, 0.076)):
        unit = [-1.0, -0.5, 0.0, 0.5, 1.0]
        values = [value * sd / statistics.stdev(unit) for value in unit]
        assert stats.prediction_interval(values).half_width == pytest.approx(limit, abs=0.0005)


@pytest.mark.parametrize(("n", "expected"), [(2, 5.4), (3, 3.0), (5, 2.0), (8, 1.5)])
def test_minimal_detectable_effect_for_a_spread_of_one_percent(n, expected):
    assert stats.mde(1.0, n) == pytest.approx(expected, abs=0.06)


def test_percentiles_interpolate_between_neighbours():
    assert stats.percentile([4, 1, 3, 2], 50) == 2.5
    assert stats.percentile([4, 1, 3, 2], 0) == 1
    assert stats.percentile([4, 1, 3, 2], 100) == 4
    assert stats.percentile([10], 99) == 10
    assert stats.percentile([], 50) is None
    with pytest.raises(ValueError, match="percentile"):
        stats.percentile([1], 101)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_lies_within_the_values(values, q):
    slack = 1e-9 * max(1.0, max(abs(value) for value in values))
    assert min(values) - slack <= stats.percentile(values, q) <= max(values) + slack


def test_log_rates_turn_ratios_into_differences():
    assert stats.relative_change(89, 82.7) == pytest.approx(-0.0734, abs=5e-5)
    assert stats.as_fraction(stats.relative_change(89, 82.7)) == pytest.approx(82.7 / 89 - 1)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="above 0"):
            stats.log_rates([bad])
