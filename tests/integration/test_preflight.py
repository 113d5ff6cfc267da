"""preflight as users run it: a playbook with a small inventory, on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PLAYBOOK = """
- name: Check
  hosts: all
  gather_facts: false
  tasks:
    - name: Check everything that can be known before a change
      ansible.builtin.import_role:
        name: groundstate.llm.preflight
"""


class Place:
    """An inventory with one host, a playbook with the role, and folders of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = path / "state" / "groundstate"
        self.records = path / "controller" / "records"
        (path / "play.yml").write_text(PLAYBOOK)
        model = path / "model.gguf"
        model.write_bytes(b"GGUF" + bytes(100))
        self.variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "groundstate_home": str(self.home),
            "groundstate_records_dir": str(self.records),
            "ml_env_lock": "llama_cpp",
            "baseline_local_fact": "",
            "llm_server": {"name": "probe", "engine": "llama_cpp", "model": str(model), "gpus": []},
        }

    def run(self, *more: str) -> subprocess.CompletedProcess:
        inventory = {"all": {"hosts": {"node1": {}}, "vars": self.variables}}
        (self.path / "hosts.yml").write_text(yaml.safe_dump(inventory))
        program = os.path.join(os.path.dirname(sys.executable), "ansible-playbook")
        return subprocess.run(
            [program, "-i", str(self.path / "hosts.yml"), str(self.path / "play.yml"), *more],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"},
        )

    def problems(self) -> list[str]:
        """The numbered lines of the message; there must be some, and nothing may have been made."""
        done = self.run()
        assert done.returncode == 2, done.stdout + done.stderr
        assert not self.home.exists()
        assert not self.records.exists()
        said = (done.stdout + done.stderr).splitlines()
        start = next(n for n, line in enumerate(said) if "on node1, nothing was changed:" in line)
        lines = []
        for line in said[start + 1 :]:
            if not line.startswith(f"  {len(lines) + 1}. "):
                break
            lines.append(line.partition(". ")[2])
        assert f"{len(lines)} problem" in said[start]
        return lines


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def test_a_good_declaration_passes_also_in_check_mode_and_makes_nothing(place):
    for arguments in ((), ("--check",)):
        done = place.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "changed=0" in done.stdout
    assert not place.home.exists()
    assert not place.records.exists()


def test_everything_wrong_at_once_is_one_message(place, tmp_path):
    (tmp_path / "file").write_text("")
    place.variables.update(
        {
            "ml_env_lok": "llama_cpp",
            "groundstate_records_dir": str(tmp_path / "file" / "records"),
            "nccl_profile_name": "pcie",
            "baseline_tolerance": "lots",
            "llm_server_ready_timeout_s": "{{ my_timeout }}",
        }
    )
    place.variables["llm_server"].update(
        model=str(tmp_path / "nowhere.gguf"), engine="vllm", tensor_paralel=8, gpus="all"
    )
    found = place.problems()
    starts = [
        "ml_env_lok (",
        "baseline_tolerance (",
        "llm_server.tensor_paralel (",
        "llm_server_ready_timeout_s (",
        "nccl_profile_name (",
        "groundstate_records_dir (on the controller)",
    ]
    for start in starts:
        assert any(line.startswith(start) for line in found), (start, found)
    assert len(found) == len(starts)
    # Each names the line of the inventory it was written in.
    assert "hosts.yml:" in found[0]


def test_a_missing_model_an_occupied_port_and_a_bad_home_are_found_on_the_host(place, tmp_path):
    (tmp_path / "state").write_text("a file where the folder should go")
    place.variables["baseline_local_fact"] = str(tmp_path / "state" / "x.fact")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        place.variables["llm_server"].update(model=str(tmp_path / "nowhere.gguf"), port=port)
        found = place.problems()
    expected = [
        f"groundstate_home: {place.home} cannot be used: {tmp_path}/state is a file, not a folder.",
        f"llm_server.model: {tmp_path}/nowhere.gguf does not exist on the host.",
        f"llm_server.port: port {port} is taken (listening) by process {os.getpid()} (",
        f"baseline_local_fact: {tmp_path}/state/x.fact cannot be written: {tmp_path}/state is a file",
    ]
    assert [line[: len(start)] for line, start in zip(found, expected, strict=True)] == expected


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"gpus": [0], "engine": "sglang", "model": "org/name"}, "llm_server.gpus: sglang needs GPUs, and "),
        ({"model": "{root}"}, "llm_server.model: {root} is a folder. Name the GGUF file in it."),
        ({"model": "{root}/play.yml"}, "llm_server.model: {root}/play.yml is not a GGUF file"),
        ({"port": 99999}, "llm_server.port: 99999 is not a TCP port"),
        ({"api_key": "{{{{ vault_key }}}}"}, "llm_server.api_key ("),
    ],
)
def test_one_mistake_gives_its_one_sentence(place, tmp_path, change, start):
    if "gpus" in change and os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    filled = {
        key: value.replace("{root}", str(tmp_path)).replace("{{{{", "{{").replace("}}}}", "}}")
        if isinstance(value, str)
        else value
        for key, value in change.items()
    }
    place.variables["llm_server"].update(filled)
    found = place.problems()
    assert len(found) == 1
    assert found[0].startswith(start.replace("{root}", str(tmp_path)))


def test_an_environment_of_somebody_else_has_to_exist(place):
    place.variables.update(ml_env_lock="", ml_env_path="/nowhere/ml-env")
    found = place.problems()
    assert found == [
        "ml_env_path: /nowhere/ml-env does not exist on the host, and no lock is named to make it from. "
        "Correct the path, or choose a lock with ml_env_lock (llama_cpp, sglang_cu13, vllm_cpu, vllm_cu13)."
    ]


def test_no_space_on_a_real_small_filesystem(place, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        place.variables["groundstate_home"] = str(small / "gs")
        place.variables["ml_env_path"] = str(small / "gs" / "envs" / "llama_cpp")
        found = place.problems()
        assert os.listdir(small) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert [line.partition(":")[0] for line in found] == ["groundstate_home", "ml_env_path"]
    assert found[0].startswith(f"groundstate_home: 8 MiB are free at {small}/gs, 100 MiB are needed.")


def test_secrets_are_shown_nowhere(place):
    place.variables["llm_server"].update(secret_env={"HF_TOKEN": "hunter2-token"}, api_key="hunter2-key", port="x")
    done = place.run("-vvv")
    assert done.returncode == 2
    assert "llm_server.port" in done.stdout + done.stderr
    assert "hunter2" not in done.stdout + done.stderr


def test_an_unreachable_host_tells_what_else_is_wrong(place):
    place.variables.update(ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1, nccl_profile_name="pcie")
    done = place.run()
    assert done.returncode == 4
    assert "nccl_profile_name" in done.stdout + done.stderr
    assert "node1: unreachable: preflight" in done.stdout


def test_the_module_alone_takes_what_is_given(tmp_path):
    program = os.path.join(os.path.dirname(sys.executable), "ansible")
    arguments = {"home": str(tmp_path / "h"), "roles": ["gpu_state"], "needs": {"free_mib": 10**9}}
    done = subprocess.run(
        [
            *(program, "localhost", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}"),
            *("-m", "groundstate.llm.preflight", "-a", json.dumps(arguments)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "1000000000 MiB are needed" in done.stdout + done.stderr
