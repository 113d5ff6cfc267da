"""The files of an environment brought to what is declared: one run at a time."""

from __future__ import annotations

import sys
import threading
import zipfile
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import patch_format, patches, upkeep
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.patches import Patch
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.repair import Order, RepairError
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.store import Store
from made_wheels import wheel


@pytest.fixture
def env(tmp_path) -> Path:
    """An environment with one small distribution, as an installer leaves it."""
    root = tmp_path / "env"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "python").symlink_to(sys.executable)
    wheel(tmp_path / "wheels", "engine", "1.0", "", {"a.py": "x = 1\n", "b.py": "x = 1\n"})
    for one in (tmp_path / "wheels").iterdir():
        zipfile.ZipFile(one).extractall(root / "lib" / "python3.11" / "site-packages")
    return root


def order(env: Path, timeout_s: float = 60.0) -> Order:
    return Order(str(env), str(env.parent / "home"), timeout_s=timeout_s)


def patch(value: str) -> Patch:
    text = b"".join(
        patch_format.render(f"engine/{name}.py", b"x = 1\n", f"x = {value}\n".encode()) for name in ("a", "b")
    )
    return Patch(f"p{value}", "engine", "1.0", text.decode())


def test_of_two_runs_one_waits_and_says_so_when_it_has_to_give_up(env):
    refused = pytest.raises(RepairError, match="another run has been working on its files for 0 s, and this one has")
    with Store(str(env / upkeep.LOCK)).locked(1), refused:
        upkeep.ensure(order(env, 0), upkeep.OFF, [patch("2")], False)
    assert patches.in_force(str(env)) == {}


@pytest.mark.parametrize(
    ("policy", "wanted", "check"),
    [
        (upkeep.REQUIRE, None, False),
        (upkeep.WARN, None, False),
        (upkeep.OFF, [patch("2")], True),
        ("repair", None, True),
    ],
)
def test_who_only_looks_leaves_nothing_in_the_environment(env, policy, wanted, check):
    before = sorted(env.rglob("*"))
    upkeep.ensure(order(env), policy, wanted, check)
    assert sorted(env.rglob("*")) == before


def test_two_runs_at_once_leave_the_patches_of_one(env, monkeypatch):
    """The first one meets the second when it is about to change files."""
    second = threading.Thread(target=upkeep.ensure, args=(order(env), upkeep.OFF, [patch("3")], False))
    whole = patches.carry_out

    def meet(todo: patches.Plan) -> None:
        if todo.after == ["p2"]:
            second.start()
            second.join(0.5)  # without a lock it is done by then
        whole(todo)

    monkeypatch.setattr(patches, "carry_out", meet)
    upkeep.ensure(order(env), upkeep.OFF, [patch("2")], False)
    second.join()
    site = env / "lib" / "python3.11" / "site-packages" / "engine"
    assert {(site / name).read_text() for name in ("a.py", "b.py")} == {"x = 3\n"}
    assert list(patches.in_force(str(env))) == ["p3"]


def test_who_may_not_write_there_looks_all_the_same(env, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Store, "locked", refuse)
    assert upkeep.ensure(order(env), upkeep.REPAIR, [], False).verdict == "pristine"
