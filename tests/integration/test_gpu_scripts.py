"""The scripts for real GPUs, without any: each runs to its end with stand-ins for the engine, and keeps results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import wheelhouse
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.installers import Sources
from made_wheels import wheel

ROOT = Path(__file__).resolve().parents[2]
# Whole plays, some twenty in all: a minute or more for each script.
pytestmark = pytest.mark.slow


@pytest.fixture
def dry_run(tmp_path):
    """Run a script; returns where its results are."""

    def run(name: str, **more: str) -> Path:
        folder = Path(sys.executable).parent
        environment = {
            **os.environ,
            "DRY": "1",
            "OUT": str(tmp_path / "out"),
            "TMPDIR": str(tmp_path),
            "PATH": f"{folder}:{os.environ['PATH']}",
            # Leaves out what says nothing without a GPU; a comparison goes on until it has to end.
            "LIMIT": "1000" if name in ("speculation", "compare", "job") else "100",
            "BLOCKS": "1",
            **more,
        }
        done = subprocess.run(
            [ROOT / "tests" / "gpu" / f"{name}.sh"], env=environment, capture_output=True, text=True, timeout=1100
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert not list(tmp_path.glob("groundstate-gpu.*")), "it left its folder behind"
        return tmp_path / "out"

    return run


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_environment(dry_run, tmp_path, monkeypatch):
    """A bundle of one wheel in place of the engine's."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    lock = tmp_path / "locks" / "small"
    lock.mkdir(parents=True)
    text = wheel(tmp_path / "index", "engine", "1.0", "NAME = 'engine'\n")
    (lock / "requirements.txt").write_text(text)
    (lock / "lock.yml").write_text(f"{{python: '=={sys.version_info[0]}.{sys.version_info[1]}.*', imports: [engine]}}")
    sources = Sources(find_links=(str(tmp_path / "index"),), no_index=True)
    made = wheelhouse.ensure(wheelhouse.Order(str(tmp_path / "bundles"), "small", text, sources=sources))
    words = {"GPU_LOCK": str(lock), "GPU_BUNDLE": made.path, "GPU_EDITED": "engine/__init__.py"}
    summary = (dry_run("environment", **words) / "summary.txt").read_text()
    assert [int(one) for one in re.findall(r"changed=(\d+)", summary)] == [3, 0, 1]
    assert "files: ok: all 3 as installed" in summary
    assert "engine/__init__.py is as it was installed" in summary
    assert "+# an edit that nobody remembers" in summary


def test_nccl(dry_run):
    out = dry_run("nccl")
    verdicts = {name: json.loads((out / f"proof.{name}.json").read_text())["verdict"] for name in ("story", "conf")}
    assert verdicts == {"story": "proved", "conf": "proved"}
    assert len(list(out.glob("nccl.story.rank*.log"))) == 2
    assert json.loads((out / "speed.start.json").read_text())["decode_median"] > 0
    assert "NCCL_P2P_LEVEL is 'sys'" in (out / "summary.txt").read_text()


def test_ready(dry_run):
    out = dry_run("ready")
    for name in ("base", "second", "again"):
        phases = json.loads((out / f"ready.{name}.json").read_text())["phases"]
        assert [phases[0]["name"], phases[-1]["name"]] == ["starting", "ready"]
    for victim, words in (("launcher", "died after it was ready"), ("worker", "worker of rank 1")):
        seen = rows(out / f"kill.{victim}.jsonl")
        killed = next(one for one in seen if one["what"] == "kill -9")
        said = next(one for one in seen if one["what"] == "our module")
        assert words in said["says"]
        assert f"process {killed['pid']}" in said["says"]
        assert "killed by SIGKILL" in said["exit"]
        assert {"health", "models", "completion", "processes"} <= {one["what"] for one in seen}
    assert "worker of rank 1" in (out / "death.json").read_text()


