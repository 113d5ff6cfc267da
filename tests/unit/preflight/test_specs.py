"""Variables against the roles' real argument specs, and what is wanted of a host because of them."""

from __future__ import annotations

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.groundstate.llm.plugins.module_utils.preflight.checks import sentence
from ansible_collections.groundstate.llm.plugins.module_utils.preflight.wants import ARGUMENTS
from ansible_collections.groundstate.llm.plugins.plugin_utils import needs, specs

LOADER = DataLoader()
ROLES = {name: specs.load(LOADER, name) for name in specs.role_names()}


def option(name):
    merged: dict = {}
    for role in ROLES.values():
        specs.merge(merged, role.options)
    return merged[name]


def check(name, value, **more):
    return [sentence(one) for one in specs.check_value(name, option(name), value, **more)[1]]


SERVER = {"name": "local", "engine": "llama_cpp", "model": "/m.gguf"}


def test_all_roles_of_the_main_job_have_specs():
    assert set(ROLES) >= {"baseline", "gpu_state", "llm_server", "ml_env", "nccl_profile", "preflight"}


@pytest.mark.parametrize("role", sorted(ROLES))
def test_every_default_of_a_role_passes_its_own_spec(role):
    for name, value in ROLES[role].defaults.items():
        assert name in ROLES[role].options, name
        if "{{" not in str(value):
            assert check(name, value) == []


def test_a_good_declaration_passes_and_is_typed():
    value, found = specs.check_value("llm_server", option("llm_server"), {**SERVER, "port": "8000"})
    assert found == []
    assert value["port"] == 8000
    assert value["host"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "value", "sentence_"),
    [
        (
            "llm_server",
            {**SERVER, "tensor_paralel": 2},
            "llm_server.tensor_paralel: no such key in llm_server. Did you ",
        ),
        ("llm_server", {**SERVER, "port": "eight"}, "llm_server.port: 'eight' is not of type int. Correct it."),
        (
            "llm_server",
            {**SERVER, "engine": "vlm"},
            "llm_server.engine: 'vlm' is none of generic, llama_cpp, sglang, vl",
        ),
        ("llm_server", {"name": "x", "engine": "vllm"}, "llm_server: model is required. Set it."),
        ("llm_server", "text", "llm_server: the value is not of type dict. Correct it."),
        (
            "llm_server",
            {**SERVER, "speculation": {"topc": 1}},
            "llm_server.speculation.topc: no such key in llm_server",
        ),
        ("llm_server", {**SERVER, "speculation": {"topk": "x"}}, "llm_server.speculation.topk: 'x' is not of type int"),
        ("gpu_state_policy", "everything", "gpu_state_policy: 'everything' is none of stale, all, only."),
        ("gpu_state_ports", ["x"], "gpu_state_ports: ['x'] has an element that is not of type int. Correct it."),
        ("nccl_profiles", ["x"], "nccl_profiles: ['x'] is not of type dict. Correct it."),
        ("baseline_tolerance", "lots", "baseline_tolerance: 'lots' is not of type float. Correct it."),
        (
            "ml_env_tiny_model",
            {"sed": 1},
            "ml_env_tiny_model.sed: no such key in ml_env_tiny_model. Did you mean seed?",
        ),
    ],
)
def test_each_mistake_gives_its_sentence(name, value, sentence_):
    found = check(name, value)
    assert len(found) == 1
    assert found[0].startswith(sentence_)


@pytest.mark.parametrize("field", ["secret_env", "api_key"])
def test_secrets_are_in_no_message(field):
    found = check("llm_server", {**SERVER, field: {"k": "hunter2"} if field == "api_key" else "hunter2", "port": "p"})
    assert found
    assert "hunter2" not in " ".join(found)


def test_what_could_not_be_templated_is_not_missed_as_required():
    assert check("llm_server", {"name": "x", "port": "eight"}, partial=True) == [
        "llm_server.port: 'eight' is not of type int. Correct it."
    ]


