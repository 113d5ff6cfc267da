"""Other controllers than a shell: the execution environment for ansible-builder, and a worker of ansible-runner."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
VERSION = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["version"]


def run(*words: str | Path, cwd: Path, into: str = "", codes: tuple[int, ...] = (0,), **settings: str) -> str:
    """Run a command with nothing of the caller's Ansible; what it said."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "GROUNDSTATE_"))
    }
    environment |= {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(cwd), "NO_COLOR": "1", **settings}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        input=into,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in codes, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the work tree with the built collection in dist/, as the file's head says."""
    copy = tmp_path_factory.mktemp("controllers") / "tree"
    subprocess.run([ROOT / "scripts" / "export.sh", copy], check=True)
    run("ansible-galaxy", "collection", "build", "--output-path", "dist", cwd=copy)
    return copy


@pytest.fixture(scope="module")
def installed(tree: Path) -> Path:
    """A folder of collections that has this one, as ansible-galaxy installs it."""
    folder = tree.parent / "collections"
    tarball = tree / "dist" / f"groundstate-llm-{VERSION}.tar.gz"
    words = ("ansible-galaxy", "collection", "install", "--offline", tarball, "-p", folder)
    run(*words, cwd=tree.parent, ANSIBLE_COLLECTIONS_PATH=str(folder), ANSIBLE_COLLECTIONS_SCAN_SYS_PATH="false")
    return folder


def test_ansible_builder_makes_the_context_of_the_execution_environment(tree: Path, tmp_path: Path):
    run("ansible-builder", "create", "--context", tmp_path / "context", "--output-filename", "Containerfile", cwd=tree)
    steps = (tmp_path / "context" / "Containerfile").read_text(encoding="utf-8")
    asked = yaml.safe_load((tmp_path / "context" / "_build" / "requirements.yml").read_text(encoding="utf-8"))
    (collection,) = asked["collections"]
    # The context's _build becomes /build: the collection that is asked for is the one that was built, and put there.
    assert "ADD _build /build" in steps or "COPY _build /build" in steps
    with tarfile.open(tmp_path / "context" / "_build" / Path(collection["name"]).relative_to("/build")) as archive:
        assert "MANIFEST.json" in archive.getnames()
    assert collection["name"].endswith(f"groundstate-llm-{VERSION}.tar.gz")
    ranges = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = yaml.safe_load((tree / "execution-environment.yml").read_text(encoding="utf-8"))["dependencies"]
    for name in ("ansible_core", "ansible_runner"):
        assert f'"{declared[name]["package_pip"]}"' in ranges
        assert declared[name]["package_pip"] in steps


def test_ansible_builder_finds_what_the_collection_needs(installed: Path, tmp_path: Path):
    said = yaml.safe_load(run("ansible-builder", "introspect", installed, cwd=tmp_path).partition("---\n")[2])
    wanted = {line.split("#")[0].strip() for line in said["python"]}
    dependencies = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert {one.partition(">")[0] for one in wanted} == {"proxmoxer", "requests"}
    assert all(f'"{one}"' in dependencies for one in wanted)
    assert any(line.startswith("openssh-clients") for line in said["system"])


