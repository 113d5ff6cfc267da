"""One server over two hosts: what each node is told, in which order, and the proof that all of them are there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import model_folder, ports, procfs, servers
from ansible_collections.groundstate.llm.plugins.module_utils.tiny_llama import Shape, model_files

ROOT = Path(__file__).resolve().parents[2]

# A node as SGLang has it: all nodes meet at the head's address before anything serves, each has its own share of the
# workers, and only the head has the API.
NODE = """
import argparse, signal, socket, subprocess, sys, time
options = argparse.ArgumentParser()
for name in ("--nnodes", "--node-rank", "--tp-size", "--port"):
    options.add_argument(name, type=int)
for name in ("--dist-init-addr", "--model-path", "--host", "--served-model-name"):
    options.add_argument(name)
given = options.parse_args()
share = given.tp_size // given.nnodes
where = given.dist_init_addr.rsplit(":", 1)
meeting = (where[0], int(where[1]))
workers = [
    subprocess.Popen([f"sglang::scheduler_TP{rank}", "-c", "import time; time.sleep(600)"], executable=sys.executable)
    for rank in range(given.node_rank * share, (given.node_rank + 1) * share)
]
def end(*_):
    for worker in workers:
        worker.kill()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("Init torch distributed begin.", flush=True)
if given.node_rank == 0:
    with socket.create_server(meeting) as server:
        met = [server.accept()[0] for _other in range(given.nnodes - 1)]
else:
    while True:
        try:
            met = [socket.create_connection(meeting)]
            break
        except OSError:
            time.sleep(0.05)
print("max_total_num_tokens=4096", flush=True)

if given.node_rank == 0:
    from ansible_collections.groundstate.llm.plugins.module_utils.known_server import Server, Settings
    from ansible_collections.groundstate.llm.plugins.module_utils.self_check import new_loop
    loop, _name = new_loop()
    loop.run_until_complete(Server(Settings(model=given.served_model_name)).listen(given.port))
    loop.run_forever()
while True:
    time.sleep(1)
"""
PLAY = """
- hosts: kimi
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: groundstate.llm.llm_server}
      tags: [up]
    - ansible.builtin.import_role: {name: groundstate.llm.llm_server, tasks_from: info}
      tags: [look, never]
"""


def tiny(folder: Path) -> Path:
    """Make a model with random weights; returns its folder."""
    shape = Shape(seed=0, layers=2, hidden=128, vocabulary=1024)
    model_folder.replace(str(folder), model_files(shape), {"hash": shape.hash()})
    return folder


@pytest.fixture
def nodes(tmp_path, host):
    """Two stand-in hosts: two homes on this machine. Returns (run the play, their homes)."""
    second = type(host)(tmp_path / "second")
    api, meeting = ports.free_port(19620), ports.free_port(19660)
    together = {"hosts": "{{ groups['kimi'] }}", "this": "{{ inventory_hostname }}", "head": "127.0.0.1"}
    declared = {
        "name": "kimi",
        "engine": "sglang",
        "model": str(tiny(tmp_path / "tiny")),
        "served_model_name": "k",
        "tensor_parallel": 4,
        "port": f"{{{{ {api} + groups['kimi'].index(inventory_hostname) }}}}",
        "gpus": [],
        "command": [sys.executable, "-c", NODE],
        "env": {"PYTHONPATH": str(ROOT / "playbooks" / "collections")},
        "multi_host": {**together, "port": meeting},
    }
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "llm_server": declared,
        "llm_server_launcher": "process",
        "llm_server_ready_timeout_s": 60,
        # For the whole main job:
        "groundstate_records_dir": str(tmp_path / "records"),
        "ml_env_lock": "",
        "ml_env_path": sys.prefix,
        "nccl_profile_name": "pcie_ll_ring",
        "baseline_workload": {
            **{"prompt_tokens": 16, "output_tokens": 8, "concurrency": [1], "requests": 1, "repeats": 2},
            **{"warmup_requests": 1, "warmup_cap_s": 2},
        },
    }
    homes = {"first": {"groundstate_home": str(host.home)}, "second": {"groundstate_home": str(second.home)}}
    (tmp_path / "hosts.json").write_text(
        json.dumps({"groundstate": {"children": {"kimi": {"hosts": homes, "vars": common}}}})
    )
    (tmp_path / "play.yml").write_text(PLAY)

    program = str(Path(sys.executable).with_name("ansible-playbook"))

    def play(*arguments, playbook=tmp_path / "play.yml"):
        return subprocess.run(
            [program, "-i", tmp_path / "hosts.json", playbook, *arguments],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        ).stdout

    yield play, (host, second)
    second.end()


@pytest.mark.slow  # three playbook runs on two hosts; the command lines of the nodes are tested in tests/unit
def test_two_hosts_serve_together(nodes):
    play, homes = nodes
    first = play()
    records = [servers.load(str(one.home), "kimi") for one in homes]
    assert None not in records, first
    assert first.count("failed=0") == 2, first
    for rank, record in enumerate(records):
        words = record.argv[record.argv.index("--nnodes") :]
        assert words[:4] == ["--nnodes", "2", "--node-rank", str(rank)]
        assert words[4:6] == ["--dist-init-addr", f"127.0.0.1:{record.declaration['multi_host']['port']}"]
    # Head first.
    assert records[0].launched_at < records[1].launched_at
    # Each node has its own share of the ranks, and only the head was asked for a completion.
    looks = [one.run("llm_server_info", server="kimi", require_healthy=True) for one in homes]
    assert [[worker["rank"] for worker in one["workers"]] for one in looks] == [[0, 1], [2, 3]]
    assert [sorted(one["probes"]) for one in looks] == [["completion", "health", "models"], []]
    assert [one["health"] for one in looks] == ["healthy", "healthy"]

    second = play()
    assert second.count("changed=0") == 2, second

    # A node that loses a worker is found, though the head answers.
    os.kill(looks[1]["workers"][1]["pid"], 9)
    broken = play("--tags", "look")
    assert "first: server kimi: healthy" in broken
    assert "worker    rank 1" in broken
    assert "server 'kimi' is incomplete: 1 of 2 workers are gone" in broken
    assert broken.count("failed=1") == 1


@pytest.mark.slow  # the whole main job on two hosts, and a second measurement
def test_every_node_is_proved_and_the_head_is_measured(nodes, tmp_path):
    play, homes = nodes
    said = play(playbook="playbooks/deploy_baseline.yml")
    assert said.count("failed=0") == 2, said
    assert "first: baseline" in said, said
    assert "second: baseline" not in said
    records = sorted((tmp_path / "records").glob("*/*.json"))
    assert {path.parent.name for path in records} == {"first"}, records
    proofs = [one.run("nccl_proof", server="kimi", policy="warn") for one in homes]
    assert [one["verdict"] for one in proofs] == ["proved", "proved"], proofs
    again = play(playbook="playbooks/benchmark.yml")
    assert again.count("failed=0") == 2, again
    assert "second: baseline" not in again
    assert "first: baseline" in again


# --- a real engine -------------------------------------------------------------------------------


def ip(*words: str) -> str:
    """Run ip; returns why it failed, "" when it did not."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"status {done.returncode}") if done.returncode else ""


