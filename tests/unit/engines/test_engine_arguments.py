"""Command lines and environments: what a declaration comes to for each engine."""

from __future__ import annotations

import json

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import declaration as declarations
from ansible_collections.groundstate.llm.plugins.module_utils.engines import ENGINES, get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.engines.base import flag

STORY = {
    "name": "kimi",
    "engine": "sglang",
    "model": "/shared/kimi-k2.5-int4",
    "trust_remote_code": True,
    "tensor_parallel": 8,
    "memory_fraction": 0.88,
    "host": "0.0.0.0",
    "port": 8000,
    "extra_args": {"num-continuous-decode-steps": 4, "disable-custom-all-reduce": True},
    "env": {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": 1},
}


def make(**fields):
    return declarations.complete({"name": "s", "engine": "llama_cpp", "model": "/m/model.gguf", **fields})


def test_the_story_s_server_is_rendered_as_it_was_typed():
    declared = declarations.complete(STORY)
    words = get_engine("sglang").argv(declared, "/root/ml-env", 8000)
    assert " ".join(words) == (
        "/root/ml-env/bin/python -m sglang.launch_server --model-path /shared/kimi-k2.5-int4 --trust-remote-code "
        "--tp-size 8 --mem-fraction-static 0.88 --port 8000 --host 0.0.0.0 --num-continuous-decode-steps 4 "
        "--disable-custom-all-reduce"
    )
    assert declared["env"] == {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert declarations.problems(declared) == []


def test_an_argument_without_effect_is_told():
    warnings = get_engine("sglang").warnings(declarations.complete(STORY))
    assert len(warnings) == 1
    assert "num-continuous-decode-steps" in warnings[0]
    assert get_engine("sglang").warnings(make(engine="sglang", model="/m")) == []


def test_eagle3_under_sglang_and_vllm():
    speculation = {"algorithm": "EAGLE3", "draft_model": "/m/draft", "num_steps": 2, "topk": 1, "draft_tokens": 3}
    declared = declarations.complete({**STORY, "speculation": speculation})
    words = get_engine("sglang").argv(declared, "/e", 8000)
    begin = words.index("--speculative-algorithm")
    assert words[begin : begin + 10] == [
        "--speculative-algorithm",
        "EAGLE3",
        "--speculative-draft-model-path",
        "/m/draft",
        "--speculative-num-steps",
        "2",
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        "3",
    ]
    declared = make(engine="vllm", model="/m/target", speculation=speculation)
    words = get_engine("vllm").argv(declared, "/e", 8000)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config == {"method": "eagle3", "model": "/m/draft", "num_speculative_tokens": 3}


def test_eagle_without_a_draft_is_refused():
    declared = declarations.complete({**STORY, "speculation": {"algorithm": "EAGLE3"}})
    assert any("draft_model" in text for text in declarations.problems(declared))


def test_vllm_with_two_ranks():
    declared = make(
        engine="vllm",
        model="/m/tiny",
        served_model_name="tiny",
        tensor_parallel=2,
        context_length=1024,
        extra_args={"kv-cache-memory-bytes": 134217728, "enforce-eager": True, "lora-modules": ["a=1", "b=2"]},
    )
    assert get_engine("vllm").argv(declared, "/e", 18001) == [
        *("/e/bin/vllm", "serve", "/m/tiny", "--served-model-name", "tiny", "--tensor-parallel-size", "2"),
        *("--max-model-len", "1024", "--host", "127.0.0.1", "--port", "18001"),
        *("--kv-cache-memory-bytes", "134217728", "--enforce-eager", "--lora-modules", "a=1", "b=2"),
    ]
    environment = get_engine("vllm").environment(declared)
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_every_engine_keeps_its_environment_readable_and_hides_secrets(name):
    declared = make(engine=name, model="org/model", gpus=[0, 3], secret_env={"HF_TOKEN": "s3cret"}, command=["run"])
    engine = get_engine(name)
    environment = engine.environment(declared)
    assert environment["SPT_NOENV"] == "1"
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,3"
    # Without it CUDA's 0 need not be nvidia-smi's.
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "HF_HUB_OFFLINE" not in environment
    assert "s3cret" not in " ".join([*environment.values(), *engine.argv(declared, "/e", 1)])
    assert engine.secrets(declared)["HF_TOKEN"] == "s3cret"


def test_an_api_key_goes_into_the_environment_or_is_refused():
    for name, variable in (("llama_cpp", "GROUNDSTATE_API_KEY"), ("vllm", "VLLM_API_KEY")):
        declared = make(engine=name, api_key="k3y")
        assert get_engine(name).secrets(declared) == {variable: "k3y"}
        assert "k3y" not in get_engine(name).argv(declared, "/e", 1)
        assert declarations.problems(declared) == []
    refused = declarations.problems(make(engine="sglang", model="/m", api_key="k3y"))
    assert len(refused) == 1
    assert "command line" in refused[0]
    assert "k3y" not in refused[0]


def test_generic_replaces_what_the_command_names():
    declared = make(engine="generic", model="/m", command=["{env}/bin/serve", "--bind={host}:{port}", "{model}"])
    assert get_engine("generic").argv(declared, "/e", 77) == ["/e/bin/serve", "--bind=127.0.0.1:77", "/m"]
    assert any("command" in text for text in declarations.problems(make(engine="generic")))


def test_flags():
    assert flag("a", True) == ["-a"]
    assert flag("long", True) == ["--long"]
    assert flag("--dashed", 1) == ["--dashed", "1"]
    assert flag("off", False) == flag("none", None) == flag("empty", []) == []
    assert flag("many", [1, "b"]) == ["--many", "1", "b"]


def test_what_the_benchmark_may_ask():
    assert get_engine("llama_cpp").benchmark_extras(8) == {"ignore_eos": True}
    assert get_engine("vllm").benchmark_extras(8) == {"ignore_eos": True, "min_tokens": 8}
    assert get_engine("sglang").benchmark_extras(8) == {"ignore_eos": True, "min_tokens": 8}
    assert get_engine("generic").benchmark_extras(8) == {}
    assert get_engine("llama_cpp").tokenize_request("hi", "m").body["content"] == "hi"
    assert get_engine("vllm").tokenize_request("hi", "m").body["prompt"] == "hi"
    assert get_engine("generic").tokenize_request("hi", "m") is None


def test_an_unknown_engine_names_those_that_exist():
    with pytest.raises(ValueError, match="generic, llama_cpp, sglang, vllm"):
        get_engine("tgi")
