"""What engines made of their arguments, from real replies and logs; and the verdict on a server's health."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import resolved, server_info
from ansible_collections.groundstate.llm.plugins.module_utils.declaration import complete
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.probe import Reply

DATA = Path(__file__).resolve().parents[2] / "data"
INFO = json.loads((DATA / "server_info" / "sglang-0.5.11.json").read_text())


def sglang(info=INFO, **fields):
    declared = complete({"name": "s", "engine": "sglang", "model": "/models/tiny-llama", "port": 8000, **fields})
    engine = get_engine("sglang")
    return resolved.differences(engine, declared, engine.argv(declared, "/e", 8000), info, {"max_model_len": 8192})


def test_arguments_that_took_effect_are_no_difference():
    extra = {"disable-custom-all-reduce": True, "cuda-graph-bs": [1, 2, 4], "cuda-graph-max-bs": 4}
    assert sglang(memory_fraction=0.5, context_length=0, extra_args=extra) == []


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"memory_fraction": 0.88}, ("--mem-fraction-static", "0.88", "0.5")),
        ({"tensor_parallel": 2}, ("--tp-size", "2", "1")),
        ({"extra_args": {"disable-radix-cache": True}}, ("--disable-radix-cache", "set", "not set")),
        ({"extra_args": {"cuda-graph-bs": [1, 8]}}, ("--cuda-graph-bs", "1 8", "1 2 4")),
        ({"extra_args": {"attention-backend": "fa3"}}, ("--attention-backend", "fa3", "triton")),
    ],
)
def test_an_argument_that_the_engine_changed_is_told(fields, told):
    assert sglang(**fields) == [dict(zip(("what", "declared", "resolved"), told, strict=True))]


def test_a_context_that_does_not_fit_into_the_kv_cache_is_told():
    found = sglang({**INFO, "max_total_num_tokens": 4096}, context_length=8192)
    assert found == [{"what": "context_length", "declared": "8192", "resolved": "4096 tokens at most"}]


def test_a_lowered_limit_of_running_requests_is_told():
    info = {**INFO, "max_running_requests": 256}
    info["internal_states"] = [{**INFO["internal_states"][0], "effective_max_running_requests_per_dp": 48}]
    found = sglang(info, extra_args={"max-running-requests": 256})
    assert found == [{"what": "--max-running-requests", "declared": "256", "resolved": "48"}]


def test_what_eagle_changes_by_itself_is_in_the_log():
    engine = get_engine("sglang")
    eagle = (DATA / "server_logs" / "sglang.tp2.eagle.log").read_text().splitlines()
    assert resolved.adjustments(engine, eagle) == [
        "Max running requests is reset to 48 for speculative decoding. "
        "You can override this by explicitly setting --max-running-requests."
    ]
    base = (DATA / "server_logs" / "sglang.tp2.base.log").read_text().splitlines()
    assert resolved.adjustments(engine, base) == []


def test_a_number_of_the_moment_makes_no_other_sentence_and_one_that_was_declared_does():
    engine = get_engine("vllm")

    def said(blocks, override):
        line = f"INFO 11-30 10:00:00 [kv_cache_utils.py:1] Overriding num_gpu_blocks={blocks} with "
        return resolved.adjustments(engine, [f"{line}num_gpu_blocks_override={override}"])

    assert said(27351, 512) == said(27350, 512) == ["Overriding num_gpu_blocks=N with num_gpu_blocks_override=512"]
    assert said(27351, 512) != said(27351, 256)


def test_replies_that_make_no_sense_are_no_difference():
    for info in (None, [], "x", {"internal_states": None}, {"internal_states": ["x"], "tp_size": {}}):
        assert sglang(info, tensor_parallel=2) == []


# --- health --------------------------------------------------------------------------------------


def judged(
    health=200, completion=None, running=0, before=0, after=0, workers="S", expected=1, was_ready=True, error=""
):
    answers = server_info.Answers(
        health=Reply(health, error=error),
        completion=completion,
        before={"running_requests": running, "generated_tokens": before},
        after={"running_requests": running, "generated_tokens": after},
        between_s=3.0,
    )
    found = {"workers_expected": expected, "workers": [{"state": state} for state in workers]}
    return server_info.judge(found, answers, was_ready)[0]


LATE = Reply(0, error="no reply within 30 s")


@pytest.mark.parametrize(
    ("seen", "health"),
    [
        ({"completion": Reply(200, "{}")}, "healthy"),
        ({"completion": Reply(200, "{}"), "running": 3}, "healthy"),
        ({"completion": LATE}, "hung"),
        ({"completion": LATE, "running": 1, "before": 50, "after": 50}, "hung"),
        ({"completion": LATE, "running": 9, "before": 50, "after": 950}, "busy"),
        ({"completion": Reply(500, "{}")}, "sick"),
        ({"running": 1, "before": 50, "after": 50}, "hung"),
        ({"running": 1, "before": 50, "after": 51}, "healthy"),
        ({"running": 0}, "healthy"),
        ({"health": 503}, "sick"),
        ({"health": 503, "was_ready": False}, "starting"),
        ({"health": 0, "error": "connection refused"}, "unreachable"),
        ({"health": 0, "error": "connection refused", "was_ready": False}, "starting"),
        ({"health": 0, "error": "no reply within 25 s"}, "hung"),
        ({"workers": "SZ", "expected": 2}, "incomplete"),
        ({"workers": "S", "expected": 2, "was_ready": False}, "starting"),
        ({"workers": "SS", "expected": 2, "completion": Reply(200, "{}")}, "healthy"),
    ],
)
def test_health(seen, health):
    assert judged(**seen) == health


def test_without_counters_nothing_is_said_of_progress():
    assert server_info.progress(server_info.Answers()) is None
    assert (
        server_info.progress(server_info.Answers(before={"running_requests": 1}, after={"running_requests": 1})) is None
    )


def test_accept_length():
    assert server_info.accept_length({"drafts": 100.0, "accepted_tokens": 140.0}) == 2.4
    assert server_info.accept_length({"accept_length": 2.9}) == 2.9
    assert server_info.accept_length({"accept_length": 0.0}) is None
    assert server_info.accept_length({}) is None
