"""Environments made for real, from wheels that are made here, by uv and by pip; and the default lock from an index."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import build, installers, requirements, usage
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.extras import Alias, Extras
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.installers import Sources
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.patches import Patch
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.store import MANIFEST, MARKER, Store
from made_wheels import wheel

ROOT = Path(__file__).parents[2]
INSTALLERS = ["pip", pytest.param("uv", marks=pytest.mark.skipif(installers.find_uv() is None, reason="no uv here"))]


@pytest.fixture(autouse=True)
def _only_local_wheels(monkeypatch, request):
    if "index" not in request.fixturenames:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("UV_NO_INDEX", "1")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.fixture(autouse=True)
def _no_process_of_others(monkeypatch):
    # To a normal user any of them may work from an environment.
    others = usage.others
    monkeypatch.setattr(usage, "others", lambda proc: [one for one in others(proc) if one.uid == os.getuid()])


@pytest.fixture
def index():
    """Marks a test that needs a package index."""


@pytest.fixture
def wheels(tmp_path) -> Path:
    return tmp_path / "wheels"


@pytest.fixture
def spec(tmp_path, wheels) -> build.Spec:
    """A small environment with one of everything."""
    lock = wheel(wheels, "engine", "1.0", "NAME = 'engine'\n", {"model.gguf": "weights"})
    lock += wheel(wheels, "helper_cpu", "2.1")
    return build.Spec(
        path=str(tmp_path / "envs" / "small"),
        requirements=lock,
        python=sys.executable,
        extras=Extras(
            {"say": "import sys, engine\nprint(engine.NAME, *sys.argv[1:])\n"},
            {"model.gguf": "engine/model.gguf"},
            (Alias("helper", "helper-cpu", "cpu"),),
        ),
        imports=("engine:NAME",),
        sources=Sources(find_links=(str(wheels),)),
    )


def say(path: str, *arguments: str) -> str:
    """What an environment's script prints."""
    done = subprocess.run([f"{path}/bin/say", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def newer(spec: build.Spec, wheels: Path, name: str = "new") -> build.Spec:
    """The same with another release of the engine."""
    lock = wheel(wheels, "engine", "2.0", f"NAME = {name!r}\n", {"model.gguf": "more weights"})
    return replace(spec, requirements=lock + spec.requirements.splitlines()[1] + "\n")


@pytest.mark.parametrize("installer", INSTALLERS)
def test_a_new_environment_holds_what_is_declared_and_nothing_is_done_again(spec, installer):
    spec = replace(spec, installer=installer)
    plan = build.ensure(spec)
    manifest = Store.manifest(plan.folder)
    assert plan.action == "build"
    assert manifest["installer"] == installer
    assert manifest["distributions"] == {"engine": "1.0", "helper-cpu": "2.1"}
    assert say(spec.path, "a b") == "engine a b"
    assert Path(spec.path, "models", "model.gguf").read_text() == "weights"
    asked = "import importlib.metadata as m; print(m.version('helper'), m.version('helper-cpu'))"
    done = subprocess.run([f"{spec.path}/bin/python", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2.1+cpu", "2.1"]
    # No file is shared with the installer's cache: an engine.py edited in place must not get into the next environment.
    assert {one.stat().st_nlink for one in Path(spec.path).rglob("engine/*.py")} == {1}

    before = Path(spec.path, MANIFEST).stat().st_mtime_ns
    assert build.ensure(spec).action == "none"
    assert Store.manifest(plan.folder) == manifest
    assert Path(spec.path, MANIFEST).stat().st_mtime_ns == before
    # Who installed it does not matter: the result is the same.
    assert build.plan(replace(spec, installer="auto")).action == "none"


def test_another_lock_is_built_beside_and_the_old_environment_stays_for_the_way_back(spec, wheels):
    first = build.ensure(spec)
    changed = newer(spec, wheels)
    second = build.ensure(changed)
    assert second.action == "build"
    assert second.folder != first.folder
    assert say(spec.path) == "new"
    # The old one still works under its own path: a server that runs from it is not disturbed.
    assert say(first.folder) == "engine"
    back = build.ensure(spec)
    assert back.action == "switch"
    assert say(spec.path) == "engine"


def test_a_kept_environment_that_lacks_a_distribution_is_made_again_before_the_switch(spec, wheels):
    first = build.ensure(spec)
    second = build.ensure(newer(spec, wheels))
    shutil.rmtree(next(Path(first.folder).glob("lib/*/site-packages/helper_cpu-2.1.dist-info")))
    plan = build.plan(spec)
    assert (plan.action, plan.folder) == ("build", first.folder)
    assert plan.why == f"{first.folder} was kept, but is not what was installed there: helper-cpu 2.1 is missing"
    # One that works from it is not disturbed, and what is in use stays until the new one is proved.
    user = subprocess.Popen([f"{first.folder}/bin/python", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with pytest.raises(build.EnvError, match=rf"process {user.pid} \(python\) works from it(.|\n)*2.1 is missing"):
            build.ensure(spec)
    finally:
        user.communicate(b"\n")
    with pytest.raises(build.EnvError, match=r"had to be made again: .*helper-cpu 2\.1 is missing"):
        build.ensure(replace(spec, sources=Sources(find_links=(str(wheels / "none"),))))
    assert os.readlink(spec.path) == os.path.basename(second.folder)
    assert build.ensure(spec).action == "build"
    assert say(spec.path) == "engine"
    assert build.plan(spec).action == "none"


def test_a_kept_environment_that_cannot_be_imported_is_made_again_before_the_switch(spec, wheels):
    first = build.ensure(spec)
    build.ensure(newer(spec, wheels))
    shutil.rmtree(next(Path(first.folder).glob("lib/*/site-packages/engine")))
    assert build.plan(spec).action == "switch"
    # With a bundle that is not on the host it is asked for.
    missing = replace(spec, bundle=str(wheels / "bundle.tar"))
    assert build.ensure(missing, bundle_later=True).needs_bundle
    with pytest.raises(build.EnvError, match=r"bundle\.tar is not on the host"):
        build.ensure(missing)
    assert say(spec.path) == "new"
    plan = build.ensure(spec)
    assert (plan.action, plan.folder) == ("build", first.folder)
    assert "it cannot be imported: engine:NAME: " in plan.why
    assert say(spec.path) == "engine"


def test_what_somebody_installed_in_the_environment_in_use_is_told_and_left(spec, module):
    made = build.ensure(spec)
    site = next(Path(made.folder).glob("lib/*/site-packages"))
    (site / "helper_cpu-2.1.dist-info").rename(site / "helper_cpu-3.0.dist-info")
    (site / "stranger-1.0.dist-info").mkdir()
    for check in (True, False):
        said = module("python_env", check=check, **arguments(spec))
        assert said["changed"] is False
        assert said["drift"] == ["helper-cpu is 3.0, installed was 2.1", "stranger 1.0 was added"]
        assert f"{spec.path}: what is installed is not what was locked: helper-cpu is 3.0" in str(said["warnings"])
    (site / "stranger-1.0.dist-info").rmdir()
    (site / "helper_cpu-3.0.dist-info").rename(site / "helper_cpu-2.1.dist-info")
    assert module("python_env", **arguments(spec))["drift"] == []


def test_only_so_many_environments_stay_but_none_that_a_process_uses(spec, wheels):
    first = build.ensure(spec)
    user = subprocess.Popen([f"{first.folder}/bin/python", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        second = build.ensure(newer(spec, wheels, "b"))
        third = build.ensure(newer(spec, wheels, "c"))
        here = Store(spec.path)
        assert set(here.folders()) == {first.folder, second.folder, third.folder}
    finally:
        user.communicate(b"\n")
    assert here.prune(2) == [first.folder]
    assert set(here.folders()) == {second.folder, third.folder}


def test_a_changed_script_does_not_need_a_new_environment(spec):
    first = build.ensure(spec)
    extras = Extras({"say": "print('other')\n", "more": "print(1)\n"}, {}, ())
    plan = build.ensure(replace(spec, extras=extras))
    assert (plan.action, plan.folder) == ("extras", first.folder)
    assert Store.manifest(plan.folder)["hash"] == plan.hash != first.hash
    assert say(spec.path) == "other"
    assert not os.path.lexists(f"{spec.path}/models/model.gguf")
    assert not list(Path(spec.path).glob("lib/*/site-packages/helper-*.dist-info"))
    assert build.plan(replace(spec, extras=extras)).action == "none"


def test_a_script_that_somebody_edited_is_put_right(spec):
    build.ensure(spec)
    Path(spec.path, "bin", "say").write_text("#!/bin/false\n")
    plan = build.ensure(spec)
    assert plan.changes == ["script bin/say"]
    assert say(spec.path) == "engine"


def test_a_folder_that_is_not_ours_is_refused_and_left_alone(spec):
    foreign = Path(spec.path)
    foreign.mkdir(parents=True)
    (foreign / "precious").write_text("x")
    for attempt in (lambda: build.ensure(spec), lambda: build.remove(spec.path, dry=False)):
        with pytest.raises(build.EnvError, match="was not made by Groundstate"):
            attempt()
    assert (foreign / "precious").read_text() == "x"
    assert os.listdir(foreign.parent) == ["small"]


@pytest.mark.parametrize("installer", INSTALLERS)
def test_a_lock_that_no_place_has_shows_the_installers_words_and_leaves_the_old_environment(spec, installer):
    first = build.ensure(spec)
    broken = replace(spec, requirements=spec.requirements + "not-there-at-all==3.2.1\n", installer=installer)
    with pytest.raises(build.EnvError) as raised:
        build.ensure(broken)
    message = str(raised.value)
    assert "not-there-at-all" in message
    assert "ml_env_find_links" in message
    assert spec.sources.find_links[0] in message
    assert say(spec.path) == "engine"
    assert Store(spec.path).folders() == [first.folder]


def test_another_file_than_the_locked_one_is_refused(spec, wheels):
    wheel(wheels, "engine", "1.0", "NAME = 'evil'\n")
    with pytest.raises(build.EnvError, match="another file than the one locked"):
        build.ensure(spec)
    assert not os.path.lexists(spec.path)


def test_a_torch_that_is_not_a_cpu_build_cannot_get_in(spec, wheels):
    wheel(wheels, "torch", "2.13.0")
    with pytest.raises(build.EnvError, match="ml_env_torch_index"):
        build.ensure(replace(spec, requirements="torch==2.13.0+cpu\n", imports=(), extras=Extras()))


def test_a_lock_for_another_platform_is_refused_before_anything_is_made(spec):
    asked = {**arguments(spec), "lock_platform": "linux-riscv64"}
    assert "the lock is for linux-riscv64, the host is linux-" in run_module(asked)["msg"]
    assert not Path(spec.path).parent.exists()
    assert build.plan(replace(spec, platform="linux")).action == "build"


def test_an_engine_that_cannot_be_imported_is_not_switched_to(spec, wheels):
    build.ensure(spec)
    lock = wheel(wheels, "engine", "3.0", "import missing_dependency\n", {"model.gguf": "x"})
    with pytest.raises(build.EnvError, match="ModuleNotFoundError: No module named 'missing_dependency'"):
        build.ensure(replace(spec, requirements=lock + spec.requirements.splitlines()[1]))
    assert say(spec.path) == "engine"


def test_too_little_space_is_said_before_anything_is_made(spec, tmp_path):
    with pytest.raises(build.EnvError, match=r"MiB are free at .*, the environment needs about 1000000000 MiB"):
        build.ensure(replace(spec, size_mib=10**9))
    assert Store(spec.path).folders() == []


def test_a_failed_build_that_cannot_be_removed_says_what_failed_and_goes_with_the_next_run(spec, wheels, monkeypatch):
    build.ensure(spec)
    broken = replace(spec, requirements=spec.requirements + "not-there-at-all==3.2.1\n")
    remove = Store.remove

    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "remove", staticmethod(full))
    with pytest.raises(build.EnvError, match="not-there-at-all"):
        build.ensure(broken)
    left = [one for one in Store(spec.path).folders() if Store.state(one) == "unfinished"]
    assert len(left) == 1
    monkeypatch.setattr(Store, "remove", staticmethod(remove))
    with pytest.raises(build.EnvError, match="MiB are free"):
        build.ensure(replace(newer(spec, wheels), size_mib=10**9))
    assert not os.path.exists(left[0])


def test_a_python_that_is_not_there_or_not_for_the_lock_is_named(spec):
    with pytest.raises(build.EnvError, match=r"there is no python9\.9 on this host"):
        build.ensure(replace(spec, python="python9.9"))
    with pytest.raises(build.EnvError, match=r"is Python 3\.\d+\.\d+, the lock needs <3\.5"):
        build.ensure(replace(spec, python_range="<3.5"))


def run_module(arguments: dict, *more: str, python: str = sys.executable) -> dict:
    """Run python_env through ansible, as a playbook would; returns its result."""
    command = [
        os.path.join(os.path.dirname(sys.executable), "ansible"),
        "localhost",
        "--connection=local",
        "--one-line",
        f"--extra-vars=ansible_python_interpreter={python}",
        "--module-name=groundstate.llm.python_env",
        f"--args={json.dumps(arguments)}",
        *more,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    line = next(line for line in done.stdout.splitlines() if line.startswith("localhost | "))
    return json.loads(line.partition(" => ")[2].partition(" => ")[2] or line.partition(" => ")[2])


# --- interrupted builds --------------------------------------------------------------------------

_SLOW = """
import json, sys
from dataclasses import replace
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import build
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.installers import Sources
path, lock, links, python = json.loads(sys.argv[1])
build.ensure(build.Spec(path=path, requirements=lock, python=python, imports=("engine",),
                        sources=Sources(find_links=(links,))))
"""


@pytest.mark.parametrize("old", [False, True])
def test_a_killed_build_takes_its_installer_along_and_the_next_run_recovers(spec, wheels, tmp_path, old):
    if old:
        build.ensure(spec)
    # The import waits until it is let go: a build that can be killed in its last step, with a child at work.
    started = tmp_path / "started"
    code = f"""
        import os, time
        open({str(started)!r}, "w").write(str(os.getpid()))
        while not os.path.exists({str(tmp_path / "go")!r}):
            time.sleep(0.02)
    """
    lock = wheel(wheels, "engine", "5.0", "NAME = 'five'\n" + textwrap.dedent(code), {"model.gguf": "five"})
    lock += spec.requirements.splitlines()[1] + "\n"
    arguments = json.dumps([spec.path, lock, str(wheels), sys.executable])
    paths = os.pathsep.join([str(ROOT / "playbooks" / "collections"), os.environ.get("PYTHONPATH", "")])
    builder = subprocess.Popen([sys.executable, "-c", _SLOW, arguments], env={**os.environ, "PYTHONPATH": paths})
    try:
        while not started.exists() or not started.read_text():
            assert builder.poll() is None
            time.sleep(0.02)
    finally:
        builder.send_signal(signal.SIGKILL)
        builder.wait()
    child = int(started.read_text())
    while Path(f"/proc/{child}").exists() and "\nState:\tZ" not in Path(f"/proc/{child}/status").read_text():
        time.sleep(0.02)
    unfinished = [one for one in Store(spec.path).folders() if Store.state(one) == "unfinished"]
    assert len(unfinished) == 1
    assert os.path.exists(os.path.join(unfinished[0], MARKER))
    assert os.path.lexists(spec.path) is old
    if old:
        assert say(spec.path) == "engine"

    (tmp_path / "go").touch()
    plan = build.ensure(replace(spec, requirements=lock))
    assert plan.folder == unfinished[0]
    assert say(spec.path) == "five"
    assert not os.path.exists(os.path.join(plan.folder, MARKER))


def test_a_killed_build_of_a_lock_that_is_not_asked_for_again_is_cleared_away(spec, wheels):
    here = Store(spec.path)
    here.begin(here.folder("0123abcd"))
    plan = build.ensure(spec)
    assert here.folders() == [plan.folder]


# --- the module ----------------------------------------------------------------------------------


def arguments(spec: build.Spec) -> dict:
    return {
        "path": spec.path,
        "requirements": spec.requirements,
        "python": spec.python,
        "scripts": spec.extras.scripts,
        "links": spec.extras.links,
        "dist_info_aliases": [{"name": "helper", "distribution": "helper_cpu", "local_version": "cpu"}],
        "imports": list(spec.imports),
        "find_links": list(spec.sources.find_links),
    }


def test_the_module_says_in_check_mode_what_it_would_make_then_makes_it_and_then_nothing(spec):
    wanted = run_module(arguments(spec), "--check")
    assert wanted["changed"] is True
    assert not os.path.lexists(spec.path)
    made = run_module(arguments(spec))
    assert made["changed"] is True
    assert made["hash"] == wanted["hash"]
    assert made["installed"] == 2
    assert say(made["path"]) == "engine"
    same = run_module(arguments(spec))
    assert same["changed"] is False
    assert same["changes"] == []
    gone = run_module({"path": spec.path, "state": "absent"})
    assert gone["changed"] is True
    assert os.listdir(os.path.dirname(spec.path)) == []


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_no_index_has_to_answer_where_none_is_wanted(spec, installer, monkeypatch):
    # The host's own settings name an index that does not answer; uv would give up at it.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    made = run_module({**arguments(spec), "index_url": "none", "installer": installer})
    assert made["changed"] is True
    assert say(made["path"]) == "engine"


def test_a_patch_for_another_lock_is_refused_before_the_build(spec, wheels, module):
    fitting = (Patch("a.patch", "Engine", "1.0.0", ""), Patch("b.patch", "helper", "2.1+cpu", ""))
    made = build.ensure(replace(spec, patches=fitting))
    new, before = newer(spec, wheels), sorted(os.listdir(os.path.dirname(spec.path)))
    with pytest.raises(build.EnvError, match=r"a\.patch is for engine 1\.0, the lock has 2\.0.*ml_env_patches"):
        build.ensure(replace(new, patches=(Patch("a.patch", "engine", "1.0", ""),)))
    patches = [{"file": f"some/{one}.patch", "distribution": one, "version": "1.0"} for one in ("engine", "other")]
    for check in (True, False):
        said = module("python_env", check=check, **{**arguments(new), "patches": patches})
        assert "engine.patch is for engine 1.0, the lock has 2.0" in said["msg"]
        assert "other.patch is for other, which is not in the lock" in said["msg"]
    assert os.readlink(spec.path) == os.path.basename(made.folder)
    assert sorted(os.listdir(os.path.dirname(spec.path))) == before


def renaming(before: str, after: str, name: str = "name.patch", version: str = "1.0") -> Patch:
    """A patch of the one line of the engine."""
    lines = ["--- a/engine/__init__.py", "+++ b/engine/__init__.py", "@@ -1 +1 @@"]
    lines += [f"-NAME = {before!r}", f"+NAME = {after!r}"]
    return Patch(name, "engine", version, "\n".join(lines) + "\n")


def patched(spec: build.Spec, *wanted: Patch) -> build.Spec:
    return replace(spec, patches=wanted, apply_patches=True)


def test_patches_are_in_force_before_the_link_leads_to_an_environment(spec, wheels):
    first = build.ensure(patched(spec, renaming("engine", "patched")))
    assert first.changes == ["patches: none -> name.patch (1 file changed)"]
    assert say(spec.path) == "patched"
    new = newer(spec, wheels)
    for bad in (renaming("other", "patched", version="2.0"), Patch("name.patch", "engine", "2.0", "no patch\n")):
        with pytest.raises(build.EnvError, match=r"name\.patch"):
            build.ensure(patched(new, bad))
        assert os.readlink(spec.path) == os.path.basename(first.folder)
        assert say(spec.path) == "patched"
        assert Store(spec.path).folders() == [first.folder]
    # A patch with which the engine cannot be imported is none that anybody works with, either.
    with pytest.raises(build.EnvError, match="cannot be imported"):
        build.ensure(patched(new, replace(renaming("new", "patched", version="2.0"), text=BREAKING)))
    assert say(spec.path) == "patched"
    build.ensure(patched(new, renaming("new", "newly patched", version="2.0")))
    assert say(spec.path) == "newly patched"
    # The way back: with the patches of now, not those of then.
    back = build.ensure(patched(spec))
    assert back.action == "switch"
    assert back.changes == ["patches: name.patch -> none (1 file changed)"]
    assert say(spec.path) == "engine"


BREAKING = """--- a/engine/__init__.py
+++ b/engine/__init__.py
@@ -1 +1 @@
-NAME = 'new'
+raise ImportError("made by a patch")
"""


def test_the_way_back_to_an_edited_environment_is_left_to_what_repairs_it(spec, wheels):
    first = build.ensure(patched(spec, renaming("engine", "patched")))
    build.ensure(newer(spec, wheels))
    edited = next(Path(first.folder).rglob("engine/__init__.py"))
    edited.write_text("NAME = 'edited'\n")
    assert build.ensure(patched(spec)).action == "switch"
    assert say(spec.path) == "edited"


@pytest.mark.parametrize(("scheme", "user"), [("http", "user:{}"), ("HTTP", "user:{}"), ("http", "{}")])
def test_the_password_of_an_index_is_in_no_message(spec, scheme, user):
    secret = "s3cr3t-of-the-index"
    url = f"{scheme}://{user.format(secret)}@127.0.0.1:9/simple"
    asked = {**arguments(spec), "requirements": "nothing==1\n", "index_url": url}
    result = run_module(asked, "-vvv")
    assert "nothing" in result["msg"]
    assert secret not in json.dumps(result)


def python39() -> str:
    """A Python 3.9 that runs: on PATH, or one of pyenv's."""
    found = [shutil.which("python3.9"), *sorted(map(str, Path.home().glob(".pyenv/versions/3.9.*/bin/python3.9")))]
    for path in filter(None, found):
        if subprocess.run([path, "--version"], check=False, capture_output=True).returncode == 0:
            return path
    pytest.skip("no python3.9 on this machine")


def test_a_host_with_python_3_9_runs_the_module(spec):
    asked = {**arguments(spec), "python": python39()}
    result = run_module(asked, python=asked["python"])
    assert result["python_version"].startswith("3.9.")
    assert say(spec.path) == "engine"


# --- the locks that are shipped ------------------------------------------------------------------


def play(tmp_path: Path, inventory: str, tasks_from: str = "main") -> str:
    """Run the role for an inventory in a home of its own; returns the recap."""
    book = tmp_path / f"{tasks_from}.yml"
    role = {"name": "groundstate.llm.ml_env", "tasks_from": tasks_from}
    book.write_text(
        json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.import_role": role}]}])
    )
    done = subprocess.run(
        [
            os.path.join(os.path.dirname(sys.executable), "ansible-playbook"),
            "-i",
            f"inventories/{inventory}",
            str(book),
        ],
        cwd=ROOT,
        env={**os.environ, "GROUNDSTATE_HOME": str(tmp_path / "home"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout[done.stdout.index("PLAY RECAP") :]


def test_the_default_environment_has_an_engine_and_a_model_and_can_be_removed(tmp_path, index):
    assert "changed=1" in play(tmp_path, "local")
    assert "changed=0" in play(tmp_path, "local")
    path = tmp_path / "home" / "envs" / "llama_cpp"
    lock = (ROOT / "roles/ml_env/files/locks/llama_cpp/requirements.txt").read_text()
    manifest = json.loads((path / MANIFEST).read_text())
    assert requirements.differences(requirements.parse(lock), manifest["distributions"]) == []
    model = (path / "models" / "smollm2-135m.gguf").read_bytes()
    known = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert hashlib.sha256(model).hexdigest() == known
    launcher = [path / "bin" / "groundstate-llama-cpp", "--help"]
    assert "--context-length" in subprocess.run(launcher, capture_output=True, text=True, check=True).stdout
    assert "changed=1" in play(tmp_path, "local", "absent")
    assert os.listdir(tmp_path / "home" / "envs") == []
