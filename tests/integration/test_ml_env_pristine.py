"""Environments that somebody edited: found, refused, repaired without a network and without losing the edits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import fatbin
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import build, bundle, installers, patch_format
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.installers import Sources
from made_wheels import wheel

ROOT = Path(__file__).parents[2]
INSTALLERS = ["pip", pytest.param("uv", marks=pytest.mark.skipif(installers.find_uv() is None, reason="no uv here"))]
CORE = "".join(f"line_{number} = {number}\n" for number in range(9))
EDITED = CORE.replace("line_4 = 4", "line_4 = 44")


@pytest.fixture
def made(tmp_path, monkeypatch) -> build.Plan:
    """An environment of two distributions whose wheels stay at hand."""
    for name, value in (("PIP_NO_INDEX", "1"), ("UV_NO_INDEX", "1"), ("PIP_CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(name, value)
    data = {"core.py": CORE, "old.py": "", "table.bin": "\0\1\2"}
    lock = wheel(tmp_path / "wheels", "engine", "1.0", "NAME = 'engine'\n", data)
    lock += wheel(tmp_path / "wheels", "helper", "2.1")
    spec = build.Spec(
        path=str(tmp_path / "envs" / "small"),
        requirements=lock,
        python=sys.executable,
        sources=Sources(find_links=(str(tmp_path / "wheels"),)),
    )
    return build.ensure(spec)


@pytest.fixture
def site(made) -> Path:
    (found,) = Path(made.folder).glob("lib/python3*/site-packages")
    return found


@pytest.fixture
def arguments(tmp_path, made) -> dict:
    return {
        "path": str(tmp_path / "envs" / "small"),
        "home": str(tmp_path / "home"),
        "find_links": [str(tmp_path / "wheels")],
    }


def edit(site: Path) -> None:
    """One of everything that people do."""
    (site / "engine" / "core.py").write_text(EDITED)
    (site / "engine" / "table.bin").write_bytes(b"\0other")
    (site / "engine" / "old.py").unlink()
    (site / "engine" / "kernel.py").write_text("fast = True")
    (site / "sitecustomize.py").write_text("import os\n")


def tree(site: Path) -> dict[str, bytes]:
    return {str(one.relative_to(site)): one.read_bytes() for one in site.rglob("*.*") if one.is_file()}


def packages(site: Path) -> dict[str, bytes]:
    """The files of wheels, without what installers write beside them."""
    return {
        path: raw for path, raw in tree(site).items() if path.startswith(("engine/", "helper/")) and "pyc" not in path
    }


@pytest.mark.parametrize("installer", INSTALLERS)
def test_a_repair_puts_back_exactly_what_differs_and_loses_nothing(module, arguments, site, installer):
    before = packages(site)
    helper = (site / "helper" / "__init__.py").stat().st_ino
    edit(site)
    edited = tree(site)
    asked = {**arguments, "pristine": "repair", "installer": installer}

    wanted = module("python_env_files", check=True, **asked)
    assert wanted["changed"] is True
    assert tree(site) == edited
    done = module("python_env_files", **asked)
    assert not done["failed"], done
    assert done["changes"] == wanted["changes"]
    assert done["changes"] == [
        "engine 1.0 installed again (2 edited, 1 missing)",
        "engine/kernel.py taken out",
        "sitecustomize.py taken out",
    ]
    assert done["verdict"] == "pristine"
    assert packages(site) == before
    assert not (site / "sitecustomize.py").exists()
    # Nothing else was touched.
    assert (site / "helper" / "__init__.py").stat().st_ino == helper

    kept = {Path(one).name: Path(one) for one in done["kept"]}
    assert sorted(kept) == ["engine.patch", "environment.patch", "kept.json", "table.bin"]
    assert kept["table.bin"].read_bytes() == b"\0other"
    assert json.loads(kept["kept.json"].read_text())["missing"] == ["engine/old.py"]
    same = module("python_env_files", **asked)
    assert (same["changed"], same["kept"]) == (False, [])
    assert len(list(Path(arguments["home"], "patches-kept").iterdir())) == 1

    # What was edited by hand is declared: it comes back, and nothing else with it.
    patch = {"file": "engine.patch", "distribution": "engine", "version": "1.0"}
    declared = {"patches": [patch], "texts": {"engine.patch": kept["engine.patch"].read_text()}}
    again = module("python_env_files", **asked, **declared)
    assert again["changes"] == ["patches: none -> engine.patch (2 files changed)"]
    assert (again["verdict"], again["patches"]) == ("patched", ["engine.patch"])
    assert (site / "engine" / "core.py").read_text() == EDITED
    assert (site / "engine" / "kernel.py").read_text() == "fast = True"
    # An edit on top of a declared patch is taken away alone.
    (site / "engine" / "core.py").write_text(EDITED + "more = 1\n")
    third = module("python_env_files", **asked)
    assert (third["verdict"], third["patches"]) == ("patched", ["engine.patch"])
    assert (site / "engine" / "core.py").read_text() == EDITED
    (only,) = [one for one in third["kept"] if one.endswith(".patch")]
    assert [
        line for line in Path(only).read_text().splitlines() if line[0] in "+-" and line[1:3] not in ("--", "++")
    ] == ["+more = 1"]
    back = module("python_env_files", **arguments, patches=[])
    assert back["changes"] == ["patches: engine.patch -> none (2 files changed)"]
    assert packages(site) == before


@pytest.mark.parametrize("installer", INSTALLERS)
def test_a_file_that_two_wheels_bring_is_as_installed_and_is_repaired_once(
    tmp_path, made, module, arguments, installer
):
    """Which of them is written last is the installer's choice; a repair of one must not make the other one edited."""
    wheels = tmp_path / "wheels"
    lock = "".join(wheel(wheels, name, "1.0", "", {"../shared.py": f"of = '{name}'\n"}) for name in ("left", "right"))
    spec = build.Spec(
        path=arguments["path"], requirements=lock, python=sys.executable, sources=Sources(find_links=(str(wheels),))
    )
    (site,) = Path(build.ensure(spec).folder).glob("lib/python3*/site-packages")
    assert module("python_env_files", **arguments, pristine="require")["verdict"] == "pristine"
    (site / "shared.py").write_text("of = 'nobody'\n")
    asked = {**arguments, "pristine": "repair", "installer": installer}
    done = module("python_env_files", **asked)
    assert not done["failed"], done
    assert done["changes"] == ["right 1.0 installed again (1 edited)"]
    assert (site / "shared.py").read_text() in ("of = 'left'\n", "of = 'right'\n")
    assert module("python_env_files", **asked)["changed"] is False


