"""Short forms of a comparison whose arms would be the same, and starts that drafted nothing though an arm says so."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import nothing_drafted, short_forms

ARMS = [{"name": "a"}, {"name": "b"}]
PATCH = {"file": "p.patch", "distribution": "engine", "version": "1.0"}


def refusal(variable: str, **variables) -> str:
    with pytest.raises(ValueError, match=variable) as told:
        short_forms.check({variable: ARMS}, variables.get)
    return str(told.value)


@pytest.mark.parametrize("variables", [{}, {"ml_env_patches": []}, {"ml_env_patches": None}])
def test_patches_that_nobody_declares_are_told_as_such(variables):
    assert "no patches are declared (ml_env_patches)" in refusal("compare_patched_vs_pristine", **variables)


@pytest.mark.parametrize("engine", ["llama_cpp", "generic"])
def test_an_engine_without_an_all_reduce_of_its_own_is_refused_with_those_that_have_one(engine):
    told = refusal("compare_custom_all_reduce", llm_server={"engine": engine})
    assert f"engine {engine} has no all-reduce of its own" in told
    assert "(llm_server.engine: vllm or sglang)" in told


@pytest.mark.parametrize(
    ("ways", "variables"),
    [
        ({"compare_arms": ARMS, "compare_custom_all_reduce": [], "compare_patched_vs_pristine": []}, {}),
        ({"compare_patched_vs_pristine": ARMS}, {"ml_env_patches": [PATCH]}),
        ({"compare_custom_all_reduce": ARMS}, {"llm_server": {"engine": "sglang"}}),
        ({"compare_custom_all_reduce": ARMS}, {"llm_server": {"engine": "vllm"}}),
    ],
)
def test_what_can_be_compared_passes(ways, variables):
    assert short_forms.check(ways, variables.get) is None


def noted(speculation, *drafts) -> list[str]:
    declaration = {
        "arms": [
            {"name": "plain", "variables": {"llm_server": {"name": "s"}}},
            {"name": "ngram", "variables": {"llm_server": {"name": "s", "speculation": speculation}}},
        ]
    }
    levels = [{"speculation": None if one is None else {"drafts": one, "accept_length": 1.0}} for one in drafts]
    assert nothing_drafted.notes(declaration, "plain", {"levels": levels}) == []
    return nothing_drafted.notes(declaration, "ngram", {"levels": levels})


def test_a_start_that_drafted_nothing_is_noted_where_its_arm_declares_speculation():
    assert noted({"algorithm": "ngram"}, 0) == ["speculation is declared, and nothing was drafted"]
    assert noted({"algorithm": "ngram"}, 0, 0)
    assert noted({}, 0) == []


@pytest.mark.parametrize("drafts", [(3,), (0, 3), (None,), (0, None), ()])
def test_a_start_that_drafted_or_does_not_tell_is_not_noted(drafts):
    assert noted({"algorithm": "ngram"}, *drafts) == []
