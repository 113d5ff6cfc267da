"""Which Python is chosen."""

from __future__ import annotations

import os
import sys

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import interpreters

VERSION = ".".join(str(one) for one in sys.version_info[:3])


def program(path, text: str):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def pretend(folder, name: str, version: str) -> str:
    """A program that answers the probe as a Python of this version would."""
    path = str(folder / name)
    answer = f'{{"executable": "{path}", "version": "{version}", "tag": "cpython-x", "platform": "linux-x"}}'
    return program(folder / name, f"echo '{answer}'\n")


def test_an_interpreter_tells_what_it_is():
    item = interpreters.probe(sys.executable)
    assert (item.version, item.tag) == (VERSION, sys.implementation.cache_tag)
    assert item.executable == interpreters.running().executable


def test_a_remembered_interpreter_is_not_run_again_until_its_file_changes(tmp_path):
    path = pretend(tmp_path, "python3.12", "3.12.1")
    item = interpreters.probe(path)
    program(tmp_path / "other", "exit 1")
    assert interpreters.find(path, "", item.as_dict()) == item
    os.utime(path, (1, 1))
    assert interpreters.remembered(item.as_dict()) is None
    os.unlink(path)
    assert interpreters.remembered(item.as_dict()) is None


@pytest.mark.parametrize("raw", [None, {}, {"found": "x"}, "text"])
def test_what_a_manifest_does_not_tell_is_not_remembered(raw):
    assert interpreters.remembered(raw) is None


def test_auto_takes_the_running_one_when_the_lock_is_for_it():
    assert interpreters.find("auto", ">=3.9") == interpreters.running()


def test_auto_keeps_the_one_that_the_environment_was_made_for(tmp_path):
    kept = interpreters.probe(pretend(tmp_path, "python3.10", "3.10.4"))
    assert interpreters.find("auto", ">=3.9", kept.as_dict()) == kept
    assert interpreters.find("auto", f"=={VERSION}", kept.as_dict()) == interpreters.running()


def test_auto_finds_the_newest_suitable_one_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    pretend(tmp_path, "python3", "3.7.1")
    pretend(tmp_path, "python3.8", "3.8.2")
    broken = program(tmp_path / "python3.9", "echo 'pyenv: python3.9: command not found' >&2; exit 127")
    assert interpreters.find("auto", ">=3.8,<3.9").version == "3.8.2"
    with pytest.raises(ValueError, match=r"no Python ==2\.\* on this host .*python3 is 3\.7\.1"):
        interpreters.find("auto", "==2.*")
    with pytest.raises(ValueError, match=r"does not run as a Python 3 interpreter \(pyenv: python3.9: command not"):
        interpreters.probe(broken)


def test_a_named_one_must_exist_run_and_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"there is no python3\.8 on this host"):
        interpreters.find("python3.8")
    path = pretend(tmp_path, "python3.8", "3.8.2")
    assert interpreters.find("python3.8").found == path
    with pytest.raises(ValueError, match=r"python3\.8 is Python 3\.8\.2, the lock needs >=3\.10"):
        interpreters.find("python3.8", ">=3.10")
    with pytest.raises(ValueError, match="does not run as a Python 3 interpreter"):
        interpreters.find(program(tmp_path / "chatty", "echo hello"))
