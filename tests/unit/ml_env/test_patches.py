"""Declared patches: all or nothing, in order, taken back, and never over what somebody edited."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
import zipfile
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import compare, distributions, python_env
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import patch_format, patches, pristine, upkeep
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.patches import Patch, PatchError
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.repair import Order
from made_wheels import wheel

CORE = "".join(f"line {number}\n" for number in range(20))


class Env:
    """An environment with two small distributions, as an installer leaves them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / "lib" / "python3.11" / "site-packages"
        (root / "bin").mkdir(parents=True)
        (root / "bin" / "python").symlink_to(sys.executable)
        wheel(root / "wheels", "engine", "1.0", "NAME = 'engine'\n", {"core.py": CORE, "old.py": "old = 1\n"})
        wheel(root / "wheels", "helper", "2.1")
        for one in (root / "wheels").iterdir():
            zipfile.ZipFile(one).extractall(self.site)

    def plan(self, *wanted: Patch) -> patches.Plan:
        return patches.plan(str(self.root), str(self.site), distributions.installed(str(self.site)), list(wanted))

    def ensure(self, *wanted: Patch) -> patches.Plan:
        made = self.plan(*wanted)
        patches.carry_out(made)
        return made

    def files(self) -> dict[str, bytes]:
        return {
            str(one.relative_to(self.site)): one.read_bytes()
            for one in self.site.rglob("*")
            if one.is_file() and "__pycache__" not in one.parts
        }

    def patch(self, name: str, *changes: tuple[str, str | None, str | None], **more) -> Patch:
        text = b"".join(
            patch_format.render(path, *(None if one is None else one.encode() for one in pair))
            for path, *pair in changes
        )
        return Patch(name, more.get("distribution", "engine"), more.get("version", "1.0"), text.decode())


@pytest.fixture
def env(tmp_path) -> Env:
    return Env(tmp_path / "env")


EARLY = CORE.replace("line 3\n", "early\nearlier\n")
LATE = CORE.replace("line 17\n", "late\n")


@pytest.fixture
def first(env) -> Patch:
    """Changes, makes and deletes a file."""
    made = ("engine/new/kernel.py", None, "k = 1\n")
    return env.patch("first", ("engine/core.py", CORE, EARLY), made, ("engine/old.py", "old = 1\n", None))


@pytest.fixture
def second(env) -> Patch:
    """Changes another place of the same file, and a file that the first one makes."""
    return env.patch("second", ("engine/core.py", CORE, LATE), ("engine/new/kernel.py", "k = 1\n", "k = 2\n"))


def test_a_patch_is_applied_once_and_taken_back_without_a_trace(env, first):
    before = env.files()
    assert env.ensure(first).describe() == ["patches: none -> first (3 files changed)"]
    now = env.files()
    assert now["engine/core.py"].decode() == EARLY
    assert now["engine/new/kernel.py"] == b"k = 1\n"
    assert "engine/old.py" not in now
    assert not env.plan(first).changed
    assert env.ensure().describe() == ["patches: first -> none (3 files changed)"]
    assert env.files() == before
    assert not (env.root / patches.JOURNAL).exists()
    assert not (env.site / "engine" / "new").exists()
    assert not env.plan().changed


def test_patches_build_on_each_other_in_their_order(env, first, second):
    env.ensure(first, second)
    assert env.files()["engine/core.py"].decode() == EARLY.replace("line 17\n", "late\n")
    assert env.files()["engine/new/kernel.py"] == b"k = 2\n"
    # The second alone needs a file that only the first makes.
    with pytest.raises(PatchError, match=r"second cannot be applied to engine 1\.0: engine/new/kernel\.py is no file"):
        env.plan(second)
    env.ensure(first)
    assert env.files()["engine/core.py"].decode() == EARLY
    assert env.files()["engine/new/kernel.py"] == b"k = 1\n"


def test_a_changed_patch_replaces_what_it_did_before(env, first):
    env.ensure(first)
    other = env.patch("first", ("engine/core.py", CORE, LATE))
    env.ensure(other)
    assert env.files()["engine/core.py"].decode() == LATE
    assert env.files()["engine/old.py"] == b"old = 1\n"
    assert "engine/new/kernel.py" not in env.files()


