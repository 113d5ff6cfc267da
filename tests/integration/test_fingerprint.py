"""The fingerprint of a real environment on this machine, taken by the real module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import servers
from ansible_collections.groundstate.llm.plugins.module_utils.file_hashes import sha256_file
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint.compare import differences

ROOT = Path(__file__).parents[2]


def module(home: Path, **arguments) -> dict:
    """Run host_fingerprint through ansible, as a playbook would, and return its fingerprint."""
    command = [
        os.path.join(os.path.dirname(sys.executable), "ansible"),
        "localhost",
        "--connection=local",
        f"--extra-vars=ansible_python_interpreter={sys.executable}",
        "--module-name=groundstate.llm.host_fingerprint",
        f"--args={json.dumps({'home': str(home), **arguments})}",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.partition(" => ")[2])
    assert result["changed"] is False
    return result["fingerprint"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A real virtual environment with one real distribution (pip, from the wheel that Python carries)."""
    path = tmp_path_factory.mktemp("env") / "venv"
    venv.create(path, with_pip=True)
    return path


def package(environment: Path) -> Path:
    return next(environment.glob("lib/python3*/site-packages")) / "pip"


def record(home: Path, environment: Path, start_id: str) -> None:
    servers.save(
        str(home),
        servers.ServerRecord(
            name="probe",
            start_id=start_id,
            state="launched",
            engine="generic",
            argv=["serve", "--port", "19000"],
            environment={"A": "1", servers.START_VARIABLE: start_id},
            env_path=str(environment),
            model=str(home / "model.gguf"),
            declaration_hash="d",
        ),
    )


def test_the_same_state_has_the_same_hash_and_a_change_is_named_first(tmp_path, environment):
    home = tmp_path / "home"
    home.mkdir()
    (home / "model.gguf").write_bytes(b"GGUF" + bytes(1000))
    record(home, environment, "start-1")
    first = module(home, server="probe")
    assert first["sections"]["python_env"]["distributions"].keys() >= {"pip"}
    assert first["sections"]["python_env"]["counts"] == {"edited": 0, "missing": 0, "added": 0}
    assert first["sections"]["model"]["config_hash"] == sha256_file(str(home / "model.gguf"))
    assert sorted(first["hashes"]) == ["hardware", "kernel", "model", "python_env", "server"]

    # Byte code, another start of the same server and another uptime are the same state.
    subprocess.run([environment / "bin" / "python", "-m", "compileall", "-q", "-f", package(environment)], check=True)
    record(home, environment, "start-2")
    second = module(home, server="probe")
    assert second["hashes"] == first["hashes"]
    assert second["state_hash"] == first["state_hash"]
    assert second["conditions"]["uptime_s"] > first["conditions"]["uptime_s"]

    target = package(environment) / "__main__.py"
    original = target.read_text()
    (package(environment) / "patch.py").write_text("x = 1\n")
    try:
        target.write_text(original + "# patched\n")
        third = module(home, server="probe")
    finally:
        target.write_text(original)
        (package(environment) / "patch.py").unlink()
    assert third["sections"]["python_env"]["edited"] == ["pip/__main__.py"]
    assert third["sections"]["python_env"]["added"] == ["pip/patch.py"]
    assert third["state_hash"] != second["state_hash"]
    assert differences(second, third) == [
        "1 file of pip differs from the wheel: pip/__main__.py",
        "1 file of pip was added: pip/patch.py",
    ]
    assert module(home, server="probe")["state_hash"] == first["state_hash"]


def test_a_wrong_environment_is_one_clear_error(tmp_path):
    command = [
        os.path.join(os.path.dirname(sys.executable), "ansible"),
        "localhost",
        "--connection=local",
        f"--extra-vars=ansible_python_interpreter={sys.executable}",
        "--module-name=groundstate.llm.host_fingerprint",
        f"--args={json.dumps({'home': str(tmp_path / 'home'), 'env_path': '/nowhere/env'})}",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "env_path /nowhere/env is not a folder on this host" in done.stdout
    assert not (tmp_path / "home").exists()
