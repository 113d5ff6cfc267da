"""scripts/check.py and .ci/run count honestly: what could not run has failed, and the last line says so."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(name="check")
def check_script(tmp_path, monkeypatch):
    """scripts/check.py as a module, working in a folder of its own."""
    spec = importlib.util.spec_from_file_location("groundstate_check", ROOT / "scripts" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "OUTPUT", tmp_path / "output")
    return module


def shell(check, name: str, script: str):
    """A check that is a line of shell."""
    return check.Check(name, ("sh", "-c", script))


def run(check, monkeypatch, capsys, *checks) -> tuple[int, list[str]]:
    """Run checks as a group; the exit code and the lines printed."""
    monkeypatch.setattr(check, "GROUPS", {"group": checks})
    code = check.main(["group"])
    return code, capsys.readouterr().out.splitlines()


def test_commands_count_one_each(check, monkeypatch, capsys):
    code, lines = run(check, monkeypatch, capsys, shell(check, "good", "echo fine"), shell(check, "bad", "exit 3"))
    assert code == 1
    assert "good: fine" in lines
    assert lines[-2:] == ["failed: bad (output in output)", "1 passed, 1 failed"]


def test_two_run_at_once_and_their_lines_stay_whole(check, monkeypatch, capsys, tmp_path):
    meet = "touch {0}; while [ ! -e {1} ]; do sleep 0.01; done; echo $(seq 500)"
    first, second = tmp_path / "a", tmp_path / "b"
    monkeypatch.setattr(check.os, "cpu_count", lambda: 8)
    code, lines = run(
        check,
        monkeypatch,
        capsys,
        shell(check, "one", meet.format(first, second)),
        shell(check, "two", meet.format(second, first)),
    )
    assert code == 0
    words = " ".join(map(str, range(1, 501)))
    assert {f"one: {words}", f"two: {words}"} <= set(lines)


def test_one_at_a_time_on_request(check, monkeypatch, capsys, tmp_path):
    note = "echo begin >> {0}; sleep 0.05; echo end >> {0}"
    checks = tuple(shell(check, name, note.format(tmp_path / "notes")) for name in "abc")
    monkeypatch.setattr(check, "GROUPS", {"group": checks})
    assert check.main(["--jobs", "1", "group"]) == 0
    assert (tmp_path / "notes").read_text().split() == ["begin", "end"] * 3


def test_what_has_to_be_alone_begins_when_all_else_has_ended(check, monkeypatch, capsys, tmp_path):
    note = "echo begin >> {0}; sleep 0.05; echo end >> {0}"
    notes = tmp_path / "notes"
    alone = [check.Check(name, ("sh", "-c", note.format(notes)), alone=True) for name in "ab"]
    others = [shell(check, name, f"sleep 0.05; [ ! -e {notes} ]") for name in "cd"]
    code, lines = run(check, monkeypatch, capsys, alone[0], *others, alone[1])
    assert (code, lines[-1]) == (0, "4 passed, 0 failed")
    assert notes.read_text().split() == ["begin", "end"] * 2


def test_each_slow_test_is_in_one_of_the_runs(check):
    expressions = [one.command[one.command.index("-m", 3) + 1] for one in check.GROUPS["slow"] if one.pytest]
    assert expressions == ["slow and not alone", "slow and alone"]


def test_all_good(check, monkeypatch, capsys):
    code, lines = run(check, monkeypatch, capsys, shell(check, "good", "true"))
    assert (code, lines[-1]) == (0, "1 passed, 0 failed")


def test_a_program_that_is_not_there_has_failed(check, monkeypatch, capsys):
    code, lines = run(check, monkeypatch, capsys, check.Check("gone", ("no-such-program-here",)))
    assert (code, lines[-1]) == (1, "0 passed, 1 failed")


def test_the_output_is_kept(check, monkeypatch, capsys):
    run(check, monkeypatch, capsys, shell(check, "words", "echo out; echo err >&2"))
    assert sorted((check.OUTPUT / "words.log").read_text().split()) == ["err", "out"]


TESTS = """
import pytest
def test_a(): assert 1
def test_b(): assert 0
@pytest.mark.skip
def test_c(): pass
def test_d(): assert 1
@pytest.fixture
def broken(): raise ValueError
def test_e(broken): pass
"""


@pytest.mark.parametrize(
    ("source", "expected", "code"),
    [
        (TESTS, "2 passed, 2 failed, 1 skipped", 1),
        ("def test_a(): assert 1\n", "1 passed, 0 failed", 0),
        ("import no_such_module\n", "0 passed, 1 failed", 1),
        ("", "0 passed, 1 failed", 1),
        ("import os\ndef test_a(): os._exit(7)\n", "0 passed, 1 failed", 1),
    ],
    ids=["mixed", "good", "import-error", "no-test", "crash"],
)
def test_tests_count_one_by_one(check, monkeypatch, capsys, tmp_path, source, expected, code):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the sample needs none, and they take seconds to load
    (tmp_path / "test_sample.py").write_text(source)
    sample = check.pytest("sample", "-p", "no:cacheprovider", "test_sample.py")
    found, lines = run(check, monkeypatch, capsys, sample)
    assert (lines[-1], found) == (expected, code)


def test_an_unknown_group_is_refused(check, capsys):
    with pytest.raises(SystemExit) as end:
        check.main(["unti"])
    assert end.value.code == 2
    assert "unti" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fake", "last", "code"),
    [
        ('echo "5 passed, 0 failed"', "10 passed, 0 failed", 0),
        ('echo "5 passed, 0 failed, 2 skipped"', "10 passed, 0 failed, 4 skipped", 0),
        ('echo "5 passed, 1 failed"; echo "make: *** Error 1"; exit 2', "10 passed, 2 failed", 1),
        ('echo "5 passed, 0 failed"; exit 2', "10 passed, 2 failed", 1),
        ("echo 'nothing to count'", "0 passed, 2 failed", 1),
        ('[ "$1" = slow ] || echo "7 passed, 0 failed"; [ "$1" != slow ]', "7 passed, 1 failed", 1),
    ],
    ids=["good", "skips", "failures", "bad-exit", "silent", "slow-cannot-run"],
)
def test_ci_run_sums_up(tmp_path, fake, last, code):
    (tmp_path / ".ci").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    make = tmp_path / "bin" / "make"
    make.write_text(f"#!/bin/sh\n{fake}\n")
    make.chmod(0o755)
    done = subprocess.run(
        ["bash", ".ci/run"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.splitlines()[-1], done.returncode) == (last, code), done.stderr
