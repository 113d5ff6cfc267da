"""What speculation did, told by a real engine in the measured window: llama.cpp with a draft model and with n-grams."""

from __future__ import annotations

import pytest

WORKLOAD = {"prompt_tokens": 32, "output_tokens": 48, "repeats": 2, "warmup_requests": 1, "warmup_cap_s": 0}


@pytest.fixture
def measured(host, llama_env, llama_model):
    """Launch llama.cpp with this speculation and measure it once; the level of the measurement."""

    def measure(speculation: dict, extra_args: dict | None = None, **workload) -> dict:
        declaration = {
            "name": "spec",
            "engine": "llama_cpp",
            "model": str(llama_model),
            "served_model_name": "smol",
            "port_from": 19600,
            "threads": 1,
            "context_length": 512,
            "gpus": [],
            "speculation": speculation,
            "extra_args": extra_args or {},
        }
        made = host.run("llm_server", env_path=str(llama_env), launcher="process", declaration=declaration)
        assert not made["failed"], made
        ready = host.run("llm_server_ready", server="spec", timeout_s=120, slice_s=0)
        assert ready.get("ready") is True, ready
        told = host.run("llm_benchmark", server="spec", fingerprint=False, workload={**WORKLOAD, **workload})
        assert not told["failed"], told
        (level,) = told["measurement"]["levels"]
        return level

    return measure


def test_a_model_that_drafts_for_itself_is_accepted_in_full(measured, llama_model):
    """Greedy, so that both agree: each cycle gives three drafts and one token more, until the answer ends."""
    level = measured({"algorithm": "draft", "draft_model": str(llama_model), "draft_tokens": 3})
    told = level["speculation"]
    assert told["source"] == "counters"
    assert told["tokens"] == 2 * 47  # the first token of each answer is its prefill's
    assert told["accepted"] == told["draft_tokens"]
    assert told["cycles"] == told["tokens"] - told["accepted"]
    assert 3.5 < told["accept_length"] <= 4.0
    assert told["acceptance_per_position"][0] == 1.0
    assert told["drafts"] <= told["cycles"]


def test_n_grams_of_a_text_that_repeats_itself(measured, tmp_path):
    """The warm-up is not in the window: what was drafted there does not count."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one two three four five six seven eight " * 8 + "\n")
    level = measured(
        {"algorithm": "ngram", "draft_tokens": 4},
        {"lookup-tokens": 3},
        prompts_file=str(prompts),
        prefix_cache="keep",
    )
    told, metrics = level["speculation"], level["server_metrics"]
    assert told["drafts"] > 0
    assert told["accepted"] > 0
    assert told["accept_length"] > 1.0
    assert metrics["before"]["drafts"] + told["drafts"] == metrics["after"]["drafts"]
    assert level["repetition"]["prompts"] > 0.8
    assert level["repetition"]["answers"] > 0.2
