"""What is asked of a host, derived from its variables."""

from __future__ import annotations

import pytest
from ansible.parsing.dataloader import DataLoader
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


def test_a_relative_path_is_refused():
    for path in ("envs/x", "./x", "../x"):
        (found,) = problems(groundstate_home="~/gs", ml_env_path=path)
        assert found["where"] == "ml_env_path"
        assert f"{path!r} is relative" in found["what"]
    (found,) = problems(groundstate_home="gs", ml_env_path="gs/envs/x")
    assert found["where"] == "groundstate_home"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, None),
        ({"nccl_profile_places": []}, "has no place: name one of server, conf, python_startup"),
        ({"nccl_profile_places": ["conf"], "nccl_profile_conf_path": "nccl.conf"}, "no whole path"),
        ({"nccl_profile_places": ["conf"], "nccl_profile_conf_path": ""}, None),
        ({"nccl_profile_places": ["python_startup"]}, "needs the Python that the server runs with"),
        ({"nccl_profile_places": ["python_startup"], "ml_env_path": "/srv/venv"}, None),
        ({"nccl_profile_places": ["python_startup"], "nccl_profile_python": "/srv/venv/bin/python"}, None),
    ],
)
def test_the_places_of_a_profile(values, says):
    given = {"nccl_profile_name": "pcie_ll_ring", "nccl_profiles": {}, "llm_server": {"name": "kimi"}, **values}
    found = needs.derive(given, ["nccl_profile"], ARGUMENTS, DataLoader())[1]
    assert [one["where"] for one in found] == (["nccl_profile_places"] if says else [])
    assert not says or says in found[0]["what"]


@pytest.mark.parametrize("clocks", [None, {}, {"persistence": True, "sm_mhz": [1200, 1500], "power_limit_w": None}])
def test_clocks_that_some_gpu_may_have(clocks):
    assert needs.derive({"gpu_clocks": clocks}, ["gpu_clocks"], ARGUMENTS, None)[1] == []


def test_clocks_that_no_gpu_can_have_are_named():
    (found,) = needs.derive({"gpu_clocks": {"sm_mhz": [1500, 1200]}}, ["gpu_clocks"], ARGUMENTS, None)[1]
    assert found["where"] == "gpu_clocks.sm_mhz"
    assert found["what"].startswith("is [1500, 1200]: use one clock in MHz")
