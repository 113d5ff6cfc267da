"""Which environment fits a declaration: lock, Python and its executable."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import build, interpreters
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.store import Store


def pretend(folder, version: str) -> str:
    """A program that answers the probe as a Python of this version would."""
    folder.mkdir()
    path = folder / "python3.30"
    answer = f'{{"executable": "{path}", "version": "{version}", "tag": "cpython-330", "platform": "linux-x"}}'
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def one(tmp_path) -> str:
    return pretend(tmp_path / "one", "3.30.7")


@pytest.fixture
def two(tmp_path) -> str:
    return pretend(tmp_path / "two", "3.30.2")


@pytest.fixture
def spec(tmp_path, one) -> build.Spec:
    return build.Spec(str(tmp_path / "envs" / "e"), "engine==1.0\n", one)


def carry_out(spec: build.Spec) -> build.Plan:
    """What a build leaves, without one."""
    plan = build.plan(spec)
    store = Store(spec.path)
    if plan.action == "build":
        store.begin(plan.folder)
        os.makedirs(os.path.join(plan.folder, "bin"))
        os.symlink(plan.interpreter.executable, os.path.join(plan.folder, "bin", "python"))
        os.makedirs(os.path.join(build.site_packages(plan.folder, plan.python_version), "engine-1.0.dist-info"))
        manifest = {"key": plan.key, "interpreter": plan.interpreter.as_dict(), "extras": {}}
        store.finish(plan.folder, {**manifest, "distributions": {"engine": "1.0"}})
    store.switch(plan.folder)
    return plan


def test_another_executable_that_is_asked_for_by_its_path_gets_an_environment_of_its_own(spec, two):
    first = carry_out(spec)
    other = replace(spec, python=two)
    second = carry_out(other)
    assert (second.action, second.python_version) == ("build", "3.30.2")
    assert second.folder != first.folder
    # It stays, also when nobody cares any more which it is, and when the first one is gone.
    for gone in (False, True):
        for asked in (other, replace(spec, python="auto")):
            plan = build.plan(asked)
            assert (plan.action, plan.folder, plan.python_version) == ("none", second.folder, "3.30.2")
        back = build.plan(spec)
        assert (back.action, back.folder) == ("build" if gone else "switch", first.folder)
        if not gone:
            Store.remove(first.folder)


def test_it_stays_when_its_interpreter_was_updated(spec, one, two, monkeypatch):
    carry_out(spec)
    second = carry_out(replace(spec, python=two))
    os.utime(two, (1, 1))
    monkeypatch.setattr(interpreters, "running", lambda: interpreters.probe(one))
    plan = build.plan(replace(spec, python="auto"))
    assert plan.interpreter.executable == one
    assert (plan.action, plan.folder) == ("none", second.folder)


def test_another_path_to_the_same_executable_is_no_other(spec, one, tmp_path):
    first = carry_out(spec)
    (tmp_path / "link").symlink_to(one)
    plan = build.plan(replace(spec, python=str(tmp_path / "link")))
    assert (plan.action, plan.folder) == ("none", first.folder)


def test_by_its_name_any_of_the_version_will_do_and_the_real_version_is_told(spec, two, monkeypatch):
    first = carry_out(spec)
    monkeypatch.setenv("PATH", f"{os.path.dirname(two)}:{os.environ['PATH']}")
    plan = build.plan(replace(spec, python="python3.30"))
    assert (plan.action, plan.folder) == ("none", first.folder)
    assert plan.interpreter.version == "3.30.2"
    assert plan.python_version == "3.30.7"


def test_what_is_said_of_a_damaged_manifest_works(spec):
    first = carry_out(spec)
    with open(os.path.join(first.folder, "groundstate-env.json"), "w", encoding="utf-8") as manifest:
        manifest.write('{"schema": 1, "key"')
    with pytest.raises(
        build.EnvError, match=f"is not valid JSON.*: remove the whole folder {first.folder}, and the next"
    ):
        build.plan(spec)
    shutil.rmtree(first.folder)
    assert carry_out(spec).action == "build"
    assert build.plan(spec).action == "none"
