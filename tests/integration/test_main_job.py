"""The main job on a real engine, as a user runs it: twice, interrupted anywhere, with bad input, and cleaned up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs, servers
from killing import kill_if_there

ROOT = Path(__file__).resolve().parents[2]
RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)
# Of a shorter answer of a real engine all tokens may arrive at once on a busy machine, which is an error of its own.
SMALL = {
    "prompt_tokens": 16,
    "output_tokens": 32,
    "concurrency": [1],
    "requests": 1,
    "repeats": 2,
    "warmup_requests": 1,
}


class Job:
    """Runs playbooks of the checkout with state and records in folders of the test's own."""

    def __init__(self, folder: Path, env_path: Path):
        self.home = folder / "home"
        self.records = folder / "records"
        self.variables = {
            "ml_env_path": str(env_path),
            "baseline_workload": {**SMALL, "warmup_cap_s": 2},
        }
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GROUNDSTATE_HOME": str(self.home),
            "GROUNDSTATE_RECORDS": str(self.records),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCALHOST_WARNING": "False",
        }

    def command(self, playbook: str, *arguments: str, **variables) -> list[str]:
        merged = {**self.variables, **variables}
        return ["ansible-playbook", f"playbooks/{playbook}.yml", "-e", json.dumps(merged), *arguments]

    def start(self, playbook: str, *arguments: str, **variables) -> subprocess.Popen:
        return subprocess.Popen(
            self.command(playbook, *arguments, **variables),
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, playbook: str, *arguments: str, rc: int | None = 0, **variables) -> str:
        process = self.start(playbook, *arguments, **variables)
        output, _ = process.communicate(timeout=400)
        if rc is not None:
            assert process.returncode == rc, output
        self.rc = process.returncode
        return output

    def record(self) -> servers.ServerRecord | None:
        return servers.load(str(self.home), "local")

    def ours(self) -> list[procfs.Process]:
        return servers.started_by_us(str(self.home), "local", procfs.processes())

    def record_files(self) -> list[Path]:
        return sorted(path for path in self.records.glob("*/*.json") if path.name != "baseline.json")


def recap(output: str) -> dict[str, int]:
    found = RECAP.search(output)
    assert found, output
    return dict(zip(("ok", "changed", "unreachable", "failed"), map(int, found.groups()[1:]), strict=True))


