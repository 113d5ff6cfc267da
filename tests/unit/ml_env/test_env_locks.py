"""The locks that are shipped: complete, pinned, and without what must not get in by accident."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.groundstate.llm.plugins.filter.lock_data import FilterModule
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import requirements
from ansible_collections.groundstate.llm.plugins.plugin_utils import locks

ROLE = Path(__file__).parents[3] / "roles" / "ml_env"
LOCKS = sorted(path for path in (ROLE / "files" / "locks").iterdir() if path.is_dir())


def load(lock: Path) -> tuple[dict, list[requirements.Requirement]]:
    return yaml.safe_load((lock / "lock.yml").read_text()), requirements.parse((lock / "requirements.txt").read_text())


def test_the_role_tells_of_exactly_the_locks_that_there_are():
    specs = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    told = specs["main"]["options"]["ml_env_lock"]["description"][0].partition(" are shipped")[0]
    assert re.findall(r"C\((\w+)\)", told) == [lock.name for lock in LOCKS] == locks.shipped()
    assert all(f"`{lock.name}`" in (ROLE / "README.md").read_text() for lock in LOCKS)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_says_all_there_is_to_say(lock):
    data, items = load(lock)
    assert data.keys() == locks.FIELDS.keys()
    assert locks.read(str(lock)) == {
        **data,
        "folder": str(lock),
        "requirements": (lock / "requirements.txt").read_text(),
    }
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


# --- a user's own ------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path):
    """A folder with a lock that says next to nothing."""
    (tmp_path / "requirements.txt").write_text("engine==1.0\n")
    (tmp_path / "lock.yml").write_text("python: '>=3.10'\n")
    return tmp_path


def test_a_lock_of_one_s_own_is_a_path_and_need_not_say_all(own, monkeypatch):
    assert locks.folder("llama_cpp").endswith("/roles/ml_env/files/locks/llama_cpp")
    assert locks.folder(str(own)) == str(own)
    monkeypatch.setenv("HOME", str(own.parent))
    assert locks.folder(f"~/{own.name}") == str(own)
    text = {"folder": str(own), "requirements": "engine==1.0\n"}
    assert locks.read(str(own)) == {**locks.FIELDS, "python": ">=3.10", **text}
    (own / "lock.yml").write_text("")
    assert locks.read(f"{own}/") == {**locks.FIELDS, **text}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pyhton: '3.12'", "lock.yml: no lock says pyhton; did you mean python?"),
        ("python: 3.12", "lock.yml: python has to be of type str, not 3.12"),
        ("imports: torch", "lock.yml: imports has to be of type list, not 'torch'"),
        ("size_mib: true", "lock.yml: size_mib has to be of type int, not True"),
        ("scripts: [serve]", "lock.yml: scripts: the folder has no file 'serve'"),
        ("scripts: [[]]", "lock.yml: scripts: the folder has no file []"),
        ("- python", "lock.yml is no dictionary"),
        ("python: [", "lock.yml cannot be read: while parsing"),
        ("python: \x00", "lock.yml cannot be read: unacceptable character"),
    ],
)
def test_what_a_lock_cannot_say_is_one_sentence(own, text, words):
    (own / "lock.yml").write_text(text)
    with pytest.raises(locks.LockError) as told:
        locks.read(str(own))
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_a_folder_without_a_lock_is_named(own):
    (own / "requirements.txt").write_bytes(b"\xff")
    with pytest.raises(locks.LockError, match=r"requirements\.txt cannot be read: 'utf-8' codec"):
        locks.read(str(own))
    (own / "requirements.txt").unlink()
    read = FilterModule().filters()["lock_data"]
    with pytest.raises(AnsibleFilterError, match=r"ml_env_lock: no lock is in .*: it has no requirements.txt; shipped"):
        read(str(own))
    with pytest.raises(AnsibleFilterError, match=r"no absolute path; begin it with \{\{ inventory_dir \}\}"):
        read("locks/mine")
