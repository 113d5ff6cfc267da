"""Facts of a host against what is wanted: each mistake gives its one sentence, all together give all."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.preflight import checks, wants


def wanted(**changes):
    made = wants.complete(
        {
            "home": "/home/me/gs",
            "environment": {"path": "/home/me/gs/envs/llama_cpp", "lock": "llama_cpp", "size_mib": 1012},
            "server": {
                "name": "local",
                "engine": "llama_cpp",
                "host": "127.0.0.1",
                "port": 8000,
                "program": "/home/me/gs/envs/llama_cpp/bin/x",
                "env_needed": True,
            },
            "needs": {"memory_mib": 512},
            "local_fact": "/etc/ansible/facts.d/groundstate.fact",
        }
    )
    return changed(made, changes)


FACTS = {
    "python": "3.11.7",
    "platform": "linux-x86_64",
    "root": False,
    "home": {"path": "/home/me/gs", "exists": False, "obstacle": "", "free_mib": 50_000, "files_left": 1000},
    "environment": {"path": "/e", "exists": False, "obstacle": "", "free_mib": 50_000, "files_left": 1000},
    "env_python": {"path": "/usr/bin/python3.11", "version": "3.11.2"},
    "memory": {"available_mib": 8000, "limit_mib": None},
    "running": False,
    "record": "",
    "port_users": [],
    "low_ports_from": 1024,
    "models": {},
    "program": None,
    "systemd": "",
    "local_fact": "",
    "gpus": None,
}


def changed(base, changes):
    """A copy with "a.b" set to a value."""
    made = copy.deepcopy(base)
    for path, value in changes.items():
        where = made
        *folders, last = path.split(".")
        for name in folders:
            where = where[name]
        where[last] = value
    return made


def facts(**changes):
    return changed(FACTS, changes)


def sentences(wanted_now, facts_now):
    return [checks.sentence(one) for one in checks.check(wanted_now, facts_now)[0]]


def test_a_host_that_has_everything_has_no_problem():
    assert checks.check(wanted(), facts()) == ([], [])


def model(kind, **more):
    return {"model": {"path": "/m", "kind": kind, "size": None, "config": None, "names": None, "magic": None, **more}}


GPUS = {"available": True, "why": "", "count": 2, "chosen": 2, "driver": "580", "closed": []}

ONE_MISTAKE = [
    ({}, {"python": "3.8.10"}, "ansible_python_interpreter: the modules run with Python 3.8.10 on the host, 3.9 is"),
    (
        {},
        {"home.obstacle": "/home is a file, not a folder"},
        "groundstate_home: /home/me/gs cannot be used: /home is a",
    ),
    ({}, {"record": "x is not valid JSON"}, "/home/me/gs/servers/local: the record of the server cannot be read: x is"),
    ({}, {"home.free_mib": 99}, "groundstate_home: 99 MiB are free at /home/me/gs, 100 MiB are needed"),
    ({}, {"home.files_left": 0}, "groundstate_home: the filesystem of /home/me/gs has no inode left"),
    ({}, {"environment.free_mib": 900}, "ml_env_path: 900 MiB are free at /e, 1012 MiB are needed for the environment"),
    (
        {},
        {"environment.obstacle": "/e is on a read-only filesystem"},
        "ml_env_path: /home/me/gs/envs/llama_cpp cannot be",
    ),
    (
        {},
        {"memory.available_mib": 400},
        "preflight_min_memory_gib: 400 MiB of memory are available, 512 MiB are needed",
    ),
    (
        {},
        {"memory.limit_mib": 256},
        "preflight_min_memory_gib: 256 MiB of memory are allowed by the control group, 512",
    ),
    (
        {},
        {"env_python": {"error": "no Python ==3.11.* on this host"}},
        "ml_env_python: no Python ==3.11.* on this host.",
    ),
    (
        {"environment.platform": "linux-x86_64"},
        {"platform": "linux-aarch64"},
        "ml_env_lock: the lock llama_cpp is for lin",
    ),
    (
        {"environment.lock": ""},
        {},
        "ml_env_path: /home/me/gs/envs/llama_cpp does not exist on the host, and no lock is",
    ),
    (
        {},
        {"program": False, "environment.exists": True},
        "ml_env_path: the program /home/me/gs/envs/llama_cpp/bin/x can",
    ),
    ({}, {"models": model("missing")}, "llm_server.model: /m does not exist on the host. Copy the model there"),
    ({}, {"models": model("link to nowhere")}, "llm_server.model: /m is a link to nowhere"),
    ({}, {"models": model("unreadable")}, "llm_server.model: /m may not be read by the login user"),
    ({}, {"models": model("folder", names=3)}, "llm_server.model: /m is a folder. Name the GGUF file in it"),
    ({}, {"models": model("file", size=9, magic="vers")}, "llm_server.model: /m is not a GGUF file (9 bytes)"),
    ({"server.engine": "vllm"}, {"models": model("folder", names=0)}, "llm_server.model: /m is an empty folder"),
    ({"server.engine": "sglang"}, {"models": model("folder", names=2)}, "llm_server.model: /m has no config.json"),
    ({"server.port": 80}, {}, "llm_server.port: ports below 1024 need root. Take one from 1024 up, or 0"),
    (
        {},
        {"port_users": [{"pid": 7, "state": "listening", "cmdline": "nginx -g", "cleared": False}]},
        "llm_server.port: port 8000 is taken (listening) by process 7 (nginx -g). End that process, or declare another",
    ),
    (
        {},
        {"port_users": [{"pid": None, "state": "bound", "cmdline": "", "cleared": False}]},
        "llm_server.port: port 8000 is taken (bound) by a process that this user may not see",
    ),
    ({}, {"systemd": "system units need root"}, "llm_server_launcher: systemd cannot be used: system units need root"),
    (
        {},
        {"local_fact": "/etc may not be"},
        "baseline_local_fact: /etc/ansible/facts.d/groundstate.fact cannot be written",
    ),
    (
        {"server.engine": "sglang"},
        {"gpus": {**GPUS, "available": False, "why": "this host has no NVIDIA GPU", "count": 0}},
        "llm_server.gpus: sglang needs GPUs, and this host has no NVIDIA GPU. Install or repair the driver",
    ),
    (
        {"server.engine": "sglang"},
        {"gpus": {**GPUS, "available": None, "why": "nvidia-smi: Driver/library version mismatch"}},
        "llm_server.gpus: sglang needs GPUs, and nvidia-smi: Driver/library version mismatch",
    ),
    (
        {},
        {"gpus": {**GPUS, "wrong": "no GPU 9 on this host", "chosen": None}},
        "llm_server.gpus: no GPU 9 on this host",
    ),
    (
        {"server.tensor_parallel": 8},
        {"gpus": GPUS},
        "llm_server.tensor_parallel: 8 ranks need as many GPUs, the host has 2. Lower it",
    ),
    (
        {"server.tensor_parallel": 2},
        {"gpus": {**GPUS, "chosen": 1}},
        "llm_server.tensor_parallel: 2 ranks need as many GPUs, the host has 2 of which 1 are declared",
    ),
    (
        {},
        {"gpus": {**GPUS, "closed": ["/dev/nvidia0"]}},
        "llm_server.gpus: /dev/nvidia0 may not be opened by the login",
    ),
    (
        {"environment.lock": "sglang_cu13", "environment.cuda": "13.0"},
        {"gpus": {**GPUS, "driver": "550.54.15", "cuda": "12.4"}},
        "ml_env_lock: the lock sglang_cu13 is built with CUDA 13.0, driver 550.54.15 runs CUDA up to 12.4. Update the "
        "driver to one that runs CUDA 13, or choose a lock for CUDA 12.",
    ),
    (
        {"environment.lock": "sglang_cu13", "environment.compute_capability": "8.0"},
        {"gpus": {**GPUS, "capabilities": {"Tesla T4": "7.5", "NVIDIA L4": "8.9"}}},
        "ml_env_lock: the lock sglang_cu13 has code for compute capability 8.0 and newer, Tesla T4 has 7.5.",
    ),
]


@pytest.mark.parametrize("cuda", ["13.0", "13.2", "14.1", None])
def test_a_driver_of_the_same_or_a_newer_cuda_will_do(cuda):
    wish = wanted(**{"environment.lock": "sglang_cu13", "environment.cuda": "13.1"})
    assert sentences(wish, facts(gpus={**GPUS, "cuda": cuda})) == []


@pytest.mark.parametrize(("wish", "fact", "sentence"), ONE_MISTAKE)
def test_one_mistake_gives_one_sentence(wish, fact, sentence):
    found = sentences(wanted(**wish), facts(**fact))
    assert len(found) == 1
    assert found[0].startswith(sentence)
    assert found[0].endswith((".", "?"))


def test_several_mistakes_are_told_together_and_numbered():
    wish = {"server.port": 80, "environment.lock": ""}
    fact = {"python": "3.6.9", "home.free_mib": 1, "models": model("missing"), "systemd": "no"}
    problems, _warnings = checks.check(wanted(**wish), facts(**fact))
    text = checks.message(problems, "node1").splitlines()
    assert text[0] == "6 problems on node1, nothing was changed:"
    assert [line[:5] for line in text[1:]] == [f"  {number}. " for number in range(1, 7)]


def test_an_environment_that_is_there_needs_no_space():
    assert sentences(wanted(), facts(**{"environment.free_mib": 200, "environment.exists": True})) == []


def test_space_that_was_asked_for_counts_for_the_home():
    found = sentences(wanted(**{"needs.free_mib": 60_000}), facts(**{"environment.exists": True}))
    assert found[0].startswith("groundstate_home: 50000 MiB are free at /home/me/gs, 60000 MiB are needed")


def test_a_running_server_has_its_memory_already():
    assert sentences(wanted(), facts(**{"memory.available_mib": 1, "running": True})) == []


def test_a_process_that_gpu_state_ends_is_a_warning():
    use = {"pid": 7, "state": "listening", "cmdline": "python -m sglang.launch_server", "cleared": True}
    problems, warnings = checks.check(wanted(), facts(port_users=[use]))
    assert problems == []
    assert warnings == [
        "llm_server.port: 8000 is taken by process 7 (python -m sglang.launch_server), "
        "which the role gpu_state will end before the start"
    ]


def test_a_missing_environment_is_not_told_twice():
    found = sentences(wanted(**{"environment.lock": ""}), facts(program=False))
    assert len(found) == 1


def test_the_generic_engine_needs_no_environment_but_its_program():
    wish = {"environment.lock": "", "server.env_needed": False, "server.engine": "generic", "server.program": "/x"}
    assert sentences(wanted(**wish), facts(program=True)) == []
    assert sentences(wanted(**wish), facts(program=False))[0].startswith("llm_server.command: the program /x cannot")


def test_one_problem_is_one_in_the_message():
    assert checks.message([checks.problem("w", "", "Did you mean y?")]) == (
        "1 problem, nothing was changed:\n  1. w. Did you mean y?"
    )


# --- wants -------------------------------------------------------------------------------------------


def test_wants_are_complete_whatever_is_given(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    made = wants.complete({})
    assert made["home"] == "/home/me/.local/state/groundstate"
    assert made["environment"]["path"] == ""
    assert made["server"]["port"] == 0
    assert wants.complete({"server": None, "needs": {"free_mib": None}})["needs"]["free_mib"] == 0


def test_what_a_later_step_makes_cannot_be_missed_yet(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    server = {"models": {"model": "~/gs/envs/x/models/m", "draft": "/env-other/m"}, "program": "~/gs/envs/x/bin/p"}
    made = wants.complete({"server": server, "made_later": ["~/gs/envs/x/", "/env"]})
    assert made["server"]["models"] == {"draft": "/env-other/m"}
    assert made["server"]["program"] == ""