def uninstall(site: Path, name: str, leave: str = "nothing") -> None:
    """As a person does it, or (``leave``) an installer that was killed."""
    for info in site.glob(f"{name}-*.dist-info"):
        shutil.rmtree(info)
    if leave != "files":
        shutil.rmtree(site / name)


def install(site: Path, wheels: Path, name: str, version: str, *content: dict[str, str]) -> None:
    """A wheel that is not at hand for the repair."""
    wheel(wheels, name, version, "", *content)
    zipfile.ZipFile(wheels / f"{name}-{version}-py3-none-any.whl").extractall(site)


@pytest.mark.parametrize("installer", INSTALLERS)
def test_other_distributions_than_the_locked_ones_are_named_and_put_back(module, arguments, site, tmp_path, installer):
    before = packages(site)
    uninstall(site, "helper")
    uninstall(site, "engine")
    install(site, tmp_path / "more", "engine", "2.0", {"core.py": "", "only_in_two.py": ""})
    # It brings a file that a locked distribution has as well, with other content.
    install(site, tmp_path / "more", "stranger", "1.0", {"../helper/__init__.py": "x = 1\n"})
    (site / "stranger" / "__init__.py").write_text("mine = 1\n")
    lines = ["helper 2.1 is missing", "engine is 2.0, installed was 1.0", "stranger 1.0 was added"]
    refused = module("python_env_files", **arguments, pristine="require")
    assert all(one in refused["msg"] for one in lines)
    info = module("python_env_info", path=arguments["path"], home=arguments["home"])
    assert (info["verdict"], info["pristine"]["drift"]) == ("failed", lines)
    asked = {**arguments, "pristine": "repair", "installer": installer}
    wanted = module("python_env_files", check=True, **asked)
    done = module("python_env_files", **asked)
    assert not done["failed"], done
    assert done["changes"] == wanted["changes"]
    assert done["changes"] == [
        "engine 1.0 installed again (it was 2.0)",
        "helper 2.1 installed again (it was missing)",
        "stranger 1.0 uninstalled",
    ]
    assert done["verdict"] == "pristine"
    assert packages(site) == before
    assert not list(site.glob("stranger*"))
    kept = {Path(one).name: Path(one) for one in done["kept"]}
    assert json.loads(kept["kept.json"].read_text())["uninstalled"] == ["engine==2.0", "stranger==1.0"]
    assert "+mine = 1" in kept["stranger.patch"].read_text()
    assert module("python_env_files", **asked)["changed"] is False


