"""The start of real interpreters: Debian's, with its own sitecustomize, and those that have none."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import python_startup

STORY = {
    "NCCL_ALGO": "Ring",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_NTHREADS": "512",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_PROTO": "LL",
}
DEBIAN = Path("/usr/bin/python3")
ALL_SET = {"plain", "-I", "-E", "subprocess", "fork", "spawn", "forkserver"}
# What apport and coverage put there.
APPORT = """# install the apport exception handler if available
try:
    import apport_python_hook
except ImportError:
    pass
else:
    apport_python_hook.install()
"""
COVERAGE = (
    'import os\nif os.environ.get("COVERAGE_PROCESS_START"):\n    import coverage\n    coverage.process_startup()'
)


@pytest.fixture
def startup(module):
    """Run the module."""
    return functools.partial(module, "python_startup")


def venv(base, path):
    """A venv of a Python; returns its interpreter."""
    subprocess.run([str(base), "-m", "venv", "--without-pip", str(path)], check=True, timeout=120)
    return path / "bin" / "python"


def tree(folder):
    """All files below a folder with what is in them, and all links."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[path] = os.readlink(path)
        elif path.is_file():
            found[path] = (path.read_bytes(), path.stat().st_mode)
        else:
            found[path] = None
    return found


def say(python, code, *options, **environment):
    """What a program prints."""
    done = subprocess.run(
        [str(python), *options, "-c", code],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


PRINT = "import os; print(os.environ.get('NCCL_PROTO'))"


def bases():
    """Debian's Python, the one of these tests, and the oldest that modules run on where it is there."""
    found = {"debian": DEBIAN, "own": Path(os.path.realpath(sys.executable))}
    old = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.9.*/bin/python3.9"))
    if old:
        found["3.9"] = old[0]
    return found


@pytest.fixture
def debian(tmp_path):
    """Debian's interpreter and library at another place, whose sitecustomize may be changed: (venv's, that file)."""
    version = say(DEBIAN, "import sys; print('%d.%d' % sys.version_info[:2])")
    library, copy = Path(f"/usr/lib/python{version}"), tmp_path / "usr" / "lib" / f"python{version}"
    copy.mkdir(parents=True)
    for path in library.iterdir():
        if path.name not in ("sitecustomize.py", "__pycache__"):
            (copy / path.name).symlink_to(path)
    program = tmp_path / "usr" / "bin" / f"python{version}"
    program.parent.mkdir()
    shutil.copy(os.path.realpath(DEBIAN), program)
    file = tmp_path / "etc" / f"python{version}" / "sitecustomize.py"
    file.parent.mkdir(parents=True)
    file.write_text(APPORT)
    (copy / "sitecustomize.py").symlink_to(file)
    return venv(program, tmp_path / "venv"), file


@pytest.mark.parametrize("base", bases().values(), ids=bases().keys())
def test_the_story_reaches_every_kind_of_worker_and_leaves_no_trace(base, tmp_path, startup):
    python = venv(base, tmp_path / "venv")
    before = tree(tmp_path)
    made = startup(python=str(python), name="kimi-k2", variables=STORY)
    assert (made["failed"], made["changed"]) == (False, True), made
    assert {row["how"] for row in made["proof"] if row["set"]} == ALL_SET
    assert all(row["values"] == STORY for row in made["proof"] if row["set"])
    assert made["table"][-1] == "-S          not set (no start-up code runs then)"
    again = startup(python=str(python), name="kimi-k2", variables=STORY)
    assert (again["failed"], again["changed"], again["written"]) == (False, False, [])

    # Defaults: what is set already wins, and what a parent sets for its workers too.
    assert say(python, PRINT) == "LL"
    assert say(python, PRINT, NCCL_PROTO="Simple") == "Simple"
    engine = "import multiprocessing as m, os; os.environ['NCCL_PROTO'] = 'FROM_ENGINE'; "
    for method in ("spawn", "forkserver", "fork"):
        code = f"{engine}print(m.get_context({method!r}).Pool(1).apply(os.getenv, ('NCCL_PROTO',)))"
        assert say(python, code) == "FROM_ENGINE", method

    # The same size within the same second: Python must not run what it compiled of the old text.
    other = startup(python=str(python), name="kimi-k2", variables={**STORY, "NCCL_ALGO": "Tree"})
    assert (other["failed"], other["changed"]) == (False, True), other
    assert startup(python=str(python), name="kimi-k2", state="absent")["changed"] is True
    assert tree(tmp_path) == before
    assert say(python, PRINT) == "None"
    assert startup(python=str(python), name="kimi-k2", state="absent")["changed"] is False


def put(python, name, variables, method):
    """Write, without the proof; an empty set takes away. Returns what changed."""
    planned = python_startup.changes(python_startup.inspect(str(python)), name, variables, method)
    for one in planned:
        one.do()
    return [Path(one.path) for one in planned]


@pytest.mark.parametrize(
    "text",
    [
        APPORT.encode(),
        APPORT.encode() + COVERAGE.encode(),
        b"",
        b"A = 1\r\nB = 2\r\n",
        b"# -*- coding: latin-1 -*-\n# \xe9",
    ],
)
def test_debians_sitecustomize_comes_back_byte_by_byte(debian, tmp_path, text):
    python, file = debian
    file.write_bytes(text)
    file.chmod(0o640)
    before = tree(tmp_path / "venv"), tree(tmp_path / "etc")
    (written,) = put(python, "kimi", STORY, "sitecustomize")
    assert file.read_bytes().startswith(text)
    assert written.samefile(file)
    assert written.is_symlink(), "the link stays"
    assert say(python, PRINT) == "LL"
    assert put(python, "kimi", STORY, "sitecustomize") == []
    put(python, "kimi", {}, "sitecustomize")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (text, 0o640)
    assert before == (tree(tmp_path / "venv"), tree(tmp_path / "etc"))


def test_debians_sitecustomize_still_runs_and_every_kind_of_worker_gets_the_story(debian, startup):
    python, file = debian
    file.write_text('print("apport", end=" ")\n')
    made = startup(python=str(python), name="kimi", variables=STORY, method="sitecustomize")
    assert (made["failed"], made.get("changed")) == (False, True), made
    assert {row["how"] for row in made["proof"] if row["set"]} == ALL_SET
    assert say(python, PRINT) == "apport LL"
    assert startup(python=str(python), name="kimi", state="absent")["changed"] is True
    assert file.read_text() == 'print("apport", end=" ")\n'


def test_a_copy_in_the_venv_is_shadowed_by_debians(tmp_path, startup):
    python = venv(DEBIAN, tmp_path / "venv")
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "sitecustomize.py").write_text("import os\nos.environ['NCCL_PROTO'] = 'NEVER'\n")
    made = startup(check=True, python=str(python), variables=STORY)
    first, second = made["interpreter"]["sitecustomize"]
    assert first["path"].startswith("/usr/lib/python3")
    assert first["loaded"] is True
    assert (second["path"], second["shadowed_by"]) == (str(site / "sitecustomize.py"), first["path"])
    assert say(python, "import sitecustomize; print(sitecustomize.__file__)") == first["path"]
    assert say(python, PRINT) == "None"