def test_unknown_names_with_our_prefixes_are_refused_and_others_left_alone():
    variables = {
        "llm_server_lancher": "auto",
        "llm_server_memory_fraction": 0.9,
        "ml_env_lock": "llama_cpp",
        "ml_env_result": {},
        "__ml_env_x": 1,
        "groundstate_hom": "/x",
        "nccl_profile_shipped": {},
        "preflight_min_free": 3,
        "baseline_mine": 1,
        "ansible_host": "h",
        "my_var": 1,
        "groundstate": {},
    }
    found = [sentence(one) for one in specs.unknown_names(variables, ROLES.values(), ["baseline_mine"])]
    assert found == [
        "groundstate_hom: no such variable in any role of groundstate.llm. Did you mean groundstate_home?",
        "llm_server_lancher: no such variable in any role of groundstate.llm. Did you mean llm_server_launcher?",
        # A key of the dictionary llm_server, written like a variable of the role.
        "llm_server_memory_fraction: no such variable in any role of groundstate.llm. Did you mean "
        "llm_server.memory_fraction?",
        "preflight_min_free: no such variable in any role of groundstate.llm. Did you mean preflight_min_free_gib?",
    ]


def test_a_name_without_prefix_that_looks_like_ours_is_a_warning():
    found = specs.lookalikes({"llm_servers": {}, "lm_server": {}, "server": 1, "ansible_server": 1}, ROLES.values())
    assert [text.split(":")[0] for text in found] == ["llm_servers", "lm_server"]


def test_merging_keeps_the_keys_and_the_duty():
    merged: dict = {}
    specs.merge(merged, {"a": {"type": "dict", "required": True}})
    specs.merge(merged, {"a": {"type": "dict", "default": {}, "options": {"k": {"type": "int"}}}})
    assert merged["a"] == {"type": "dict", "options": {"k": {"type": "int"}}, "required": True}


def test_messages_in_another_form_are_kept():
    assert specs._readable("something new happened.", "x", {}, 1) == {
        "what": "something new happened",
        "where": "x",
        "fix": "",
    }


# --- what is needed ----------------------------------------------------------------------------------

NOTHING_GIVEN = {
    "roles": [],
    "min_free_gib": 0.0,
    "min_memory_gib": 0.0,
    **{name: {} for name in ("environment", "server", "needs")},
    **dict.fromkeys(("home", "local_fact")),
    "made_later": [],
    "gpu_state": False,
}
ALL = list(ROLES)


def values(**changes):
    declared = {**SERVER, **changes.pop("llm_server", {})}
    server, wrong = specs.check_value("llm_server", option("llm_server"), declared)
    assert wrong == []
    found = {
        "groundstate_home": "~/gs",
        "ml_env_lock": "llama_cpp",
        "ml_env_path": "~/gs/envs/llama_cpp",
        "ml_env_python": "auto",
        "llm_server": server,
        "nccl_profile_name": "stock",
        "nccl_profiles": {},
        "baseline_workload": {},
        "baseline_local_fact": "",
    }
    return {**found, **changes}


def derived(arguments=None, **changes):
    return needs.derive(values(**changes), ALL, {**NOTHING_GIVEN, **(arguments or {})}, LOADER)


def test_needs_of_the_local_default():
    made, problems, warnings = derived()
    assert (problems, warnings) == ([], [])
    assert set(made) <= set(ARGUMENTS)
    assert made["environment"]["lock"] == "llama_cpp"
    assert made["environment"]["size_mib"] >= 1000
    assert made["server"]["gpus_needed"] is False
    assert made["server"]["program"].startswith("~/gs/envs/llama_cpp/bin/")
    assert made["made_later"] == ["~/gs/envs/llama_cpp"]
    assert made["needs"] == {"free_mib": 0, "memory_mib": 512}
    assert made["gpu_state"] is True


@pytest.mark.parametrize(
    ("lock", "server", "needed"),
    [
        ("", {"engine": "sglang"}, True),
        ("", {"engine": "vllm", "gpus": [0, 1]}, True),
        ("", {"engine": "vllm", "gpus": []}, False),
        ("vllm_cpu", {"engine": "vllm"}, False),
        ("vllm_cu13", {"engine": "vllm"}, True),
        ("", {"engine": "sglang", "extra_args": {"device": "cpu"}}, False),
        ("", {"engine": "llama_cpp"}, False),
        ("", {"engine": "llama_cpp", "gpus": ["0"]}, True),
    ],
)
def test_when_gpus_are_needed(lock, server, needed):
    made, _problems, _warnings = derived(ml_env_lock=lock, llm_server=server)
    assert made["server"]["gpus_needed"] is needed


