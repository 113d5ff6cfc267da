"""The locks that are shipped: complete, pinned, and without what must not get in by accident."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import requirements

ROLE = Path(__file__).parents[3] / "roles" / "ml_env"
LOCKS = sorted(path for path in (ROLE / "files" / "locks").iterdir() if path.is_dir())
FIELDS = {
    "description": str,
    "python": str,
    "platform": str,
    "scripts": list,
    "links": dict,
    "dist_info_aliases": list,
    "forbidden": list,
    "imports": list,
    "cuda": str,
    "compute_capability": str,
    "size_mib": int,
}


def load(lock: Path) -> tuple[dict, list[requirements.Requirement]]:
    return yaml.safe_load((lock / "lock.yml").read_text()), requirements.parse((lock / "requirements.txt").read_text())


def test_the_role_offers_exactly_the_locks_that_there_are():
    specs = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    assert specs["main"]["options"]["ml_env_lock"]["choices"] == ["", *(lock.name for lock in LOCKS)]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_says_all_there_is_to_say(lock):
    data, items = load(lock)
    assert {name: type(value) for name, value in data.items()} == FIELDS
    requirements.check_range(data["python"])
    names = {item.name for item in items}
    assert not names & {requirements.normal(name) for name in data["forbidden"]}
    assert {requirements.normal(alias["distribution"]) for alias in data["dist_info_aliases"]} <= names
    assert all((lock / script).is_file() for script in data["scripts"])
    assert data["imports"]
    assert data["size_mib"] > 0


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_whatever_can_have_a_hash_has_one(lock):
    # A local version ("+cpu") comes from an index or folder of the user's own, which may have built it itself.
    _data, items = load(lock)
    assert [item.text for item in items if not item.hashed and "+" not in item.version] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_holds_builds_of_torch_for_what_it_says(lock):
    data, items = load(lock)
    torch = [item.version for item in items if item.name == "torch"]
    cuda = [item.name for item in items if item.name.startswith(("nvidia-", "cuda-", "triton"))]
    if data["cuda"]:
        major = data["cuda"].split(".")[0]
        assert lock.name.endswith(f"_cu{major}")
        assert torch
        assert "+" not in torch[0]
        assert f"nvidia-nccl-cu{major}" in cuda
        # (A compiler brings libraries for several versions.)
        assert [name for name in cuda if re.match(r"nvidia-(nccl|cudnn|cublas|cuda-runtime)-cu\d+", name)] == [
            name for name in cuda if re.match(rf"nvidia-(nccl|cudnn|cublas|cuda-runtime)-cu{major}$", name)
        ]
        assert re.fullmatch(r"\d+\.\d", data["compute_capability"])
    else:
        assert all(version.endswith("+cpu") for version in torch)
        assert cuda == []
        assert data["compute_capability"] == ""
