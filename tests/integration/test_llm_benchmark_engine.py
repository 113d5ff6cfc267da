"""llm_benchmark against a real engine with a real model: llama.cpp, launched by llm_server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

#: Half a second of a small model: of a shorter answer all tokens may arrive at once when the machine is busy.
TOKENS = 60
WORKLOAD = {"prompt_tokens": 48, "output_tokens": TOKENS, "repeats": 2, "warmup_requests": 1, "warmup_cap_s": 0}
KEY = "a-key-of-this-test"


@pytest.fixture
def measured(host, llama_env, llama_model):
    """Launches the server and returns a function that measures it."""
    declaration = {
        "name": "real",
        "engine": "llama_cpp",
        "model": str(llama_model),
        "served_model_name": "smol",
        "port_from": 19400,
        "threads": 1,
        "context_length": 512,
        "gpus": [],
        "api_key": KEY,
    }

    def launch(**fields):
        made = host.run(
            "llm_server", env_path=str(llama_env), launcher="process", declaration={**declaration, **fields}
        )
        assert not made["failed"], made
        ready = host.run("llm_server_ready", server="real", timeout_s=60, slice_s=0)
        assert ready.get("ready") is True, ready
        return made

    def measure(check=False, **arguments):
        return host.run("llm_benchmark", check=check, server="real", **{"workload": WORKLOAD, **arguments})

    measure.launch = launch
    launch()
    return measure


def test_exact_tokens_of_a_real_model_and_reuse_until_a_new_start(measured):
    first = measured()
    assert not first["failed"], first
    found = first["measurement"]
    (level,) = found["levels"]
    assert (level["ok"], level["errors"]) == (2, {})
    assert {(row["tokens"], row["prompt_tokens"]) for row in found["requests"]} == {(TOKENS, 48)}
    assert found["prompts"] == {
        "method": "token ids",
        "token_source": "the server's /tokenize",
        "vocabulary": found["prompts"]["vocabulary"],
        "why_not": [],
        "exact": True,
    }
    told = level["server_metrics"]
    assert (told["delta"]["generated_tokens"], told["foreign_tokens"]) == (2 * TOKENS, 0)
    assert found["client"]["time_stamps"] in ("kernel", "reader")
    assert level["cached_tokens"] < 4  # nonces of random tokens: the first one may be alike by chance
    assert found["headline"]["low"] < found["headline"]["value"] < found["headline"]["high"]
    assert KEY not in json.dumps(first)

    assert measured()["reused"] is True
    old = measured.launch(context_length=1024)["start_id"]
    again = measured()
    assert (again["changed"], again["reused"]) == (True, False)
    assert again["measurement"]["server"]["start_id"] == old


def test_chat_prompts_are_fitted_through_the_template_and_two_streams_run(measured):
    told = measured(workload={**WORKLOAD, "api": "chat", "concurrency": [1, 2]})
    assert not told["failed"], told
    found = told["measurement"]
    assert [(level["concurrency"], level["ok"]) for level in found["levels"]] == [(1, 2), (2, 4)]
    assert found["prompts"]["method"].startswith("words fitted")
    assert found["prompts"]["exact"] is True
    assert {row["tokens"] for row in found["requests"]} == {TOKENS}


def test_a_workload_beyond_the_context_is_refused_before_any_load(measured):
    told = measured(workload={**WORKLOAD, "prompt_tokens": 600})
    assert told["failed"]
    assert "needs 660 tokens of context" in told["msg"]
    assert "the server has 512" in told["msg"]
    assert measured(check=True)["would_measure"] is True


def test_an_engine_killed_under_the_measurement_is_named_and_the_next_run_recovers(measured, host):
    arguments = {"home": str(host.home), "server": "real", "workload": {**WORKLOAD, "output_tokens": 400}}
    call = subprocess.Popen(
        [sys.executable, "-m", "ansible_collections.groundstate.llm.plugins.modules.llm_benchmark"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    call.stdin.write(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    call.stdin.close()
    call.stdin = None
    progress = host.folder("real") / "progress.json"
    deadline = time.monotonic() + 60
    while not (progress.exists() and json.loads(progress.read_text())["phase"] == "warm-up"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pid = host.record("real").pid
    os.kill(pid, signal.SIGKILL)
    told = json.loads(call.communicate(timeout=60)[0])
    assert f"server 'real' (pid {pid}) ended while it was measured" in told["msg"]
    assert told["log_tail"]
    assert not (host.folder("real") / "measurement.json").exists()
    measured.launch()
    assert measured()["changed"] is True
