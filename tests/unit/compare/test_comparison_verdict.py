"""Verdicts of comparisons whose truth is known: planted effects, drifts, equal arms. The dice always fall the same."""

from __future__ import annotations

import math
import random
import re

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import (
    comparison_lines,
    comparison_verdict,
    comparisons,
    shares,
    verdict,
)

BETWEEN, WITHIN, REPEATS = 0.015, 0.003, 5


def made(arms=("A", "B"), looks=comparisons.LOOKS, tolerance=0.02, kind="compare"):
    told = [{"name": name, "declared": {}} for name in arms]
    return comparisons.new("h", kind, "t", told, {}, tolerance, looks)


def run(dice, effects, drift=0.0, looks=comparisons.LOOKS, tolerance=0.02, between=BETWEEN, kind="compare"):
    """A whole comparison, until it is over. ``effects``: arm -> share; ``drift``: share from start to start."""
    document = made(tuple(effects), looks, tolerance, kind)
    for start in comparisons.planned(document):
        level = math.log(100.0) + math.log1p(effects[start["arm"]]) + drift * start["number"] + dice.gauss(0, between)
        repeats = [math.exp(level + dice.gauss(0, WITHIN)) for _ in range(REPEATS)]
        comparisons.add(document, {**start, **plain(repeats)})
        if comparison_verdict.look(document):
            break
    return document


def plain(repeats, **more):
    return {
        "value": sum(repeats) / len(repeats),
        "repeats": repeats,
        "seconds": 60.0,
        "record": "r",
        "ready_s": 2.0,
        "accept_length": None,
        "weak": [],
        "notes": [],
        **more,
    }


def verdicts(document):
    return [one["verdict"] for one in document["result"]["pairs"]]


@pytest.mark.parametrize("drift", [0.0, -0.005, 0.01])
def test_equal_arms_are_called_changed_in_at_most_5_of_100(drift):
    """Whatever the machine does meanwhile; and with a tolerance of nothing, where every false alarm shows."""
    dice = random.Random(7)
    trials = 300
    runs = [verdicts(run(dice, {"A": 0, "B": 0}, drift, tolerance=1e-9)) for _ in range(trials)]
    alarms = sum(one != ["inconclusive"] for one in runs)
    # 5 % and 1.5 standard errors of it; the dice are fixed, so that this holds always or never.
    assert alarms / trials <= 0.05 + 1.5 * math.sqrt(0.05 * 0.95 / trials)


def test_three_equal_arms_are_no_three_chances():
    dice = random.Random(8)
    trials = 200
    runs = [verdicts(run(dice, {"A": 0, "B": 0, "C": 0}, tolerance=1e-9)) for _ in range(trials)]
    alarms = sum(bool({"faster", "slower"} & set(one)) for one in runs)
    assert alarms / trials <= 0.05 + 1.5 * math.sqrt(0.05 * 0.95 / trials)


def test_speculation_at_the_edge_is_called_paying_in_at_most_5_of_100():
    """It is exactly as fast as the tolerance wants, the worst case, and its starts end once it does not pay."""
    dice = random.Random(10)
    trials = 200
    runs = [run(dice, {"A": 0, "B": 0.02}, kind="speculation") for _ in range(trials)]
    wrong = sum(one["result"]["pairs"][0]["ratio_low"] > 1.02 for one in runs)
    assert wrong / trials <= 0.05
    assert {one["state"] for one in runs} == {"decided", "exhausted"}


@pytest.mark.parametrize(("effect", "wanted"), [(-0.10, "slower"), (0.10, "faster"), (-0.3, "slower")])
@pytest.mark.parametrize("drift", [0.0, -0.01])
def test_planted_effects_are_found_though_the_machine_drifts(effect, wanted, drift):
    dice = random.Random(9)
    found = [verdicts(run(dice, {"A": 0, "B": effect}, drift)) for _ in range(60)]
    assert found.count([wanted]) >= 55
    wrong = "faster" if wanted == "slower" else "slower"
    assert [wrong] not in found


