"""What speculation did in a window: from counters that engines really gave, and from what SGLang tells of a request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import server_metrics, speculation_window
from ansible_collections.groundstate.llm.plugins.module_utils.endpoint import Endpoint, Sample
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.http_client import Client
from ansible_collections.groundstate.llm.plugins.module_utils.load import Level, Repeat, Run
from ansible_collections.groundstate.llm.plugins.module_utils.measurement import build
from ansible_collections.groundstate.llm.plugins.module_utils.openai_stream import Stream
from ansible_collections.groundstate.llm.plugins.module_utils.sampling import Sampler
from ansible_collections.groundstate.llm.plugins.module_utils.workload import resolve
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(__file__).parents[2] / "data" / "speculation"


def said(engine: str, name: str) -> dict[str, float]:
    return server_metrics.parse((DATA / name).read_text(), get_engine(engine).metrics)


def grown(engine: str, name: str, own_tokens: int) -> dict:
    return server_metrics.compare(said(engine, f"{name}.before.txt"), said(engine, f"{name}.after.txt"), own_tokens)


def test_llama_cpp_with_a_draft_model_in_two_answers():
    """It said itself: 25 + 19 accepted of 60 + 78. Of 96 tokens two came from prefill, so 94 - 44 cycles."""
    delta = grown("llama_cpp", "llama_cpp.draft", 96)["delta"]
    found = speculation_window.window(delta, None, [], 96, 2)
    assert (found["source"], found["tokens"], found["cycles"]) == ("counters", 94, 50)
    assert (found["drafts"], found["draft_tokens"], found["accepted"]) == (48, 138, 44)
    assert found["accept_length"] == 94 / 50
    assert found["acceptance_per_position"] == [22 / 48, 14 / 22, 8 / 14]


def test_vllm_with_n_grams_drafts_in_some_cycles_only():
    """200 tokens, 20 accepted: 179 cycles, of which 103 drafted. Per draft it would look like 1.19 tokens a cycle."""
    compared = grown("vllm", "vllm-0.32.0.ngram", 200)
    found = speculation_window.window(compared["delta"], None, [], 200, 1)
    assert (found["cycles"], found["drafts"], found["accepted"]) == (179, 103, 20)
    assert found["accept_length"] == pytest.approx(1.112, abs=0.001)
    assert compared["accept_length"] == pytest.approx(1.194, abs=0.001)
    assert found["acceptance_per_position"] == [14 / 103, 4 / 14, 1 / 4, 1 / 1]


def test_an_sglang_without_counters_has_only_its_last_interval():
    after = said("sglang", "sglang-0.5.11.eagle3.after.txt")
    found = speculation_window.window({}, after["accept_length"], [], 512, 1)
    assert (found["source"], found["accept_length"], found["cycles"]) == ("gauge", 1.0, None)
    assert "last interval only" in found["note"]


def test_an_sglang_with_its_counter_of_verifications():
    found = speculation_window.window({"verify_calls": 200.0, "generated_tokens": 402.0}, 2.4, [], 402, 2)
    assert (found["source"], found["accept_length"], found["cycles"]) == ("verify counter", 2.0, 200)


def test_without_speculation_there_is_nothing_or_nothing_drafted():
    assert speculation_window.window({"generated_tokens": 10.0}, None, [], 10, 1) is None
    found = speculation_window.window(
        {"drafts": 0.0, "accepted_tokens": 0.0, "generated_tokens": 10.0}, None, [], 10, 1
    )
    assert (found["accept_length"], found["cycles"], found["drafts"]) == (1.0, 9, 0)


def test_what_was_accepted_and_not_drafted_is_counted_as_nothing():
    delta = {"drafts": 0.0, "accepted_tokens": 90.0, "generated_tokens": 100.0}
    assert speculation_window.window(delta, None, [], 100, 1) is None
    assert speculation_window.window(delta, 2.0, [], 100, 1)["source"] == "gauge"


def test_somebody_elses_tokens_do_not_mix_with_our_own():
    """1000 tokens in all, 400 accepted in all; ours are 100 of them."""
    delta = {"drafts": 500.0, "accepted_tokens": 400.0, "generated_tokens": 1001.0}
    assert speculation_window.window(delta, None, [], 101, 1)["accept_length"] == 1000 / 600


def test_what_was_accepted_beyond_the_end_makes_no_cycle_vanish():
    """Every cycle drafted, the last one accepted two tokens more than the answer has."""
    delta = {"drafts": 4.0, "accepted_tokens": 8.0, "generated_tokens": 11.0}
    found = speculation_window.window(delta, None, [], 11, 1)
    assert (found["cycles"], found["accept_length"]) == (4, 2.5)


TOLD = {
    "spec_accept_rate": 0.5,
    "spec_accept_length": 2.2,
    "spec_num_correct_drafts": 10,
    "spec_num_proposed_drafts": 20,
    "spec_verify_ct": 10,
    "spec_correct_drafts_histogram": [3, 4, 3],
}


@pytest.mark.parametrize("gauge", [0.0, -1.0, None])
def test_a_gauge_of_nothing_is_no_accept_length(gauge):
    told = {} if gauge is None else {"accept_length": gauge}
    assert server_metrics.compare({"x": 1.0}, {"x": 1.0, **told}, 10)["accept_length"] is None
    assert speculation_window.window({}, gauge, [], 100, 10) is None


def test_a_counter_of_tokens_that_lags_behind_counts_no_cycles():
    delta = {"drafts": 50.0, "accepted_tokens": 40.0, "generated_tokens": 3.0}
    assert speculation_window.window(delta, None, [], 100, 10) is None
    assert speculation_window.window(delta, 1.8, [], 100, 10)["source"] == "gauge"


def ending(details: object) -> bytes:
    """The end of a stream of SGLang that was asked for return_spec_tokens_details."""
    events = [
        {"choices": [{"index": 0, "text": " a b"}]},
        {"choices": [], "sglext": {"spec_tokens_details": details}},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 21}},
    ]
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events) + b"data: [DONE]\n\n"


def read(details: object) -> Stream:
    stream = Stream(get_engine("sglang").told_speculation)
    stream.feed(1.0, ending(details))
    return stream


def test_sglang_is_asked_and_tells_of_each_answer():
    workload = resolve({})
    asked = json.loads(Endpoint(Client("http://localhost:1"), get_engine("sglang"), "m", workload).body("x", 8))
    assert asked["return_spec_tokens_details"] is True
    told = read(TOLD).speculation
    assert told == {"verify_calls": 10, "accepted": 10, "draft_tokens": 20, "accepted_counts": [3, 4, 3]}
    found = speculation_window.window({"verify_calls": 999.0}, 9.9, [told, told], 42, 2)
    assert (found["source"], found["tokens"], found["cycles"], found["accept_length"]) == ("requests", 40, 20, 2.0)
    assert found["acceptance_per_position"] == [7 / 10, 3 / 7]


@pytest.mark.parametrize(
    "details",
    [
        *(None, [], [TOLD], {}),
        *({**TOLD, "spec_verify_ct": one} for one in ("10", -1, True, None, 1.5, 10**400)),
        {**TOLD, "spec_correct_drafts_histogram": [1, 10**400]},
    ],
)
def test_what_sglang_does_not_tell_so_is_not_taken(details):
    assert read(details).speculation is None


def test_other_engines_are_asked_for_nothing():
    for name in ("vllm", "llama_cpp", "generic"):
        assert get_engine(name).told_speculation({"sglext": {"spec_tokens_details": TOLD}}) is None
        asked = json.loads(Endpoint(Client("http://localhost:1"), get_engine(name), "m", resolve({})).body("x", 8))
        assert "return_spec_tokens_details" not in asked


def test_a_level_has_it_and_how_much_prompts_and_answers_repeat():
    def sample(number: int) -> Sample:
        return Sample(
            ttft_s=0.1, e2e_s=1.1, tpot_s=0.05, decode_tok_s=20.0, tokens=21, chunks=10, sent_at=number,
            repetition=(0.0, 0.25 * number), speculation=read(TOLD).speculation,
        )  # fmt: skip

    level = Level(1, 0.0, 9.0, {"steady": True}, None)
    run = Run(0.0, 9.0, [Repeat(1, number, [sample(number)]) for number in (1, 2)], {}, {}, {}, [level])
    (found,) = build(run, resolve({}), {}, {}, Sampler(enabled=False), "m", "i", 0.0, 9.0)["levels"]
    assert found["speculation"]["accept_length"] == 2.0
    assert found["repetition"] == {"prompts": 0.0, "answers": 0.375}


counts = st.dictionaries(
    st.sampled_from(["drafts", "accepted_tokens", "generated_tokens", "verify_calls", "draft_tokens", "accepted_at_0"]),
    st.floats(0, 2**62),
)


@given(counts, st.none() | st.floats(0, 100), st.integers(0, 10**9), st.integers(0, 10**6))
def test_no_counters_break_it(delta, gauge, tokens, requests):
    found = speculation_window.window(delta, gauge, [], tokens, requests)
    if found is None:
        return
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["source"] in speculation_window.SOURCES
    assert found["accept_length"] is None or found["accept_length"] > 0
