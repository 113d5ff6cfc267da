"""Prometheus text of real engines: our names, ranks counted once, what a level's before and after say."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.groundstate.llm.plugins.module_utils import server_metrics
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(__file__).resolve().parents[2] / "data" / "benchmark"
NAMES = get_engine("sglang").metrics


def test_what_sglang_said_after_a_speculative_request():
    assert server_metrics.parse((DATA / "sglang-0.5.11.metrics.txt").read_text(), NAMES) == {
        "running_requests": 1.0,
        "queued_requests": 0.0,
        "accept_length": 1.0,
        "kv_cache_use": 0.0,
        "prompt_tokens": 17.0,
        "cached_tokens": 1.0,
        "generated_tokens": 584.0,
    }


def test_ranks_tell_the_same_but_engines_and_sources_add_up():
    text = (
        'sglang:num_queue_reqs{tp_rank="0"} 2\nsglang:num_queue_reqs{tp_rank="1"} 2\n'
        'sglang:num_queue_reqs{engine="b",tp_rank="0"} 3\n'
        'sglang:cached_tokens_total{cache_source="device"} 5\nsglang:cached_tokens_total{cache_source="host"} 7 1700\n'
        'sglang:token_usage{engine="a"} 0.25\nsglang:token_usage{engine="b"} 0.5\nsglang:token_usage NaN\n'
    )
    assert server_metrics.parse(text, NAMES) == {"cached_tokens": 12.0, "kv_cache_use": 0.5, "queued_requests": 5.0}


def test_accept_length_comes_from_the_counters_of_the_level_not_from_all_time():
    before = {"drafts": 1000.0, "accepted_tokens": 100.0, "generated_tokens": 500.0}
    after = {"drafts": 1100.0, "accepted_tokens": 250.0, "generated_tokens": 760.0}
    told = server_metrics.compare(before, after, 256)
    assert told["accept_length"] == 2.5
    assert told["delta"] == {"drafts": 100.0, "accepted_tokens": 150.0, "generated_tokens": 260.0}
    assert told["foreign_tokens"] == 4


def test_a_gauge_is_taken_where_there_are_no_counters():
    told = server_metrics.compare({"accept_length": 1.0}, {"accept_length": 2.2}, 10)
    assert (told["accept_length"], told["foreign_tokens"]) == (2.2, None)


def test_counters_that_went_back_tell_nothing():
    told = server_metrics.compare({"generated_tokens": 50.0}, {"generated_tokens": 10.0}, 10)
    assert (told["delta"], told["foreign_tokens"]) == ({}, None)
    assert server_metrics.compare(None, {"generated_tokens": 10.0}, 10) is None


@given(st.text(max_size=200))
def test_no_text_breaks_it(text):
    found = server_metrics.parse(f"sglang:token_usage{{{text}}} 0.5\n{text}\nsglang:num_queue_reqs {text}", NAMES)
    assert set(found) <= set(NAMES)