def test_a_clear_effect_ends_at_the_first_look_and_an_unclear_one_at_the_last():
    clear = run(random.Random(1), {"A": 0, "B": -0.3}, between=0.002)
    assert (clear["state"], len(clear["starts"])) == ("decided", 6)
    unclear = run(random.Random(1), {"A": 0, "B": -0.02}, between=0.03)
    assert (unclear["state"], len(unclear["starts"])) == ("exhausted", 20)
    assert verdicts(unclear) == ["inconclusive"]
    assert "blocks would decide" in unclear["result"]["pairs"][0]["reasons"][-1] or "more than 40 blocks" in str(
        unclear["result"]["pairs"][0]["reasons"]
    )


def test_alike_arms_on_a_calm_machine_are_the_same():
    same = run(random.Random(2), {"A": 0, "B": 0.001}, between=0.001)
    assert verdicts(same) == ["same"]
    assert same["state"] == "decided"


def test_several_arms_go_on_until_all_are_decided():
    dice = random.Random(3)
    found = run(dice, {"A": 0, "B": -0.3, "C": 0.0}, between=0.008)
    assert verdicts(found)[0] == "slower"
    assert found["result"]["blocks"] > 3 or verdicts(found)[1] != "inconclusive"
    assert [one["confidence"] for one in found["result"]["pairs"]] == pytest.approx([1 - 0.05 / 4 / 2] * 2)


def test_by_hand():
    """B is 0.9, 0.8 and 0.85 of A: mean and deviation of the logs, t(.99375, 2) = 8.8602."""
    document = made()
    shares = iter([0.9, 0.8, 0.85])
    for block in document["blocks"][:3]:
        share = next(shares)
        for arm in block:
            start = comparisons.remaining(document)[0]
            comparisons.add(document, {**start, **plain([100.0 if arm == "A" else 100.0 * share])})
    assert comparison_verdict.look(document) is False
    [pair] = document["result"]["pairs"]
    logs = [math.log(one) for one in (0.9, 0.8, 0.85)]
    mean = sum(logs) / 3
    sd = math.sqrt(sum((one - mean) ** 2 for one in logs) / 2)
    assert pair["ratio"] == pytest.approx(math.exp(mean))
    assert math.log(pair["ratio_low"]) == pytest.approx(mean - 8.8602 * sd / math.sqrt(3), rel=1e-4)
    assert math.log(pair["ratio_high"]) == pytest.approx(mean + 8.8602 * sd / math.sqrt(3), rel=1e-4)
    assert (pair["verdict"], pair["blocks"], pair["confidence"]) == ("inconclusive", 3, 0.9875)
    assert document["state"] == "running"


def test_between_the_looks_nothing_is_judged():
    document = made()
    for start in comparisons.planned(document)[:5]:
        comparisons.add(document, {**start, **plain([100.0 if start["arm"] == "A" else 50.0])})
        assert comparison_verdict.look(document) is False
        assert document["result"] is None


def test_a_block_with_a_start_that_says_nothing_is_left_out_and_told():
    document = made(looks=(3,))
    for start in comparisons.planned(document):
        weak = ["the client, not the server, was the limit"] if start["number"] == 2 else []
        rate = 500.0 if weak else 100.0 + start["number"] / 100
        comparisons.add(document, {**start, **plain([rate], weak=weak)})
    comparison_verdict.look(document)
    [pair] = document["result"]["pairs"]
    assert pair["blocks"] == 2
    assert pair["ratio"] == pytest.approx(1.0, abs=0.01)
    assert pair["reasons"][0].startswith("block 1 is left out, start 2 of B: the client")
    assert document["state"] == "exhausted" or pair["verdict"] in verdict.CONCLUSIVE


def test_an_arm_whose_starts_never_count_ends_at_the_first_look_and_says_why_once():
    document = made()
    for start in comparisons.planned(document):
        weak = ["the client, not the server, was the limit"] if start["arm"] == "B" else []
        comparisons.add(document, {**start, **plain([100.0], weak=weak)})
        if comparison_verdict.look(document):
            break
    assert (document["state"], len(document["starts"])) == ("exhausted", 6)
    [pair] = document["result"]["pairs"]
    assert pair["verdict"] == "inconclusive"
    assert pair["reasons"][0] == (
        "blocks 1, 2, 3 are left out, starts 2, 3, 6 of B: the client, not the server, was the limit"
    )
    assert "the starts end here: none of 3 blocks can be used" in pair["reasons"][-1]
    assert len(pair["reasons"]) == 3


