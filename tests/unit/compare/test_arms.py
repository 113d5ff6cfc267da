"""Arms: one way to say what is compared, variables merged into the inventory's, secrets never shown."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import arms

TWO = [{"name": "a"}, {"name": "b", "vars": {"nccl_profile_name": "stock"}}]


def test_exactly_one_way():
    assert [one["name"] for one in arms.chosen({"compare_arms": TWO, "compare_clocks": []})] == ["a", "b"]
    with pytest.raises(ValueError, match=r"one of compare_arms, compare_clocks; none is given"):
        arms.chosen({"compare_arms": [], "compare_clocks": []})
    with pytest.raises(ValueError, match=r"compare_arms and compare_clocks are given"):
        arms.chosen({"compare_arms": TWO, "compare_clocks": TWO})


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([{"name": "a"}], "1 arms cannot be compared"),
        ([{"name": str(number)} for number in range(9)], "9 arms cannot be compared"),
        ([{"name": "a"}, {"name": "a"}], "name a is given to two arms"),
        ([{"name": "a"}, {"vars": {}}], "dictionary with a name"),
        ([{"name": "a"}, "b"], "dictionary with a name"),
        ([{"name": "a"}, {"name": "../b"}], "cannot be the name of an arm"),
        ([{"name": "a"}, {"name": "b", "var": {}}], "no such key: var"),
        ([{"name": "a"}, {"name": "b", "vars": [1]}], "vars is a dictionary"),
        ([{"name": "a"}, {"name": "b", "vars": {"groundstate_home": "/x"}}], "the same for all arms"),
        ([{"name": "a"}, {"name": "b", "vars": {"baseline_accept": True}}], "the same for all arms"),
        ([{"name": "a"}, {"name": "b", "vars": {"llm_server": {"name": "x"}}}], r"llm_server.name is the same"),
        ([{"name": "a"}, {"name": "b", "vars": {"llm_server": "x"}}], "llm_server is a dictionary"),
        ([{"name": "a"}, {"name": "b", "vars": {"no name": 1}}], "cannot be the name of a variable"),
        ([{"name": "a"}, {"name": "b", "vars": {True: 1}}], "True cannot be the name of a variable"),
        ([{"name": "a"}, {"name": "b", "vars": {None: 1}}], "None cannot be the name of a variable"),
        ([{"name": "a"}, {"name": "b", "vars": {"inventory_hostname": "x"}}], "a name of Ansible's own"),
        ([{"name": "a"}, {"name": "b", "vars": {"hostvars": {}}}], "a name of Ansible's own"),
        ([{"name": "a"}, {"name": "b", "vars": {"omit": 1}}], "a name of Ansible's own"),
        ([{"name": "a"}, {"name": "b", "vars": {"vars": {}}}], "a name of Ansible's own"),
        ([{"name": "a"}, {"name": "b", "vars": {"environment": {}}}], "a name of Ansible's own"),
        ([{"name": "a"}, {"name": "b", "vars": {"True": 1}}], "a name of Ansible's own"),
        ([{"name": "a"}, {"name": "b", "vars": {"item": 1}}], "a name of Ansible's own"),
        ([{"name": "a"}, {"name": "b", "vars": False}], "vars is a dictionary"),
        ([{"name": "a"}, {"name": "b", 1: 2, "z": 3}], "no such key: 1, z"),
        (5, "compare_arms: 5 is no list of arms"),
        ({"a": {}, "b": {}}, "is no list of arms"),
        ("a, b", "is no list of arms"),
        ([{"name": "a"}, {"name": "b", "clocks": {}, "vars": {"gpu_clocks": {}}}], "give one of them"),
    ],
)
def test_what_is_wrong_with_an_arm_is_one_sentence(raw, words):
    with pytest.raises(ValueError, match=words):
        arms.chosen({"compare_arms": raw})


def test_clocks_are_a_variable_and_profiles_are_arms():
    made = arms.chosen({"w": [{"name": "a", "clocks": {}}, {"name": "b", "clocks": {"sm_mhz": 1980}}]})
    assert [one["vars"] for one in made] == [{"gpu_clocks": {}}, {"gpu_clocks": {"sm_mhz": 1980}}]
    assert arms.names(made) == ["gpu_clocks"]
    assert arms.of_profiles(["stock", "nvlink"])[1] == {"name": "nvlink", "vars": {"nccl_profile_name": "nvlink"}}


def final(arm, wanted, inventory):
    """As the action does it, with a template language of one form."""

    def template(_name, raw, context):
        if isinstance(raw, dict):
            return {key: template(key, value, context) for key, value in raw.items()}
        return template(_name, context[raw[1:]], context) if isinstance(raw, str) and raw.startswith("$") else raw

    return arms.variables(arm, wanted, inventory, template)


def test_dictionaries_are_merged_and_the_inventory_sees_the_arm():
    inventory = {
        "llm_server": {"model": "$ml_env_path", "extra_args": {"x": 1, "y": 2}, "gpus": [0, 1]},
        "ml_env_path": "/old",
        "nccl_profile_name": "stock",
    }
    arm = {"name": "b", "vars": {"llm_server": {"extra_args": {"y": 3}, "gpus": [0]}, "ml_env_path": "/new"}}
    found = final(arm, ["llm_server", "nccl_profile_name"], inventory)
    assert found["llm_server"] == {"model": "/new", "extra_args": {"x": 1, "y": 3}, "gpus": [0]}
    assert found["nccl_profile_name"] == "stock"
    assert inventory["llm_server"]["extra_args"] == {"x": 1, "y": 2}, "the inventory's own is as it was"


@pytest.mark.parametrize(
    "server",
    [
        {"model": "m", "extra_args": "$shared_args"},  # as pcie8_speculation in inventories/pcie8
        "$whole",
        {"model": "m", "extra_args": {"x": 1, "y": "$y"}},
    ],
)
@pytest.mark.parametrize(("over", "merged"), [({}, {"x": 1, "y": 2}), ({"y": 3}, {"x": 1, "y": 3})])
def test_what_the_inventory_has_as_a_template_of_a_dictionary_is_merged_as_well(server, over, merged):
    inventory = {
        "llm_server": server,
        "whole": {"model": "m", "extra_args": "$shared_args"},
        "shared_args": {"x": 1, "y": 2},
        "y": 2,
    }
    found = final({"name": "b", "vars": {"llm_server": {"extra_args": over}}}, ["llm_server"], inventory)
    assert found["llm_server"] == {"model": "m", "extra_args": merged}


def test_a_template_sees_the_other_variables_of_the_arm():
    inventory = {"llm_server": {"env": "$of_the_profile"}, "of_the_profile": {"A": 1}}
    arm = {"name": "b", "vars": {"llm_server": {"env": {"B": 2}}, "of_the_profile": {"A": 5}}}
    assert final(arm, ["llm_server"], inventory)["llm_server"] == {"env": {"A": 5, "B": 2}}


def test_what_is_no_dictionary_is_replaced():
    arm = {"name": "b", "vars": {"llm_server": {"gpus": [0], "env": {"A": 1}}}}
    assert final(arm, ["llm_server"], {"llm_server": {"gpus": "all", "env": "none"}})["llm_server"] == {
        "gpus": [0],
        "env": {"A": 1},
    }


def test_an_arm_without_a_value_that_another_sets_is_told():
    with pytest.raises(ValueError, match="arm a has no value of mine, which another arm sets"):
        final({"name": "a", "vars": {}}, ["mine"], {})


def test_what_decides_is_compared_and_waiting_and_addresses_do_not_decide():
    options = ["llm_server", "llm_server_keep_logs", "ml_env_lock", "ml_env_hub_token", "gpu_clocks"]
    assert arms.deciding([*options, "nccl_profiles", "baseline_accept"]) == [
        "gpu_clocks",
        "llm_server",
        "ml_env_lock",
        "nccl_profiles",
    ]
    sides = [{"ml_env_lock": "a", "gpu_clocks": {}}, {"ml_env_lock": "b", "gpu_clocks": {}}]
    assert arms.differ(sides, "ml_env_")
    assert not arms.differ(sides, "gpu_clocks")


def test_an_address_with_a_password_is_a_hash():
    shown = arms.masked({"mine": ["https://me:not-this@index/"], "other": "http://index:80/a@b"}, {})
    assert "not-this" not in str(shown)
    assert shown["other"] == "http://index:80/a@b"


def test_secrets_are_hashes_whether_a_role_or_only_a_name_says_so():
    options = {
        "llm_server": {"options": {"api_key": {"no_log": True}, "secret_env": {"no_log": True}, "env": {}}},
        "ml_env_hub_token": {"no_log": True},
    }
    raw = {
        "llm_server": {"api_key": "k1", "secret_env": {"HF_TOKEN": "k2"}, "env": {"A": "1"}, "extra_args": {"t": "x"}},
        "ml_env_hub_token": "k3",
        "my_password": {"deep": "k4"},
        "mine": [{"token": "k5"}],
        "other": 7,
    }
    shown = arms.masked(raw, options)
    assert all(f"'k{number}'" not in str(shown) for number in range(1, 6)), shown
    assert shown["llm_server"]["env"] == {"A": "1"}
    assert shown["llm_server"]["extra_args"] == {"t": "x"}
    assert shown["other"] == 7
    changed = arms.masked({**raw, "ml_env_hub_token": "another"}, options)
    assert changed["ml_env_hub_token"] != shown["ml_env_hub_token"], "a changed secret is another declaration"