class Site:
    """A private data folder of ansible-runner, a worker elsewhere that has the collection, and the way between them."""

    def __init__(self, folder: Path, installed: Path, playbook: str, variables: dict) -> None:
        self.sent, self.worker, self.back = (folder / name for name in ("sent", "worker", "back"))
        for one in (self.worker, self.back, self.sent / "project", self.sent / "inventory"):
            one.mkdir(parents=True)
        play = [{"ansible.builtin.import_playbook": f"groundstate.llm.{playbook}"}]
        (self.sent / "project" / "site.yml").write_text(json.dumps(play), encoding="utf-8")
        hosts = {"local": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}
        inventory = {"groundstate": {"hosts": hosts, "vars": variables}}
        (self.sent / "inventory" / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
        self.installed = installed

    def go(self, *more: str, code: int = 0) -> Path:
        """Transmit, work, process; the artifacts that came back. ``more`` are for ansible-playbook."""
        asked = ("-p", "site.yml", "--ident", "one", *(["--cmdline", " ".join(more)] if more else []))
        stream = run("ansible-runner", "transmit", self.sent, *asked, cwd=self.sent)
        words = ["ansible-runner", "worker", "--private-data-dir", str(self.worker / "private")]
        if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip"):
            # Neither a folder nor a network to share with whoever sent the work.
            inside = 'mount -t tmpfs none "$1" && ip link set lo up && shift && exec "$@"'
            probe = ["unshare", "--mount", "--net", "sh", "-c", inside, "sh", str(self.sent)]
            if subprocess.run([*probe, "true"], capture_output=True, check=False).returncode == 0:
                words = [*probe, *words]
        settings = {"ANSIBLE_COLLECTIONS_PATH": str(self.installed), "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false"}
        answer = run(*words, cwd=self.worker, into=stream, codes=(code,), **settings)
        run("ansible-runner", "process", self.back, "--ident", "one", cwd=self.back, into=answer, codes=(0, code))
        return self.back / "artifacts" / "one"


def test_a_worker_of_ansible_runner_checks_a_host(installed: Path, tmp_path: Path):
    variables = {
        "groundstate_home": str(tmp_path / "home"),
        "groundstate_records_dir": str(tmp_path / "records"),
        "ml_env_lock": "",
        "ml_env_path": sys.prefix,
        "llm_server": {"name": "remote", "engine": "generic", "model": "some", "command": ["/bin/true"], "gpus": []},
    }
    for name, code, said in (("good", 0, "ok=1 "), ("bad", 2, "no such variable in any role of groundstate.llm")):
        site = Site(tmp_path / name, installed, "deploy_baseline", variables)
        artifacts = site.go("--tags", "preflight", code=code)
        output = (artifacts / "stdout").read_text(encoding="utf-8")
        assert ((artifacts / "rc").read_text(), said in output) == (str(code), True), output
        events = [json.loads(one.read_text(encoding="utf-8")) for one in (artifacts / "job_events").glob("*.json")]
        hosts = {one["event_data"].get("host") for one in events if one["event"].startswith("runner_on_")}
        assert hosts == {"local"}
        variables["ml_env_pathh"] = "wrong"


@pytest.mark.slow(reason="a whole main job with an engine: its first measurement")
def test_the_record_of_a_worker_comes_back_with_its_artifacts(
    installed: Path, llama_env: Path, llama_model: Path, tmp_path: Path
):
    variables = {
        "groundstate_home": str(tmp_path / "home"),
        # What lies in this folder is sent back.
        "groundstate_records_dir": "{{ lookup('ansible.builtin.env', 'AWX_ISOLATED_DATA_DIR') }}/records",
        "ml_env_lock": "",
        "ml_env_path": str(llama_env),
        "baseline_local_fact": "",
        "baseline_workload": {"output_tokens": 48, "repeats": 3, "warmup_requests": 1, "warmup_cap_s": 0},
        "llm_server": {
            "name": "remote",
            "engine": "llama_cpp",
            "model": str(llama_model),
            "gpus": [],
            "port_from": 19700,
        },
        "llm_server_launcher": "process",
    }
    try:
        artifacts = Site(tmp_path / "deploy", installed, "deploy_baseline", variables).go()
        assert (artifacts / "rc").read_text() == "0", (artifacts / "stdout").read_text()
        (record,) = [one for one in (artifacts / "records" / "local").glob("*.json") if one.name != "baseline.json"]
        assert json.loads(record.read_text(encoding="utf-8"))["measurement"]["headline"]["value"] > 0
    finally:
        Site(tmp_path / "teardown", installed, "teardown", variables).go()
    assert not (tmp_path / "home").exists()
