"""Verdicts and intervals from comparisons with planted figures, and how often they hold."""

from __future__ import annotations

import json
import math

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import stats
from ansible_collections.groundstate.llm.plugins.plugin_utils import (
    comparison_verdict,
    comparisons,
    speculation_analysis,
    speculation_lines,
)

EAGLE = {"algorithm": "EAGLE3", "draft_model": "/d", "num_steps": 2, "topk": 1, "draft_tokens": 3}
BASE = {"rate": 1000 / 12.1}
DISPUTE = {"rate": 60.0, "length": 2.0, "speculation": EAGLE}


def of(document, records, arm="eagle3") -> dict:
    found = speculation_analysis.analyse(document, records)
    json.dumps(found, allow_nan=False)
    return next(one for one in found["configurations"] if one["arm"] == arm)


def test_the_dispute_measured_in_three_blocks(compared):
    document, records = compared({"base": BASE, "eagle3": DISPUTE}, engine="sglang", spread=0.002)
    found = speculation_analysis.analyse(document, records)
    assert found["base_step_s"] == pytest.approx(0.0121, rel=0.01)
    assert (found["blocks"], found["concurrency"]) == (3, 1)
    one = found["configurations"][0]
    assert (one["verdict"], one["drafts"]) == ("does not pay", 2)
    for name, expected in (("accept_length", 2.0), ("cycle_s", 0.0333), ("break_even", 2.755), ("speedup", 0.726)):
        told = one[name]
        assert told["low"] <= told["value"] <= told["high"]
        assert told["value"] == pytest.approx(expected, rel=0.01)
    assert one["needed_acceptance"] == pytest.approx(0.916, abs=0.01)
    low, high = one["needed_acceptance_interval"]
    assert low < one["needed_acceptance"] < high
    low, high = one["ceiling_interval"]
    assert low < one["ceiling"] < high
    assert one["ceiling"] == pytest.approx(1.09, abs=0.01)
    assert one["acceptance_per_position"] == pytest.approx([0.7, 0.5])
    low, high = one["acceptance_interval"]
    assert low <= one["acceptance"] <= high
    assert one["tokens_per_chunk"] == pytest.approx(1.5)
    text = "\n".join(speculation_lines.lines(found))
    assert "DOES NOT PAY: speed-up 0.7" in text
    assert "break-even needs 0.91" in text
    assert "it needs    a better draft" in text


def test_figures_hang_together_block_by_block(compared):
    """L* is T / t_b and the speed-up L / L*, of the averages as of each block: logs add up."""
    document, records = compared({"base": BASE, "eagle3": DISPUTE}, spread=0.05, blocks=5)
    found = speculation_analysis.analyse(document, records)
    one = found["configurations"][0]
    assert one["break_even"]["value"] == pytest.approx(one["cycle_s"]["value"] / found["base_step_s"], rel=1e-12)
    ratio = one["accept_length"]["value"] / one["break_even"]["value"]
    assert one["speedup"]["value"] == pytest.approx(ratio, rel=1e-12)
    pair = comparison_verdict.pair(document, "eagle3")
    assert one["speedup"]["low"] == pytest.approx(math.exp(pair.low), rel=1e-12)
    assert found["confidence"] == 1 - 0.05 / 4


def test_a_start_shows_the_accept_length_that_is_judged(window):
    """Over all cycles: the engine's own figure is per cycle that drafted. A base that counts no drafts has none."""
    metrics = {"accept_length": 4.5}
    some = window(1.27, cycles=145, drafts=11)
    assert comparisons.accept_length({"speculation": some, "server_metrics": metrics}) == 1.27
    assert comparisons.accept_length({"speculation": None, "server_metrics": metrics}) == 4.5
    assert comparisons.accept_length({"speculation": window(1.0, drafts=0), "server_metrics": None}) is None