def test_what_does_not_apply_stops_with_the_hunk_and_changes_nothing(env, first):
    wrong = env.patch("wrong", ("engine/core.py", CORE.replace("line 8", "other"), CORE.replace("line 8", "more")))
    before = env.files()
    with pytest.raises(PatchError, match=r"(?s)wrong cannot be applied to engine 1\.0.*hunk 1 of 1.*-other\n\+more"):
        env.plan(first, wrong)
    assert env.files() == before
    assert not (env.root / patches.JOURNAL).exists()


def test_a_failure_in_the_middle_undoes_what_was_done(env, first, second, monkeypatch):
    env.ensure(first)
    before, journal = env.files(), (env.root / patches.JOURNAL).read_bytes()
    todo = env.plan(first, second)
    assert len(todo.changes) == 2
    monkeypatch.setattr(patches.file_change, "_make", failing(patches.file_change._make, after=1))
    with pytest.raises(OSError, match="full"):
        patches.carry_out(todo)
    assert env.files() == before
    assert (env.root / patches.JOURNAL).read_bytes() == journal


def failing(real, after: int):
    """A function that fails once, after so many calls."""
    calls = []

    def replacement(*arguments):
        calls.append(arguments)
        if len(calls) == after + 1:
            raise OSError("full")
        return real(*arguments)

    return replacement


@pytest.mark.parametrize("done", [0, 1, 2])
@pytest.mark.parametrize("onward", [True, False])
def test_a_kill_in_the_middle_is_recovered_by_either_declaration(env, first, second, done, onward):
    before = env.files()
    env.ensure(first)
    todo = env.plan(first, second)
    # What a kill leaves: the journal of the transition, and so many of the files.
    patches.files.write_json(str(env.root / patches.JOURNAL), patches._between(patches.journal(str(env.root)), todo))
    for change in todo.changes[:done]:
        change.do()
    if onward:
        env.ensure(first, second)
        assert env.files()["engine/new/kernel.py"] == b"k = 2\n"
        assert not env.plan(first, second).changed
    env.ensure()
    assert env.files() == before


@pytest.mark.parametrize("back", [True, False])
def test_a_kill_in_the_middle_is_told_until_a_run_has_finished_it(env, first, back):
    identities = {patches.identity(str(env.root))}
    if back:
        env.ensure(first)
    wanted = [] if back else [first]
    todo = env.plan(*wanted)
    patches.files.write_json(str(env.root / patches.JOURNAL), patches._between(patches.journal(str(env.root)), todo))
    todo.changes[0].do()
    assert patches.UNFINISHED in patches.in_force(str(env.root))
    found = pristine.look(str(env.root), None)
    assert found.verdict == "modified"
    assert "half-way" in pristine.message(found)
    section = python_env.read(str(env.root), None, {})
    assert patches.UNFINISHED in section["patched"]
    assert section["counts"] != {"edited": 0, "missing": 0, "added": 0}
    identities.add(patches.identity(str(env.root)))
    order = Order(str(env.root), str(env.root / "home"))
    done = upkeep.ensure(order, upkeep.REQUIRE, None, check=False)
    assert (done.verdict, done.patches) == ("pristine", []) if back else ("patched", ["first"])
    assert done.changes == [
        f"patches: {'' if back else 'first, '}(unfinished) -> {'none' if back else 'first'} (2 files changed)"
    ]
    assert patches.in_force(str(env.root)) == ({} if back else {"first": first.sha256})
    identities.add(patches.identity(str(env.root)))
    assert len(identities) == (2 if back else 3)


def test_a_file_that_its_wheel_tells_by_another_hash_is_patched_and_put_back(env, first):
    record = env.site / "engine-1.0.dist-info" / "RECORD"
    value = base64.urlsafe_b64encode(hashlib.sha512(CORE.encode()).digest()).rstrip(b"=").decode()
    record.write_text(re.sub(r"(core\.py),sha256=[^,]*", rf"\1,sha512={value}", record.read_text()))
    env.ensure(first)
    assert pristine.look(str(env.root), None).verdict == "patched"
    env.ensure()
    assert env.files()["engine/core.py"].decode() == CORE


