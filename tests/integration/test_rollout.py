"""Rollouts over simulated hosts: own homes, own servers, one machine; what goes wrong is each host's own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from ansible_collections.groundstate.llm.plugins.module_utils import ports, procfs, servers
from killing import kill_if_there
from made_wheels import wheel

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "tests" / "tools" / "fleet_engine.py"
FAST, SLOW = {"step": 0.02}, {"step": 0.1}
SECRET = "sk-that-nobody-may-see"
DRAIN = """
- name: Write down that the host is {word}
  ansible.builtin.shell:
    cmd: echo {word} {{{{ inventory_hostname }}}} >> {log}
"""


class Fleet:
    """Hosts of this machine in an inventory of the test's own."""

    def __init__(self, folder: Path, names: list[str], canaries: list[str]):
        self.folder, self.names = folder, names
        self.records = folder / "records"
        self.log = folder / "drained.log"
        port = 19000
        hosts = {}
        for name in names:
            port = ports.free_port(port)
            hosts[name] = {"fleet_port": port}
            port += 1
            self.home(name).mkdir(parents=True)
            self.behave(name, {})
        self.hosts = hosts
        self.inventory = {
            "groundstate": {"hosts": hosts},
            "groundstate_canaries": {"hosts": dict.fromkeys(canaries)},
        }
        for word in ("drain", "undrain"):
            (folder / f"{word}.yml").write_text("---" + DRAIN.format(word=word, log=self.log))
        self.variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "groundstate_home": f"{folder}/hosts/{{{{ inventory_hostname }}}}",
            "groundstate_records_dir": str(self.records),
            "ml_env_lock": "",
            "ml_env_path": sys.prefix,
            "nccl_profile_name": "pcie_ll_ring",
            "llm_server": {
                "name": "chat",
                "engine": "generic",
                "model": "fleet",
                "served_model_name": "fleet",
                "port": "{{ fleet_port }}",
                "gpus": [],
                "api_key": SECRET,
                "command": [
                    *(sys.executable, str(ENGINE), "--port", "{port}", "--variant", "{{ fleet_variant }}"),
                    *("--host", "../../host.json"),
                ],
            },
            "fleet_variant": "one",
            "llm_server_launcher": "process",
            "baseline_workload": {
                **{"prompt_tokens": 8, "output_tokens": 48, "concurrency": [1], "requests": 1, "repeats": 2},
                "warmup_requests": 0,
            },
            "baseline_group": "fleet",
            "baseline_local_fact": "",
            "baseline_sample": False,
            "baseline_verify_files": False,
            # Rates on a busy machine are noisy; what is slow here has a fifth of the rate.
            "rollout_max_drop": 0.45,
            "rollout_drain": str(folder / "drain.yml"),
            "rollout_undrain": str(folder / "undrain.yml"),
        }

    def home(self, name: str) -> Path:
        return self.folder / "hosts" / name

    def behave(self, name: str, variants: dict) -> None:
        """What a host makes of each variant; the first one always works."""
        (self.home(name) / "host.json").write_text(json.dumps({"one": FAST, **variants}))

    def declare(self, **variables) -> None:
        """Change what the inventory declares."""
        self.variables.update(variables)

    def start(self, *arguments: str) -> subprocess.Popen:
        """Begin the rollout."""
        inventory = {**self.inventory, "groundstate": {"hosts": self.hosts, "vars": self.variables}}
        path = self.folder / "inventory.yml"
        path.write_text(yaml.safe_dump(inventory))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            ["ansible-playbook", "playbooks/rollout.yml", "-i", str(path), *arguments],
            cwd=ROOT,
            env={**environment, "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, rc: int = 0) -> str:
        """Roll out; returns what was said."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=1200)
        assert process.returncode == rc, output
        assert SECRET not in output
        return output

    def environment(self, name: str) -> dict[str, str]:
        """That of the server that a host runs."""
        return procfs.initial_environment(servers.load(str(self.home(name)), "chat").pid).variables

    def state(self) -> dict:
        """The rollout that began last."""
        return json.loads(max((self.records / "rollouts").glob("rollout-*.json")).read_text())

    def outcomes(self) -> dict[str, str]:
        return {name: entry["outcome"] for name, entry in self.state()["hosts"].items()}

    def variant(self, name: str) -> str:
        """What a host really runs."""
        record = servers.load(str(self.home(name)), "chat")
        if record is None or not record.running():
            return ""
        words = procfs.process(record.pid).cmdline.split()
        return words[words.index("--variant") + 1]

    def hooks(self) -> list[str]:
        """What the hooks did, in order; forgotten then."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines

    def kept(self) -> list[str]:
        """All that the controller wrote, but the index."""
        return [path.read_text() for path in self.records.rglob("*.json")]

    def end(self) -> None:
        for name in self.names:
            for item in servers.started_by_us(str(self.home(name)), "chat", procfs.processes()):
                kill_if_there(item.pid)


@pytest.fixture
def fleet(tmp_path):
    made: list[Fleet] = []

    def make(count: int, canaries: int = 1) -> Fleet:
        names = [f"host{number:02}" for number in range(1, count + 1)]
        made.append(Fleet(tmp_path, names, names[:canaries]))
        return made[-1]

    yield make
    for one in made:
        one.end()


def row(output: str, host: str) -> str:
    """The row of a host in the last table."""
    found = re.findall(rf"^{host} .*$", output, re.MULTILINE)
    rows = [line for line in found if ": ok=" not in line]
    assert rows, output
    return rows[-1]


def test_a_failing_canary_stops_it_and_once_repaired_the_same_command_goes_on(fleet):
    two = fleet(2)
    two.behave("host01", {"one": {"die": True}})
    output = two.run(rc=2)
    assert "The rollout stopped: host01." in output
    assert "this host cannot run it" in two.state()["hosts"]["host01"]["why"][0]
    assert two.outcomes() == {"host01": "failed", "host02": ""}
    assert two.state()["state"] == "stopped"
    assert two.state()["gates"] == [{"batch": 0, "size": 1, "bad": {"host01": "failed"}, "allowed": 0, "stop": True}]
    assert not (two.home("host02") / "servers").exists(), "nothing was begun on a host of a later batch"
    assert two.hooks() == ["drain host01"], "what did not pass stays drained"
    assert "Still drained: host01" in output

    two.behave("host01", {})
    output = two.run("--limit", "host01")
    assert f"goes on with {two.state()['id']}: 0 of 1 hosts have passed" in output
    assert two.outcomes() == {"host01": "passed", "host02": ""}
    assert two.state()["state"] == "running", "host02 waits for a run without the limit"
    assert two.hooks() == ["drain host01", "undrain host01"]
    assert "Still drained" not in output
    assert len(list((two.records / "rollouts").iterdir())) == 1
    entry = two.state()["hosts"]["host01"]
    record = json.loads((two.records / "host01" / f"{entry['record']}.json").read_text())
    assert record["declared"]["hash"] == entry["declaration"]
    assert entry["proof"] == "proved"
    assert SECRET in two.environment("host01").values()
    assert not any(SECRET in text for text in two.kept())


def test_what_cannot_work_is_refused_before_any_host_is_touched(fleet):
    two = fleet(2)
    two.hosts["host02"]["nccl_profile_nmae"] = "stock"
    output = two.run(rc=2)
    assert "nccl_profile_nmae" in output
    assert "nccl_profile_name" in output
    assert "was lost" not in output
    del two.hosts["host02"]["nccl_profile_nmae"]
    output = two.run("-e", '{"rollout_batches": ["some"]}', rc=2)
    assert "rollout_batches: 'some' is neither a number of hosts (3) nor a share of them (10%)" in output
    assert not two.records.exists()
    assert [name for name in two.names if (two.home(name) / "servers").exists()] == []


def test_check_mode_plans_and_asks_and_writes_nothing(fleet):
    two = fleet(2)
    output = two.run("--check", "--limit", "host01")
    assert "batch 1 (canaries): host01" in output
    assert "host02" not in output
    assert "would be launched" in output or "it was never launched here" in output
    assert "nothing was rolled out; 1 ok" in output
    assert not two.records.exists()
    assert not (two.home("host01") / "servers").exists()
    assert two.hooks() == []


UNREACHABLE = {
    "ansible_connection": "ssh",
    "ansible_host": "127.0.0.1",
    "ansible_port": 1,
    "ansible_ssh_common_args": "-o BatchMode=yes -o ConnectTimeout=2",
}


@pytest.mark.slow  # three deployments
def test_one_that_was_killed_goes_on(fleet):
    two = fleet(2)
    process = two.start()
    try:
        deadline = time.monotonic() + 300
        while not (two.records / "rollouts").exists() or two.outcomes()["host01"] != "passed":
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    first = servers.load(str(two.home("host01")), "chat").start_id
    output = two.run()
    assert re.search(r"goes on with .*: [01] of 2 hosts", output), "host01 was put back already, or is now"
    assert "Still drained" not in output
    assert two.outcomes() == {"host01": "passed", "host02": "passed"}
    assert servers.load(str(two.home("host01")), "chat").start_id == first
    hooks = two.hooks()
    for host in two.names:
        assert [line for line in hooks if line.endswith(host)][-1] == f"undrain {host}"


@pytest.mark.slow  # five deployments
def test_a_host_goes_back_to_the_environment_of_a_lock_that_has_changed_since(fleet, tmp_path):
    two, lock = fleet(2), tmp_path / "lock"
    lock.mkdir()
    (lock / "lock.yml").write_text("imports: [engine]")

    def pin(version: str) -> None:
        (lock / "requirements.txt").write_text(wheel(tmp_path / "index", "engine", version, f"VERSION = {version!r}\n"))

    path = "{{ groundstate_home }}/env"
    command = [f"{path}/bin/python", *two.variables["llm_server"]["command"][1:]]
    two.declare(
        ml_env_lock=str(lock),
        ml_env_path=path,
        ml_env_index_url="none",
        ml_env_find_links=[str(tmp_path / "index")],
        llm_server={**two.variables["llm_server"], "command": command},
        rollout_on_failure="rollback",
        rollout_max_failed=0,
    )

    def has(name: str) -> tuple[str, str]:
        """The version of the package in the host's environment, and where that really is."""
        env = two.home(name) / "env"
        code = "import engine; print(engine.VERSION)"
        version = subprocess.run([env / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
        return version.stdout.strip(), os.readlink(env)

    pin("1.0")
    two.run()
    (before,) = {has(name)[0] for name in two.names}
    assert before == "1.0"
    first, served = has("host02"), servers.load(str(two.home("host02")), "chat").start_id

    # Another version, with which one host cannot serve.
    pin("2.0")
    two.declare(fleet_variant="two")
    two.behave("host02", {"two": {"die": True}})
    two.run(rc=2)
    assert two.outcomes() == {"host01": "passed", "host02": "rolled_back"}
    assert has("host01")[0] == "2.0"
    assert has("host02") == first
    assert [two.variant(name) for name in two.names] == ["two", "one"]
    assert servers.load(str(two.home("host02")), "chat").start_id != served
    assert ", proved," in two.state()["hosts"]["host02"]["rolled_back"]

    # Also when the host has the environment of then no more: it is made anew, as the kept files of the lock say.
    (two.home("host02") / "env").unlink()
    shutil.rmtree(two.home("host02") / first[1])
    two.run("-e", "rollout_resume=false", rc=2)
    assert two.outcomes()["host02"] == "rolled_back"
    assert has("host02")[0] == "1.0"


@pytest.mark.slow  # 34 deployments: three minutes on two cores
@pytest.mark.timeout(3000)
def test_twelve_hosts(fleet, tmp_path):
    twelve = fleet(12, canaries=2)
    twelve.declare(rollout_batches=[4, "50%"], rollout_max_failed="40%")

    # A slow host, one that is down, and one that is lost half-way: as many as are allowed in their batches.
    twelve.behave("host05", {"one": SLOW})
    twelve.hosts["host12"].update(UNREACHABLE)
    lose = tmp_path / "lose.yml"
    lose.write_text(
        "---\n- name: Lose the host\n  ansible.builtin.set_fact:\n    "
        + "\n    ".join(f"{name}: {value!r}" for name, value in UNREACHABLE.items())
        + "\n"
    )
    twelve.hosts["host11"]["rollout_drain"] = str(lose)
    output = twelve.run(rc=4)
    assert "batch 1 (canaries): host01, host02" in output
    assert "batch 2 (4 of 12): host03, host04, host05, host06" in output
    assert "batch 3 (6 of 12): host07, host08, host09, host10, host11, host12" in output
    bad = {"host05": "slower", "host11": "unreachable", "host12": "unreachable"}
    assert twelve.outcomes() == {host: bad.get(host, "passed") for host in twelve.names}
    assert twelve.state()["state"] == "complete"
    assert {one["host"] for group in twelve.state()["report"]["groups"] for one in group["outliers"]} >= {"host05"}
    assert re.search(r"host05: \d\d\.\d % below its group \(z -", output)
    assert "Still drained: host05, host11" in output
    assert "stopped answering" in row(output, "host11")
    twelve.hooks()

    # Repaired, and given again: another rollout, over these alone.
    del twelve.hosts["host11"]["rollout_drain"]
    for name in UNREACHABLE:
        del twelve.hosts["host12"][name]
    twelve.behave("host05", {})
    os.kill(servers.load(str(twelve.home("host05")), "chat").pid, signal.SIGKILL)
    twelve.run("--limit", "host05,host11,host12", "-e", '{"rollout_batches": [3]}')
    assert twelve.outcomes() == {"host05": "passed", "host11": "passed", "host12": "passed"}
    assert sorted(twelve.hooks())[3:] == ["undrain host05", "undrain host11", "undrain host12"]

    # Another declaration: two hosts are slow with it, one changes a variable on its way. The batch goes back.
    twelve.declare(fleet_variant="two", rollout_max_failed=0, rollout_on_failure="rollback")
    before = {host: servers.load(str(twelve.home(host)), "chat").start_id for host in twelve.names}
    for host in ("host03", "host04"):
        twelve.behave(host, {"two": SLOW})
    twelve.behave("host06", {"two": {"environment": {"NCCL_PROTO": "Simple"}}})
    output = twelve.run(rc=2)
    assert 'llm_server.command[5]: "one" -> "two"' in output
    assert twelve.state()["state"] == "stopped"
    assert twelve.state()["gates"][1]["bad"] == {"host03": "slower", "host04": "slower", "host06": "unproved"}
    assert twelve.outcomes() == {
        host: "passed" if host <= "host02" else "rolled_back" if host <= "host06" else "" for host in twelve.names
    }
    assert [twelve.variant(host) for host in twelve.names] == ["two"] * 2 + ["one"] * 10
    assert "back at record" in row(output, "host06")
    assert ", proved," in twelve.state()["hosts"]["host06"]["rolled_back"]
    assert SECRET in twelve.environment("host03").values(), "no record has it: it is that of now"
    assert not any(SECRET in text for text in twelve.kept())
    after = {host: servers.load(str(twelve.home(host)), "chat").start_id for host in twelve.names}
    assert {host for host in twelve.names if after[host] == before[host]} == set(twelve.names[6:])
    hooks = twelve.hooks()
    assert {host for host in twelve.names[:6] if hooks.count(f"undrain {host}") > 0} == set(twelve.names[:6])
    assert hooks.count("drain host05") == 2, "it had passed and served when the batch went back"
    assert "Still drained" not in output

    # Repaired, the same command goes on: the canaries are left alone.
    for host in ("host03", "host04", "host06"):
        twelve.behave(host, {})
    output = twelve.run()
    assert "2 of 12 hosts have passed" in output
    assert set(twelve.outcomes().values()) == {"passed"}
    assert twelve.state()["state"] == "complete"
    assert {twelve.variant(host) for host in twelve.names} == {"two"}
    assert {servers.load(str(twelve.home(host)), "chat").start_id for host in twelve.names[:2]} == {
        after[host] for host in twelve.names[:2]
    }
    assert twelve.state()["report"]["groups"][0]["change"]["hosts"] == 12
