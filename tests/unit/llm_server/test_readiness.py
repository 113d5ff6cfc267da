"""Phases on real logs, the order of the probes, and the end in words."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import readiness
from ansible_collections.groundstate.llm.plugins.module_utils.declaration import complete
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from hypothesis import given
from hypothesis import strategies as st

LOGS = Path(__file__).parents[2] / "data" / "server_logs"
SGLANG = complete({"name": "s", "engine": "sglang", "model": "/models/tiny-llama", "tensor_parallel": 2})


def replay(name: str, start: str, until: str) -> readiness.Timeline:
    """Feed a captured log as if each line had been read when it was written."""
    launched = time.mktime(time.strptime(start, "%Y-%m-%d %H:%M:%S"))
    engine, timeline, now = get_engine("sglang"), readiness.Timeline(), launched
    lines, _rest = readiness.split_lines((LOGS / name).read_text(encoding="utf-8") + "\n")
    for line in lines:
        now = max(now, engine.line_time(line) or now)
        timeline.feed(engine, line, now - launched, launched)
        if until in line:
            break
    return timeline


def phases(timeline):
    return [(one["name"], one["seconds"]) for one in timeline.report()]


def test_phases_of_two_ranks():
    timeline = replay("sglang.tp2.base.log", "2026-11-29 13:35:10", "fired up and ready")
    found = dict(phases(timeline))
    assert [name for name, _seconds in phases(timeline)] == [
        "starting",
        "reading arguments",
        "distributed init",
        "loading weights",
        "allocating KV cache",
        "capturing graphs",
        "starting HTTP",
        "warming up",
        "up",
    ]
    # Its log says: first batch of graphs 13:35:41 to 13:36:28, then piecewise ones until the HTTP server starts.
    assert found["capturing graphs"] > 46
    assert found["loading weights"] <= 1
    assert timeline.current == "up"


def test_phases_come_again_for_a_draft_model():
    names = [name for name, _ in phases(replay("sglang.tp2.eagle.log", "2026-11-29 13:37:20", "fired up and ready"))]
    assert names.count("loading weights") == 2
    assert names.count("capturing graphs") == 2
    assert names[-3:] == ["starting HTTP", "warming up", "up"]


def test_phases_of_one_rank_have_no_rank_in_their_lines():
    timeline = replay("sglang.tp1.sigkilled-scheduler.log", "2026-11-29 14:27:20", "fired up and ready")
    assert dict(phases(timeline))["capturing graphs"] == pytest.approx(59, abs=1)


def test_progress_within_a_phase():
    timeline = replay("sglang.tp2.base.log", "2026-11-29 13:35:10", "| 2/3 [00:45")
    assert timeline.current == "capturing graphs"
    assert timeline.progress == "2/3"


def test_a_clock_that_cannot_be_true_is_not_believed():
    engine, timeline = get_engine("sglang"), readiness.Timeline()
    timeline.feed(engine, "[2001-01-01 00:00:00] server_args=ServerArgs(", 7.5, time.time() - 7.5)
    assert timeline.report()[-1] == {"name": "reading arguments", "at_s": 7.5, "seconds": None, "disk_bytes": None}


def test_a_line_read_late_keeps_its_own_time():
    engine, timeline = get_engine("llama_cpp"), readiness.Timeline()
    launched = time.mktime(time.strptime("2026-11-29 12:00:00", "%Y-%m-%d %H:%M:%S"))
    timeline.feed(engine, "[2026-11-29 12:00:00.250] loading model /m with 1 threads", 9.0, launched)
    timeline.feed(engine, "0.01.17[2026-11-29 12:00:01.500] listening on http://127.0.0.1:1", 9.0, launched)
    timeline.finish(9.0)
    assert phases(timeline)[1:3] == [("loading model", 1.25), ("listening", pytest.approx(7.5, abs=0.01))]


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(-5, 1000)), max_size=30))
def test_time_never_goes_back(steps):
    timeline = readiness.Timeline()
    for name, at_s in steps:
        timeline.enter(name, at_s)
    report = timeline.report()
    assert all(one["at_s"] <= other["at_s"] for one, other in itertools.pairwise(report))
    assert all(one["seconds"] >= 0 for one in report[:-1])
    assert report[-1]["seconds"] is None


@given(st.text(alphabet="ab\r\n", max_size=40), st.integers(0, 40))
def test_lines_are_the_same_wherever_a_read_ends(text, cut):
    whole, rest = readiness.split_lines(text)
    first, between = readiness.split_lines(text[:cut])
    second, rest_again = readiness.split_lines(text[cut:], between)
    # A read may end between a return and its line feed; empty lines do not count, so nothing changes.
    assert [*first, *second] == whole
    assert rest_again == rest


# --- probes --------------------------------------------------------------------------------------

MODELS = {"data": [{"id": "/models/tiny-llama"}]}
DONE = {"choices": [{"text": " 5"}], "usage": {"completion_tokens": 2}}


def probes():
    return readiness.Probes(get_engine("sglang"), SGLANG)


def test_ready_needs_all_three_in_order():
    one = probes()
    assert one.next_request().path == "/health"
    one.take(200, None, "", 1.0)
    assert one.next_request().path == "/v1/models"
    one.take(200, MODELS, "", 1.1)
    request = one.next_request()
    assert request.path == "/v1/completions"
    assert request.body["ignore_eos"] is True
    assert not one.done
    one.take(200, DONE, "", 2.0)
    assert one.done
    assert one.first_s == {"health": 1.0, "models": 1.1, "completion": 2.0}


def test_models_that_answer_early_do_not_make_ready():
    one = probes()
    one.take(0, None, "connection refused", 0.1)
    one.take(503, None, "", 0.2)
    assert one.step == "health"
    assert one.last == "health: HTTP 503"


def test_a_completion_that_fails_starts_over_and_keeps_the_first_times():
    one = probes()
    one.take(200, None, "", 1.0)
    one.take(200, MODELS, "", 1.1)
    one.take(500, {"error": {"message": "engine dead"}}, "", 1.5)
    assert one.step == "health"
    assert one.last == "completion: HTTP 500 engine dead"
    assert one.first_s == {"health": 1.0, "models": 1.1}


@pytest.mark.parametrize(
    ("status", "reply", "part"),
    [
        (200, {"data": [{"id": "other"}]}, "the list names other, not /models/tiny-llama"),
        (200, None, "the list names no model"),
        (200, ["x"], "the list names no model"),
        (401, {"error": "no key"}, "HTTP 401 no key"),
    ],
)
def test_a_model_list_without_our_model(status, reply, part):
    one = probes()
    one.take(200, None, "", 1.0)
    one.take(status, reply, "", 1.1)
    assert part in one.last
    assert not one.done


@pytest.mark.parametrize("reply", [None, {}, [], {"usage": None}, {"usage": {"completion_tokens": 0}, "choices": [{}]}])
def test_an_empty_completion_is_no_completion(reply):
    one = probes()
    one.take(200, None, "", 1.0)
    one.take(200, MODELS, "", 1.1)
    one.take(200, reply, "", 1.2)
    assert not one.done
    assert one.last == "completion: the reply has no tokens"


def test_a_server_without_health_request_is_judged_by_its_completion():
    one = probes()
    one.take(404, None, "", 1.0)
    assert one.step == "models"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1", "exit status 0"),
        ("1 1795970000", "exit status 1"),
        ("137 1795970000", "killed by SIGKILL (exit status 137): by somebody, or by the kernel for want of memory"),
        ("135 1", "killed by SIGBUS (exit status 135): often /dev/shm is full or too small"),
        ("143 1", "killed by SIGTERM (exit status 143)"),
        ("KILL 1", "killed by SIGKILL: by somebody, or by the kernel for want of memory"),
        ("", "exit status not recorded"),
    ],
)
def test_the_end_in_words(text, words):
    assert readiness.exit_words(text) == words


def test_phases_of_vllm_as_its_source_writes_them():
    engine, timeline = get_engine("vllm"), readiness.Timeline()
    year = time.localtime().tm_year
    launched = time.mktime(time.strptime(f"{year}-03-01 10:00:00", "%Y-%m-%d %H:%M:%S"))
    for line in (
        "(APIServer pid=1) INFO 03-01 10:00:05 [api_utils.py:286] non-default args: {'port': 1}",
        "(EngineCore pid=2) INFO 03-01 10:00:09 [core.py:134] Initializing a V1 LLM engine (v0.32.0) with config: x",
        "(Worker pid=3) INFO 03-01 10:00:12 [parallel_state.py:1907] world_size=2 rank=0 local_rank=0 distributed_init",
        "(Worker_TP1 pid=4) INFO 03-01 10:00:13 [cpu_model_runner.py:68] Starting to load model /m...",
        "(Worker_TP0 pid=3) INFO 03-01 10:00:14 [cpu_model_runner.py:68] Starting to load model /m...",
        "(Worker_TP0 pid=3) Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  1.2it/s]",
        "(Worker_TP0 pid=3) INFO 03-01 10:00:20 [default_loader.py:502] Loading weights took 6.00 seconds",
        "(Worker_TP1 pid=4) INFO 03-01 10:00:21 [cpu_model_runner.py:68] Starting to load model /late...",
        "(EngineCore pid=2) INFO 03-01 10:00:25 [core.py:403] init engine (profile, create kv cache, warmup) took 5 s",
        "(APIServer pid=1) INFO:     Application startup complete.",
    ):
        if "shards" in line:
            timeline.feed(engine, line, 60.0, launched)
            assert timeline.progress == "1/2"
        timeline.feed(engine, line, 60.0, launched)
    assert [(one["name"], one["at_s"]) for one in timeline.report()] == [
        ("starting", 0.0),
        ("reading arguments", 6.0),
        ("starting engine", 10.0),
        ("distributed init", 13.0),
        ("loading weights", 15.0),
        ("allocating KV cache", 21.0),
        ("starting HTTP", 26.0),
        ("up", 60.0),
    ]
