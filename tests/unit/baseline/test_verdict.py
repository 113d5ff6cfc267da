"""Verdicts on made starts, the story's numbers among them."""

from __future__ import annotations

import math
import random

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import starts, verdict


def record(value, start="s0", identifier="20261129T000000Z-000000", told=None, repeats=(), **measurement):
    """A record; ``repeats``: rates within its start, instead of one ``value``."""
    level = {"concurrency": 1, "repeats": [{"decode_tok_s": one} for one in repeats]}
    return {
        "id": identifier,
        "host": "h",
        "fingerprints": {"before": {"state_hash": "state"}},
        "verdict": told or {},
        "measurement": {
            "server": {"start_id": start, "name": "local"},
            "headline": {"value": value, "unit": "tok/s", "metric": "decode_tok_s", "concurrency": 1},
            "client": {"limited": False},
            "warmup": {"steady": True},
            "levels": [level],
            **measurement,
        },
    }


def decide(value, baseline, tolerance=0.02, **measurement):
    old = [record(one, f"s{i}") for i, one in enumerate(baseline)]
    return verdict.decide(record(value, "new", **measurement), old, tolerance, ["x: 1 -> 2"])


def start(value, name, spread=0.003):
    """A start of five repeats that differ by a standard deviation of ``spread``."""
    steps = (-1.2649, -0.6325, 0, 0.6325, 1.2649)
    return record(value, name, repeats=[value * math.exp(spread * one) for one in steps])


# --- the story: 88.8 was believed, then 82.2, 82.7 and 82.3 were measured -----------------------------


def test_the_story_with_one_old_start_is_inconclusive_and_says_why():
    found = verdict.decide(start(82.2, "a"), [start(88.8, "old")], 0.02, [])
    assert found.verdict == "inconclusive"
    assert "how much starts differ is unknown" in found.reasons[0]
    assert "needs 2 more starts in the baseline" in found.reasons[0]
    assert found.ratio == pytest.approx(82.2 / 88.8)
    # An interval and an MDE there are, of the repeats alone: lower bounds, and said to be.
    assert found.basis == "repeats"
    assert found.ratio_low < found.ratio < found.ratio_high < 0.95
    assert 0.003 < found.mde < 0.01


def test_the_three_later_starts_as_baseline_judge_the_old_one():
    """Three starts know their own spread: 88.8 is none of them."""
    baseline = [start(82.2, "a"), start(82.7, "b"), start(82.3, "c")]
    found = verdict.decide(start(88.8, "old"), baseline, 0.02, [])
    assert found.verdict == "faster"
    assert found.ratio_low > 1.05


def test_the_story_with_five_old_starts_is_decided():
    old = [start(89 * math.exp(0.01 * step), f"old{step}") for step in (-1.26, -0.63, 0, 0.63, 1.26)]
    for index, value in enumerate((82.2, 82.7, 82.3)):
        found = verdict.decide(start(value, f"new{index}"), old, 0.02, [])
        assert found.verdict == "slower"
        assert found.basis == "starts"
        assert (found.baseline_starts, found.new_starts) == (5, 1)
        assert 0.03 < found.mde < 0.05


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
    assert found.starts_needed == 2
    assert (found.basis, found.ratio_low, found.mde) == ("none", None, None)


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
    old = [89 * math.exp(one / 100) for one in spread]
    found = decide(82.7, old)
    assert found.verdict == "inconclusive"
    assert f"needs {found.starts_needed} more starts" in found.reasons[0]
    # That many, judged together as planned, do decide if the difference stays.
    looks = [found.starts_needed]
    told = {"verdict": "inconclusive", "new_starts": 1, "looks": looks}
    earlier = [record(82.7, f"n{number}", told=told) for number in range(found.starts_needed - 1)]
    baseline = [record(one, f"s{i}") for i, one in enumerate(old)]
    assert verdict.decide(record(82.7, "new"), baseline, 0.02, [], earlier=earlier, looks=looks).verdict == "slower"