@pytest.mark.parametrize("leave", ["nothing", "files"])
def test_a_repair_that_was_killed_after_it_uninstalled_is_finished_by_the_next(module, arguments, site, leave):
    before = packages(site)
    uninstall(site, "engine", leave)
    assert "engine 1.0 is missing" in module("python_env_files", **arguments, pristine="require")["msg"]
    done = module("python_env_files", **arguments, pristine="repair")
    assert not done["failed"], done
    assert done["verdict"] == "pristine"
    assert packages(site) == before


def test_a_declared_patch_waits_for_the_repair_of_what_it_is_for(module, arguments, site, tmp_path):
    text = patch_format.render("engine/core.py", CORE.encode(), EDITED.encode()).decode()
    patch = {"file": "core.patch", "distribution": "engine", "version": "1.0"}
    asked = {**arguments, "pristine": "repair", "patches": [patch], "texts": {"core.patch": text}}
    assert module("python_env_files", **asked)["verdict"] == "patched"
    uninstall(site, "engine")
    install(site, tmp_path / "more", "engine", "2.0")
    done = module("python_env_files", **asked)
    assert not done["failed"], done
    assert (done["verdict"], done["patches"]) == ("patched", ["core.patch"])
    assert (site / "engine" / "core.py").read_text() == EDITED
    # One for a version that was never declared is refused before anything is done.
    install(site, tmp_path / "more", "stranger", "1.0")
    refused = module("python_env_files", **{**asked, "patches": [{**patch, "version": "3.0"}]})
    assert "installed is 1.0" in refused["msg"]
    assert (site / "stranger" / "__init__.py").exists()


def test_what_is_required_is_named_and_a_warning_warns(module, arguments, site):
    assert module("python_env_files", **arguments, pristine="require")["verdict"] == "pristine"
    edit(site)
    edited = tree(site)
    refused = module("python_env_files", **arguments, pristine="require")
    assert refused["failed"] is True
    for line in (
        "engine/core.py edited (engine 1.0)",
        "engine/old.py missing",
        "engine/kernel.py added",
        "sitecustomize.py",
    ):
        assert line in refused["msg"]
    warned = module("python_env_files", **arguments, pristine="warn")
    assert (warned["changed"], warned["verdict"], len(warned["modified"])) == (False, "modified", 5)
    assert module("python_env_files", **arguments)["modified"] == []
    assert tree(site) == edited


def test_a_whole_added_package_is_taken_out(module, arguments, site):
    (site / "evil" / "deep").mkdir(parents=True)
    (site / "evil" / "__init__.py").write_text("")
    (site / "evil" / "deep" / "more.py").write_text("x = 1\n")
    assert "evil/deep/more.py added" in module("python_env_files", **arguments, pristine="require")["msg"]
    done = module("python_env_files", **arguments, pristine="repair")
    assert done["changes"] == ["evil/__init__.py taken out", "evil/deep/more.py taken out"]
    # An empty folder can still be imported.
    assert (done["verdict"], (site / "evil").exists()) == ("pristine", False)


def test_a_file_whose_name_is_no_text_is_taken_out_and_kept(module, arguments, site):
    path = os.fsencode(site / "engine") + b"/\xff.py"
    with open(path, "wb") as out:
        out.write(b"z = 1\n")
    done = module("python_env_files", **arguments, pristine="repair")
    assert not done["failed"], done
    assert (done["verdict"], os.path.exists(path)) == ("pristine", False)
    (copy,) = [one for one in done["kept"] if not one.endswith("kept.json")]
    assert Path(copy).read_bytes() == b"z = 1\n"


def test_a_repair_that_finds_no_wheel_changes_nothing(module, arguments, site, tmp_path):
    edit(site)
    edited = tree(site)
    (tmp_path / "none").mkdir()
    failed = module("python_env_files", **{**arguments, "find_links": [str(tmp_path / "none")]}, pristine="repair")
    assert failed["failed"] is True
    assert "Nothing was changed" in failed["msg"]
    assert "ml_env_find_links" in failed["msg"]
    assert tree(site) == edited
    assert list(Path(arguments["home"], "patches-kept").iterdir()) == []


