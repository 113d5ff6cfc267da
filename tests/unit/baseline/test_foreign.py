"""Results that the tools really wrote, of one server with a known truth: first token after 100 ms, one every 10 ms.

Two streams, 32 tokens. How far off each tool is, is its own matter; what it means by its numbers is ours.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import foreign
from hypothesis import given
from hypothesis import strategies as some

DATA = Path(__file__).parents[2] / "data" / "foreign"
FILES = {
    "vllm bench serve": "vllm-bench-serve.0.33.0.json",
    "sglang.bench_serving": "sglang.bench_serving.0.5.23.jsonl",
    "aiperf": "aiperf.0.13.0.json",
    "guidellm": "guidellm.0.8.1.json",
}


def load(source: str):
    return foreign.parse((DATA / FILES[source]).read_text(), FILES[source], 1_795_982_000.0)


@pytest.mark.parametrize("source", FILES)
def test_every_tool_is_recognised_and_its_words_are_ours(source):
    [found] = load(source)
    assert (found["source"], found["schema"], found["model"]) == (source, 1, "mock")
    assert found["measured_at"].startswith("2026-11-29T19:5")
    [level] = found["levels"]
    assert (level["concurrency"], level["requests"], level["failed"]) == (2, 8, 0)
    assert level["ttft_s"] == pytest.approx(0.1, rel=0.3)
    # guidellm's "time per output token" would be 12.9 ms here: it includes the time to first token.
    assert level["tpot_s"] == pytest.approx(0.010, rel=0.05)
    assert level["decode_tok_s"] == pytest.approx(100, rel=0.05)
    assert level["output_tok_s"] == pytest.approx(2 * 32 / 0.41, rel=0.15)
    assert level["output_tokens"] == 32


def test_the_same_result_has_the_same_id_and_another_has_not():
    [first], [again] = load("guidellm"), load("guidellm")
    assert first == again
    text = (DATA / FILES["guidellm"]).read_text().replace('"successful": 8', '"successful": 7')
    [other] = foreign.parse(text, "x", 0.0)
    assert other["id"] != first["id"]


def test_several_runs_in_one_file_of_lines():
    line = (DATA / FILES["sglang.bench_serving"]).read_text().strip()
    two = line + "\n\n" + line.replace('"max_concurrency":2', '"max_concurrency":4') + "\n"
    assert [one["levels"][0]["concurrency"] for one in foreign.parse(two, "x", 0.0)] == [2, 4]


def test_the_date_of_the_python_client_and_a_rate_without_limit():
    document = json.loads((DATA / FILES["vllm bench serve"]).read_text())
    document.update(date="20260102-030405", request_rate=float("inf"), max_concurrency=None)
    [found] = foreign.parse(json.dumps(document), "x", 0.0)
    assert found["measured_at"] == "2026-01-02T03:04:05Z"
    assert found["levels"][0]["concurrency"] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON object"),
        ("hello", "neither JSON"),
        ("[]", "no JSON object"),
        ("[1]", "no JSON object"),
        ("{}", "no result of"),
        ('{"schema": 1, "measurement": {}}', "no result of"),
        ('{"benchmarks": [], "metadata": {}}', "holds no result"),
        ('{"benchmarks": [{}], "metadata": {}}', "lacks what its tool usually writes"),
        ('{"model_id": 1, "mean_ttft_ms": "x", "mean_tpot_ms": 1, "output_throughput": 1}', "lacks"),
    ],
)
def test_what_is_no_result_is_refused_by_name(text, words):
    with pytest.raises(foreign.ForeignError, match=words) as caught:
        foreign.parse(text, "result.json", 0.0)
    assert "result.json" in str(caught.value)


JSON = some.recursive(
    some.none() | some.booleans() | some.floats() | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(some.sampled_from(sorted(FILES)), some.data())
def test_a_damaged_result_is_read_or_refused(source, data):
    text = (DATA / FILES[source]).read_text()
    document = json.loads(text.splitlines()[0] if source.startswith("sglang") else text)
    where = document["benchmarks"][0] if source == "guidellm" else document
    where[data.draw(some.sampled_from(sorted(where)))] = data.draw(JSON)
    try:
        found = foreign.parse(json.dumps(document), "x", 0.0)
    except foreign.ForeignError:
        return
    assert all(one["levels"] for one in found)
