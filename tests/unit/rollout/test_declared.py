"""The declaration of a host as a document: what is in its hash, what is not, and the way back from it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible_collections.groundstate.llm.plugins.plugin_utils import declared, locks, role_values

ROOT = Path(__file__).resolve().parents[3]
KEY = "sk-very-secret"


@pytest.fixture(scope="module")
def every():
    """The roles of the collection."""
    return role_values.every_role(DataLoader())


def values(**changes) -> dict:
    """Checked variables of a host, as role_values.read gives them."""
    server = {"name": "chat", "engine": "vllm", "model": "/m", "port": 8000, "extra_args": {}, "speculation": None}
    return {
        "ml_env_lock": "vllm_cu13",
        "ml_env_path": "/opt/env",
        "nccl_profile_name": "nvlink",
        "nccl_profiles": {},
        "llm_server": {**server, **changes.pop("server", {})},
        "baseline_workload": {"prompt_tokens": 128},
        **changes,
    }


def test_every_option_is_one_of_the_roles_and_has_a_default(every):
    options = {name: option for role in declared.ROLES for name, option in every[role].options.items()}
    defaults = {name for role in declared.ROLES for name in every[role].defaults}
    assert set(declared.OPTIONS) <= set(options)
    without = {name for name in declared.OPTIONS if name not in defaults and not options[name].get("required")}
    assert without == {"ml_env_patches"}, "one that is not declared any more would keep its value in a rollback"


def test_a_rollback_sets_every_option():
    tasks = yaml.safe_load((ROOT / "roles" / "rollout" / "tasks" / "back.yml").read_text())[0]["block"]
    [facts] = [task["ansible.builtin.set_fact"] for task in tasks if "ansible.builtin.set_fact" in task]
    assert set(facts) == {*declared.OPTIONS, "ml_env_lock_folder"}


def test_the_same_is_the_same_and_how_to_get_there_does_not_count(every):
    one = declared.document(values(), every)
    assert one == declared.document(values(ml_env_timeout_s=99, llm_server_stall_s=7, baseline_tolerance=0.5), every)
    assert declared.usable(one)
    assert declared.differences(one, one) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"server": {"extra_args": {"enforce-eager": True}}}, "llm_server.extra_args.enforce-eager: not set -> true"),
        ({"server": {"model": "/n"}}, 'llm_server.model: "/m" -> "/n"'),
        ({"nccl_profile_name": "stock"}, 'nccl_profile_name: "nvlink" -> "stock"'),
        ({"ml_env_path": "/opt/other"}, 'ml_env_path: "/opt/env" -> "/opt/other"'),
        ({"ml_env_patches": [{"file": "a.patch"}]}, 'ml_env_patches[0].file: not set -> "a.patch"'),
        ({"baseline_workload": {"prompt_tokens": 64}}, "baseline_workload.prompt_tokens: 128 -> 64"),
        ({"server": {"api_key": KEY}}, "llm_server.api_key: the secret changed"),
        ({"server": {"secret_env": {"TOKEN": KEY}}}, "llm_server.secret_env: the secret changed"),
    ],
)
def test_a_change_is_told(every, changes, told):
    old, new = declared.document(values(), every), declared.document(values(**changes), every)
    assert old["hash"] != new["hash"]
    assert told in declared.differences(old, new)


def test_no_secret_is_in_it(every):
    found = declared.document(values(server={"api_key": KEY, "secret_env": {"TOKEN": KEY}}), every)
    assert KEY not in str(found)
    assert set(found["secrets"]) == {"llm_server.api_key", "llm_server.secret_env"}
    assert not {"api_key", "secret_env"} & set(found["variables"]["llm_server"])


def test_the_profile_is_in_it_as_it_is_now(every):
    found = declared.document(values(), every)
    assert found["variables"]["nccl_profiles"]["nvlink"]["variables"] == {"NCCL_P2P_LEVEL": "NVL"}
    own = {"nvlink": {"variables": {"NCCL_P2P_LEVEL": "SYS"}}, "unused": {"variables": {}}}
    other = declared.document(values(nccl_profiles=own), every)
    assert other["variables"]["nccl_profiles"] == {"nvlink": own["nvlink"]}
    assert other["hash"] != found["hash"]


def test_what_was_tampered_with_is_not_usable(every):
    found = declared.document(values(), every)
    found["variables"]["llm_server"]["model"] = "/evil"
    assert not declared.usable(found)
    for other in (None, [], {}, {"schema": 1}, {**found, "schema": 2}, {**found, "variables": 1}):
        assert not declared.usable(other)


def test_a_lock_that_changed_since_comes_from_its_copy(every, tmp_path):
    lock = tmp_path / "old-lock"
    shutil.copytree(locks.folder("vllm_cu13"), lock)
    (lock / "requirements.txt").write_text("torch==1.0 --hash=sha256:00\n")
    kept = declared.document(values(), every, str(lock))
    now = declared.document(values(), every)
    assert "ml_env_lock: vllm_cu13 has other packages now" in declared.differences(kept, now)

    records = str(tmp_path / "records")
    with pytest.raises(declared.DeclaredError, match="install the version of groundstate"):
        declared.restored(kept, records)
    for _again in range(2):
        declared.keep_lock(records, kept, str(lock))
    found = declared.restored(kept, records)
    assert (Path(found["ml_env_lock_folder"]) / "requirements.txt").read_text().startswith("torch==1.0")
    assert [one.name for one in (Path(records) / declared.LOCKS).iterdir()] == [kept["lock"]["digest"]]
    assert declared.document({**values(), **found}, every, found["ml_env_lock_folder"])["hash"] == kept["hash"]

    (Path(found["ml_env_lock_folder"]) / "requirements.txt").write_text("torch==6.6.6\n")
    with pytest.raises(declared.DeclaredError):
        declared.restored(kept, records)
    assert declared.restored(now, records)["ml_env_lock_folder"] == locks.folder("vllm_cu13") + "/"


def test_without_a_lock_there_is_nothing_to_keep(every, tmp_path):
    kept = declared.document(values(ml_env_lock=""), every)
    assert kept["lock"] is None
    declared.keep_lock(str(tmp_path), kept)
    assert list(tmp_path.iterdir()) == []
    assert declared.restored(kept, str(tmp_path))["ml_env_lock_folder"] == ""


def test_only_a_play_that_deployed_tells_what_is_declared():
    done = {"nccl_profile_result": {"changed": False}, "llm_server_result": {"changed": True}}
    assert declared.deployed({**done, "ml_env_lock": ""})
    assert declared.deployed({**done, "ml_env_lock": "x", "ml_env_result": {"changed": False}})
    assert not declared.deployed({**done, "ml_env_lock": "x"})
    assert not declared.deployed({**done, "llm_server_result": {"skipped": True}})
    assert not declared.deployed({"llm_server_result": done["llm_server_result"]}), "benchmark.yml starts nothing"
