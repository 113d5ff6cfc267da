"""The formulas of speculative decoding: tables worked out by hand, the numbers of a real dispute, and any numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.groundstate.llm.plugins.filter.break_even import FilterModule
from ansible_collections.groundstate.llm.plugins.module_utils import speculation
from hypothesis import given
from hypothesis import strategies as st

from groundstate import cli

STORY = ("calc", "break-even", "--base-step-ms", "12.1", "--rate", "60", "--accept-length", "2.0", "--drafts", "2")


@pytest.mark.parametrize(
    ("acceptance", "drafts", "length"),
    [
        (0.0, 4, 1.0),
        (1.0, 4, 5.0),
        (0.5, 1, 1.5),
        (0.5, 3, 1.875),  # 1 + 1/2 + 1/4 + 1/8
        (0.78, 2, 2.3884),  # 1 + 0.78 + 0.6084
        (0.78, 3, 2.862952),
        (0.9, 5, 4.68559),  # (1 - 0.9^6) / 0.1
    ],
)
def test_accept_length_of_a_chain_and_back(acceptance, drafts, length):
    assert speculation.accept_length(acceptance, drafts) == pytest.approx(length, rel=1e-12)
    assert speculation.needed_acceptance(length, drafts) == pytest.approx(acceptance, abs=1e-9)


@pytest.mark.parametrize("length", [1.1, 1.5, 2.0, 2.46, 2.53, 2.75, 3.0])
def test_two_drafts_have_a_closed_form(length):
    """1 + p + p^2 = L has the solution (sqrt(4 L - 3) - 1) / 2."""
    expected = (math.sqrt(4 * length - 3) - 1) / 2
    assert speculation.needed_acceptance(length, 2) == pytest.approx(expected, abs=1e-9)


def test_what_no_acceptance_reaches_and_what_needs_none():
    assert speculation.needed_acceptance(3.01, 2) is None
    assert speculation.needed_acceptance(0.9, 2) == 0.0


@pytest.mark.parametrize(
    ("base_step_ms", "rate", "length", "drafts", "cycle_ms", "break_even", "speedup", "ceiling"),
    [
        (10.0, 100.0, 2.0, 3, 20.0, 2.0, 1.0, 2.0),
        (10.0, 150.0, 3.0, 3, 20.0, 2.0, 1.5, 2.0),
        (10.0, 50.0, 2.0, 3, 40.0, 4.0, 0.5, 1.0),
        (11.26, 88.8, 2.4, 2, 27.027, 2.4003, 0.99989, 1.24985),
        (2.4, 200.0, 1.0, 2, 5.0, 2.0833, 0.48, 1.44),  # two GPUs with a draft of random weights
    ],
)
def test_hand_computed(base_step_ms, rate, length, drafts, cycle_ms, break_even, speedup, ceiling):
    found = speculation.calculate(base_step_ms, rate, length, drafts)
    assert found["cycle_ms"] == pytest.approx(cycle_ms, rel=1e-4)
    assert found["break_even"] == pytest.approx(break_even, rel=1e-4)
    assert found["speedup"] == pytest.approx(speedup, rel=1e-4)
    assert found["ceiling"] == pytest.approx(ceiling, rel=1e-4)


def test_the_dispute_of_2_46():
    """12.1 ms a step, 60 tok/s at accept length 2.0, "verify takes 29 to 30 ms, so 2.46 is enough": it is not."""
    found = speculation.calculate(12.1, 60.0, 2.0, 2, verify_ms=29.0)
    assert found["cycle_ms"] == pytest.approx(33.33, abs=0.01)
    assert found["break_even"] == pytest.approx(2.755, abs=0.001)
    assert found["needed_acceptance"] == pytest.approx(0.9159, abs=0.0001)
    assert speculation.needed_acceptance(2.75, 2) == pytest.approx(0.914, abs=0.0005)  # of the rounded figure
    assert found["ceiling"] == pytest.approx(1.09, abs=0.002)
    assert found["speedup"] == pytest.approx(0.726, abs=0.001)
    assert found["verify"]["rest_ms"] == pytest.approx(4.33, abs=0.01)
    assert found["verify"]["break_even_without_rest"] == pytest.approx(2.397, abs=0.001)
    assert found["verify"]["rate_without_rest"] == pytest.approx(69.0, abs=0.1)
    assert speculation.calculate(12.1, 60.0, 2.0, 2, 30.0)["verify"]["rest_ms"] == pytest.approx(3.33, abs=0.01)
    assert found["verdict"] == "does not pay"
    draft, cycle = found["would_pay_if"]
    assert "acceptance 0.916 at each of 2 positions instead of 0.618" in draft
    assert "endless and free, it gives 2.62 tokens" in draft
    assert "24.2 ms instead of 33.3 ms" in cycle


def test_a_cycle_that_no_draft_pays_for():
    told = speculation.calculate(10.0, 25.0, 1.5, 2)
    assert told["needed_acceptance"] is None
    assert "no draft of 2 can pay" in told["would_pay_if"][0]


def test_positions_are_conditional_on_those_before():
    """100 drafts; position 1 accepted in 80, 2 in 40, 3 in none: of the 40 that got there."""
    assert speculation.conditional([80, 40, 0, 0], 100) == [0.8, 0.5, 0.0, None]
    assert speculation.conditional([5], 0) == [None]


lengths = st.integers(1, 64).flatmap(lambda k: st.tuples(st.just(k), st.floats(1.0, k + 1.0)))


@given(lengths)
def test_solving_and_summing_are_each_others_inverse(pair):
    drafts, length = pair
    acceptance = speculation.needed_acceptance(length, drafts)
    assert 0.0 <= acceptance <= 1.0
    assert speculation.accept_length(acceptance, drafts) == pytest.approx(length, rel=1e-8)


@given(lengths, st.floats(0.01, 1e4), st.floats(0.01, 1e4), st.none() | st.floats(0.01, 1e4))
def test_any_numbers_hang_together(pair, base_step_ms, rate, verify_ms):
    drafts, length = pair
    found = speculation.calculate(base_step_ms, rate, length, drafts, verify_ms)
    assert found["speedup"] == pytest.approx(rate * base_step_ms / 1000.0, rel=1e-9)
    assert found["speedup"] <= found["ceiling"] * (1 + 1e-9)
    assert (found["verdict"] == "pays") == (found["speedup"] > 1.02)
    assert (found["speedup"] >= 1) == (not found["would_pay_if"])
    assert (found["verdict_note"] is not None) == (1 <= found["speedup"] <= 1.02)
    assert (found["needed_acceptance"] is None) == (found["break_even"] > drafts + 1)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert speculation.lines(found, drafts)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ((0.0, 60.0, 2.0, 2), "base_step_ms: 0 is not a number above 0"),
        ((12.1, math.nan, 2.0, 2), "rate: nan"),
        ((12.1, 60.0, 0.9, 2), "accept_length: 0.9 is not between 1"),
        ((12.1, 60.0, 3.1, 2), "accept_length: 3.1 is not between 1 (nothing accepted) and 3"),
        ((12.1, 60.0, 2.0, 0), "drafts: 0"),
        ((12.1, 60.0, 2.0, 2, -1.0), "verify_ms: -1"),
        ((12.1, 60.0, 2.0, 2, None, 2.0), "tolerance: 2 is no share of a rate: 0.02 means 2 %"),
    ],
)
def test_impossible_numbers_are_named(numbers, says):
    with pytest.raises(ValueError, match=f"^{says}".replace("(", r"\(").replace(")", r"\)")):
        speculation.calculate(*numbers)


@pytest.mark.parametrize(
    ("rate", "tolerance", "verdict"),
    [
        (100.0, 0.02, "does not pay: it gains less than the tolerance of 2 %"),
        (101.9, 0.02, "does not pay: it gains less than the tolerance of 2 %"),
        (102.1, 0.02, "pays"),
        (101.9, 0.01, "pays"),
        (100.0, 0.0, "does not pay: it gains nothing"),
        (90.0, 0.02, "does not pay"),
    ],
)
def test_only_what_is_faster_by_more_than_the_tolerance_pays(rate, tolerance, verdict):
    """As in speculation.yml: as fast as without is not worth its memory."""
    told = speculation.lines(speculation.calculate(10.0, rate, 2.0, 3, tolerance=tolerance), 3)
    assert f"verdict     {verdict}" in told


def test_the_tolerance_is_that_of_comparisons():
    root = Path(__file__).resolve().parents[3]
    role = yaml.safe_load((root / "roles" / "compare" / "defaults" / "main.yml").read_text())
    documented = yaml.safe_load((root / "plugins" / "filter" / "break_even.yml").read_text())["DOCUMENTATION"]
    assert role["compare_tolerance"] == documented["options"]["tolerance"]["default"] == speculation.TOLERANCE


def test_no_number_is_shown_as_nothing():
    told = "\n".join(speculation.lines(speculation.calculate(1e-5, 60.0, 2.0, 2), 2))
    assert "a cheaper cycle: 2e-05 ms instead of 33.3 ms" in told
    assert "speed-up    6e-07x; if everything were accepted 9e-07x" in told


def test_the_filter_takes_what_templates_give():
    even = FilterModule().filters()["break_even"]
    assert even("12.1", rate="60", accept_length=2, drafts="2") == speculation.calculate(12.1, 60, 2, 2)
    assert even(12.1, 60, 2.0, 2, verify_ms="29")["verify"]["verify_ms"] == 29.0
    with pytest.raises(AnsibleFilterError, match="break_even: rate: -1 is not a number above 0"):
        even(12.1, -1, 2.0, 2)
    with pytest.raises(AnsibleFilterError, match="break_even: "):
        even(None, 60, 2.0, 2)
    assert even(10, 101, 2.0, 2, tolerance="0.005")["verdict"] == "pays"
    assert even(12.1, 60, 2.0, "2.0") == even(12.1, 60, 2.0, 2.0) == even(12.1, 60, 2.0, 2)


def test_a_message_of_the_filter_is_said_once():
    """Ansible adds the message of what an error came from."""
    with pytest.raises(AnsibleFilterError) as error:
        FilterModule().filters()["break_even"](12.1, rate="abc", accept_length=2.0, drafts=2)
    assert error.value.message == "break_even: rate: 'abc' is not a number"


@pytest.mark.parametrize(
    ("drafts", "says"),
    [
        (2.9, "drafts: 2.9 is not a whole number"),
        ("2.9", "drafts: '2.9' is not a whole number"),
        (True, "drafts: True is not a number"),
        (math.inf, "drafts: inf is not a whole number"),
        (math.nan, "drafts: nan is not a whole number"),
        ("two", "drafts: 'two' is not a number"),
        (10**400, "is not a number"),
    ],
)
def test_the_filter_makes_no_other_number_of_what_it_is_given(drafts, says):
    with pytest.raises(AnsibleFilterError, match=f"break_even: .*{says}"):
        FilterModule().filters()["break_even"](12.1, 60, 2.0, drafts)


def test_a_number_that_is_too_large_is_not_called_negative():
    with pytest.raises(ValueError, match=r"rate: 1e\+09 is not a number above 0 and below 1e9"):
        speculation.calculate(12.1, 1e9, 2.0, 2)


def test_at_break_even_no_change_from_a_number_to_itself_is_asked_for():
    found = speculation.calculate(12.1, 82.6, 2.0, 2)
    assert found["would_pay_if"] == [
        "next to nothing: within rounding, a cycle of 24.2 ms at this accept length is break-even"
    ]


def test_the_command_shows_the_same_as_text_and_as_json(capsys):
    assert cli.main([*STORY, "--verify-ms", "29"]) == 0
    text = capsys.readouterr().out
    assert "accept length 2.75" in text
    assert "29 ms of the cycle (87 %), 4.3 ms are drafting and overhead" in text
    assert "does not pay" in text
    assert cli.main([*STORY[:5], "83", *STORY[6:]]) == 0
    assert "verdict     does not pay: it gains less than the tolerance of 2 %" in capsys.readouterr().out
    assert cli.main([*STORY[:5], "83", *STORY[6:], "--tolerance", "0"]) == 0
    assert "verdict     pays" in capsys.readouterr().out
    assert cli.main([*STORY, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == speculation.calculate(12.1, 60.0, 2.0, 2)


def test_the_command_refuses_what_cannot_be(capsys):
    assert cli.main([*STORY[:-1], "0"]) == 2
    assert "drafts: 0" in capsys.readouterr().err


def test_a_verify_longer_than_its_cycle_is_of_another_run():
    told = speculation.lines(speculation.calculate(12.1, 60.0, 2.0, 2, 40.0), 2)
    assert any("do not fit into the cycle" in line for line in told)


def test_where_it_pays_nothing_has_to_change():
    # Two tokens a cycle of 20 ms against 12 ms a token: 1.2 times as fast, even if an interval cannot tell yet.
    assert speculation.changes(2.0, 0.020, 0.012, 2) == []
    assert len(speculation.changes(1.6, 0.020, 0.012, 2)) == 2