def test_faster_and_same():
    tight = [100, 100.1, 99.9, 100.05, 99.95]
    assert decide(110, tight).verdict == "faster"
    assert decide(100.2, tight).verdict == "same"


def test_two_starts_are_provisional():
    found = decide(50, [100, 100.01])
    assert found.verdict == "slower"
    assert "provisional" in found.reasons[0]


HOT = {"n": 9, "host": {}, "gpus": [{"index": 0, "n": 9, "reasons": {"hw_thermal_slowdown": 0.4, "gpu_idle": 0.1}}]}


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("client", {"limited": True}, "client"),
        ("warmup", {"steady": False}, "steady"),
        ("levels", [{"concurrency": 1, "machine": HOT}], "protect themselves 40 % of the time (hw thermal slowdown)"),
    ],
)
def test_weak_measurements_are_incomparable(field, value, word):
    found = decide(50, [100, 100.1, 99.9], **{field: value})
    assert found.verdict == "incomparable"
    assert word in found.reasons[0]
    assert found.mde > 0


def test_the_power_cap_is_no_reason_to_refuse():
    machine = {"n": 9, "host": {}, "gpus": [{"index": 0, "reasons": {"sw_power_cap": 0.9}}]}
    levels = [{"concurrency": 1, "machine": machine}]
    assert decide(50, [100, 100.1, 99.9], levels=levels).verdict == "slower"


def test_the_same_start_again_decides_nothing():
    found = verdict.decide(record(50, "s0"), [record(100, "s0"), record(100.1, "s1")], 0.02, [])
    assert found.verdict == "inconclusive"
    assert "very start" in found.reasons[0]


# --- planned looks -----------------------------------------------------------------------------------

BASELINE = [record(value, f"s{value}") for value in (99.0, 100.0, 101.0, 100.5, 99.5)]


def run_plan(values, looks):
    """Verdicts of starts that come one after the other."""
    earlier, told = [], []
    for number, value in enumerate(values):
        new = record(value, f"new{number}")
        found = verdict.decide(new, BASELINE, 0.02, [], earlier=earlier, looks=looks)
        new["verdict"] = found.as_dict()
        earlier.append(new)
        told.append(found)
    return told


def test_between_planned_looks_nothing_is_judged_or_shown():
    told = run_plan([90, 90.2, 89.8, 90], [3, 5])
    assert [one.verdict for one in told] == ["inconclusive", "inconclusive", "slower", "inconclusive"]
    assert told[0].reasons == ["1 start so far, the next planned look is at 3: needs 2 more"]
    assert (told[1].ratio_low, told[1].confidence) == (None, None)
    assert told[2].new_starts == 3
    assert told[3].new_starts == 1, "a conclusive verdict ends a plan; the next start begins another"


def test_each_of_several_looks_is_stricter():
    [_one, _two, one_look] = run_plan([90, 90.2, 89.8], [3])
    [_one, _two, two_looks] = run_plan([90, 90.2, 89.8], [3, 5])
    assert one_look.confidence == pytest.approx(0.95)
    assert two_looks.confidence == pytest.approx(0.975)
    assert two_looks.ratio_high > one_look.ratio_high


def test_the_last_look_ends_the_plan():
    told = run_plan([97, 99, 98, 97], [3])
    assert told[2].verdict == "inconclusive"
    assert told[3].new_starts == 1


def test_a_plan_made_afterwards_collects_starts_of_its_own():
    alone = run_plan([98], [1])[0]
    assert alone.verdict == "inconclusive"
    earlier = [record(98, "new0", told=alone.as_dict())]
    again = verdict.decide(record(98, "new1"), BASELINE, 0.02, [], earlier=earlier, looks=[2])
    assert again.new_starts == 1


# --- other metrics, drift ----------------------------------------------------------------------------


def measured(start, decode, ttft):
    made = record(decode, start)
    rows = [{"decode_tok_s": decode, "ttft_s": ttft}] * 3
    made["measurement"]["levels"] = [{"concurrency": 1, "repeats": rows}]
    return made


