"""Profile and proof through Ansible, on real processes that treat their environment as engines do."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.groundstate.llm.plugins.module_utils import (
    declaration,
    nccl_profiles,
    procfs,
    servers,
)

ROOT = Path(__file__).resolve().parents[2]
TITLED = ROOT / "tests" / "tools" / "titled_process.py"
STAND_IN = ROOT / "tests" / "integration" / "stand_in_engine.py"
SHIPPED = yaml.safe_load((ROOT / "roles" / "nccl_profile" / "vars" / "main.yml").read_text())["nccl_profile_shipped"]
STORY = nccl_profiles.resolve("pcie_ll_ring", SHIPPED).variables
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "NCCL_"))},
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_LOCALHOST_WARNING": "False",
}


def ansible(name, *options, **arguments):
    """Run one module through Ansible, as a user does; its result as a dictionary."""
    command = ["ansible", "localhost", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", *options]
    made = subprocess.run(
        [*command, "-m", f"groundstate.llm.{name}", "-a", json.dumps(arguments)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "=> {" in made.stdout, made.stdout + made.stderr
    return {**json.loads(made.stdout[made.stdout.index("=> {") + 3 :]), "rc": made.returncode, "stderr": made.stderr}


def module(name, check=False, **arguments):
    """Run one module in this process: the same code without the seconds that Ansible takes to start it."""
    main = importlib.import_module(f"ansible_collections.groundstate.llm.plugins.modules.{name}").main
    said = io.StringIO()
    given = {**arguments, "_ansible_check_mode": check}
    with patch_module_args(given), contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
        main()
    return {**json.loads(said.getvalue()), "rc": ended.value.code}


class Server:
    """A made server record whose processes are real: a root with two workers."""

    def __init__(self, home, engine="sglang"):
        self.home, self.engine, self.name = str(home), engine, "made"
        self.process = None

    def write(self, profile, **own):
        profiles = {**SHIPPED, **own}
        return module("nccl_profile", home=self.home, server=self.name, profile=profile, profiles=profiles)

    def start(self, workers, given=None, **fields):
        """Start a root with workers (arguments of titled_process.py), as llm_server would with this environment."""
        declared = declaration.complete(
            {"name": self.name, "engine": self.engine, "model": "/m", "tensor_parallel": 2, **fields}
        )
        environment = {"PATH": os.environ["PATH"], **(given or {}), **declared["env"]}
        marks = {servers.SERVER_VARIABLE: servers.folder(self.home, self.name), servers.START_VARIABLE: "start-1"}
        command = [sys.executable, str(TITLED)]
        for worker in workers:
            command += ["--worker", shlex.join(worker)]
        self.process = subprocess.Popen(
            command, env={**environment, **marks}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout.readline() == b"ready\n"
        item = procfs.process(self.process.pid)
        servers.save(
            self.home,
            servers.ServerRecord(
                name=self.name,
                start_id="start-1",
                state="launched",
                engine=self.engine,
                declaration=declared,
                environment=environment,
                tensor_parallel=2,
                pid=item.pid,
                pid_start=item.start,
                boot_id=procfs.boot_id(),
            ),
        )

    def prove(self, run=module, **arguments):
        return run("nccl_proof", home=self.home, server=self.name, **arguments)

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path / "home")
    yield made
    made.end()


def rank(number, *arguments):
    return ["--title", f"sglang::scheduler_TP{number}", *arguments]


# --- writing -------------------------------------------------------------------------------------


def test_through_ansible(server):
    path = Path(nccl_profiles.path(server.home, server.name))
    arguments = {"home": server.home, "server": server.name, "profile": "pcie_ll_ring", "profiles": SHIPPED}
    planned = ansible("nccl_profile", "--check", "--diff", **arguments)
    assert planned["changed"]
    assert not path.exists()
    first = ansible("nccl_profile", **arguments)
    assert (first["changed"], first["variables"]) == (True, STORY)
    assert "NCCL_MAX_CTAS" in first["stderr"], "warnings are shown"
    assert path.is_file()

    server.start([rank(0), rank(1)], STORY)
    assert server.prove(ansible)["verdict"] == "proved"


def test_writing_twice_and_switching_back_and_forth(server):
    path = Path(nccl_profiles.path(server.home, server.name))
    first = server.write("pcie_ll_ring")
    assert first["changed"]
    assert first["applies_to"] == ["pcie"]
    assert [text.split(":")[0] for text in first["inert"]] == ["NCCL_BUFFSIZE", "NCCL_NTHREADS"]
    assert first["diff"][0]["before"] == ""
    story = path.read_bytes()
    assert first["diff"][0]["after"].encode() == story
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert not server.write("pcie_ll_ring")["changed"]

    assert server.write("stock")["changed"]
    assert nccl_profiles.load(server.home, server.name) == ("stock", {})
    assert server.write("pcie_ll_ring")["changed"]
    assert path.read_bytes() == story

    path.chmod(0o600)
    assert server.write("pcie_ll_ring")["changed"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["nccl.env"], "no temporary file stays"

    gone = {"home": server.home, "server": server.name, "state": "absent"}
    assert module("nccl_profile", check=True, **gone)["changed"]
    assert path.exists()
    assert module("nccl_profile", **gone)["changed"]
    assert not path.exists()
    assert not module("nccl_profile", **gone)["changed"]


def test_a_bad_profile_stops_before_anything_is_written(server):
    server.write("pcie_ll_ring")
    path = Path(nccl_profiles.path(server.home, server.name))
    before = path.read_bytes()
    bad = {"bad": {"extends": "pcie_ll_ring", "variables": {"NCCL_P2P_LEVEL": "sys", "NCCL_BUFFSIZE": "16M"}}}
    result = server.write("bad", **bad)
    assert result["rc"] != 0
    assert "NCCL_BUFFSIZE: '16M' is not an integer: NCCL reads it as 16" in result["msg"]
    assert "NCCL_P2P_LEVEL: 'sys' is none of" in result["msg"]
    assert path.read_bytes() == before


# --- proving -------------------------------------------------------------------------------------


def test_workers_with_titles_are_proved_through_their_memory(server):
    server.write("pcie_ll_ring")
    server.start([rank(0, "--set", "NCCL_CUMEM_ENABLE=0"), rank(1)], STORY)
    result = server.prove()
    assert (result["rc"], result["changed"], result["verdict"]) == (0, False, "proved")
    assert (result["profile"], result["expected_workers"], result["why"]) == ("pcie_ll_ring", 2, [])
    assert [(row["rank"], row["source"]) for row in result["workers"]] == [(0, "memory"), (1, "memory")]
    for row in result["workers"]:
        assert {name: item["seen"] for name, item in row["variables"].items()} == STORY
    assert result["workers"][0]["set_by_engine"] == {"NCCL_CUMEM_ENABLE": "0"}
    assert result["root"]["pid"] == server.process.pid
    assert "all workers: ALGO, BUFFSIZE, MAX_NCHANNELS" in "\n".join(result["table"])
    assert {item["source"] for row in result["workers"] for item in row["variables"].values()} == {
        "environment of the start"
    }
    initial = procfs.initial_environment(result["workers"][0]["pid"])
    assert "NCCL_PROTO" not in initial.variables, "the trap: /proc/PID/environ was overwritten"


def test_a_missing_and_a_wrong_value_are_contradictions(server):
    server.write("pcie_ll_ring")
    server.start([rank(0, "--unset", "NCCL_PROTO"), rank(1, "--set", "NCCL_P2P_LEVEL=sys")], STORY)
    result = server.prove()
    assert (result["rc"] != 0, result["verdict"]) == (True, "contradicted")
    first, second = result["workers"]
    item = first["variables"]["NCCL_PROTO"]
    assert (item["declared"], item["seen"], item["verdict"]) == ("LL", None, "contradicted")
    assert second["variables"]["NCCL_P2P_LEVEL"]["seen"] == "sys"
    assert "rank 0" in result["msg"]
    assert "NCCL_P2P_LEVEL is 'sys' (declared: 'SYS')" in result["msg"]

    warned = server.prove(policy="warn")
    assert (warned["rc"], warned["verdict"]) == (0, "contradicted")
    assert "NCCL_P2P_LEVEL is 'sys'" in json.dumps(warned["warnings"])
    assert server.prove(policy="off")["verdict"] == "off"


def test_a_profile_written_after_the_start_is_not_in_force(server):
    server.start([rank(0), rank(1)])
    server.write("nvlink")
    result = server.prove(policy="warn")
    assert result["verdict"] == "contradicted"
    assert "started without this profile: restart it" in result["why"][0]
    server.write("stock")
    assert server.prove()["verdict"] == "proved"
    declared = server.prove(profile="nvlink", profiles=SHIPPED, policy="warn")
    assert (declared["profile"], declared["verdict"]) == ("nvlink", "contradicted"), "the file does not decide"
    by_hand = server.prove(variables={"NCCL_P2P_LEVEL": "NVL"}, policy="warn")
    assert (by_hand["profile"], by_hand["verdict"]) == ("", "contradicted")


def test_stock_finds_what_nobody_declared(server):
    server.write("stock")
    server.start([rank(0, "--set", "NCCL_PROTO=LL"), rank(1)], env={"NCCL_DEBUG": "WARN"})
    result = server.prove(policy="warn")
    assert result["verdict"] == "contradicted"
    assert [row["undeclared"] for row in result["workers"]] == [{"NCCL_PROTO": "LL"}, {}]


def test_a_missing_worker_is_unknown_and_fails_when_proof_is_required(server):
    server.write("stock")
    server.start([rank(1)])
    result = server.prove()
    assert (result["rc"] != 0, result["verdict"]) == (True, "unknown")
    assert "1 of 2 workers were found (rank 1)" in result["msg"]


def test_an_engine_that_cannot_tell_its_workers_is_proved_process_by_process(tmp_path):
    server = Server(tmp_path / "home", "generic")
    try:
        server.write("nvlink")
        server.start([["--title", "compute"], []], {"NCCL_P2P_LEVEL": "NVL"}, command=["serve"])
        result = server.prove()
        assert (result["verdict"], len(result["workers"]), result["root"]) == ("proved", 3, {})
    finally:
        server.end()


def test_without_a_running_server(server):
    result = server.prove(check=True)
    assert (result["rc"], result["verdict"]) == (0, "unknown")
    result = server.prove()
    assert result["rc"] != 0
    assert "server 'made' does not run" in result["msg"]
    server.start([rank(0), rank(1)])
    server.end()
    server.process = None
    assert "does not run" in server.prove()["msg"]


def test_verify_shows_the_table(server, tmp_path):
    server.write("pcie_ll_ring")
    server.start([rank(0), rank(1, "--set", "NCCL_ALGO=Tree")], STORY)
    variables = {"llm_server": {"name": server.name}, "nccl_profile_name": "pcie_ll_ring"}
    made = subprocess.run(
        ["ansible-playbook", "playbooks/verify.yml", "-e", json.dumps(variables)],
        cwd=ROOT,
        env={**ENVIRONMENT, "GROUNDSTATE_HOME": server.home, "GROUNDSTATE_RECORDS": str(tmp_path / "records")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode != 0, made.stdout
    assert "NCCL profile pcie_ll_ring of server made: contradicted" in made.stdout
    rows = [line.split() for line in made.stdout.splitlines()]
    (row,) = [row for row in rows if row[2:3] == ["sglang::scheduler_TP1"]]
    assert row[3:] == ["memory", "contradicted", *["proved"] * 5]


# --- NCCL's own logs, from a server that llm_server started ----------------------------------------------


class Started:
    """A server with SGLang's titles whose two ranks write what NCCL writes."""

    def __init__(self, host):
        self.host = host

    def start(self, profile, log="start", ranks=(0, 1), **fields):
        """Write the profile, launch as the roles do, and wait until it serves."""
        written = self.host.run("nccl_profile", server="made", profile=profile, profiles=SHIPPED)
        assert not written["failed"], written
        script = {"nccl_logs": ranks, "step_s": 0.01}
        declared = {
            "name": "made",
            "engine": "sglang",
            "model": "some/model",
            "command": [sys.executable, str(STAND_IN), "--script", json.dumps(script)],
            "tensor_parallel": 2,
            "port_from": 19500,
            **fields,
        }
        made = self.host.run("llm_server", declaration=declared, launcher="process", nccl_log=log)
        assert not made["failed"], made
        ready = self.host.run("llm_server_ready", server="made", timeout_s=60, slice_s=0)
        assert ready.get("ready") is True, ready
        return made

    def prove(self, **arguments):
        return self.host.run("nccl_proof", server="made", policy="warn", **arguments)


