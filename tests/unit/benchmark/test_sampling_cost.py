"""What sampling the GPUs did to eight real measurements on two H200, and what the samples were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import stats

DATA = json.loads((Path(__file__).parents[2] / "data" / "benchmark" / "sglang.two-gpus.sampling.json").read_text())


def test_two_blocks_do_not_tell_an_effect():
    """On, off, off, on: a drift that is even over a block cancels; the one of the second block was not."""
    runs, size = DATA["runs"], DATA["blocks_of"]
    differences = []
    for begin in range(0, len(runs), size):
        block = runs[begin : begin + size]
        assert [one["sample"] for one in block] == [True, False, False, True]
        rates = {
            on: stats.log_rates(one["decode_tok_s"] for one in block if one["sample"] is on) for on in (True, False)
        }
        differences.append(stats.mean(rates[True]) - stats.mean(rates[False]))
    assert [round(100 * one, 1) for one in differences] == [0.7, 9.7]
    found, told = stats.mean_interval(differences), DATA["effect_ln"]
    assert (found.mean, found.low, found.high, found.n) == pytest.approx((told["mean"], told["low"], told["high"], 2))
    assert found.low < 0 < found.high


def test_samples_came_from_both_gpus_where_sampling_was_on():
    """Five a second of each GPU, for the four seconds of three requests of 512 tokens."""
    for one in DATA["runs"]:
        gpus = one["machine"]["gpus"]
        assert [gpu["index"] for gpu in gpus] == ([0, 1] if one["sample"] else [])
        for gpu in gpus:
            seconds = sum(512 / rate for rate in one["rates"])
            assert gpu["n"] == pytest.approx(5 * seconds, rel=0.1)
            assert gpu["sm_mhz"]["max"] == 1980.0
            assert gpu["reasons"] == {}