def test_a_python_without_sitecustomize_gets_one_and_loses_it(tmp_path, startup):
    python = venv(os.path.realpath(sys.executable), tmp_path / "venv")
    if python_startup.inspect(str(python)).winner:
        (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
        pytest.fail(f"this Python has a sitecustomize of its own, before {site}: run the tests with another one")
    before = tree(tmp_path)
    made = startup(python=str(python), variables=STORY, method="sitecustomize")
    assert (made["failed"], made["changed"]) == (False, True), made
    assert [Path(path).name for path in made["written"]] == ["sitecustomize.py"]
    # Another method takes the place of the first.
    made = startup(python=str(python), variables=STORY, method="pth")
    assert [Path(path).suffix for path in made["written"]] == [".py", ".pth", ".py"]
    assert sorted(path.name for path in tmp_path.rglob("*sitecustomize*")) == []
    made = startup(python=str(python), state="absent")
    assert (made["failed"], tree(tmp_path)) == (False, before)


@pytest.mark.parametrize("method", ["pth", "sitecustomize"])
def test_two_owners_do_not_touch_each_other(tmp_path, debian, method):
    python, file = debian
    both = "import os; print(os.environ.get('NCCL_PROTO'), os.environ.get('NCCL_ALGO'))"
    before = tree(tmp_path / "venv"), file.read_bytes()
    put(python, "a-b", {"NCCL_PROTO": "LL"}, method)
    put(python, "a_b", {"NCCL_ALGO": "Ring"}, method)
    assert say(python, both) == "LL Ring"
    put(python, "a-b", {}, method)
    assert say(python, both) == "None Ring"
    put(python, "a_b", {}, method)
    assert (tree(tmp_path / "venv"), file.read_bytes()) == before


def test_force_goes_over_the_environment_and_over_the_engine_and_says_so(tmp_path, host):
    python = venv(DEBIAN, tmp_path / "venv")
    made = host.run("python_startup", home=None, python=str(python), variables={"NCCL_PROTO": "LL"}, force=True)
    assert "over what the engine sets by itself" in json.dumps(made["warnings"])
    assert say(python, PRINT, NCCL_PROTO="Simple") == "LL"
    engine = "import multiprocessing as m, os; os.environ['NCCL_PROTO'] = 'FROM_ENGINE'; "
    assert say(python, f"{engine}print(m.get_context('spawn').Pool(1).apply(os.getenv, ('NCCL_PROTO',)))") == "LL"


def test_what_cannot_be_proved_is_put_back_and_says_what_stands_in_the_way(tmp_path, startup):
    python = venv(DEBIAN, tmp_path / "venv")
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "a_first.pth").write_text("import os; os.environ['NCCL_PROTO'] = 'Simple'\n")
    (site / "A_first.pth").write_text("import os; os.environ['NCCL_PROTO'] = 'Simple'\n")
    before = tree(tmp_path)
    made = startup(python=str(python), variables=STORY)
    assert made["failed"] is True
    assert "plain: NCCL_PROTO is 'Simple' instead of 'LL'" in made["msg"]
    assert f"*.pth in {site}" in made["msg"]
    assert tree(tmp_path) == before