def test_another_wheel_than_the_locked_one_is_no_repair(module, arguments, site, tmp_path):
    edit(site)
    wheel(tmp_path / "wheels", "engine", "1.0", "NAME = 'evil'\n")
    failed = module("python_env_files", **arguments, pristine="repair")
    assert "another file than the one locked" in failed["msg"]
    assert (site / "engine" / "core.py").read_text() == EDITED


def test_an_environment_in_use_is_repaired_only_when_that_is_allowed(module, arguments, site, made):
    edit(site)
    user = subprocess.Popen([f"{arguments['path']}/bin/python", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        for check in (True, False):
            refused = module("python_env_files", check=check, **arguments, pristine="repair")
            assert f"used by 1 process: {user.pid} (" in refused["msg"]
            assert "ml_env_repair_in_use" in refused["msg"]
        assert (site / "engine" / "core.py").read_text() == EDITED
        done = module("python_env_files", **arguments, pristine="repair", repair_in_use=True)
        assert done["verdict"] == "pristine"
    finally:
        user.communicate(b"\n")


def test_an_editable_install_is_told_by_its_checkout_and_left_alone(module, arguments, site, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "tool.py").write_text("a = 1\n")
    git = [
        "git",
        "-C",
        str(source),
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.com",
        "-c",
        "commit.gpgsign=false",
    ]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    info = site / "tool-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n")
    (info / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}}))
    (info / "RECORD").write_text("tool-1.0.dist-info/METADATA,,\ntool-1.0.dist-info/RECORD,,\n")
    assert module("python_env_files", **arguments, pristine="require")["failed"] is False
    (source / "tool.py").write_text("a = 2\n")
    assert "editable install at" in module("python_env_files", **arguments, pristine="require")["msg"]
    refused = module("python_env_files", **arguments, pristine="repair")
    assert "commit or discard them" in refused["msg"]
    assert (source / "tool.py").read_text() == "a = 2\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_repair_needs_no_network_when_the_wheels_are_at_hand(arguments, site):
    edit(site)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    done = subprocess.run(
        [
            *("unshare", "--net", os.path.join(os.path.dirname(sys.executable), "ansible"), "localhost"),
            *("--connection=local", "--one-line", f"--extra-vars=ansible_python_interpreter={sys.executable}"),
            *(
                "--module-name=groundstate.llm.python_env_files",
                f"--args={json.dumps({**arguments, 'pristine': 'repair'})}",
            ),
        ],
        cwd=ROOT,
        env={**environment, "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (site / "engine" / "core.py").read_text() == CORE


def role(tmp_path: Path, variables: dict, *more: str) -> str:
    """Run the role for this machine; returns what was printed."""
    book = tmp_path / "book.yml"
    tasks = [{"ansible.builtin.import_role": {"name": "groundstate.llm.ml_env"}}]
    book.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    done = subprocess.run(
        [
            *(os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), str(book), "--connection=local"),
            *("--inventory=localhost,", f"--extra-vars={json.dumps(variables)}", *more),
        ],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_role_patches_checks_and_takes_back(tmp_path, made, site):
    (tmp_path / "core.patch").write_text(
        "--- a/python/engine/core.py\n+++ b/python/engine/core.py\n@@ -5 +5 @@\n-line_4 = 4\n+line_4 = 44\n"
    )
    patch = {"file": str(tmp_path / "core.patch"), "distribution": "engine", "version": "1.0", "strip": 2}
    variables = {
        "ansible_python_interpreter": sys.executable,
        "groundstate_home": str(tmp_path / "home"),
        "ml_env_path": str(tmp_path / "envs" / "small"),
    }
    declared = {**variables, "ml_env_patches": [patch], "ml_env_pristine": "require", "ml_env_verify": "require"}
    said = role(tmp_path, declared, "--diff")
    assert "changed=1 " in said, said
    assert "+line_4 = 44" in said
    assert (site / "engine" / "core.py").read_text() == EDITED
    # Nobody declares anything of an environment of others: it stays as it is, without a task.
    said = role(tmp_path, variables)
    assert "ok=0 " in said or "ok=1 " in said, said
    assert "changed=0 " in said
    assert "changed=1 " in role(tmp_path, {**variables, "ml_env_patches": []})
    assert (site / "engine" / "core.py").read_text() == CORE


def test_a_repair_takes_the_wheels_of_a_bundle(module, arguments, site, made, tmp_path):
    edit(site)
    target = bundle.Target(made.interpreter.tag, made.interpreter.platform)
    path = str(tmp_path / "small.tar")
    bundle.write(path, "small", made.items, target, str(tmp_path / "wheels"))
    asked = {**arguments, "find_links": [], "pristine": "repair", "bundle": path}
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole.replace(b"engine/core.py", b"engine/c0re.py"))
    refused = module("python_env_files", **asked)
    assert "is damaged" in refused["msg"]
    assert "Nothing was changed" in refused["msg"]
    Path(path).write_bytes(whole)
    assert module("python_env_files", **asked)["verdict"] == "pristine"
    assert (site / "engine" / "core.py").read_text() == CORE
    assert not list((tmp_path / "home" / "cache").glob("repair-????????"))


def test_the_environment_itself_says_which_patches_are_in_force(module, arguments, site, made, tmp_path):
    """What the role takes them back by, when nobody declares any for an environment that was made from a lock."""
    asked = {
        "path": arguments["path"],
        "requirements": "".join(item.text + "\n" for item in made.items),
        "python": sys.executable,
        "find_links": arguments["find_links"],
    }
    assert module("python_env", **asked)["patched"] == []
    text = patch_format.render("engine/core.py", CORE.encode(), EDITED.encode()).decode()
    patch = {"file": "core.patch", "distribution": "engine", "version": "1.0"}
    module("python_env_files", **arguments, patches=[patch], texts={"core.patch": text})
    found = module("python_env", **asked)
    assert (found["changed"], found["patched"]) == (False, ["core.patch"])
    # Another lock is another environment, without patches; the way back finds the patched one.
    wheel(tmp_path / "wheels", "helper", "2.2")
    other = module("python_env", **{**asked, "requirements": "engine==1.0\nhelper==2.2\n"})
    assert (other["changed"], other["patched"]) == (True, [])
    assert module("python_env", **asked)["patched"] == ["core.patch"]


@pytest.mark.parametrize("content", ["{", '{"schema": 1, "patches": [{"name": "x"}], "files": {}}'])
def test_a_damaged_journal_of_patches_is_said_by_all_modules(module, arguments, site, made, content):
    Path(made.folder, "groundstate-patches.json").write_text(content)
    lock = "".join(item.text + "\n" for item in made.items)
    asked = {"path": arguments["path"], "requirements": lock, "python": sys.executable}
    for name, more in (
        ("python_env", asked),
        ("python_env_files", arguments),
        ("python_env_info", {"path": arguments["path"], "home": arguments["home"]}),
    ):
        refused = module(name, **more)
        assert refused["failed"] is True
        assert "groundstate-patches.json is " in refused["msg"]


def test_the_environment_and_its_compiled_code_are_looked_at_by_its_own_python(module, arguments, site):
    found = module("python_env_info", path=arguments["path"], home=arguments["home"], imports=["engine:NAME", "helper"])
    assert found["table"] == [
        "torch: skipped: it is not installed in this environment",
        "imports: ok: engine:NAME, helper",
        f"files: ok: all {found['pristine']['files']} as installed",
    ]
    edit(site)
    (site / "engine" / "__init__.py").write_text("import of_nothing\n")
    asked = {"path": arguments["path"], "home": arguments["home"], "imports": ["engine"]}
    failed = module("python_env_info", **asked, policy="require")
    assert "No module named 'of_nothing'" in failed["msg"]
    assert failed["pristine"]["edited"] == ["engine/__init__.py", "engine/core.py", "engine/table.bin"]
    assert module("python_env_info", **asked)["verdict"] == "failed"
    nothing = module("python_env_info", path=str(site), home=arguments["home"])
    assert "is no Python environment: it has no bin/python" in nothing["msg"]


@pytest.mark.slow  # fetches seven megabytes from an index
def test_for_which_gpus_a_real_library_has_code(tmp_path):
    """The libraries' own names say which of them are for one architecture only."""
    asked = ["download", "-q", "--no-deps", "--only-binary", ":all:", "--python-version", "3.11", "-d", str(tmp_path)]
    platform = ["--platform", "manylinux_2_24_x86_64", "--abi", "abi3"]
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(env)], check=True, capture_output=True)
    pip = [str(env / "bin" / "python"), "-m", "pip"]
    subprocess.run([*pip, *asked, *platform, "torchao==0.13.0"], check=True, capture_output=True)
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(tmp_path / "ao")
    found = {one.name: fatbin.names(fatbin.read(str(one))) for one in (tmp_path / "ao" / "torchao").glob("*.so")}
    assert found == {
        "_C.abi3.so": "sm_80, sm_86",
        "_C_cutlass_90a.abi3.so": "sm_90",
        "_C_cutlass_100a.abi3.so": "sm_100",
    }