@pytest.fixture
def started(host):
    return Started(host)


def test_the_logs_of_a_start_prove_the_profile_rank_by_rank(started, host):
    folder = host.folder("made") / "nccl"
    folder.mkdir(parents=True)
    (folder / "gpuhost.1.log").write_text("of another start\n")
    started.start("pcie_ll_ring")
    result = started.prove()
    assert (result["verdict"], result["why"], result["flags"]) == ("proved", [], [])
    pids = {row["pid"] for row in result["workers"]}
    assert {path.name for path in folder.iterdir()} == {f"gpuhost.{pid}.log" for pid in pids}, "the old one is gone"
    for row in result["workers"]:
        assert {item["by"] for item in row["variables"].values()} == {"NCCL's log"}
        assert row["nccl_version"] == "2.28.9+cuda13.0"
        assert row["log"]["path"] == str(folder / f"gpuhost.{row['pid']}.log")
    assert "DEBUG" not in result["table"][0], "what llm_server sets for the proof is no part of the profile"

    # Another profile: the same server again, and its own logs.
    made = started.start("stock")
    assert "environment NCCL_PROTO: LL -> unset" in made["why"]
    assert started.prove()["verdict"] == "proved"
    assert len(list(folder.iterdir())) == 2


def test_a_value_that_nccl_passes_over_and_a_rank_without_a_log(started):
    variables = {"NCCL_P2P_LEVEL": "sys", "NCCL_PROTO": "LL"}
    started.start("stock", ranks=(0,), env=variables)
    result = started.prove(variables=variables)
    assert result["verdict"] == "contradicted"
    zero, one = (row["variables"] for row in result["workers"])
    assert (zero["NCCL_PROTO"]["verdict"], zero["NCCL_P2P_LEVEL"]["verdict"]) == ("proved", "contradicted")
    assert one["NCCL_PROTO"]["by"] == "environment"
    told = " ".join(result["why"])
    assert "NCCL_P2P_LEVEL=sys was not taken by NCCL" in told
    assert "NCCL wrote no log of this start" in told


