"""Several servers on one host: ports, limits, logs, and what is swept up when one of them ends."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import control, obstacles, plan, ports, procfs, servers
from ansible_collections.groundstate.llm.plugins.module_utils.declaration import complete

# Binds only after a while, as engines do after they have loaded; answers nothing.
LATE = """
import socket, sys, time
time.sleep(float(sys.argv[2]))
with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", int(sys.argv[1])))
    server.listen()
    print("listening", flush=True)
    time.sleep(600)
"""
# What vLLM's workers do: shared memory that is open and that nobody removes at an orderly end.
LEAVES = """
import os, sys, time
held = open(sys.argv[1], "w")
print("holding", flush=True)
time.sleep(600)
"""


def launch(host, script: str, *words: str, name: str = "late", **more):
    declared = {"name": name, "engine": "generic", "model": "m", "gpus": [], "port_from": 19500}
    declared["command"] = [sys.executable, "-c", script, *words]
    made = host.run("llm_server", launcher="process", declaration={**declared, **more.pop("fields", {})}, **more)
    assert not made["failed"], made
    return made


def wait_for(what) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def listening(made) -> bool:
    return "listening" in Path(made["log"]).read_text()


@pytest.fixture
def hosts(tmp_path, host):
    """Two homes on one machine, as two users or two inventories have them."""
    second = type(host)(tmp_path / "second")
    yield host, second
    second.end()


def test_two_launches_at_the_same_moment_get_two_ports(hosts):
    made = {}

    def run(number):
        made[number] = launch(hosts[number], LATE, "{port}", "0.7")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert made[0]["port"] != made[1]["port"]
    # Neither had bound its port when the other's was chosen; a third launch does not take one of them either.
    third = launch(hosts[0], LATE, "{port}", "0", name="third")
    assert third["port"] not in (made[0]["port"], made[1]["port"])
    for one in (*made.values(), third):
        wait_for(lambda one=one: listening(one))
        assert [use.pid for use in ports.who_has(one["port"])] == [one["pid"]]
    # A restart keeps its port; the port of a stopped server is free for others once nobody claims it.
    again = hosts[1].run("llm_server", server="late", state="stopped")
    assert again["changed"] is True
    claimed = {record.port: where for where, record in servers.live(procfs.processes()).items()}
    assert claimed[made[0]["port"]] == str(hosts[0].folder("late"))
    assert made[1]["port"] not in claimed


def test_a_gpu_that_a_server_of_another_home_uses_is_a_warning(hosts, tmp_path):
    dev = tmp_path / "dev"
    dev.mkdir()
    other = launch(hosts[1], "import time; time.sleep(600)", fields={"gpus": [0, 1]})

    def warned(host, *gpus):
        # Other tests of this machine may have servers, too.
        return [one for one in obstacles.gpu_warnings(str(host.home), {"gpus": gpus}, str(dev)) if str(tmp_path) in one]

    assert warned(hosts[0], 1, 2) == []  # no GPU at all
    (dev / "nvidia0").touch()
    [warning] = warned(hosts[0], 1, 2)
    assert warning.startswith(f"gpus: 1 also in use by our server 'late' (process {other['pid']}, {hosts[1].home}")
    assert warned(hosts[0], 2) == []
    assert warned(hosts[1], 1) == []  # in its own home it is an obstacle, not a warning
    hosts[1].run("llm_server", server="late", state="stopped")
    assert warned(hosts[0], 1) == []


def test_one_launch_at_a_time_has_its_turn():
    with ports.turn() as first:
        assert first is True
        with ports.turn(timeout_s=0.05) as second:
            assert second is False
    with ports.turn(timeout_s=0.05) as third:
        assert third is True


def test_logs_of_earlier_starts_are_kept_up_to_a_number(host):
    for number in range(3):
        launch(host, f"print({number}, flush=True); import time; time.sleep(600)", keep_logs=1, state="restarted")
        wait_for(lambda: (host.folder("late") / "server.log").read_text())
    kept = {path.name: path.read_text().split()[0] for path in host.folder("late").glob("server.log*")}
    assert kept == {"server.log": "2", "server.log.1": "1"}


def test_limits_are_as_high_as_they_may_be(host):
    made = launch(host, "import time; time.sleep(600)")
    lines = Path(f"/proc/{made['pid']}/limits").read_text().splitlines()
    limits = {line[:26].strip(): line[26:].split() for line in lines}
    soft, hard, _unit = limits["Max open files"]
    assert int(soft) == min(1048576, 1 << 40 if hard == "unlimited" else int(hard))
    soft, hard, _unit = limits["Max locked memory"]
    assert soft == hard


def test_shared_memory_of_ended_processes_goes_and_that_of_others_stays(host):
    mine, shared, foreign = (Path(f"/dev/shm/vllm_dist_{os.getpid()}_{name}") for name in ("mine", "shared", "foreign"))
    try:
        made = launch(host, LEAVES, str(mine))
        other = launch(host, LEAVES + "held", str(shared), name="other")
        with shared.open("w"), foreign.open("w"):
            for one in (made, other):
                wait_for(lambda one=one: "holding" in Path(one["log"]).read_text())
            for name in ("late", "other"):
                host.run("llm_server", server=name, state="absent")
            assert not mine.exists()
            assert shared.exists()  # this process has it open
            assert foreign.exists()  # none of the ended ones had it
    finally:
        for path in (mine, shared, foreign):
            path.unlink(missing_ok=True)


def test_a_port_that_a_stranger_takes_at_the_last_moment_is_given_up_for_the_next(host, monkeypatch):
    """The engine loses its port between choice and use, and says so at once: the next launch takes another one."""
    real = ports.free_port
    taken = []

    with socket.socket() as stranger:

        def free_port(*arguments, **options):
            port = real(*arguments, **options)
            if not taken:
                taken.append(port)
                stranger.bind(("127.0.0.1", port))
                stranger.listen()
            return port

        monkeypatch.setattr(ports, "free_port", free_port)
        declared = complete({"name": "late", "engine": "generic", "model": "m", "gpus": [], "port_from": 19540})
        declared["command"] = [sys.executable, "-c", LATE, "{port}", "0"]

        def planned(port):
            return plan.make_plan(declared, "", port, {"PATH": os.environ["PATH"]}, {}, "", "process")

        monkeypatch.setattr(control, "EARLY_DEATH_S", 5.0)
        made = control.launch(str(host.home), declared, planned, 5)
        assert made.port not in taken
        assert "Address already in use" in (host.folder("late") / "server.log.1").read_text()
        assert made.running()