def test_other_metrics_are_looked_at_together():
    old = [measured(f"s{i}", 100 + i / 10, 0.2 + i / 2000) for i in range(5)]
    found = verdict.decide(measured("new", 100.2, 0.3), old, 0.02, [])
    assert found.verdict == "same"
    [row] = found.metrics
    assert (row["metric"], row["concurrency"], row["changed"]) == ("ttft_s", 1, True)
    assert row["ratio"] == pytest.approx(0.3 / 0.201, rel=0.01)
    assert row["p_holm"] >= row["p"]


def row(value, start, state="x", told="same"):
    return {"id": f"r{start}", "start_id": start, "state_hash": state, "decode_tok_s": value, "verdict": told}


CALM = (100, 100.4, 99.7, 100.2, 99.9, 100.1, 99.6, 100.3)


def test_a_drift_within_one_state_is_found():
    rows = [row(value, f"a{i}") for i, value in enumerate(CALM)]
    assert verdict.drift(rows) is None
    rows += [row(value, f"b{i}") for i, value in enumerate((98.8, 98.5, 98.9, 98.6))]
    found = verdict.drift(rows)
    assert found["since"] == "rb0"
    assert found["change"] == pytest.approx(-0.0135, abs=0.002)


def test_a_change_of_state_begins_anew():
    rows = [row(value, f"a{i}") for i, value in enumerate(CALM)]
    rows += [row(0.98 * value, f"b{i}", state="y") for i, value in enumerate(CALM)]
    assert verdict.drift(rows) is None


def test_what_could_not_be_compared_is_no_point_of_the_series():
    rows = [row(value, f"a{i}") for i, value in enumerate(CALM)]
    rows += [row(50, f"bad{i}", told="incomparable") for i in range(4)]
    assert verdict.drift(rows) is None


def test_repeated_measurements_of_one_start_count_once():
    found = starts.headlines([record(100, "a"), record(121, "a"), record(50, "b")])
    means = {name: math.exp(sum(logs) / len(logs)) for name, logs in found.items()}
    assert means == {"h/a": pytest.approx(110), "h/b": pytest.approx(50)}


def test_false_alarms_stay_below_the_promised_rate():
    """Nothing changed, starts differ by 1.5 %: at most 5 % of verdicts may say faster or slower (tolerance 0)."""
    dice = random.Random(1)
    wrong = 0
    for _ in range(1000):
        values = [100 * math.exp(dice.gauss(0, 0.015)) for _ in range(6)]
        wrong += decide(values[0], values[1:], tolerance=1e-9).verdict in ("faster", "slower")
    assert 25 <= wrong <= 75


@pytest.mark.parametrize("looks", [[], [0], [3, 1], [2, 2], [-1, 3]])
def test_a_plan_that_is_none_is_refused(looks):
    with pytest.raises(ValueError, match="no plan"):
        verdict.check_looks(looks)


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, 2, float("nan")])
def test_a_tolerance_that_is_no_share_is_refused(tolerance):
    with pytest.raises(ValueError, match="no share"):
        verdict.check_tolerance(tolerance)


@pytest.mark.parametrize("given", ["2%", "2 %", "", True, None, [0.02]])
def test_a_tolerance_that_is_no_number_is_told_as_it_was_given(given):
    with pytest.raises(ValueError, match=r"give the share of a rate as one, 0\.02 for 2 %") as told:
        verdict.read_tolerance(given)
    assert str(told.value).startswith(f"{given} is no number")


def test_a_tolerance_is_read_as_a_number():
    assert verdict.read_tolerance("0.05") == 0.05
    assert verdict.read_tolerance(0) == 0.0
    for given in ("2", "nan", "1e999"):
        with pytest.raises(ValueError, match="no share"):
            verdict.read_tolerance(given)


def test_what_may_be_asked_for_is_accepted():
    assert verdict.check_looks([1]) is None
    assert verdict.check_looks([3, 5, 8]) is None
    assert verdict.check_tolerance(0.0) is None
