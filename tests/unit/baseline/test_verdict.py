"""Verdicts on made starts, the story's numbers among them."""

from __future__ import annotations

import math
import random

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import verdict


def record(value, start="s0", identifier="20261129T000000Z-000000", **measurement):
    return {
        "id": identifier,
        "measurement": {
            "server": {"start_id": start, "name": "local"},
            "headline": {"value": value, "unit": "tok/s", "metric": "decode_tok_s"},
            "client": {"limited": False},
            "warmup": {"steady": True},
            **measurement,
        },
    }


def decide(value, baseline, tolerance=0.02, **measurement):
    new = record(value, "new", **measurement)["measurement"]
    return verdict.decide(new, [record(one, f"s{i}") for i, one in enumerate(baseline)], tolerance, ["x: 1 -> 2"])


def test_first_measurement_has_nothing_to_compare_with():
    found = decide(82.7, [])
    assert found.verdict == "first"
    assert found.baseline_value is None
    assert found.reasons == []


def test_one_old_number_cannot_decide():
    """The story: 88.8 was believed, 82.2 was measured."""
    found = decide(82.2, [88.8])
    assert found.verdict == "inconclusive"
    assert found.ratio == pytest.approx(82.2 / 88.8)
    assert "one start" in found.reasons[0]
    assert found.starts_needed == 3


def test_five_starts_with_one_percent_spread_decide():
    """facts/benchmarking: n=5, s=1 % -> +-3.0 %, so -7.3 % is a regression."""
    center = math.log(89)
    spread = [-1.26, -0.63, 0, 0.63, 1.26]  # sd 1.0 %
    found = decide(82.7, [math.exp(center + one / 100) for one in spread])
    assert found.verdict == "slower"
    half = math.log(found.ratio_high / found.ratio_low) / 2
    assert half == pytest.approx(0.0304, abs=0.0005)
    assert found.explanations == ["x: 1 -> 2"]


def test_five_starts_with_wide_spread_do_not():
    """n=5, s=2.5 % -> +-7.6 %: not decidable, and it says how many starts would do."""
    spread = [-3.16, -1.58, 0, 1.58, 3.16]  # sd 2.5 %
    found = decide(82.7, [89 * math.exp(one / 100) for one in spread])
    assert found.verdict == "inconclusive"
    assert 3 <= found.starts_needed <= 8
    assert f"about {found.starts_needed} starts" in found.reasons[0]


def test_faster_and_same():
    tight = [100, 100.1, 99.9, 100.05, 99.95]
    assert decide(110, tight).verdict == "faster"
    assert decide(100.2, tight).verdict == "same"


def test_two_starts_are_provisional():
    found = decide(50, [100, 100.01])
    assert found.verdict == "slower"
    assert "provisional" in found.reasons[0]


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [("client", {"limited": True}, "client"), ("warmup", {"steady": False}, "steady")],
)
def test_weak_measurements_decide_nothing(field, value, word):
    found = decide(50, [100, 100.1, 99.9], **{field: value})
    assert found.verdict == "inconclusive"
    assert word in found.reasons[0]


def test_the_same_start_again_decides_nothing():
    new = record(50, "s0")["measurement"]
    found = verdict.decide(new, [record(100, "s0"), record(100.1, "s1")], 0.02, [])
    assert found.verdict == "inconclusive"
    assert "very start" in found.reasons[0]


def test_repeated_measurements_of_one_start_count_once():
    starts = verdict.by_start([record(100, "a"), record(121, "a"), record(50, "b")])
    assert starts == {"a": pytest.approx(110), "b": pytest.approx(50)}


def test_false_alarms_stay_below_the_promised_rate():
    """Nothing changed, starts differ by 1.5 %: at most 5 % of verdicts may say faster or slower (tolerance 0)."""
    dice = random.Random(1)
    wrong = 0
    for _ in range(1000):
        values = [100 * math.exp(dice.gauss(0, 0.015)) for _ in range(6)]
        wrong += decide(values[0], values[1:], tolerance=1e-9).verdict in ("faster", "slower")
    assert 25 <= wrong <= 75