@pytest.mark.timeout(1200)  # four starts of a server, with the roles around them
def test_speculation(dry_run):
    """With KEEP a call that is cut short leaves its starts to the next one; here one call is enough."""
    out = dry_run("speculation")
    found = json.loads((out / "comparison.json").read_text())
    assert [one["arm"] for one in found["starts"]] == ["base", "eagle3", "eagle3", "base"]
    (one,) = found["speculation"]["configurations"]
    assert (one["drafts"], round(one["accept_length"]["value"], 2)) == (2, 2.0)
    assert not [row for row in found["differences"] if not row["declared"]]
    # What the inventory declares for every server is in both arms: extra_args is a template there.
    resolved = [one["resolved"]["arguments"] for one in found["arms"]]
    assert [one["--max-running-requests"] for one in resolved] == ["48", "48"]
    assert (out / "records.tgz").stat().st_size > 0
    assert "base and EAGLE-3, 2 blocks" in (out / "summary.txt").read_text()


@pytest.mark.timeout(1200)  # four starts of a server, with the roles around them
def test_compare(dry_run):
    out = dry_run("compare")
    found = json.loads((out / "comparison.json").read_text())
    assert [one["arm"] for one in found["starts"]] == ["stock", "pcie_ll_ring", "pcie_ll_ring", "stock"]
    assert found["state"] in ("decided", "exhausted")
    assert not [row for row in found["differences"] if not row["declared"]]
    assert "pcie_ll_ring against stock" in (out / "summary.txt").read_text()


@pytest.mark.timeout(1200)  # some twenty plays
def test_job(dry_run):
    """Without a GPU nothing is stale, and nothing is measured; the rest is as it will be."""
    out = dry_run("job")
    with tarfile.open(out / "job.tgz") as archive:
        archive.extractall(out, filter="data")
    summary = (out / "summary.txt").read_text()
    assert summary.count("protected job: lives") == summary.count("stale job: lives") > 8
    assert re.search(r"changed=[1-9]", (out / "first.txt").read_text())
    assert "changed=0 " in (out / "second.txt").read_text()
    assert "changed=0 " in (out / "again.txt").read_text()
    assert "IT DID NOT FAIL" not in summary
    words = {
        "memory": "CUDA out of memory",
        "port": "19990",
        "backend": "No module named 'flashinfer'",
        "shard": "model-00002-of-00002.safetensors",
    }
    for drill, word in words.items():
        assert word in (out / f"drill.{drill}.txt").read_text()
    assert summary.count("said after") == len(words)
    for victim in ("worker", "launcher"):
        assert "killed by SIGKILL" in (out / f"kill.{victim}.jsonl").read_text()


def test_kernels(dry_run):
    out = dry_run("kernels", LIMIT="300")
    with tarfile.open(out / "kernels.tgz") as archive:
        archive.extractall(out, filter="data")
    summary = (out / "summary.txt").read_text()
    assert "IT DID NOT FAIL" not in summary
    assert summary.count("said after") == 4
    for drill in ("flashinfer", "triton", "no-nvcc", "ptxas"):
        assert "died in phase 'capturing graphs'" in (out / f"drill.{drill}.txt").read_text()
        assert "No module named 'flashinfer'" in (out / f"drill.{drill}.log").read_text()


def test_bench(dry_run):
    out = dry_run("bench")
    records = [json.loads((out / f"record.{number}.json").read_text()) for number in (1, 2)]
    assert len({one["measurement"]["server"]["start_id"] for one in records}) == 2
    sampling = json.loads((out / "sampling.json").read_text())
    assert [one["sample"] for one in sampling["runs"]] == [True, False, False, True]
    assert "sigma of the starts' means" in (out / "summary.txt").read_text()


def test_clocks(dry_run):
    out = dry_run("clocks")
    assert "SM clock locked at 1272 MHz" in (out / "planned.txt").read_text()
    refused = (out / "refused.txt").read_text()
    assert "sm_mhz is 1981, but GPU 0 (Stand-in) has 210 to 1980 MHz" in refused
    assert "power_limit_w is 1, but GPU 1 (Stand-in) takes 200 to 700 W" in refused
    assert "nothing was set" in (out / "summary.txt").read_text()
    changed = [json.loads((out / f"{name}.json").read_text())["changed"] for name in ("locked", "again", "restored")]
    assert changed == [True, False, True]
    speeds = [json.loads((out / f"speed.{name}.json").read_text()) for name in ("free", "locked", "restored")]
    assert all(one["decode_median"] > 0 for one in speeds)