def test_drift_is_told_with_its_size():
    document = run(random.Random(4), {"A": 0, "B": -0.3}, drift=-0.02, between=0.002)
    drift = document["result"]["drift"]
    assert drift["low"] < drift["per_block"] < drift["high"] < 0
    assert drift["per_block"] == pytest.approx(math.expm1(-0.04), abs=0.005)
    assert "fell by" in drift["note"]
    calm = run(random.Random(5), {"A": 0, "B": -0.3}, between=0.002)["result"]["drift"]
    assert calm["note"] == "no drift is seen"
    assert calm["low"] < 0 < calm["high"]


# --- lines ------------------------------------------------------------------------------------------


def test_lines_of_a_run():
    document = run(random.Random(1), {"base": 0, "eagle": -0.3}, between=0.002)
    for one in document["starts"]:
        one["accept_length"] = 1.6 if one["arm"] == "eagle" else None
        one["notes"] = ["not steady after the warm-up"] if one["number"] in (2, 5) else []
    lines = comparison_lines.result(document, "/r/comparison.json")
    text = "\n".join(lines)
    assert "(the reference)" in lines[0]
    assert "accept length 1.60" in lines[1]
    assert "eagle against base: SLOWER -3" in text
    assert "at 98.8 % confidence" in text
    assert "6 in 6 min, decided" in text
    assert "not steady after the warm-up: 1 start of base, 1 start of eagle" in text
    ended = comparison_lines.ended(document, document["starts"][-1])
    assert ended.startswith("start 6: eagle ")
    assert "eagle so far -" in ended


def two_blocks(low=30.0):
    """The second start of A much faster than its first, B not: two blocks of which nothing follows."""
    document = made(looks=(2,))
    for start, rate in zip(comparisons.planned(document), (100.0, low, low / 3, 150.0), strict=True):
        comparisons.add(document, {**start, **plain([rate])})
    assert comparison_verdict.look(document)
    return document


def test_a_result_of_two_blocks_has_its_interval_and_what_goes_on_has_none():
    document = two_blocks()
    verdict_line = next(one for one in comparison_lines.result(document, "/r") if one.startswith("verdict"))
    assert re.search(r"INCONCLUSIVE -\d\d\.\d % \(below -99 % to above \+1000 %\) over 2 blocks at 95", verdict_line)
    assert re.search(r"B so far -\d\d\.\d % over 2 blocks$", comparison_lines.ended(document, document["starts"][-1]))


def test_what_is_beyond_any_use_is_told_as_beyond():
    text = "\n".join(comparison_lines.result(two_blocks(), "/r"))
    assert "MDE       above 1000 %: smaller true differences" in text
    assert re.search(r"drift     \+?-?\d+\.\d % a block \(below -99 to above \+1000\), p", text)


@pytest.mark.parametrize(
    ("share", "digits", "signed", "text"),
    [
        (0.02, 1, False, "2.0"),
        (-0.0104, 2, True, "-1.04"),
        (9.99, 1, True, "+999.0"),
        (2280.489, 1, False, "above 1000"),
        (5402.366, 1, True, "above +1000"),
        (-0.99999, 1, True, "below -99"),
    ],
)
def test_shares_in_percent(share, digits, signed, text):
    assert shares.percent(share, digits, signed) == text


def test_time_left_comes_from_the_starts_that_are_done():
    document = made()
    first = comparisons.planned(document)[0]
    assert "time left is known after the first start" in comparison_lines.begins(document, first)
    comparisons.add(document, {**first, **plain([100.0])})
    line = comparison_lines.begins(document, comparisons.planned(document)[1])
    assert line.startswith("start 2 of at most 20 (block 1, arm B): 60 s so far, about 5 min to the look at 3 blocks")
    assert "19 min at most" in line


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (7260, "2 h 1 min")]
)
def test_durations(seconds, text):
    assert comparison_lines.duration(seconds) == text


def test_a_comparison_that_has_not_begun_has_lines_too():
    document = made()
    text = "\n".join(comparison_lines.result(document, "/r"))
    assert "A: not started yet" in text
    assert "INCONCLUSIVE" in text