def test_what_a_start_counts_has_an_interval_over_the_starts(compared):
    document, records = compared({"base": BASE, "eagle3": DISPUTE}, blocks=3, engine="sglang")
    lengths, shares, chunks = (1.9, 2.0, 2.1), ([0.6, 0.9], [0.7, 0.99], [0.8, 1.0]), (1.4, 1.5, 1.6)
    own = [records[one["record"]] for one in document["starts"] if one["arm"] == "eagle3"]
    for record, length, share, chunk in zip(own, lengths, shares, chunks, strict=True):
        level = record["measurement"]["levels"][0]
        level["speculation"].update(accept_length=length, acceptance_per_position=share)
        level["tokens_per_chunk"] = chunk
    found = speculation_analysis.analyse(document, records)
    [one] = found["configurations"]
    seen = stats.mean_interval([0.6, 0.7, 0.8], found["confidence"])
    [first, second] = one["acceptance_per_position_intervals"]
    assert (one["acceptance_per_position"][0], *first) == pytest.approx((0.7, max(0.0, seen.low), min(1.0, seen.high)))
    assert second[1] == 1.0, "no share is above 1"
    logs = stats.mean_interval([math.log(chunk) for chunk in chunks], found["confidence"])
    told = (one["tokens_per_chunk"], *one["tokens_per_chunk_interval"])
    assert told == pytest.approx([math.exp(value) for value in (logs.mean, logs.low, logs.high)])
    # The ends are those of the accept length: 1 + p + p^2 = L.
    ends = [one["accept_length"][name] for name in ("low", "high")]
    assert one["acceptance_interval"] == pytest.approx([(math.sqrt(4 * end - 3) - 1) / 2 for end in ends], abs=1e-9)
    text = "\n".join(speculation_lines.lines(found))
    for name, digits in (("acceptance", 3), ("ceiling", 2), ("tokens_per_chunk", 2)):
        low, high = one[f"{name}_interval"]
        assert f"({low:.{digits}f} to {high:.{digits}f})" in text
    assert f"0.70 ({first[0]:.2f} to {first[1]:.2f}), 0.96 ({second[0]:.2f} to 1.00)" in text


def test_an_interval_of_what_is_needed_may_end_out_of_reach(compared):
    arms = {"base": {"rate": 80.0}, "eagle3": {**DISPUTE, "rate": 54.5}}
    document, records = compared(arms, spread=0.02, engine="sglang")
    one = of(document, records)
    low, high = one["needed_acceptance_interval"]
    assert low < one["needed_acceptance"] < 1.0
    assert high is None
    text = "\n".join(speculation_lines.lines(speculation_analysis.analyse(document, records)))
    assert f"break-even needs {one['needed_acceptance']:.3f} ({low:.3f} to out of reach); ceiling" in text


def test_one_start_has_figures_without_intervals(compared):
    document, records = compared({"base": BASE, "eagle3": DISPUTE}, blocks=1)
    found = speculation_analysis.analyse(document, records)
    [one] = found["configurations"]
    for name in ("acceptance", "needed_acceptance", "ceiling", "tokens_per_chunk"):
        assert one[name] is not None
        assert one[f"{name}_interval"] == [None, None]
    assert one["acceptance_per_position_intervals"] == [[None, None], [None, None]]
    text = "\n".join(speculation_lines.lines(found))
    assert "(0." not in text
    assert "None" not in text


def test_a_drift_of_the_machine_leaves_break_even_alone(compared):
    document, records = compared({"base": BASE, "eagle3": DISPUTE}, drift=-0.01, blocks=10)
    one = of(document, records)
    assert one["break_even"]["value"] == pytest.approx(2.7548, rel=1e-3)


@pytest.mark.parametrize(
    ("rate", "spread", "verdict"),
    [
        (120.0, 0.002, "pays"),
        (60.0, 0.002, "does not pay"),
        (82.0, 0.002, "does not pay"),
        (84.0, 0.1, "inconclusive"),
    ],
)
def test_verdicts(compared, rate, spread, verdict):
    """As fast as without is not worth its memory: it does not pay."""
    document, records = compared(
        {"base": BASE, "eagle3": {**DISPUTE, "rate": rate, "length": 2.5}}, spread=spread, blocks=5
    )
    one = of(document, records)
    assert one["verdict"] == verdict
    assert bool(one["would_pay_if"]) == (one["speedup"]["value"] <= 1.0)


def test_a_gain_below_the_tolerance_does_not_pay_and_says_so(compared):
    arms = {"base": BASE, "eagle3": {**DISPUTE, "rate": 1.01 * BASE["rate"]}}
    document, records = compared(arms, spread=0.0005)
    one = of(document, records)
    assert (one["verdict"], one["would_pay_if"]) == ("does not pay", [])
    found = speculation_analysis.analyse(document, records)
    assert "it gains less than the tolerance of 2 %" in "\n".join(speculation_lines.lines(found))


def test_two_configurations_are_judged_each_against_the_base(compared):
    ngram = {"rate": 110.0, "length": 1.6, "speculation": {"algorithm": "NGRAM", "draft_tokens": 5}}
    document, records = compared({"base": BASE, "eagle3": DISPUTE, "ngram": ngram}, engine="sglang", spread=0.002)
    found = speculation_analysis.analyse(document, records)
    assert [(one["arm"], one["verdict"], one["drafts"]) for one in found["configurations"]] == [
        ("eagle3", "does not pay", 2),
        ("ngram", "pays", 4),
    ]