def test_a_broken_sitecustomize_is_refused_before_anything_is_changed(debian, startup):
    python, file = debian
    file.write_text("def broken(:\n")
    made = startup(python=str(python), variables=STORY, method="sitecustomize")
    assert made["failed"] is True
    assert "sitecustomize.py is no valid source" in made["msg"]
    assert file.read_text() == "def broken(:\n"
    made = startup(python=str(python), variables=STORY, method="pth")
    assert made["failed"] is False, "its .pth does not depend on it"


def test_check_mode_changes_nothing_and_shows_how_it_is(tmp_path, startup):
    python = venv(DEBIAN, tmp_path / "venv")
    before = tree(tmp_path)
    made = startup(check=True, python=str(python), variables=STORY)
    assert (made["failed"], made["changed"]) == (False, True)
    assert [Path(path).suffix for path in made["written"]] == [".py", ".pth"]
    assert "NCCL_ALGO" in made["diff"][0]["after"]
    assert not any(row["set"] for row in made["proof"])
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"python": "/nonexistent/python", "variables": {"A": "1"}}, "/nonexistent/python does not run"),
        ({"python": "/bin/false", "variables": {"A": "1"}}, "/bin/false does not run as a Python 3 interpreter"),
        ({"variables": {"A=B": "1"}}, "'A=B' is no name of a variable"),
        ({"variables": {"PYTHONPATH": "/x"}}, "PYTHONPATH is read before any code of a start-up runs"),
        ({"variables": {}}, "there are no variables to set"),
        ({"name": "../x", "variables": {"A": "1"}}, "letters, digits"),
    ],
)
def test_one_clear_error(arguments, says, startup):
    made = startup(**{"python": str(DEBIAN), **arguments})
    assert made["failed"] is True
    assert says in made["msg"]


def test_the_start_file_of_pep_829_names_what_can_be_called(tmp_path, startup):
    # No Python 3.15 is at hand: its reading of the file is done with the function that the PEP names for it.
    python = venv(DEBIAN, tmp_path / "venv")
    of = dataclasses.replace(python_startup.inspect(str(python)), version=(3, 15, 0))
    planned = python_startup.changes(of, "kimi", STORY, "pth")
    assert [Path(one.path).suffix for one in planned] == [".py", ".pth", ".start"]
    for one in planned:
        one.do()
    (start,) = tmp_path.rglob("*.start")
    assert start.with_suffix(".pth").is_file()
    assert start.with_suffix(".py").is_file()
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    code = f"import os, pkgutil, sys; sys.path.append({str(site)!r}); print(os.environ.get('NCCL_PROTO')); " + (
        f"[pkgutil.resolve_name(one)() for one in open({str(start)!r}).read().split()]; print(os.environ['NCCL_PROTO'])"
    )
    assert say(python, code, "-S") == "None\nLL"
    for one in python_startup.changes(of, "kimi", {}, "pth"):
        one.do()
    assert list(site.glob("*groundstate*")) == []
