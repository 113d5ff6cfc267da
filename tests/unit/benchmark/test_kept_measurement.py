"""A measurement that was kept is used again only when it is whole."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import measurement

RATE = {"mean": 1.0, "low": 0.9, "high": 1.1, "n": 3}
WHOLE = {
    "schema": measurement.SCHEMA,
    "id": "20261129T170000Z-a1b2c3",
    "identity": "abc",
    "started_at": "2026-11-29T17:00:00Z",
    "workload_hash": "w",
    "headline": {
        **{name: RATE[name] for name in ("low", "high", "n")},
        **{"metric": "decode_tok_s", "unit": "tok/s", "value": 1.0, "concurrency": 1},
        **{"confidence": 0.95, "interval_over": "repeats"},
    },
    "levels": [{"ttft_s": RATE, "tpot_s": RATE, "output_tok_s": RATE}],
    "server": {
        **{"name": "local", "engine": "llama_cpp", "served_model_name": "m", "base_url": "http://127.0.0.1:1"},
        **{"start_id": "s", "declaration_hash": "d"},
    },
    "client": {"limited": False},
    "warmup": {"steady": True},
}


def test_a_whole_one_is_usable():
    assert measurement.usable(WHOLE)


@pytest.mark.parametrize("name", sorted(WHOLE))
@pytest.mark.parametrize("value", [None, 7, {}, []], ids=repr)
def test_one_with_a_damaged_part_is_not(name, value):
    damaged = copy.deepcopy(WHOLE)
    damaged[name] = value
    # Facts that are only passed on may be anything.
    assert measurement.usable(damaged) is (name in ("id", "started_at", "workload_hash"))


@pytest.mark.parametrize("found", [None, [], "x", 1, {}, {"schema": measurement.SCHEMA}])
def test_what_is_none_is_not(found):
    assert not measurement.usable(found)
