"""Editable installs: commit, dirt and one hash of the code."""

from __future__ import annotations

import subprocess

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import checkout, python_env


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "src tree"
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "__init__.py").write_text("a = 1\n")
    (folder / "README").write_text("read\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def state(folder, unknown=None):
    return checkout.read("engine", folder.as_uri(), None, {} if unknown is None else unknown)


def test_a_clean_checkout_has_its_commit_and_no_dirt(source):
    unknown: dict[str, str] = {}
    found = state(source, unknown)
    head = subprocess.run(["git", "-C", str(source), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert found["commit"] == head.stdout.strip()
    assert (found["dirty"], found["changed"]) == (False, [])
    assert unknown == {}


def test_dirt_is_named_and_changes_the_hash_each_time(source):
    hashes = {state(source)["tree_hash"]}
    (source / "engine" / "__init__.py").write_text("a = 2\n")
    (source / "engine" / "patch.py").write_text("b = 1\n")
    found = state(source)
    assert (found["dirty"], found["changed"]) == (True, ["engine/__init__.py", "engine/patch.py"])
    hashes.add(found["tree_hash"])
    (source / "engine" / "patch.py").write_text("b = 2\n")
    hashes.add(state(source)["tree_hash"])
    assert len(hashes) == 3


def test_byte_code_and_builds_do_not_change_the_hash(source):
    before = state(source)["tree_hash"]
    for folder in ("engine/__pycache__", "build/lib", ".venv/lib"):
        (source / folder).mkdir(parents=True)
        (source / folder / "x.py").write_text("x")
    (source / "engine" / "x.pyc").write_text("x")
    assert state(source)["tree_hash"] == before


def test_a_folder_without_git_keeps_the_hash_and_says_why_there_is_no_commit(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.py").write_text("a = 1\n")
    unknown: dict[str, str] = {}
    found = state(tmp_path / "plain", unknown)
    assert found["commit"] is None
    assert found["dirty"] is None
    assert len(found["tree_hash"]) == 64
    assert "not a git repository" in unknown["python_env.editable.engine.commit"]


def test_a_folder_that_is_gone_and_an_address_that_is_no_folder(tmp_path):
    unknown: dict[str, str] = {}
    assert state(tmp_path / "gone", unknown)["tree_hash"] is None
    assert "is not a folder" in unknown["python_env.editable.engine.tree_hash"]
    checkout.read("x", "https://example.com/x", None, unknown)
    assert "is not a folder of this host" in unknown["python_env.editable.x"]


def test_a_hook_in_the_checkout_is_not_run(source, tmp_path):
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git(source, "config", "core.fsmonitor", str(hook))
    assert state(source)["dirty"] is False
    assert not (tmp_path / "ran").exists()


def test_the_environment_shows_editable_and_version_control_installs(site, source):
    site.install("engine", "1", {"__editable__engine.pth": str(source)}, direct_url={
        "url": source.as_uri(), "dir_info": {"editable": True}})  # fmt: skip
    site.install("sgl", "2", {"sgl.py": ""}, direct_url={
        "url": "https://me:secret@example.com/sgl.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}})  # fmt: skip
    unknown: dict[str, str] = {}
    found = python_env.read(str(site.root), None, unknown)
    assert [one["name"] for one in found["editable"]] == ["engine"]
    assert found["editable"][0]["dirty"] is False
    assert found["sources"] == {"sgl": "git+https://example.com/sgl.git@c0ffee"}
    assert found["edited"] == found["added"] == found["missing"] == []
    # The made environment has no interpreter: that is said, and the rest is there all the same.
    assert "does not exist" in unknown["python_env.python"]
