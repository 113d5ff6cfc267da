"""speculation.yml as a user runs it: refused where it cannot be, right where the truth is known, and for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs, servers
from killing import kill_if_there

ROOT = Path(__file__).resolve().parents[2]
ENGINE = [sys.executable, str(ROOT / "tests" / "integration" / "speculating_engine.py")]
EAGLE = {"algorithm": "EAGLE3", "draft_model": "some/draft", "num_steps": 1, "topk": 1, "draft_tokens": 2}


class Bed:
    """Runs the playbook with an inventory, state and records of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.records = folder, folder / "home", folder / "records"
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        self.environment.update(
            {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "ANSIBLE_NOCOLOR": "1",
                "GROUNDSTATE_HOME": str(self.home),
                "GROUNDSTATE_RECORDS": str(self.records),
            }
        )
        self.inventory: list[str] = []

    def stand_in(self) -> None:
        """A machine whose SGLang is the engine of known speculation: 10 ms a token, or 60 ms a cycle of 2 tokens."""
        variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "groundstate_home": str(self.home),
            "groundstate_records_dir": str(self.records),
            "ml_env_lock": "",
            "ml_env_path": str(self.folder / "env"),
            "gpu_state_gpus": [],
            "nccl_profile_name": "stock",
            "baseline_local_fact": "",
            "llm_server_launcher": "process",
            "llm_server": {
                "name": "local",
                "engine": "sglang",
                "model": "some/model",
                "served_model_name": "mock",
                "port_from": 19700,
                "gpus": [],
                "command": ENGINE,
            },
            "baseline_workload": {
                "prompt_tokens": 16,
                "output_tokens": 101,
                "repeats": 2,
                "warmup_requests": 1,
                "warmup_cap_s": 2,
                "steady_share": 0.5,
            },
        }
        path = self.folder / "hosts.json"
        path.write_text(json.dumps({"groundstate": {"hosts": {"local": {}}, "vars": variables}}))
        self.inventory = ["-i", str(path)]

    def run(self, *arguments: str, rc: int = 0, **variables) -> str:
        words = ["ansible-playbook", "playbooks/speculation.yml", *self.inventory, "-e", json.dumps(variables)]
        done = subprocess.run(
            [*words, *arguments],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode == rc, done.stdout
        return done.stdout

    def document(self) -> dict:
        (path,) = self.records.glob("local/comparisons/*/comparison.json")
        return json.loads(path.read_text())

    def end(self) -> None:
        for item in servers.started_by_us(str(self.home), "local", procfs.processes()):
            kill_if_there(item.pid)


@pytest.fixture
def bed(tmp_path):
    made = Bed(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"speculation_configurations": []}, "speculation_configurations is empty"),
        (
            {"speculation_configurations": [{"name": "eagle3", "speculation": {"algorithm": "EAGLE3"}}]},
            "speculation.draft_model: EAGLE needs a draft model; SGLang crashes without one",
        ),
        (
            {"speculation_configurations": [{"name": "eagle3", "speculation": EAGLE}], "compare_kind": "compare"},
            "compare_kind: given with -e, and wins over what is to be compared here",
        ),
        (
            {
                "speculation_configurations": [{"name": "eagle3", "speculation": EAGLE}],
                "compare_arms": [{"name": "q"}, {"name": "r"}],
            },
            "compare_arms: given with -e, and wins over what is to be compared here",
        ),
        (
            {
                "speculation_configurations": [{"name": "eagle3", "speculation": EAGLE}],
                "compare_profiles": ["stock", "pcie_ll_ring"],
            },
            "compare_arms and compare_profiles are given",
        ),
    ],
)
@pytest.mark.parametrize("check", [(), ("--check",)], ids=["run", "check"])
def test_what_cannot_be_compared_is_refused_before_anything_is_changed(bed, variables, says, check):
    bed.stand_in()
    output = bed.run(*check, rc=2, **variables)
    assert says in " ".join(output.split())
    assert not bed.home.exists()


@pytest.mark.slow  # six starts of a server, each with the roles around it: a minute or two, ten on a busy machine
@pytest.mark.timeout(1800)
def test_a_speculation_of_known_figures(bed):
    """2 tokens in 60 ms against 10 ms a token: it breaks even at 6 tokens, which one draft can never give."""
    bed.stand_in()
    configurations = [{"name": "eagle3", "speculation": EAGLE}]
    output = bed.run(speculation_configurations=configurations, compare_looks=[3], compare_leave="stopped")
    found = bed.document()["speculation"]
    (one,) = found["configurations"]
    assert (found["base"], found["blocks"], one["arm"]) == ("base", 3, "eagle3")
    assert (one["verdict"], one["drafts"]) == ("does not pay", 1)
    assert one["accept_length"]["value"] == pytest.approx(2.0)
    assert one["acceptance_per_position"] == [1.0]
    # A busy machine adds to either, but not the factor of six that lies between them.
    assert one["break_even"]["value"] == pytest.approx(one["cycle_s"]["value"] / found["base_step_s"])
    assert one["break_even"]["value"] > 2.0
    assert one["needed_acceptance"] is None
    assert one["ceiling"] == pytest.approx(2.0 / one["break_even"]["value"])
    assert "no draft of 1 can pay at this cycle" in one["would_pay_if"][0]
    assert {"synthetic prompts"} <= {trap["name"] for trap in one["traps"]}
    assert "eagle3      DOES NOT PAY: speed-up 0." in output
    again = bed.run(speculation_configurations=configurations, compare_looks=[3], compare_leave="stopped")
    assert bed.document()["speculation"] == found
    assert "DOES NOT PAY" in again


@pytest.mark.alone
@pytest.mark.slow  # nine starts of a real engine: some five minutes, a quarter of an hour on a busy machine
@pytest.mark.timeout(1800)
def test_the_local_default_for_real(bed, llama_env):
    """A model as its own draft: everything is accepted, and a draft costs as much as a token, so it cannot pay."""
    output = bed.run(
        ml_env_path=str(llama_env),
        compare_looks=[3],
        compare_leave="stopped",
        baseline_workload={
            "prompt_tokens": 32,
            "output_tokens": 48,
            "repeats": 2,
            "warmup_requests": 1,
            "warmup_cap_s": 3,
            "steady_share": 1.0,
        },
    )
    document = bed.document()
    assert len(document["starts"]) == 9
    found = {one["arm"]: one for one in document["speculation"]["configurations"]}
    assert set(found) == {"ngram", "itself"}
    itself = found["itself"]
    assert 3.5 < itself["accept_length"]["value"] <= 4.0
    assert itself["drafts"] == 3
    # Four passes of the model for four tokens, and what drafting adds: how much slower that is, the machine decides.
    assert itself["verdict"] != "pays"
    ratio = itself["accept_length"]["value"] / itself["break_even"]["value"]
    assert itself["speedup"]["value"] == pytest.approx(ratio)
    assert found["ngram"]["accept_length"]["value"] >= 1.0
    assert {"short answers", "few cycles", "synthetic prompts"} <= {trap["name"] for trap in itself["traps"]}
    assert "itself      DOES NOT PAY" in output or "itself      INCONCLUSIVE" in output
