"""Rollouts over simulated hosts: own homes, own servers, one machine; what goes wrong is each host's own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.groundstate.llm.plugins.module_utils import ports, procfs, servers

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "tests" / "tools" / "fleet_engine.py"
FAST, SLOW = {"step": 0.02}, {"step": 0.05}
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
                "command": [
                    *(sys.executable, str(ENGINE), "--port", "{port}", "--variant", "{{ fleet_variant }}"),
                    *("--host", "../../host.json"),
                ],
            },
            "fleet_variant": "one",
            "llm_server_launcher": "process",
            "baseline_workload": {
                **{"prompt_tokens": 8, "output_tokens": 16, "concurrency": [1], "requests": 1, "repeats": 2},
                **{"warmup_requests": 1, "warmup_cap_s": 1, "steady_share": 0.5},
            },
            "baseline_group": "fleet",
            "baseline_local_fact": "",
            "baseline_sample": False,
            "baseline_verify_files": False,
            # Rates on a busy machine are noisy; what is slow here is less than half as fast.
            "rollout_max_drop": 0.3,
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

    def run(self, *arguments: str, rc: int | None = 0, playbook: str = "rollout") -> str:
        inventory = {**self.inventory, "groundstate": {"hosts": self.hosts, "vars": self.variables}}
        path = self.folder / "inventory.yml"
        path.write_text(yaml.safe_dump(inventory))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["ansible-playbook", f"playbooks/{playbook}.yml", "-i", str(path), *arguments],
            cwd=ROOT,
            env={**environment, "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=550,
            check=False,
        )
        output = done.stdout + done.stderr
        assert rc is None or done.returncode == rc, output
        return output

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

    def end(self) -> None:
        for name in self.names:
            for item in servers.started_by_us(str(self.home(name)), "chat", procfs.processes()):
                os.kill(item.pid, signal.SIGKILL)


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
