"""The module as Ansible runs it: measured, reused, refused, and a server that dies under it.

The server is the deterministic one, as a process of its own; its record is written as llm_server would write it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs, servers

ROOT = Path(__file__).resolve().parents[2]
MODULE = "ansible_collections.groundstate.llm.plugins.modules.llm_benchmark"
QUICK = {"prompt_tokens": 32, "output_tokens": 8, "repeats": 3, "warmup_requests": 1, "warmup_cap_s": 0}


@dataclass
class Bed:
    """A home with one running server in it."""

    home: Path
    process: subprocess.Popen[str]
    record: servers.ServerRecord
    key: str = ""
    calls: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return Path(servers.folder(str(self.home), self.record.name))

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        found = {"home": str(self.home), "server": self.record.name, "workload": QUICK, **given}
        return {name: value for name, value in found.items() if value is not None}

    def begin(self, check: bool = False, **given: Any) -> subprocess.Popen[str]:
        """Start the module by itself, as a target would run it; a fraction of the time of a whole ansible."""
        call = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            env={**os.environ, "PYTHONPATH": str(ROOT / "playbooks" / "collections")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.calls.append(call)
        assert call.stdin is not None
        json.dump({"ANSIBLE_MODULE_ARGS": {**self.arguments(given), "_ansible_check_mode": check}}, call.stdin)
        call.stdin.close()
        call.stdin = None
        return call

    def run(self, check: bool = False, **given: Any) -> dict[str, Any]:
        return self.result(self.begin(check, **given))

    @staticmethod
    def result(call: subprocess.Popen[str]) -> dict[str, Any]:
        out, _nothing = call.communicate(timeout=120)
        return json.loads(out)

    def ansible(self, *flags: str, **given: Any) -> dict[str, Any]:
        """The same through Ansible."""
        words = ["-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", *flags]
        words += ["-m", "groundstate.llm.llm_benchmark", "-a", json.dumps(self.arguments(given))]
        done = subprocess.run(
            [sys.executable, "-m", "ansible", "adhoc", "localhost", *words],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        shown, arrow, document = done.stdout.partition("=> ")
        assert arrow, done.stdout + done.stderr
        return {**json.loads(document), "shown": shown}

    def kept(self) -> dict[str, Any]:
        return json.loads((self.folder / "measurement.json").read_text())


@pytest.fixture
def bed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bed]:
    settings = {"ttft": 0.02, "step": 0.03, **getattr(request, "param", {})}
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    home = tmp_path / "home"
    folder = Path(servers.folder(str(home), "main"))
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "tools" / "mock_llm.py"), *flags], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        (folder / "server.log").write_text("loading\nlast words of the server\n")
        item = procfs.process(process.pid)
        assert item is not None
        record = servers.ServerRecord(
            name="main",
            start_id="start-1",
            state="launched",
            engine="vllm",
            declaration_hash="d" * 64,
            base_url=f"http://127.0.0.1:{port}",
            port=port,
            served_model_name="mock",
            pid=item.pid,
            pid_start=item.start,
            boot_id=procfs.boot_id() or "",
            log=str(folder / "server.log"),
        )
        servers.save(str(home), record)
        place = Bed(home, process, record)
        yield place
        for call in place.calls:
            if call.poll() is None:
                call.kill()
                call.communicate()
    finally:
        process.kill()
        process.communicate()


def test_measured_once_then_reused_until_something_changes(bed: Bed):
    fact = bed.home / "facts.d" / "groundstate.fact"
    first = bed.run(local_fact=str(fact))
    assert (first["changed"], first["reused"]) == (True, False)
    found = first["measurement"]
    assert found == bed.kept()
    assert [row["ok"] for row in found["requests"]] == [True] * 3
    assert found["server"] == {
        "name": "main",
        "start_id": "start-1",
        "declaration_hash": "d" * 64,
        "base_url": bed.record.base_url,
        "engine": "vllm",
        "served_model_name": "mock",
    }
    assert found["prompts"]["exact"] is True
    rates = [row["decode_tok_s"] for row in found["requests"]]
    assert found["headline"]["value"] == pytest.approx(sum(rates) / 3)
    told = first["ansible_facts"]["groundstate"]
    assert (told["measurement_id"], told["value"]) == (found["id"], found["headline"]["value"])
    assert json.loads(fact.read_text()) == told

    again = bed.run(local_fact=str(fact))
    assert (again["changed"], again["reused"]) == (False, True)
    assert again["measurement"] == found
    taken = first["fingerprints"]
    assert (
        taken["before"]["state_hash"] == taken["after"]["state_hash"] == again["fingerprints"]["before"]["state_hash"]
    )
    assert again["ansible_facts"]["groundstate"] == told

    fact.write_text("{}")
    repaired = bed.run(local_fact=str(fact))
    assert (repaired["changed"], repaired["reused"]) == (True, True)
    assert json.loads(fact.read_text()) == told

    for change in ({"fingerprint": False}, {"workload": {**QUICK, "seed": 1}}, {"remeasure": True}):
        before = bed.kept()["id"]
        told = bed.run(**change)
        assert (told["changed"], told["reused"]) == (True, False)
        assert bed.kept()["id"] == told["measurement"]["id"] != before

    bed.record.start_id = "start-2"
    servers.save(str(bed.home), bed.record)
    assert bed.run()["reused"] is False
    assert sorted(path.name for path in bed.folder.iterdir()) == ["measurement.json", "server.json", "server.log"]


def test_check_mode_makes_no_load_and_writes_nothing(bed: Bed):
    told = bed.ansible("--check", "--diff")
    assert (told["changed"], told["would_measure"], told["reused"]) == (True, True, False)
    assert not (bed.folder / "measurement.json").exists()
    assert bed.ansible()["changed"] is True
    told = bed.ansible("--check")
    assert (told["changed"], told["would_measure"], told["reused"]) == (False, False, True)


def test_without_a_server_check_mode_says_what_is_missing_and_the_real_one_fails(bed: Bed):
    bed.process.kill()
    bed.process.wait()
    told = bed.run(check=True)
    assert (told["changed"], told["would_measure"]) == (False, False)
    assert "'main' does not run" in told["msg"]
    assert "'main' does not run" in bed.run()["msg"]
    assert "no server 'other'" in bed.run(server="other")["msg"]


@pytest.mark.parametrize("bed", [{"step": 0.5}], indirect=True)
def test_a_server_killed_under_the_measurement_is_named_with_its_log(bed: Bed):
    call = bed.begin()
    progress = bed.folder / "progress.json"
    wait_for(lambda: progress.exists() and json.loads(progress.read_text())["phase"] == "warm-up")
    bed.process.kill()
    told = bed.result(call)
    assert f"server 'main' (pid {bed.record.pid}) ended while it was measured" in told["msg"]
    assert told["log_tail"][-1] == "last words of the server"
    assert sorted(path.name for path in bed.folder.iterdir()) == ["server.json", "server.log"]


@pytest.mark.parametrize("bed", [{"step": 1}], indirect=True)
def test_a_killed_run_leaves_the_last_measurement_and_the_next_one_recovers(bed: Bed):
    bed.run(workload={**QUICK, "output_tokens": 2, "repeats": 1})
    before = bed.kept()
    call = bed.begin()
    wait_for((bed.folder / "progress.json").exists)
    assert "being measured by another run" in bed.run(remeasure=True)["msg"]
    call.kill()
    call.communicate()
    assert bed.kept() == before
    told = bed.run(workload={**QUICK, "output_tokens": 3, "repeats": 1})
    assert (told["changed"], bed.kept()["id"]) == (True, told["measurement"]["id"])
    assert not (bed.folder / "progress.json").exists()


@pytest.mark.parametrize("bed", [{"key": "s3cr3t-key"}], indirect=True)
def test_the_key_is_taken_from_the_servers_environment_and_never_shown(bed: Bed):
    refused = bed.run(api_key="wrong-key")
    assert "refuses our key (401" in refused["msg"]
    (bed.folder / "environment").write_text("VLLM_API_KEY=s3cr3t-key\n")
    told = bed.run()
    assert told["changed"] is True
    assert "s3cr3t-key" not in json.dumps(told) + (bed.folder / "measurement.json").read_text()


def test_a_server_of_others_is_measured_every_time_and_nothing_is_kept(bed: Bed):
    other = {"home": None, "server": None, "base_url": bed.record.base_url, "model": "mock"}
    for _ in range(2):
        told = bed.run(**other)
        assert (told["changed"], told["reused"]) == (True, False)
        assert told["measurement"]["server"]["engine"] == "generic"
    assert not (bed.folder / "measurement.json").exists()
    assert "does not serve model 'nothing'; it serves: mock" in bed.run(**{**other, "model": "nothing"})["msg"]


@pytest.mark.parametrize("bed", [{"step": 0.2}], indirect=True)
def test_a_local_run_shows_how_far_it_is_and_ignores_an_old_progress_file(bed: Bed):
    old = {"phase": "long ago", "done": 1, "total": 2, "eta_s": None, "began": 5.0}
    (bed.folder / "progress.json").write_text(json.dumps(old))
    told = bed.ansible()
    assert "localhost: warm-up " in told["shown"]
    assert "localhost: measuring " in told["shown"]
    assert "long ago" not in told["shown"]
    assert bed.ansible()["shown"].count("localhost: ") == 0


def test_a_workload_that_cannot_be_is_refused_with_all_its_problems(bed: Bed):
    told = bed.run(workload={**QUICK, "prompt_tokens": 1, "repeats": 0, "concurrency": []})
    for name in ("prompt_tokens", "repeats", "concurrency"):
        assert f"{name}: " in told["msg"]
    assert "Unsupported parameters" in bed.run(workload={"promt_tokens": 5})["msg"]


def test_prompts_of_a_file_are_part_of_the_identity_and_the_client_is_calibrated(bed: Bed):
    texts = bed.home / "prompts.txt"
    texts.write_text("tell me of the sea\nand of the wind\n")
    workload = {**QUICK, "prompts_file": str(texts), "prefix_cache": "keep"}
    told = bed.run(workload=workload, calibrate=True)
    found = told["measurement"]
    with urllib.request.urlopen(f"{bed.record.base_url}/mock/truth") as reply:
        sent = [one["prompt"] for one in json.load(reply)["requests"]]
    assert sent == ['"tell me of the sea"'] * 4
    (level,) = found["client"]["calibration"]["levels"]
    assert level["concurrency"] == 1
    assert level["ttft_error"] > -0.01
    assert found["sampling"]["source"] in ("host", "nvidia-smi")
    assert found["workload"]["prompts_hash"]

    assert bed.run(workload=workload)["reused"] is True
    texts.write_text("tell me of the mountains\n")
    again = bed.run(workload=workload, sample=False)
    assert (again["reused"], again["measurement"]["sampling"]["source"]) == (False, "off")
    # The one that is kept has no calibration, so it does not answer what is asked now.
    assert bed.run(workload=workload, calibrate=True)["reused"] is False
    assert "prompts.txt.gone" in bed.run(workload={**workload, "prompts_file": f"{texts}.gone"})["msg"]


def test_a_damaged_measurement_is_measured_again(bed: Bed):
    (bed.folder / "measurement.json").write_text('{"schema": 1, "iden')
    told = bed.run()
    assert (told["changed"], told["reused"]) == (True, False)
    assert "not valid JSON" in json.dumps(told["warnings"])
    assert bed.kept()["id"] == told["measurement"]["id"]


def wait_for(condition, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)
