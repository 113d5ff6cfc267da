"""The role ml_env on this machine, run by Ansible: what its variables mean, however YAML reads them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from made_wheels import wheel
from ml_env_play import PLAY

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow(reason="runs of Ansible")

PATCH = "--- a/engine/core.py\n+++ b/engine/core.py\n@@ -1 +1 @@\n-x=1\n+x=2\n"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a small lock, its wheels and a patch."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    lock = tmp_path / "locks" / "small"
    lock.mkdir(parents=True)
    text = wheel(tmp_path / "index", "engine", "1.0", "NAME = 'engine'\n", {"core.py": "x=1\n"})
    (lock / "requirements.txt").write_text(text)
    (lock / "lock.yml").write_text("{platform: linux, imports: [engine], size_mib: 1}")
    (tmp_path / "p.patch").write_text(PATCH)
    (tmp_path / "play.yml").write_text(PLAY)
    return tmp_path


def play(folder: Path, declared: str, *words: str, playbook: str = "") -> tuple[str, str]:
    """Run the role with variables as text of YAML; (output, its line of the recap)."""
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "groundstate_home": str(folder / "home"),
        "groundstate_records_dir": str(folder / "records"),
        "ml_env_lock": str(folder / "locks" / "small"),
        "ml_env_index_url": "none",
        "ml_env_find_links": [str(folder / "index")],
        "ml_env_bundle_folder": str(folder / "bundles"),
        **(yaml.safe_load(declared) or {}),
    }
    hosts = folder / "hosts.yml"
    hosts.write_text(yaml.safe_dump({"groundstate": {"hosts": {"box": host}}}))
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [program, playbook or folder / "play.yml", "-i", hosts, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    recap = re.search(r"^box +: (.*)$", done.stdout, re.MULTILINE)
    return " ".join((done.stdout + done.stderr).split()), recap.group(1) if recap else ""


def core(folder: Path) -> str:
    (found,) = (folder / "home" / "envs" / "small").resolve().glob("lib/*/site-packages/engine/core.py")
    return found.read_text()


def test_an_empty_list_of_patches_is_none_with_a_lock_and_refused_without(folder):
    patch = f"ml_env_patches: [{{file: {folder}/p.patch, distribution: engine, version: '1.0'}}]"
    output, recap = play(folder, patch)
    assert "failed=0" in recap, output
    assert core(folder) == "x=2\n"

    output, recap = play(folder, f"{{ml_env_lock: '', ml_env_path: {folder}/home/envs/small, ml_env_patches: }}")
    assert "failed=1" in recap, output
    assert "ml_env_patches is empty, not a list: write []" in output
    assert core(folder) == "x=2\n"

    output, recap = play(folder, "ml_env_patches:")
    assert "failed=0" in recap, output
    assert core(folder) == "x=1\n"


def test_off_without_quotes_is_off(folder):
    output, recap = play(folder, "{ml_env_verify: off, ml_env_pristine: off}")
    assert "failed=0" in recap, output
    assert "Check that the engine can run" not in output
    assert "Bring the files" not in output


def test_a_patch_that_is_no_utf_8_is_named(folder):
    (folder / "latin.patch").write_bytes(PATCH.replace("x=2", "x='é'").encode("latin-1"))
    patch = f"ml_env_patches: [{{file: {folder}/latin.patch, distribution: engine, version: '1.0'}}]"
    output, recap = play(folder, patch)
    assert "failed=1" in recap, output
    assert f"ml_env_patches: {folder}/latin.patch: not UTF-8" in output


def test_check_mode_says_that_a_damaged_copy_of_the_bundle_would_be_copied_again(folder):
    output, recap = play(folder, "", playbook=str(ROOT / "playbooks" / "bundle.yml"))
    assert "failed=0" in recap, output
    (made,) = (folder / "bundles").iterdir()
    copy = folder / "home" / "bundles" / made.name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(made.read_bytes()[:700])
    output, recap = play(folder, f"ml_env_bundle: {made}", "--check")
    assert "failed=0" in recap, output
    assert "Copy the bundle to the host" in output
    assert copy.stat().st_size == 700
    output, recap = play(folder, f"ml_env_bundle: {made}")
    assert "failed=0" in recap, output
    assert core(folder) == "x=1\n"


def test_a_bundle_that_cannot_be_fetched_is_named_with_the_reason_and_without_its_password(folder):
    address = "http://user:S3cretPw@127.0.0.1:9/small.tar"
    output, recap = play(folder, f"ml_env_bundle: {address}", "-vvv")
    assert "failed=1" in recap, output
    assert re.search(r"http://\*\*\*@127.0.0.1:9/small.tar cannot be fetched: .*Connection refused", output), output
    assert "S3cretPw" not in output


def test_a_lock_for_another_platform_and_a_bundle_for_another_python_are_refused(folder):
    (folder / "locks" / "small" / "lock.yml").write_text('{platform: linux-aarch64, python: "==3.12.*", size_mib: 1}')
    declared = "{ml_env_bundle_python: 3.10, ml_env_bundle_platform: linux-aarch64}"
    output, recap = play(folder, declared, playbook=str(ROOT / "playbooks" / "bundle.yml"))
    assert "failed=1" in recap, output
    assert "python '3.1': give major and minor version in quotes" in output
    output, recap = play(folder, "", playbook=str(ROOT / "playbooks" / "bundle.yml"))
    assert "failed=0" in recap, output
    assert [one.name.rpartition("-")[0] for one in (folder / "bundles").iterdir()] == [
        "small-cpython-312-linux-aarch64"
    ]
    (folder / "locks" / "small" / "lock.yml").write_text("{platform: linux-riscv64, size_mib: 1}")
    output, recap = play(folder, "")
    assert "failed=1" in recap, output
    assert "the lock is for linux-riscv64, the host is linux-" in output
    assert not (folder / "home" / "envs").exists()
