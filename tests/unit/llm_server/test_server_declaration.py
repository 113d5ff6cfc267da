"""The declaration: completed, checked, without secrets; and its three descriptions agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.groundstate.llm.plugins.module_utils import declaration as declarations

ROOT = Path(__file__).parents[3]
LEAST = {"name": "s", "engine": "llama_cpp", "model": "/m/model.gguf"}


def make(**fields):
    return declarations.complete({**LEAST, **fields})


def structure(options, nested):
    """What must agree: names, types, defaults, choices, requirement; not the descriptions."""
    return {
        name: {
            **{key: option.get(key) for key in ("type", "elements", "choices", "required")},
            # An absent default and one of null are the same.
            "default": option.get("default"),
            "options": structure(option.get(nested) or {}, nested),
        }
        for name, option in options.items()
    }


def test_module_documentation_role_and_checks_agree():
    source = (ROOT / "plugins/modules/llm_server.py").read_text(encoding="utf-8")
    documented = yaml.safe_load(re.search(r'DOCUMENTATION = r"""\n(.*?)"""', source, re.DOTALL).group(1))
    specs = yaml.safe_load((ROOT / "roles/llm_server/meta/argument_specs.yml").read_text(encoding="utf-8"))
    role = specs["argument_specs"]["main"]["options"]["llm_server"]["options"]
    expected = structure(declarations.OPTIONS, "options")
    assert structure(documented["options"]["declaration"]["suboptions"], "suboptions") == expected
    assert structure(role, "options") == expected
    hidden = {name for name, option in declarations.OPTIONS.items() if option.get("no_log")}
    assert {name for name, option in role.items() if option.get("no_log")} == hidden == {"api_key", "secret_env"}


def test_defaults_are_filled_in_and_not_shared():
    one, other = make(), make()
    one["env"]["A"] = "1"
    assert other["env"] == {}
    assert other["host"] == "127.0.0.1"
    assert other["port_from"] == 18000


def test_everything_wrong_with_the_fields_is_told_at_once():
    with pytest.raises(ValueError, match="modell: no such field") as caught:
        declarations.complete({"name": "s", "engine": "vllm", "modell": "/m", "port": "80"})
    assert "model: required" in str(caught.value)
    assert "port: '80' is not of type int" in str(caught.value)
    with pytest.raises(ValueError, match=r"speculation\.steps: no such field"):
        make(speculation={"steps": 1})


def test_values_get_their_final_form():
    declared = make(gpus="0, 1", env={"A": True, "B": 1.5, "C": None}, speculation={"algorithm": "ngram", "topk": None})
    assert declared["gpus"] == ["0", "1"]
    assert declared["env"] == {"A": "1", "B": "1.5", "C": ""}
    assert declared["speculation"] == {"algorithm": "ngram"}
    assert make(gpus=[0])["gpus"] == ["0"]
    assert make(gpus=[])["gpus"] == []


@pytest.mark.parametrize("value", [[1], {"a": 1}])
def test_a_variable_that_is_no_text_is_refused(value):
    with pytest.raises(ValueError, match=r"env\.A: a text or a number is needed"):
        make(env={"A": value})


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"name": "../x"}, "name: server name"),
        ({"port": 70000}, "port: 70000 is not a TCP port (0: a free one)"),
        ({"port_from": 0}, "port_from: 0"),
        ({"engine": "vllm", "tensor_parallel": 4, "gpus": [0, 1]}, "4 ranks need as many GPUs"),
        ({"gpus": [1, 1]}, "twice"),
        ({"memory_fraction": 1.5}, "memory_fraction: 1.5"),
        ({"threads": -1}, "threads: -1"),
        ({"env": {"A B": "1"}}, "env: 'A B' cannot be the name"),
        ({"env": {"GROUNDSTATE_START": "1"}}, "are ours"),
        ({"env": {"A": "1\n2"}}, "line break"),
        ({"env": {"T": "1"}, "secret_env": {"T": "2"}}, "declared in secret_env too"),
        ({"extra_args": {"a b": 1}}, "cannot be a flag"),
        ({"extra_args": {"port": 1}}, "extra_args.port: this flag is made from another field"),
        ({"engine": "vllm", "extra_args": {"--served_model_name": "x"}}, "made from another field"),
        ({"engine": "sglang", "extra_args": {"model-path": "/x"}}, "made from another field"),
        ({"extra_args": {"json": {"a": 1}}}, "extra_args.json"),
        ({"speculation": {"draft_tokens": 2}}, "speculation.algorithm"),
        ({"speculation": {"algorithm": "EAGLE3"}}, "'ngram' or 'draft' only"),
        ({"tensor_parallel": 2}, "llama.cpp runs in one process"),
    ],
)
def test_a_wrong_value_names_its_field(fields, part):
    found = declarations.problems(make(**fields))
    assert any(part in text for text in found), found


def test_a_sound_declaration_has_no_problems():
    assert declarations.problems(make(extra_args={"parallel": 4}, env={"OMP_NUM_THREADS": 1})) == []
    assert declarations.problems(make(extra_args={"threads": 4})) == []


def test_secrets_leave_only_their_hash():
    declared = make(api_key="k3y", secret_env={"HF_TOKEN": "t0ken"})
    masked = declarations.masked(declared)
    assert "k3y" not in str(masked)
    assert "t0ken" not in str(masked)
    assert masked["api_key"] == declarations.secret_hash("k3y")
    assert declared["api_key"] == "k3y"
    assert declarations.masked(make())["api_key"] == ""


def test_paths_that_must_exist():
    declared = make(engine="sglang", model="/m", speculation={"algorithm": "EAGLE3", "draft_model": "/d"})
    assert declarations.local_paths(declared) == {"model": "/m", "speculation.draft_model": "/d"}
    assert declarations.local_paths(make(model="org/name")) == {}
