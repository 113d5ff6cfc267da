"""What is asked of a host, derived from its variables."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import needs

ARGUMENTS = {
    "min_free_gib": 0,
    "min_memory_gib": 0,
    "environment": {},
    "server": {},
    "needs": {},
    "home": None,
    "made_later": [],
    "local_fact": None,
    "gpu_state": None,
}


def problems(**values):
    return needs.derive(values, [], ARGUMENTS, None)[1]


@pytest.mark.parametrize("path", ["/with space/ü 日本", "~/it's", "/100%/{{ x }}", "/a:b", ""])
def test_a_path_may_have_most_characters(path):
    assert problems(groundstate_home=path) == []


@pytest.mark.parametrize("character", ['"', "$", "`", "\\", "\n", "\x1b"])
def test_a_path_with_what_shells_and_units_replace_is_refused(character):
    (found,) = problems(groundstate_home=f"/a{character}b", ml_env_path=f"/a{character}b/envs/x")
    assert found["where"] == "groundstate_home"
    assert repr(character) in found["what"]