def test_without_an_accept_length_the_speed_up_is_judged_all_the_same(compared):
    document, records = compared({"base": BASE, "eagle3": {**DISPUTE, "length": None}}, spread=0.002)
    one = of(document, records)
    assert one["verdict"] == "does not pay"
    assert one["cycle_s"]["value"] is one["needed_acceptance"] is one["ceiling"] is None
    assert next(trap["name"] for trap in one["traps"]) == "unknown accept length"
    assert any(
        "DOES NOT PAY" in line for line in speculation_lines.lines(speculation_analysis.analyse(document, records))
    )


def test_one_block_has_figures_and_no_verdict(compared):
    document, records = compared({"base": BASE, "eagle3": DISPUTE}, blocks=1)
    one = of(document, records)
    assert (one["verdict"], one["speedup"]["low"]) == ("inconclusive", None)
    assert one["break_even"]["value"] == pytest.approx(2.755, abs=0.001)


def test_nothing_measured_yet(compared):
    document, records = compared({"base": BASE, "eagle3": DISPUTE}, blocks=0)
    found = speculation_analysis.analyse(document, records)
    assert found["base_step_s"] is None
    assert found["configurations"][0]["verdict"] == "inconclusive"
    assert speculation_lines.lines(found)


def test_a_weak_start_takes_its_block_out(compared):
    document, records = compared({"base": BASE, "eagle3": DISPUTE}, blocks=4)
    document["starts"][0]["weak"] = ["not steady"]
    assert speculation_analysis.analyse(document, records)["blocks"] == 3


def test_the_engines_own_choice_of_steps_is_taken_where_none_was_declared(compared):
    bare = {**DISPUTE, "speculation": {"algorithm": "EAGLE3", "draft_model": "/d"}}
    document, records = compared({"base": BASE, "eagle3": bare}, engine="sglang")
    document["arms"][1]["resolved"] = {"engine_arguments": {"speculative_num_steps": "3", "other": "None"}}
    assert of(document, records)["drafts"] == 3
    document["arms"][1]["resolved"] = {"engine_arguments": {"speculative_num_steps": "None"}}
    assert of(document, records)["drafts"] == 2  # as many positions as were counted


def test_intervals_hold_as_often_as_they_promise(compared):
    """Sixty comparisons of five blocks, starts that differ by 2 %: 98.75 % intervals miss the truth once or so."""
    truth = {"cycle_s": 2.0 / 60.0, "break_even": 2.0 / 60.0 / 0.0121, "speedup": 60.0 * 0.0121}
    missed = dict.fromkeys(truth, 0)
    wrong = 0
    for seed in range(60):
        document, records = compared({"base": BASE, "eagle3": DISPUTE}, blocks=5, spread=0.02, seed=seed)
        one = of(document, records)
        wrong += one["verdict"] != "does not pay"
        for name, value in truth.items():
            missed[name] += not one[name]["low"] <= value <= one[name]["high"]
    assert wrong == 0
    # Of 60 at 1.25 %, more than 4 would come by chance less than once in 1000 times.
    assert max(missed.values()) <= 4, missed


def test_equal_arms_are_not_said_to_pay(compared):
    paying = 0
    for seed in range(60):
        same = {"rate": BASE["rate"], "length": 2.0, "speculation": EAGLE}
        document, records = compared({"base": BASE, "eagle3": same}, blocks=3, spread=0.02, seed=seed)
        paying += of(document, records)["verdict"] == "pays"
    assert paying <= 2


def test_the_interval_is_that_of_students_t(compared):
    document, records = compared({"base": BASE, "eagle3": DISPUTE}, blocks=3, spread=0.02)
    rates = [math.log(one["repeats"][0]) for one in document["starts"] if one["arm"] == "eagle3"]
    expected = stats.mean_interval([math.log(2.0) - one for one in rates], 1 - 0.05 / 4)
    assert of(document, records)["cycle_s"]["low"] == pytest.approx(math.exp(expected.low), rel=1e-9)


@pytest.mark.parametrize(("rate", "verdict"), [(97.5, "does not pay"), (115.0, "pays"), (102.0, "inconclusive")])
def test_the_starts_end_when_the_question_is_answered(compared, rate, verdict):
    """Slower or as fast: that may be open, and it does not pay either way."""
    arms = {"base": {"rate": 100.0}, "eagle3": {**DISPUTE, "rate": rate}}
    document, records = compared(arms, spread=0.004, seed=3)
    assert of(document, records)["verdict"] == verdict
    assert comparison_verdict.look(document) is (verdict != "inconclusive")
    assert document["state"] == ("running" if verdict == "inconclusive" else "decided")
    [pair] = document["result"]["pairs"]
    if rate == 97.5:
        assert pair["verdict"] == "inconclusive"
        assert pair["reasons"] == [
            "that it does not pay is decided: it is surely not faster by more than the tolerance"
        ]
        assert comparison_verdict.look({**document, "kind": "compare", "state": "running"}) is False