def test_an_edited_file_is_neither_patched_nor_overwritten(env, first):
    (env.site / "engine" / "core.py").write_text(CORE + "mine\n")
    with pytest.raises(patches.Edited, match=r"engine/core\.py of engine 1\.0 was edited .* ml_env_pristine: repair"):
        env.plan(first)
    (env.site / "engine" / "core.py").write_text(CORE)
    env.ensure(first)
    for path in ("engine/core.py", "engine/new/kernel.py"):
        kept = (env.site / path).read_text()
        (env.site / path).write_text(kept + "mine\n")
        for wanted in ([first], []):
            with pytest.raises(patches.Edited):
                env.plan(*wanted)
        (env.site / path).write_text(kept)
    assert not env.plan(first).changed


def test_what_somebody_patched_by_hand_in_just_that_way_is_taken_over(env, first, second):
    before = env.files()
    (env.site / "engine" / "core.py").write_text(EARLY.replace("line 17\n", "late\n"))
    (env.site / "engine" / "old.py").unlink()
    todo = env.plan(first, second)
    assert [Path(one.path).name for one in todo.changes] == ["kernel.py"]
    patches.carry_out(todo)
    env.ensure()
    assert env.files() == before


def test_what_a_patch_is_for_has_to_be_installed(env, first):
    for more, why in (
        ({"version": "1.1"}, r"first is for engine 1\.1, installed is 1\.0"),
        ({"distribution": "none"}, "none, which is not installed"),
    ):
        with pytest.raises(PatchError, match=why):
            env.plan(Patch("first", **{"distribution": "engine", "version": "1.0", **more}, text=first.text))
    assert env.plan(Patch("first", "Engine", "1.0.0", first.text)).changed


@pytest.mark.parametrize(
    ("path", "content", "why"),
    [
        ("helper/__init__.py", "", "belongs to helper"),
        ("other/new.py", None, "outside of the packages of engine"),
        ("top.py", None, "outside of the packages of engine"),
        ("engine/gone.py", "x\n", "is no file of engine 1.0"),
        ("engine-1.0.dist-info/RECORD", "x\n", "installer's"),
        ("engine/__pycache__/core.cpython-311.pyc", None, "installer's"),
    ],
)
def test_files_that_are_not_its_own_are_refused(env, path, content, why):
    with pytest.raises(PatchError, match=why):
        env.plan(env.patch("one", (path, content, "y\n")))


def test_a_file_of_two_distributions_is_patched_for_either(env, tmp_path):
    for name in ("engine_left", "engine_right"):
        wheel(tmp_path, name, "1.0", "", {"../shared.py": f"of = '{name}'\n"})
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl") as archive:
            archive.extractall(env.site)
    (env.site / "shared.py").write_text("of = 'engine_left'\n")  # the one that was written last
    change = ("shared.py", "of = 'engine_left'\n", "of = 'mine'\n")
    for name in ("engine-right", "engine-left"):
        env.ensure(env.patch("one", change, distribution=name))
        assert (env.site / "shared.py").read_text() == "of = 'mine'\n"
        env.ensure()
        assert (env.site / "shared.py").read_text() == "of = 'engine_left'\n"
    with pytest.raises(PatchError, match="belongs to engine-left and engine-right"):
        env.plan(env.patch("one", change))


def test_links_out_of_the_packages_are_never_written_through(env, first, tmp_path):
    cache = tmp_path / "cache.py"
    cache.write_text(CORE)
    (env.site / "engine" / "core.py").unlink()
    (env.site / "engine" / "core.py").symlink_to(cache)
    with pytest.raises(PatchError, match="a link out of its folder"):
        env.plan(first)
    (tmp_path / "elsewhere").mkdir()
    (env.site / "engine" / "core.py").unlink()
    (env.site / "engine" / "core.py").write_text(CORE)
    (env.site / "engine" / "new").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PatchError, match="a link out of its folder"):
        env.plan(first)
    assert cache.read_text() == CORE


