"""What follows from a declared difference, and what only happened at the same time. Names as real records have them."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import yaml
from ansible_collections.groundstate.llm.plugins.plugin_utils import arm_state

ROOT = Path(__file__).resolve().parents[3]
COVERS = yaml.safe_load((ROOT / "roles" / "compare" / "vars" / "main.yml").read_text())["__compare_covers"]
RECORD = json.loads((ROOT / "tests" / "data" / "baseline" / "record.json").read_text())
POWER, KERNEL = "hardware gpus 0 power limit", "kernel release"
LIMIT = "resolved argument max_running_requests"


def stops(asked, seen):
    """The differences that stand in the way. ``seen`` comes on top of what both starts tell."""
    told = {"argument word 0": "p", "environment HOME": "/h", "hardware gpus 0 name": "H", "resolved argument z": "1"}
    rows = arm_state.differences("b", asked, tuple({**told, **one} for one in seen), COVERS, [])
    return [row["what"] for row in arm_state.undeclared(rows)]


def deployed(environment: str, model: str = "smollm2-135m.gguf"):
    """An arm in the layout of inventories/local, as declared and as it ran."""
    folder = f"/home/user/groundstate/envs/{environment}"
    server = {"name": "local", "engine": "llama_cpp", "model": f"{folder}/models/{model}", "context_length": 2048}
    server["served_model_name"] = "smollm2-135m"
    asked = arm_state.declared({"llm_server": server, "ml_env_lock": environment, "ml_env_path": folder}, {})
    text = json.dumps(RECORD).replace("/envs/llama_cpp/", f"/envs/{environment}/").replace("smollm2-135m.gguf", model)
    record = json.loads(text)
    if model != "smollm2-135m.gguf":
        record["fingerprints"]["before"]["sections"]["model"].update(config_hash="another", total_bytes=9)
    return asked, arm_state.ran(record)


@pytest.mark.parametrize(
    "other", [("llama_cpp_new",), ("llama_cpp", "smollm2-135m-q8.gguf")], ids=["another lock", "another model"]
)
def test_another_environment_and_another_model_may_be_compared(other):
    sides = [deployed("llama_cpp"), deployed(*other)]
    rows = arm_state.differences("b", *zip(*sides, strict=True), COVERS, [])
    assert rows
    assert arm_state.undeclared(rows) == []


def test_other_files_at_the_same_path_stand_in_the_way():
    asked, ran = deployed("llama_cpp")
    changed = {**copy.deepcopy(ran), "model config hash": "another"}
    rows = arm_state.differences("b", (asked, asked), (ran, changed), COVERS, [])
    assert [row["what"] for row in arm_state.undeclared(rows)] == ["model config hash"]


def test_a_profile_in_another_place_takes_its_own_variables_along_and_no_others():
    profile = {"NCCL profile": "p", "environment NCCL_ALGO": "Ring"}
    asked = tuple({**profile, "variable nccl_profile_places": [place]} for place in ("server", "conf"))
    server = {"environment NCCL_ALGO": "Ring", "worker environment NCCL_ALGO": "Ring"}
    conf = {"environment NCCL_CONF_FILE": "/s/nccl.conf", "worker environment NCCL_CONF_FILE": "/s/nccl.conf"}
    assert stops(asked, (server, conf)) == []
    stray = {"worker environment NCCL_P2P_DISABLE": "1"}
    assert stops(asked, (server, {**conf, **stray})) == list(stray)


def test_a_profile_covers_the_variables_that_it_names():
    asked = {"NCCL profile": "stock"}, {"NCCL profile": "p", "environment NCCL_ALGO": "Ring"}
    mine = {"environment NCCL_ALGO": "Ring", "worker environment NCCL_ALGO": "Ring", "NCCL transport": "SHM"}
    other = {"NCCL transport": "P2P/IPC"}
    assert stops(asked, (other, mine)) == []
    assert stops(asked, ({**other, "worker environment NCCL_P2P_DISABLE": "1"}, mine)) == [
        "worker environment NCCL_P2P_DISABLE"
    ]


@pytest.mark.parametrize(
    ("declared", "follows", "happened"),
    [
        ("clocks sm_mhz", "hardware gpus 0 clock graphics application", POWER),
        ("clocks memory_mhz", "hardware gpus 0 clock memory application", "hardware gpus 0 clock graphics application"),
        ("clocks power_limit_w", POWER, "hardware gpus 0 power limit default"),
        ("clocks persistence", "hardware gpus 0 persistence mode", POWER),
        ("variable gpu_clocks_gpus", POWER, "hardware gpus 0 ecc mode"),
        ("variable ml_env_patches", "resolved argument x", LIMIT),
        ("variable ml_env_patches", "file sglang/x.py", "model config hash"),
        ("engine", "resolved argument x", LIMIT),
        ("engine", "package torch", "resolved argument max_num_seqs"),
        ("engine", "environment PATH", KERNEL),
        ("engine", "Python python", POWER),
        ("engine", "NCCL version", "workload output_tokens"),
        ("engine", "argument word 1", "model config hash"),
    ],
)
def test_what_happened_at_the_same_time_stands_in_the_way(declared, follows, happened):
    sides = [{follows: value, happened: value, declared: value} for value in ("1", "2")]
    assert stops(({declared: "1"}, {declared: "2"}), sides) == [happened]


def test_a_variable_that_reached_no_server_stands_in_the_way():
    asked = {"environment OMP_NUM_THREADS": "4"}, {"environment OMP_NUM_THREADS": "8"}
    assert stops(asked, asked) == []
    assert stops(asked, (asked[1], asked[1])) == ["environment OMP_NUM_THREADS"]
    # The proof of the profile lets NCCL log, whether or not the profile does.
    logs = {"environment NCCL_DEBUG": "INFO"}
    assert stops(({}, logs), (logs, logs)) == []
    # One that a start does not tell, and those that a profile puts elsewhere than into the environment.
    for name in ("LC_ALL", "NCCL_ALGO", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        assert stops(({}, {f"environment {name}": "1"}), ({}, {})) == []