@pytest.fixture
def networks():
    """Two network namespaces that reach each other, as (name, address, interface); skipped where none can be made."""
    tag = f"gs{os.getpid() % 100000}"
    made = [(f"{tag}{end}", f"10.213.77.{number}", f"{tag}{end}v") for number, end in enumerate("ab", 1)]
    if shutil.which("ip") is None:
        pytest.skip("ip (iproute2) is not installed")
    try:
        for name, _address, _interface in made:
            why = ip("netns", "add", name)
            if why:
                pytest.skip(f"no network namespace can be made here: {why}")
        (one, _, left), (other, _, right) = made
        assert not ip("link", "add", left, "netns", one, "type", "veth", "peer", "name", right, "netns", other)
        for name, address, interface in made:
            inside = ("-n", name)
            assert not ip(*inside, "address", "add", f"{address}/24", "dev", interface)
            assert not ip(*inside, "link", "set", interface, "up")
            assert not ip(*inside, "link", "set", "lo", "up")
        yield made
    finally:
        for name, _address, _interface in made:
            ip("netns", "delete", name)


@pytest.mark.slow  # imports vLLM four times and starts it twice
@pytest.mark.alone
@pytest.mark.timeout(1500)
def test_vllm_serves_from_two_network_namespaces(networks, vllm_env, tmp_path, host):
    model = tiny(tmp_path / "tiny")
    nodes = []
    try:
        for number, (name, address, interface) in enumerate(networks):
            node = type(host)(tmp_path / name, ("ip", "netns", "exec", name))
            nodes.append(node)
            declared = {"name": "v", "engine": "vllm", "model": str(model), "served_model_name": "tiny", "gpus": []}
            declared.update({"tensor_parallel": 2, "context_length": 512, "port": 8000, "host": address})
            declared["multi_host"] = {"hosts": ["a", "b"], "this": "ab"[number], "head": networks[0][1]}
            declared["extra_args"] = {"kv-cache-memory-bytes": 67108864, "enforce-eager": True, "max-num-seqs": 4}
            declared["env"] = {"VLLM_CPU_OMP_THREADS_BIND": str(number % (os.cpu_count() or 1))}
            declared["env"].update({"VLLM_HOST_IP": address, "GLOO_SOCKET_IFNAME": interface})
            made = node.run("llm_server", env_path=str(vllm_env), launcher="process", declaration=declared)
            assert not made["failed"], made
            assert made["arguments"]["checked"] is True, made["arguments"]
        for node in nodes:
            ready = node.run("llm_server_ready", server="v", timeout_s=500, slice_s=0)
            assert ready.get("ready") is True, ready
        looks = [node.run("llm_server_info", server="v", require_healthy=True) for node in nodes]
        assert [[worker["title"] for worker in one["workers"]] for one in looks] == [
            ["VLLM::Worker_TP0"],
            ["VLLM::Worker_TP1"],
        ]
        assert looks[0]["probes"]["completion"]["status"] == 200
        os.kill(looks[1]["workers"][0]["pid"], signal.SIGKILL)
        broken = nodes[1].run("llm_server_info", server="v")
        assert broken["health"] in ("incomplete", "dead"), broken
    finally:
        trees = [item for node in nodes for item in node.ours("v")]
        for node in nodes:
            node.run("llm_server", server="v", state="absent")
        assert not [item for item in trees if procfs.alive(item.pid, item.start)]
