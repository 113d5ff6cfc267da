"""compare.yml with declared patches against none, on a small environment that the role ml_env makes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from compare_bed import CompareBed
from made_wheels import wheel

MOCK = str(Path(__file__).resolve().parents[1] / "tools" / "mock_llm.py")
SERVER = {
    "name": "mock",
    "engine": "generic",
    "model": "mock",
    "gpus": [],
    "command": [sys.executable, MOCK, "--port", "{port}", "--ttft", "0.01"],
}
WORKLOAD = {
    "prompt_tokens": 16,
    "output_tokens": 16,
    "repeats": 2,
    "warmup_requests": 1,
    "warmup_cap_s": 1,
    "steady_share": 0.5,
}
PATCH = "--- a/engine/core.py\n+++ b/engine/core.py\n@@ -1 +1 @@\n-x=1\n+x=2\n"
ASKED = {"compare_patched_vs_pristine": True, "compare_looks": [2]}
pytestmark = [pytest.mark.slow(reason="runs of Ansible"), pytest.mark.timeout(900)]


@pytest.fixture
def bed(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    lock = tmp_path / "locks" / "small"
    lock.mkdir(parents=True)
    data = {"core.py": "x=1\n", "other.py": "y=1\n"}
    (lock / "requirements.txt").write_text(wheel(tmp_path / "index", "engine", "1.0", "NAME = 'engine'\n", data))
    (lock / "lock.yml").write_text("{platform: linux, imports: [engine], size_mib: 1}")
    (tmp_path / "p.patch").write_text(PATCH)
    made = CompareBed(
        tmp_path,
        ml_env_lock=str(lock),
        ml_env_path=str(tmp_path / "envs" / "small"),
        ml_env_index_url="none",
        ml_env_find_links=[str(tmp_path / "index")],
        ml_env_patches=[{"file": str(tmp_path / "p.patch"), "distribution": "engine", "version": "1.0"}],
        llm_server=SERVER,
        baseline_workload=WORKLOAD,
    )
    yield made
    made.end()


def installed(bed: CompareBed, name: str = "core.py") -> Path:
    [found] = (bed.folder / "envs" / "small").resolve().glob(f"lib/*/site-packages/engine/{name}")
    return found


def test_patches_are_in_force_in_one_arm_and_taken_back_in_the_other_block_by_block(bed):
    """From no environment at all; then an edit of somebody stops the next comparison, with the file as it was."""
    bed.run(**ASKED)
    document = bed.document()
    assert [one["arm"] for one in document["starts"]] == ["patched", "pristine", "pristine", "patched"]
    for path in bed.record_files():
        record = json.loads(path.read_text())
        environment = record["fingerprints"]["before"]["sections"]["python_env"]
        assert bool(environment.get("patched")) is (record["comparison"]["arm"] == "patched"), environment
        assert not environment.get("modified"), environment
    assert all(one["declared"] for one in document["differences"])
    assert installed(bed).read_text() == "x=2\n", "the reference is left"

    # Neither in the file that the patch changes, nor in another one.
    [server] = bed.ours()
    for name, text in (("core.py", "x=2\nz=3\n"), ("other.py", "y=9\n")):
        before = installed(bed, name).read_text()
        installed(bed, name).write_text(text)
        for words in ([], ["--check"]):
            output = " ".join(bed.run(*words, rc=2, **ASKED, compare_anew=True).split())
            assert "engine" in output
            assert "ml_env_pristine: repair" in output
            assert name in output
            assert "start 1 of" not in output
            assert installed(bed, name).read_text() == text
            assert [one.pid for one in bed.ours()] == [server.pid], "the server was stopped"
        assert not (bed.home / "patches-kept").exists()
        installed(bed, name).write_text(before)


def test_another_lock_is_not_held_against_the_environment_that_is_there(bed):
    """What is there now is not what will be measured: neither its edits nor its versions count."""
    bed.run(**ASKED, compare_leave="stopped")
    installed(bed).write_text("x=7\n")
    lock = bed.folder / "locks" / "small"
    text = wheel(bed.folder / "index", "engine", "2.0", "NAME = 'engine'\n", {"core.py": "x=1\n"})
    (lock / "requirements.txt").write_text(text)
    [patch] = bed.variables["ml_env_patches"]
    bed.variables["ml_env_patches"] = [{**patch, "version": "2.0"}]
    output = bed.run("--check", **ASKED)
    assert "failed=0" in output
