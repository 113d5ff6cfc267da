"""Runs against the deterministic server: counts, warm-up, levels, errors, death of the server, the document."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import files, load, measurement, prompts, self_check
from ansible_collections.groundstate.llm.plugins.module_utils.endpoint import Endpoint, EndpointError, Sample
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.http_client import Client
from ansible_collections.groundstate.llm.plugins.module_utils.prompt_source import PromptSource
from ansible_collections.groundstate.llm.plugins.module_utils.sampling import Sampler
from ansible_collections.groundstate.llm.plugins.module_utils.workload import DEFAULTS, WorkloadError, resolve
from mock_llm import Mock

QUICK = {"prompt_tokens": 32, "output_tokens": 8, "repeats": 3, "warmup_requests": 2, "warmup_cap_s": 0}


def run(mock: Mock, guard=None, engine="vllm", name="m1", progress=None, model_path="", **options) -> load.Run:
    wanted = resolve({**QUICK, **options})

    async def work():
        client = Client(mock.url)
        try:
            target = Endpoint(client, get_engine(engine), "mock", wanted)
            chosen = await PromptSource(target, wanted, name, model_path=model_path).choose()
            return await load.Runner(target, wanted, chosen, progress or load.Progress()).run()
        finally:
            await client.close()

    return asyncio.run(load.guarded(work(), guard))


def document(done: load.Run, **options) -> dict:
    wanted = resolve({**QUICK, **options})
    server = {"name": "s", "start_id": "1", "declaration_hash": "d", "base_url": "u"}
    server.update({"engine": "vllm", "served_model_name": "mock"})
    interpreter = {"loop": "asyncio", "python": "3"}
    return measurement.build(done, wanted, server, interpreter, Sampler(enabled=False), "m1", "i", 0.0, 1.5)


def test_every_request_is_made_once_with_a_prompt_of_its_own():
    with Mock() as mock:
        done = run(mock, concurrency=[1, 4], requests=2)
        truths = list(mock.truths)
    assert [(one.concurrency, one.index, len(one.samples)) for one in done.repeats] == [
        *((1, index, 2) for index in range(3)),
        *((4, index, 8) for index in range(3)),
    ]
    assert [level.warmup["requests"] for level in done.levels] == [2, 4]  # two single ones; one wave of four
    assert len(truths) == 6 + 2 * 3 + 8 * 3
    assert len({truth.prompt for truth in truths}) == len(truths)
    assert {truth.prompt_tokens for truth in truths} == {32}
    assert done.prompts["method"] == "token ids"


def test_levels_really_run_that_many_streams_at_a_time():
    with Mock(ttft=0.05) as mock:
        run(mock, concurrency=[4], repeats=1, warmup_requests=0)
        begun = max(truth.received_at for truth in mock.truths)
        assert all(truth.last_at > begun for truth in mock.truths)
        assert mock.server.connections == 4


def test_without_a_tokenizer_words_are_fitted_to_the_servers_count():
    with Mock(tokenize=False, template_tokens=9) as mock:
        done = run(mock, engine="generic", api="chat")
        assert {truth.prompt_tokens for truth in mock.truths} == {32}
    assert done.prompts == {
        "method": "words fitted by usage.prompt_tokens",
        "token_source": "the server's usage",
        "words": 23,
        "fitted_exactly": True,
        "why_not": ["there is no tokenizer.json or tiktoken file in a folder of the model"],
    }
    assert document(done)["prompts"]["exact"] is True


@pytest.fixture
def model_folder(tmp_path):
    """A folder of a model whose tokenizer knows our words with a space, and all but a few of them without."""
    pieces = [f"\u0120{word}" for word in prompts.WORDS] + prompts.WORDS[10:]
    vocabulary = {piece: number for number, piece in enumerate(pieces, 7)}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary}}))
    return tmp_path


def test_the_models_own_tokenizer_gives_ids_where_the_server_tells_none(model_folder):
    with Mock(tokenize=False) as mock:
        done = run(mock, engine="sglang", model_path=str(model_folder))
        assert {truth.prompt_tokens for truth in mock.truths} == {32}
        sent = [json.loads(truth.prompt) for truth in mock.truths]
    assert all(7 <= one < 7 + len(prompts.WORDS) for prompt in sent for one in prompt)
    assert document(done)["prompts"] == {
        "method": "token ids",
        "token_source": "tokenizer.json of the model",
        "vocabulary": len(set(prompts.WORDS)),
        "why_not": ["/tokenize answers 404 without token ids (not found)"],
        "exact": True,
    }


def test_a_chat_is_made_of_words_that_are_one_token_wherever_they_stand(model_folder):
    with Mock(tokenize=False, template_tokens=9) as mock:
        done = run(mock, engine="sglang", api="chat", model_path=str(model_folder))
        sent = {word for truth in mock.truths for word in json.loads(truth.prompt).split()}
    assert sent <= set(prompts.WORDS[10:])
    assert done.prompts["token_source"] == "the server's usage; words from tokenizer.json of the model"
    assert done.prompts["why_not"] == []


def test_a_server_that_takes_no_ids_gets_words(model_folder):
    with Mock(tokenize=False, trap="text_only") as mock:
        done = run(mock, engine="generic", model_path=str(model_folder))
        assert {truth.prompt_tokens for truth in mock.truths} == {32}
    assert done.prompts["method"] == "words fitted by usage.prompt_tokens"
    assert done.prompts["why_not"] == [
        "engine generic has no request for token ids that we know",
        "a prompt of token ids: /v1/completions answers 400 without usage.prompt_tokens (prompt must be a string); the "
        "length of prompts cannot be known on this server",
    ]


def test_a_template_that_is_longer_than_the_prompt_is_refused():
    with Mock(template_tokens=40) as mock, pytest.raises(WorkloadError, match="template"):
        run(mock, api="chat")


def test_warm_up_goes_on_until_steady_or_the_cap(monkeypatch):
    with Mock() as mock:
        assert run(mock, warmup_cap_s=60, warmup_requests=1, steady_share=1).warmup["requests"] == load.STEADY_WAVES
        done = run(mock, warmup_cap_s=0, warmup_requests=5, steady_share=0).warmup
        assert (done["requests"], done["steady"]) == (5, False)
        monkeypatch.setattr(load, "WARMUP_WAVES", 7)
        assert run(mock, warmup_cap_s=60, warmup_requests=1, steady_share=0).warmup["requests"] == 7
        assert run(mock, warmup_requests=0).warmup == {
            "requests": 0,
            "seconds": pytest.approx(0, abs=1),
            "steady": False,
            "decode_tok_s": [],
        }


def test_the_first_failure_of_the_warm_up_tells_what_is_wrong():
    with Mock(trap="no_usage") as mock, pytest.raises(load.LoadError, match=r"no_usage.*stream_options.include_usage"):
        run(mock)
    with Mock(trap="short") as mock, pytest.raises(load.LoadError, match="4 of 8 tokens"):
        run(mock)


def test_failed_requests_are_counted_and_never_averaged_in():
    with Mock(trap="flaky") as mock:
        done = run(mock, concurrency=[3], repeats=4, requests=2, warmup_requests=0, max_error_share=0.5)
    found = document(done, concurrency=[3], repeats=4, requests=2)
    (level,) = found["levels"]
    assert (level["requests"], level["ok"], level["errors"]) == (24, 16, {"http_503": 8})
    assert sum(row["ok"] for row in level["repeats"]) == 16
    failed = [row for row in found["requests"] if not row["ok"]]
    assert len(failed) == 8
    assert {row["decode_tok_s"] for row in failed} == {None}
    assert level["chunk_gap_s"]["n"] == 16 * 7


def test_more_errors_than_allowed_fail_the_measurement():
    with Mock(trap="flaky") as mock, pytest.raises(load.LoadError) as caught:
        run(mock, repeats=6, warmup_requests=0, max_error_share=0.1)
    assert "2 of 6 requests failed (2 x http_503), max_error_share allows 0.1" in str(caught.value)


def test_a_repeat_without_any_answer_fails_the_measurement_and_is_named():
    with Mock(trap="flaky") as mock, pytest.raises(load.LoadError) as caught:
        run(mock, repeats=6, warmup_requests=0, max_error_share=0.5)
    assert re.search(r"2 of 6 requests failed \(2 x http_503\), all of repeat [123] among them", str(caught.value))


def test_a_dead_server_ends_the_run_at_once_and_is_named():
    answers = iter([None, None])
    with Mock(ttft=30) as mock:
        begun = time.monotonic()
        with pytest.raises(load.ServerGone, match="pid 7 ended"):
            run(mock, guard=lambda: next(answers, "pid 7 ended"))
        # Far below the 30 s that the request would take; the bound itself is loose on purpose.
        assert time.monotonic() - begun < 10


def test_a_death_explains_the_failed_request_that_is_seen_first():
    asked = []

    def guard():
        asked.append(1)
        return "pid 7 ended" if len(asked) > 2 else None

    with Mock(trap="reset") as mock, pytest.raises(load.ServerGone):
        run(mock, guard=guard)


def test_an_error_of_the_run_itself_comes_through_the_guard():
    with Mock(trap="http_429") as mock, pytest.raises(load.LoadError, match="overloaded on purpose") as caught:
        run(mock, guard=lambda: None)
    assert not isinstance(caught.value, load.ServerGone)


def test_the_same_measurement_sends_the_same_prompts_another_one_does_not():
    sent = []
    for name in ("m1", "m1", "m2"):
        with Mock() as mock:
            run(mock, name=name)
            sent.append([truth.prompt for truth in mock.truths])
    assert sent[0] == sent[1]
    assert not set(sent[0]) & set(sent[2])


def test_progress_ends_complete():
    progress = load.Progress()
    with Mock() as mock:
        run(mock, progress=progress, concurrency=[1, 2])
    told = progress.as_dict()
    assert (told["phase"], told["done"], told["total"]) == ("measuring", 6, 6)
    assert told["eta_s"] == 0


def test_the_estimate_comes_from_the_requests_that_are_done(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(load.time, "monotonic", lambda: clock[0])
    progress = load.Progress()
    progress.enter("measuring", 4)
    assert progress.as_dict()["eta_s"] is None
    clock[0] = 110.0
    progress.step()
    assert progress.as_dict()["eta_s"] == pytest.approx(30)
    clock[0] = 115.0  # the next one takes its time: the estimate goes down, not up
    assert progress.as_dict()["eta_s"] == pytest.approx(25)
    clock[0] = 1000.0
    assert progress.as_dict()["eta_s"] == 0


def test_the_document_is_json_without_nan_and_consistent_with_its_rows():
    with Mock(k=3) as mock:
        done = run(mock, concurrency=[1, 2])
        truths = list(mock.truths)
    found = document(done, concurrency=[1, 2])
    json.dumps(found, allow_nan=False)
    assert [level["concurrency"] for level in found["levels"]] == [1, 2]
    assert len(found["requests"]) == 3 + 6 == sum(level["requests"] for level in found["levels"])
    for level in found["levels"]:
        rows = [row for row in found["requests"] if row["concurrency"] == level["concurrency"]]
        for repeat, told in enumerate(level["repeats"]):
            of_repeat = [row["decode_tok_s"] for row in rows if row["repeat"] == repeat]
            assert told["decode_tok_s"] == pytest.approx(sum(of_repeat) / len(of_repeat))
        means = [told["decode_tok_s"] for told in level["repeats"]]
        assert level["decode_tok_s"]["mean"] == pytest.approx(sum(means) / 3)
        assert level["decode_tok_s"]["low"] < level["decode_tok_s"]["mean"] < level["decode_tok_s"]["high"]
        assert level["decode_tok_s"]["n"] == level["ttft_s"]["n"] == 3
        assert level["tokens_per_chunk"] == pytest.approx(8 / truths[0].chunks)
        assert level["ttft_s"]["p50"] <= level["ttft_s"]["p90"] <= level["ttft_s"]["p99"]
        assert level["prompt_tokens"] == {"min": 32, "max": 32}
        assert level["cached_tokens"] == 0
    headline = found["headline"]
    assert headline["value"] == found["levels"][0]["decode_tok_s"]["mean"]
    assert (headline["n"], headline["interval_over"]) == (3, "repeats within one start")
    short = measurement.short(found)
    assert (short["value"], short["measurement_id"], short["model"]) == (headline["value"], "m1", "mock")
    assert found["workload_hash"] == files.digest(found["workload"])


def test_an_interval_of_what_cannot_be_negative_ends_at_0():
    wide = measurement._over_repeats([{"x": one} for one in (10.0, 400.0, 300.0)], "x")
    assert (wide.low, wide.n) == (0.0, 3)
    assert wide.high > 700
    steady = measurement._over_repeats([{"x": one} for one in (9.0, 10.0, 11.0)], "x")
    assert (steady.low, steady.high) == pytest.approx((7.516, 12.484), abs=1e-3)


def test_one_repeat_has_no_interval_instead_of_a_wrong_one():
    with Mock() as mock:
        found = document(run(mock, repeats=1), repeats=1)
    assert found["headline"]["value"] > 0
    assert (found["headline"]["low"], found["headline"]["high"]) == (None, None)


def test_total_rate_spans_from_the_first_request_to_the_last_token():
    def sample(sent: float, e2e: float) -> Sample:
        return Sample(sent_at=sent, ttft_s=0.5, e2e_s=e2e, tpot_s=0.1, decode_tok_s=10.0, tokens=20, chunks=20)

    repeat = load.Repeat(2, 0, [sample(100.0, 2.0), sample(101.0, 3.0), Sample(sent_at=99.0, error="timeout")])
    told = measurement.summarise_repeat(repeat)
    assert told["output_tok_s"] == pytest.approx(40 / (104.0 - 99.0))
    assert told["ok"] == 2
    empty = measurement.summarise_repeat(load.Repeat(1, 0, [Sample(error="timeout")]))
    assert (empty["output_tok_s"], empty["decode_tok_s"], empty["ok"]) == (None, None, 0)


def test_identity_changes_with_each_of_its_parts_and_with_nothing_else():
    base = ("start", "declaration", dict(DEFAULTS), "state")
    known = measurement.identity(*base)
    assert known == measurement.identity("start", "declaration", resolve({}), "state")
    others = [("x", *base[1:]), ("start", "x", *base[2:]), (*base[:2], resolve({"seed": 1}), "state"), (*base[:3], "x")]
    assert len({known, *(measurement.identity(*other) for other in others)}) == 5


def test_names_of_measurements_sort_by_time_and_differ():
    names = [measurement.new_id(when) for when in (0.0, 1e9, 1.8e9)]
    assert names == sorted(names)
    assert names[1].startswith("20010909T014640Z-")
    assert measurement.new_id(0) != measurement.new_id(0)


@pytest.mark.parametrize(
    ("lag", "cpu", "ttft", "decode", "reasons", "with_kernel_stamps"),
    [
        (0.001, 0.1, 0.005, 0.1, 0, 0),
        (0.030, 0.1, 1.0, 4.0, 0, 0),
        (0.030, 0.1, 0.1, 4.0, 1, 0),
        (0.030, 0.1, 1.0, 1.0, 1, 0),
        (0.001, 0.95, 1.0, 1.0, 1, 1),
        (0.5, 0.95, 0.1, 1.0, 3, 2),
    ],
)
def test_when_the_client_was_the_limit(lag, cpu, ttft, decode, reasons, with_kernel_stamps):
    sample = Sample(ttft_s=ttft, e2e_s=ttft + decode)
    for stamped, number in ((False, reasons), (True, with_kernel_stamps)):
        told = self_check.self_check([lag] * 50, cpu, [sample], stamped)
        assert (len(told["why"]), told["limited"]) == (number, number > 0)
    assert not math.isnan(told["loop_lag_p99_s"])


def test_reading_later_than_chunks_come_is_a_limit_of_its_own():
    sample = Sample(ttft_s=0.2, e2e_s=1.2, gaps=[0.01] * 100)
    for late, number in ((0.005, 0), (0.015, 0), (0.03, 1)):
        told = self_check.self_check([0.01] * 50, 0.1, [sample], True, late)
        assert len(told["why"]) == number
    assert "30.0 ms late" in told["why"][0]


def test_a_blocked_loop_is_seen_by_the_client_itself():
    async def work() -> list[float]:
        with self_check.ClientWatch() as watch:
            await asyncio.sleep(0.05)
            time.sleep(0.2)
            await asyncio.sleep(0.05)
        return watch.lags

    assert max(asyncio.run(work())) > 0.1


def test_unreachable_is_an_endpoint_error():
    with Mock() as mock:
        url = mock.url

    async def work():
        await Endpoint(Client(url), get_engine("vllm"), "mock", resolve({})).check()

    with pytest.raises(EndpointError, match="does not answer"):
        asyncio.run(work())


def test_one_answer_in_one_piece_does_not_end_the_warm_up_but_all_of_them_do(monkeypatch):
    """A tiny model on a busy machine: its first short answer may arrive at one moment."""
    ask = Endpoint.measure
    pieces = iter(["one", "stream", "stream", "stream"])

    async def sometimes(self, *arguments):
        sample = await ask(self, *arguments)
        if next(pieces, "stream") == "one":
            sample.error, sample.message, sample.decode_tok_s = (
                "not_streamed",
                "all 8 tokens arrived at one moment",
                None,
            )
        return sample

    with Mock() as mock:
        monkeypatch.setattr(Endpoint, "measure", sometimes)
        done = run(mock, warmup_requests=4, warmup_cap_s=0, repeats=1)
    assert done.warmup["requests"] == 4
    assert len(done.warmup["decode_tok_s"]) == 3
    monkeypatch.setattr(Endpoint, "measure", ask)
    with Mock(trap="buffered") as mock, pytest.raises(load.LoadError, match="one moment"):
        run(mock, warmup_requests=4)
    assert len(mock.truths) == load.STEADY_WAVES


def test_the_cache_is_emptied_before_every_wave_and_the_same_prompts_come_again():
    with Mock() as mock:
        run(mock, engine="sglang", prefix_cache="flush", concurrency=[2])
        prompts = [truth.prompt for truth in mock.truths]
        assert mock.server.flushes == 1 + 3  # a wave of warm-up and three repeats
    assert len(prompts) == 8
    assert len(set(prompts)) == 2


def test_an_engine_that_cannot_empty_its_cache_is_refused_before_any_load():
    async def work(url: str) -> None:
        await Endpoint(Client(url), get_engine("vllm"), "mock", resolve({"prefix_cache": "flush"})).check()

    with Mock() as mock:
        with pytest.raises(EndpointError, match="vLLM has no request that empties its prefix cache"):
            asyncio.run(work(mock.url))
        assert mock.server.generations == 0


def test_the_servers_own_counters_agree_with_what_was_measured():
    with Mock() as mock:
        done = run(mock, concurrency=[1, 2])
    found = document(done, concurrency=[1, 2])
    assert [level["server_metrics"]["delta"]["generated_tokens"] for level in found["levels"]] == [3 * 8, 6 * 8]
    assert [level["server_metrics"]["delta"]["prompt_tokens"] for level in found["levels"]] == [3 * 32, 6 * 32]
    assert [level["server_metrics"]["foreign_tokens"] for level in found["levels"]] == [0, 0]
    assert [level["warmup"]["requests"] for level in found["levels"]] == [2, 2]
    assert found["warmup"] == found["levels"][0]["warmup"]


def test_texts_of_a_file_are_sent_as_they_are_when_the_cache_is_kept():
    wanted = resolve({**QUICK, "prefix_cache": "keep", "prompts_file": "prompts.txt", "concurrency": [2]})

    async def work(url: str) -> load.Run:
        client = Client(url)
        try:
            target = Endpoint(client, get_engine("vllm"), "mock", wanted)
            chosen = await PromptSource(target, wanted, "m1", ["one text", "another text", "unused"]).choose()
            return await load.Runner(target, wanted, chosen, load.Progress()).run()
        finally:
            await client.close()

    with Mock() as mock:
        done = asyncio.run(work(mock.url))
        assert {truth.prompt for truth in mock.truths} == {'"one text"', '"another text"'}
    found = document(done, prefix_cache="keep", prompts_file="prompts.txt", concurrency=[2])
    assert (found["prompts"]["exact"], found["prompts"]["method"]) == (None, "file")
    assert found["levels"][0]["prompt_tokens"] == {"min": 2, "max": 2}
    assert found["prefix_cache"].startswith("kept")