@pytest.mark.parametrize(
    ("lock", "said"),
    [
        ("llama_cp", "'llama_cp' is none of llama_cpp, sglang_cu13, vllm_cpu, vllm_cu13. Did you mean llama_cpp?"),
        ("?", "vllm_cu13. A lock of your own is the path of its folder."),
        ("/nowhere/lock", "no lock is in /nowhere/lock: it has no lock.yml; shipped are llama_cpp"),
        ("locks/mine", "locks/mine is no absolute path"),
    ],
)
def test_a_lock_that_is_not_there(lock, said):
    _made, problems, _warnings = derived(ml_env_lock=lock)
    assert sentence(problems[0]).startswith("ml_env_lock: ")
    assert said in sentence(problems[0])


def test_a_lock_of_one_s_own(tmp_path):
    (tmp_path / "requirements.txt").write_text("engine==1.0\n")
    (tmp_path / "lock.yml").write_text("{platform: linux-x86_64, size_mib: 100, cuda: '13.0'}")
    made, problems, _warnings = derived(ml_env_lock=str(tmp_path), llm_server={"engine": "vllm"})
    assert problems == []
    environment = made["environment"]
    found = [environment[name] for name in ("platform", "cuda", "size_mib", "python_range")]
    assert found == ["linux-x86_64", "13.0", 712, ""]
    assert made["server"]["gpus_needed"] is True


def test_declared_needs_go_over_derived_ones():
    made, _problems, _warnings = derived({"min_free_gib": 20.0, "min_memory_gib": 1.5, "server": {"port": 7}})
    assert made["needs"] == {"free_mib": 20480, "memory_mib": 1536}
    assert made["server"]["port"] == 7


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"llm_server": {"name": "a b"}}, "llm_server.name: server name 'a b': use 1 to 64 letters"),
        ({"llm_server": {"port": 99999}}, "llm_server.port: 99999 is not a TCP port"),
        (
            {"llm_server": {"tensor_parallel": 2}},
            "llm_server.tensor_parallel: tensor_parallel 2: llama.cpp runs in one process",
        ),
        ({"baseline_workload": {"api": "cat"}}, "baseline_workload.api: 'cat' is none of completions, chat"),
        ({"nccl_profile_name": "pcie"}, "nccl_profile_name: NCCL profile 'pcie' is not declared; there are: debug,"),
        (
            {"nccl_profile_name": "mine", "nccl_profiles": {"mine": {"variables": {"NCCL_BUFFSIZE": "16M"}}}},
            "nccl_profiles: NCCL profile 'mine': NCCL_BUFFSIZE: '16M'",
        ),
    ],
)
def test_mistakes_that_no_spec_knows(changes, start):
    _made, problems, _warnings = derived(**changes)
    assert len(problems) == 1
    assert sentence(problems[0]).startswith(start)


def test_a_warning_of_the_engine_is_passed_on():
    server = {"engine": "sglang", "extra_args": {"num-continuous-decode-steps": 4}}
    _made, problems, warnings = derived(ml_env_lock="", llm_server=server)
    assert problems == []
    assert "extra_args.num-continuous-decode-steps has no effect" in warnings[0]


def test_an_environment_that_is_not_known_is_not_missed():
    known = values()
    del known["ml_env_path"]
    made, _problems, _warnings = needs.derive(known, ALL, NOTHING_GIVEN, LOADER)
    assert made["server"]["models"] == {}
    assert made["server"]["program"] == ""


def test_a_server_alone_needs_an_environment_that_is_there():
    made, _problems, _warnings = needs.derive(values(), ["llm_server"], NOTHING_GIVEN, LOADER)
    assert made["environment"]["path"] == "~/gs/envs/llama_cpp"
    assert made["environment"]["lock"] == ""
    assert made["made_later"] == []
    assert made["server"]["env_needed"] is True


def test_only_the_chosen_roles_are_asked_about():
    made, _problems, _warnings = needs.derive(values(), ["baseline"], NOTHING_GIVEN, LOADER)
    assert made["server"] == made["environment"] == {}
    assert made["gpu_state"] is False