def test_another_release_installed_over_it_ends_the_patch(env, first, tmp_path):
    env.ensure(first)
    for one in [*env.site.glob("engine/*.py"), *env.site.glob("engine-*/*")]:
        one.unlink()
    wheel(tmp_path / "more", "engine", "1.1", "NAME = 'new'\n", {"core.py": "all new\n"})
    (env.site / "engine-1.0.dist-info").rmdir()
    zipfile.ZipFile(next((tmp_path / "more").iterdir())).extractall(env.site)
    with pytest.raises(PatchError, match=r"installed is 1\.1"):
        env.plan(first)
    env.ensure()
    assert env.files()["engine/core.py"] == b"all new\n"
    assert "engine/new/kernel.py" not in env.files()


def test_the_same_patch_twice_and_a_journal_of_another_version(env, first):
    with pytest.raises(PatchError, match="declared twice"):
        env.plan(first, first)
    (env.root / patches.JOURNAL).write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="another version"):
        env.plan(first)


@pytest.mark.parametrize(
    "damage",
    [
        {"patches": [{"name": "x"}]},
        {"patches": [{"name": "x", "distribution": "engine", "version": "1.0", "text": 1, "strip": 1}]},
        {"patches": [{"name": "x", "distribution": "engine", "version": "1.0", "text": "", "strip": 1, "more": 1}]},
        {"patches": {}},
        {"files": []},
        {"files": {"engine/core.py": {"before": "no base64!", "mode": 420, "ours": []}}},
        {"files": {"engine/core.py": {"before": 5, "mode": 420, "ours": []}}},
        {"files": {"engine/core.py": {"before": None, "ours": []}}},
        {"files": {"engine/core.py": {"before": None, "mode": 420, "ours": [7]}}},
        {"unfinished": "yes"},
    ],
)
def test_a_damaged_journal_is_one_sentence(env, first, damage):
    env.ensure(first)
    path = env.root / patches.JOURNAL
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    for ask in (patches.in_force, patches.declared, patches.identity, lambda _root: env.plan(first)):
        with pytest.raises(ValueError, match=r"groundstate-patches\.json is damaged: remove it and"):
            ask(str(env.root))


def test_a_server_on_a_patched_environment_is_another_one(env, first, second):
    plain = patches.identity(str(env.root))
    assert plain == ""
    seen = {plain}
    for wanted in ([first], [first, second]):
        env.ensure(*wanted)
        seen.add(patches.identity(str(env.root)))
    assert len(seen) == 3
    env.ensure()
    assert patches.identity(str(env.root)) == plain


def test_the_fingerprint_names_patches_and_keeps_other_edits_apart(env, first):
    def section() -> dict:
        return python_env.read(str(env.root), None, {})

    plain = section()
    assert "patched" not in plain
    env.ensure(first)
    (env.site / "helper" / "__init__.py").write_text("mine\n")
    found = section()
    assert found["patched"] == {"first": first.sha256}
    assert (found["edited"], found["missing"], found["added"]) == (["helper/__init__.py"], [], [])
    (env.site / "helper" / "__init__.py").write_text("")
    told = compare.differences({"sections": {"python_env": plain}}, {"sections": {"python_env": section()}})
    assert told == ["patch first was added"]
    env.ensure()
    assert section() == plain


def test_a_look_tells_patched_from_modified(env, first):
    assert pristine.look(str(env.root), None).verdict == "pristine"
    env.ensure(first)
    found = pristine.look(str(env.root), None)
    assert (found.verdict, found.modified) == ("patched", [])
    assert found.patched == ["engine/core.py", "engine/new/kernel.py", "engine/old.py"]
    (env.site / "engine" / "core.py").write_text("mine\n")
    os.unlink(env.site / "helper" / "__init__.py")
    (env.site / "stray.py").write_text("x = 1\n")
    found = pristine.look(str(env.root), None)
    assert found.verdict == "modified"
    assert found.modified == [
        "stray.py added",
        "engine/core.py edited (engine 1.0)",
        "helper/__init__.py missing (helper 2.1)",
    ]
    assert found.patched == ["engine/new/kernel.py", "engine/old.py"]
    assert "engine/core.py edited" in pristine.message(found)
