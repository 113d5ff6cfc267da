"""Drafts that cannot be right are refused before a start: no path, and a draft of another kind than the method's."""

from __future__ import annotations

import json

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import declaration as declarations
from ansible_collections.groundstate.llm.plugins.module_utils import draft_model
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine


def declared(engine: str = "sglang", **speculation) -> dict:
    return declarations.complete({"name": "s", "engine": engine, "model": "/m", "speculation": speculation})


@pytest.mark.parametrize(
    ("engine", "algorithm"),
    [
        ("sglang", "EAGLE3"),
        ("sglang", "EAGLE"),
        ("sglang", "STANDALONE"),
        ("vllm", "eagle3"),
        ("vllm", "draft_model"),
        ("llama_cpp", "draft"),
    ],
)
def test_a_method_that_needs_a_draft_model_is_refused_without(engine, algorithm):
    (problem,) = declarations.problems(declared(engine, algorithm=algorithm))
    assert problem.startswith("speculation.draft_model: ")
    assert declarations.problems(declared(engine, algorithm=algorithm, draft_model="/d")) == []


@pytest.mark.parametrize(("engine", "algorithm"), [("sglang", "NGRAM"), ("vllm", "ngram"), ("llama_cpp", "ngram")])
def test_n_grams_need_none(engine, algorithm):
    assert declarations.problems(declared(engine, algorithm=algorithm)) == []


@pytest.mark.parametrize(
    ("algorithm", "architecture", "says"),
    [
        ("EAGLE", "LlamaForCausalLMEagle3", "is an EAGLE-3 draft (LlamaForCausalLMEagle3)"),
        ("eagle", "Eagle3LlamaForCausalLM", "declare EAGLE3"),
        ("EAGLE3", "LlamaForCausalLMEagle", "is an EAGLE draft (LlamaForCausalLMEagle)"),
        ("EAGLE3", "LlamaForCausalLMEagle3", ""),
        ("EAGLE", "LlamaForCausalLMEagle", ""),
        ("EAGLE3", "LlamaForCausalLM", ""),
        ("STANDALONE", "LlamaForCausalLMEagle3", ""),
    ],
)
def test_a_draft_of_the_other_kind(tmp_path, algorithm, architecture, says):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    found = draft_model.mismatch(declared(algorithm=algorithm, draft_model=str(tmp_path)))
    assert says in found
    assert bool(found) is bool(says)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"architectures": 3}', '{"architectures": [3]}', "\0"])
def test_a_config_that_says_nothing_is_no_reason(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert draft_model.mismatch(declared(algorithm="EAGLE", draft_model=str(tmp_path))) == ""
    assert draft_model.mismatch(declared(algorithm="EAGLE", draft_model="some/repository")) == ""
    assert draft_model.mismatch(declared(algorithm="EAGLE", draft_model=str(tmp_path / "absent"))) == ""


def test_how_many_drafts_a_cycle_can_accept():
    """SGLang counts the root among its draft tokens, the others do not."""
    depth = get_engine("sglang").draft_depth
    assert depth({"num_steps": 2, "draft_tokens": 3}, {}) == 2
    assert depth({"draft_tokens": 3}, {}) == 2
    assert depth({}, {"speculative_num_steps": 5, "speculative_num_draft_tokens": 8}) == 5
    assert depth({}, {}) is None
    assert get_engine("vllm").draft_depth({"draft_tokens": 3}, {}) == 3
    assert get_engine("llama_cpp").draft_depth({}, {}) == 8