def local_fact(job: Job) -> dict:
    """ansible_local.groundstate, as another tool sees it: gathered once, then shown from the cache."""
    environment = {**job.environment, "ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_GATHERING": "smart"}
    environment["ANSIBLE_CACHE_PLUGIN_CONNECTION"] = str(job.records / "cache")

    def ansible(*arguments: str) -> str:
        command = ["ansible", "local", "-i", "inventories/local", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    ansible("-m", "ansible.builtin.setup", "-a", f"filter=ansible_local fact_path={job.home}/facts.d")
    shown = ansible("-m", "ansible.builtin.debug", "-a", "var=ansible_local.groundstate")
    return json.loads(shown.partition("=>")[2])["ansible_local.groundstate"]


def wait_for(condition, seconds: float = 60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{condition} did not come true within {seconds} s")


@pytest.fixture(scope="module")
def env_path(tmp_path_factory):
    """The engine's environment: built by the first run, used by all."""
    return tmp_path_factory.mktemp("engine") / "llama_cpp"


@pytest.fixture
def job(tmp_path, env_path):
    made = Job(tmp_path, env_path)
    yield made
    made.run("teardown", rc=None, ml_env_lock="")  # the environment is kept for the next test
    for left in made.ours():  # only after a failed test
        kill_if_there(left.pid)


def test_twice_then_measured_again_then_torn_down(job):
    first = job.run("deploy_baseline")
    assert recap(first)["failed"] == 0
    assert "first measurement of this declaration" in first
    assert re.search(r"decode\s+\d+\.\d+ tok/s \(", first)
    [path] = job.record_files()
    record = json.loads(path.read_text())
    assert record["schema"] == 1
    assert record["verdict"]["verdict"] == "first"
    assert record["measurement"]["headline"]["value"] > 0
    level = record["measurement"]["levels"][0]
    assert level["ok"] == level["requests"] == 2
    assert record["fingerprints"]["before"]["state_hash"] == record["fingerprints"]["after"]["state_hash"]
    assert record["proof"]["verdict"] == "proved"
    server = job.record()
    assert server.running()
    assert local_fact(job)["measurement_id"] == record["id"]

    second = job.run("deploy_baseline")
    assert recap(second)["changed"] == 0, second
    assert "not measured again" in second
    assert job.record().start_id == server.start_id
    assert job.record_files() == [path]

    again = job.run("benchmark")
    # On a machine so busy that the client was the limit, the first one became no baseline.
    assert "INCONCLUSIVE" in again or "the client, not the server, was the limit" in first
    assert "very start" in again or "the client, not the server, was the limit" in first
    assert len(job.record_files()) == 2

    proof = job.run("verify")
    assert "proved" in proof

    gone = job.run("teardown")
    assert str(job.records) in gone, "teardown says what it kept"
    assert not job.ours()
    assert not job.home.exists()
    assert len(job.record_files()) == 2
    assert recap(job.run("teardown"))["changed"] == 0


def test_reset_ends_our_server_and_then_has_nothing_to_do(job):
    job.run("deploy_baseline", "--tags", "ml_env,nccl_profile,llm_server")
    assert job.ours()
    assert recap(job.run("reset_gpus"))["changed"] >= 1
    assert not job.ours()
    assert recap(job.run("reset_gpus"))["changed"] == 0
    job.run("deploy_baseline", "--tags", "ml_env,nccl_profile,llm_server")
    assert job.record().running()


@pytest.mark.slow
def test_a_changed_declaration_restarts_and_is_incomparable(job):
    job.run("deploy_baseline")
    before = job.record()
    output = job.run(
        "deploy_baseline", nccl_profiles={"mine": {"variables": {"NCCL_DEBUG": "WARN"}}}, nccl_profile_name="mine"
    )
    assert job.record().start_id != before.start_id
    assert "INCOMPARABLE" in output
    assert "NCCL_DEBUG" in output
    assert not procfs.alive(before.pid, before.pid_start)


@pytest.mark.slow
def test_an_edited_file_of_the_engine_is_the_first_explanation(job, env_path):
    job.run("deploy_baseline")
    [victim] = sorted(env_path.resolve().glob("lib/python3*/site-packages/xllamacpp/__init__.py"))
    original = victim.read_bytes()
    try:
        victim.write_bytes(original + b"\n# edited by hand\n")
        output = job.run("deploy_baseline")
    finally:
        victim.write_bytes(original)
    assert "not measured again" not in output
    records = [json.loads(path.read_text()) for path in job.record_files()]
    assert len(records) == 2
    if not records[0]["measurement"]["client"]["limited"]:  # then it became the baseline
        verdict = records[1]["verdict"]
        assert verdict["ratio_low"] < verdict["ratio"] < verdict["ratio_high"]
        assert verdict["mde"] > 0
        assert "MDE " in output
    summary = output.partition("local: baseline\n")[2]  # above it, the tasks that changed something
    [line] = [line for line in summary.splitlines() if line.startswith("changed ")]
    assert "xllamacpp" in line
    assert "__init__.py" in line


def test_check_mode_on_a_fresh_host_changes_nothing(job):
    output = job.run("deploy_baseline", "--check", "--diff")
    assert recap(output)["failed"] == 0
    assert not job.home.exists()
    assert not job.records.exists()


def test_check_mode_after_a_profile_change_says_what_would_happen_and_judges_nothing(job):
    job.run("deploy_baseline", "--tags", "ml_env,nccl_profile,llm_server")
    before = job.record()
    output = job.run("deploy_baseline", "--check", nccl_profile_name="nvlink")
    assert "environment NCCL_P2P_LEVEL: unset -> NVL" in output
    assert recap(output)["failed"] == 0
    assert job.record() == before
    assert f"ended    {len(job.ours())} processes" in job.run("teardown", "--check", ml_env_lock="")
    assert job.record().running()


@pytest.mark.slow
def test_without_any_inventory_it_is_this_machine(job, tmp_path):
    """As after an installation: another folder, no ansible.cfg, no inventory."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**job.environment, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "playbooks" / "collections")}
    result = subprocess.run(
        ["ansible-playbook", "groundstate.llm.deploy_baseline", "-e", json.dumps(job.variables)],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert job.record().running()
    [path] = job.record_files()
    assert path.parent.name == "localhost"


# --- killed at any moment -------------------------------------------------------------------------


@pytest.mark.slow
def test_engine_killed_while_it_starts(job):
    job.run("deploy_baseline", "--tags", "ml_env")
    process = job.start("deploy_baseline")
    record = wait_for(lambda: (found := job.record()) and found.state == "launched" and found)
    os.kill(record.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    if process.returncode != 0:  # it may have been ready already; then the measurement says that it died
        assert "SIGKILL" in output or "killed" in output, output
    job.run("deploy_baseline")
    assert job.record().running()
    assert job.record().start_id != record.start_id


@pytest.mark.slow
def test_engine_killed_while_it_is_measured(job):
    job.run("deploy_baseline", "--tags", "ml_env,nccl_profile,llm_server")
    record = job.record()
    process = job.start("deploy_baseline", baseline_workload={**SMALL, "output_tokens": 256, "repeats": 20})
    log = Path(record.log)
    size = log.stat().st_size
    wait_for(lambda: log.stat().st_size > size + 2000)  # llama.cpp logs each request
    os.kill(record.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "died" in output or "killed" in output, output
    assert not job.record_files()
    job.run("deploy_baseline")
    assert len(job.record_files()) == 1


@pytest.mark.parametrize("moment", [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 9.0])
@pytest.mark.slow
def test_controller_killed_at_any_moment(job, moment):
    job.run("deploy_baseline", "--tags", "ml_env")
    process = job.start("deploy_baseline")
    time.sleep(moment)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert recap(job.run("deploy_baseline"))["failed"] == 0
    assert job.record().running()
    roots = [one for one in job.ours() if one.ppid not in {other.pid for other in job.ours()}]
    assert len(roots) == 1, "one server, no orphan of the interrupted run"
    assert recap(job.run("deploy_baseline"))["changed"] == 0
    for path in job.record_files():
        assert json.loads(path.read_text())["schema"] == 1


# --- bad input: one clear error, nothing changed --------------------------------------------------


def refused(job, **variables) -> str:
    """The message of a run that had to stop before anything was changed."""
    output = job.run("deploy_baseline", rc=2, **variables)
    assert recap(output)["failed"] == 1
    assert recap(output)["changed"] == 0
    assert not job.home.exists()
    return output


def declared(**changes) -> dict:
    """The local declaration with changes (extra variables replace the whole dictionary)."""
    return {
        "llm_server": {
            "name": "local",
            "engine": "llama_cpp",
            "model": "{{ ml_env_path }}/models/smollm2-135m.gguf",
            "served_model_name": "smollm2-135m",
            "context_length": 2048,
            "gpus": [],
            **changes,
        }
    }


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"llm_server_prot": 8000}, ["llm_server_prot"]),
        ({"nccl_profile_nmae": "stock"}, ["nccl_profile_nmae", "nccl_profile_name"]),
        (declared(prot=8000), ["prot"]),
        (declared(port="many"), ["port", "many"]),
        (declared(engine="llamacpp"), ["llamacpp", "llama_cpp"]),
        (declared(model="/no/such/model.gguf"), ["/no/such/model.gguf"]),
        ({"baseline_workload": {"output_tokens": 0}}, ["output_tokens"]),
        ({"baseline_workload": {"outputtokens": 8}}, ["outputtokens"]),
        ({"baseline_looks": [3, 1]}, ["baseline_looks", "ascending"]),
        ({"baseline_tolerance": 2}, ["baseline_tolerance", "0.02 means 2 %"]),
        ({"nccl_profile_name": "pcie_ring"}, ["pcie_ring"]),
        (
            {"nccl_profile_name": "x", "nccl_profiles": {"x": {"variables": {"NCCL_BUFFSIZE": "16M"}}}},
            ["NCCL_BUFFSIZE", "16M"],
        ),
        (
            {"nccl_profile_name": "x", "nccl_profiles": {"x": {"variables": {"NCCL_PROTOO": "LL"}}}},
            ["NCCL_PROTOO", "NCCL_PROTO"],
        ),
        ({"groundstate_records_dir": "/proc/records"}, ["/proc/records"]),
        ({"preflight_min_free_gib": 100000}, ["MiB are needed"]),
        ({"ml_env_python": "python9.9"}, ["python9.9"]),
    ],
)
def test_bad_input_is_refused_before_anything_changes(job, variables, words):
    output = refused(job, **variables)
    for word in words:
        assert word in output, output


def test_several_problems_come_in_one_message(job):
    output = refused(job, **declared(model="/no/such/model.gguf"), nccl_profile_name="nope", llm_server_prot=1)
    for word in ("/no/such/model.gguf", "nope", "llm_server_prot"):
        assert word in output


def test_an_occupied_port_names_its_owner(job):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import socket, time; s = socket.create_server(('127.0.0.1', 0));"
            "print(s.getsockname()[1], flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(holder.stdout.readline())
        output = refused(job, **declared(port=port))
    finally:
        holder.kill()
        holder.communicate()
    assert str(port) in output
    assert str(holder.pid) in output


def test_an_unknown_argument_is_told_before_the_launch(job):
    output = job.run("deploy_baseline", rc=2, **declared(extra_args={"no-such-flag": True}))
    assert re.search(r"extra_args\.no-such-flag:\s+llama\.cpp\s+\S+\s+has\s+no\s+argument\s+--no-such-flag", output)
    assert not job.ours()


def test_an_unreachable_host_is_one_clear_line(job, tmp_path):
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        "groundstate:\n  hosts:\n    nowhere:\n      ansible_host: 127.0.0.1\n      ansible_port: 1\n"
        "      ansible_ssh_common_args: -o BatchMode=yes -o ConnectTimeout=2\n"
        f"      groundstate_home: {job.home}\n      groundstate_records_dir: {job.records}\n"
        "      ml_env_lock: llama_cpp\n      llm_server: {name: local, engine: llama_cpp, model: m}\n"
    )
    output = job.run("deploy_baseline", "-i", str(inventory), rc=4)
    assert recap(output)["unreachable"] == 1
    assert "Failed to connect to the host via ssh" in output