def test_variables_that_only_an_nccl_conf_sets_are_proved_and_attributed_to_it(started, tmp_path):
    conf = tmp_path / "nccl.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in STORY.items()))
    started.start("stock", env={"NCCL_CONF_FILE": str(conf)})
    result = started.prove(variables=STORY)
    assert (result["verdict"], result["why"]) == ("proved", [])
    for row in result["workers"]:
        assert {(item["by"], item["source"]) for item in row["variables"].values()} == {("NCCL's log", str(conf))}
    result = started.prove()
    assert result["verdict"] == "contradicted", "the profile is stock, and the file says something else"
    assert f"it is from {conf}: correct it there" in result["why"][0]


def test_the_log_is_left_to_who_has_one_and_to_who_wants_none(started, host):
    started.start("stock", log="off")
    assert not [name for name in host.record("made").environment if name.startswith("NCCL_")]
    assert not (host.folder("made") / "nccl").exists()
    assert started.prove()["verdict"] == "proved", "by the environment alone"
    made = started.start("stock", log="tuning", env={"NCCL_DEBUG": "WARN"})
    assert made["action"] == "restarted"
    given = host.record("made").environment
    assert {name: value for name, value in given.items() if name.startswith("NCCL_")} == {"NCCL_DEBUG": "WARN"}
