"""Three real starts on two H200, judged again from their records, and what GPU sampling did to eight measurements."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import comparison, stats
from ansible_collections.groundstate.llm.plugins.plugin_utils import starts, verdict

DATA = json.loads((Path(__file__).parents[2] / "data" / "benchmark" / "sglang.two-gpus.json").read_text())
RECORDS = DATA["starts"]
TOLERANCE = 0.02


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_verdict_is_the_one_that_was_given_on_that_day(number):
    """Each start against those before it: arithmetic that changes shows here, on real numbers."""
    told = RECORDS[number]["verdict"]
    found = verdict.decide(RECORDS[number], RECORDS[:number], TOLERANCE, [])
    assert (found.verdict, found.reasons, found.basis) == (told["verdict"], told["reasons"], told["basis"])
    for name in ("ratio", "ratio_low", "ratio_high", "mde", "baseline_value", "baseline_low", "baseline_high"):
        expected = told[name]
        assert getattr(found, name) == (expected if expected is None else pytest.approx(expected)), name
    assert found.metrics == told["metrics"]


def test_spread_within_and_between_the_starts():
    """The figures of docs/statistics.md."""
    clusters = list(starts.headlines(RECORDS).values())
    assert [len(one) for one in clusters] == [3, 3, 3]
    within = math.sqrt(stats.mean([stats.sample_sd(one) ** 2 for one in clusters]))
    between = stats.sample_sd(comparison.cluster_means(clusters))
    assert 100 * within == pytest.approx(1.21, abs=0.005)
    assert 100 * between == pytest.approx(2.51, abs=0.005)


def test_nothing_that_was_sampled_explains_the_slower_start():
    """No weakness, the same state, the same clocks, no event reason: the record says that it does not know."""
    assert len({one["fingerprints"]["before"]["state_hash"] for one in RECORDS}) == 1
    for one in RECORDS:
        assert verdict.weaknesses(one) == []
        for gpu in one["measurement"]["levels"][0]["machine"]["gpus"]:
            assert gpu["sm_mhz"] == {"min": 1980.0, "median": 1980.0, "max": 1980.0}
            assert gpu["reasons"] == {}


def test_an_effect_of_sampling_is_not_told_from_two_blocks():
    """ABBA: each block gives one difference, so a drift that is even over a block cancels; this one was not."""
    runs, size = DATA["sampling"]["runs"], DATA["sampling"]["blocks_of"]
    differences = []
    for begin in range(0, len(runs), size):
        block = runs[begin : begin + size]
        assert [one["sample"] for one in block] == [True, False, False, True]
        rates = {
            on: stats.log_rates(one["decode_tok_s"] for one in block if one["sample"] is on) for on in (True, False)
        }
        differences.append(stats.mean(rates[True]) - stats.mean(rates[False]))
    found = stats.mean_interval(differences)
    told = DATA["sampling"]["effect_ln"]
    assert (found.mean, found.low, found.high, found.n) == pytest.approx((told["mean"], told["low"], told["high"], 2))
    assert found.low < 0 < found.high


def test_sampling_was_on_where_it_says_so():
    for one in DATA["sampling"]["runs"]:
        assert bool(one["machine"]["n"]) is one["sample"]
