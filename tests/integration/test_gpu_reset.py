"""The reset on a stand-in GPU host: real processes hold nodes named /dev/nvidia*, and a driver counts their memory.

The host is a private mount and process namespace, so that nothing outside can be seen, ended or left behind.
"""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import ending, files, procfs, servers
from gpu_host import DATA, Host, can_unshare

pytestmark = pytest.mark.skipif(not can_unshare(), reason="needs root and private mount and process namespaces")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    one = Host(tmp_path)
    yield one
    one.close()


def kinds(result: dict[str, Any], key: str = "ended") -> dict[int, str]:
    return {one["pid"]: one["kind"] for one in result[key]}


def test_exactly_the_stale_processes_end(host: Host):
    own = {"GROUNDSTATE_START": "old", "GROUNDSTATE_SERVER": servers.folder(str(host.home), "gone")}
    (plain,) = host.job("--open", "/dev/nvidia0", "--shm", "psm_plain")
    (stubborn,) = host.job("--map", "/dev/nvidia1", "--ignore-term")
    parent, worker = host.job("--worker", "sglang::scheduler_TP0", "--open", "/dev/nvidia0")
    (orphan,) = host.job("--detach", env=own)
    (bystander,) = host.job()  # Python, but holds nothing
    foreign = host.foreign("nvidia1")
    driver = host.start("sh", "-c", f"exec 3</dev/nvidia0; exec {host.bin}/nvidia-persistenced 1000000")
    host.record("gone")
    stale, others = [plain, stubborn, worker, orphan], [parent, bystander, foreign, driver]
    host.tell_driver(memory={str(foreign): 10, str(driver): 3}, late=3)

    planned = host.module(check=True)
    assert planned["changed"] is True, planned
    assert kinds(planned) == {plain: "python", stubborn: "python", worker: "engine", orphan: "orphan"}
    assert host.alive(*stale, *others) == [*stale, *others]

    done = host.module()
    assert done["failed"] is False, done.get("msg")
    assert kinds(done) == kinds(planned)
    assert {one["pid"]: one["how"] for one in done["ended"]}[stubborn] == "killed"
    assert {one["pid"]: one["how"] for one in done["ended"]}[plain] == "exited on TERM"
    assert host.alive(*stale, *others) == others
    assert kinds(done, "left") == {foreign: "unnamed", driver: "protected"}
    assert done["removed"] == ["/dev/shm/psm_plain"]
    assert [one["memory_used"] for one in done["before"]["gpus"]] == [2003 * 2**20, 1010 * 2**20]
    assert [one["memory_used"] for one in done["after"]["gpus"]] == [3 * 2**20, 10 * 2**20]

    again = host.module()
    assert (again["changed"], again["ended"], again["removed"]) == (False, [], [])
    assert host.alive(*others) == others


def test_the_playbook_changes_nothing_the_second_time(host: Host):
    (job,) = host.job("--open", "/dev/nvidia0")
    inventory = host.folder / "hosts.yml"
    line = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    variables = {"groundstate_home": str(host.home), "gpu_state_grace_s": 1}
    files.write_json(str(inventory), {"groundstate": {"hosts": {"one": line}, "vars": variables}})
    command = ("ansible-playbook", "-i", str(inventory), "playbooks/reset_gpus.yml", "--diff")

    check = host.run(*command, "--check")
    assert f"-stale process {job}: " in check
    assert "changed=1" in check
    assert host.alive(job) == [job]
    assert "changed=1" in host.run(*command)
    assert host.alive(job) == []
    assert "changed=0" in host.run(*command, "--tags", "gpu_state")


def test_an_engine_ends_through_its_server(host: Host):
    package = host.folder / "packages" / "sglang"
    package.mkdir(parents=True)
    shutil.copy(DATA / "job.py", package / "launch_server.py")
    program = (sys.executable, "-m", "sglang.launch_server")
    server, worker = host.job(
        "--worker",
        "sglang::scheduler_TP0",
        "--open",
        "/dev/nvidia0",
        "--respawn",
        program=program,
        env={"PYTHONPATH": str(package.parent)},
    )
    done = host.module()
    assert kinds(done) == {server: "engine", worker: "engine"}
    assert {one["pid"]: one["how"] for one in done["ended"]}[server] == "exited on TERM"
    assert host.alive(server, worker) == []


def test_a_kept_server_is_left_wholly_alone_but_not_its_dead_starts(host: Host):
    where = servers.folder(str(host.home), "mine")
    variables = {"GROUNDSTATE_SERVER": where, "GROUNDSTATE_START": "new"}
    root, worker = host.job("--worker", "VLLM::Worker_TP0", "--open", "/dev/nvidia0", env=variables)
    (old,) = host.job("--detach", "--open", "/dev/nvidia1", env={**variables, "GROUNDSTATE_START": "old"})
    host.record("mine", root, port=8000)

    kept = host.module(keep_servers=["mine"], policy="all")
    assert kept["failed"] is False, kept.get("msg")  # the memory of a kept server is no reason to fail
    assert kinds(kept) == {old: "orphan"}
    assert kinds(kept, "left") == {worker: "kept"}
    assert host.alive(root, worker, old) == [root, worker]
    assert servers.load(str(host.home), "mine").state == "launched"
    assert host.module(keep_servers=["mine"])["changed"] is False

    ended = host.module()
    assert kinds(ended) == {root: "server", worker: "server"}
    assert servers.load(str(host.home), "mine").state == "stopped"
    assert ended["after"]["servers"] == {}


def test_a_reused_process_number_is_not_the_recorded_server(host: Host):
    (stranger,) = host.job()
    host.record("mine", stranger)
    record = servers.load(str(host.home), "mine")
    record.pid_start += 1
    servers.save(str(host.home), record)
    assert host.module(policy="all")["ended"] == []
    item = procfs.process(stranger, host.proc)
    # The same between look and signal: the process that has the number now is not the one that was meant.
    meant = procfs.Process(**{**item.__dict__, "start": item.start - 1})
    assert ending.end([meant], [meant], 0.1, proc=host.proc)[0].how == "was gone"
    assert host.alive(stranger) == [stranger]


def test_memory_that_a_foreign_process_has_is_a_failure_that_names_it(host: Host):
    foreign = host.foreign("nvidia1")
    done = host.module()
    assert done["failed"] is True
    assert "GPU 1: 1000 MiB still used, at most 64 MiB expected when idle" in done["msg"]
    assert f"held by process {foreign} (sleep 1000000), policy stale does not name it" in done["msg"]
    assert host.alive(foreign) == [foreign]
    assert host.module(gpus=["0"])["failed"] is False
    assert kinds(host.module(policy="all")) == {foreign: "holder"}


def test_memory_without_a_visible_owner_is_a_failure_that_says_so(host: Host):
    host.tell_driver(hidden={"0": 700})
    done = host.module(drain_timeout_s=0.3)
    assert done["failed"] is True
    assert "GPU 0: 700 MiB still used" in done["msg"]
    assert "no visible owner: another container or PID namespace" in done["msg"]
    assert "Restart the container" in done["msg"]


def test_without_the_drivers_list_a_partial_scope_leaves_the_doubtful(host: Host):
    (both,) = host.job("--open", "/dev/nvidia0", "--open", "/dev/nvidia1")
    host.tell_driver(list=False)
    done = host.module(gpus=["GPU-stand-in-0"])
    assert done["failed"] is True
    assert kinds(done, "left") == {both: "doubtful"}
    assert host.alive(both) == [both]
    assert kinds(host.module()) == {both: "python"}


def test_what_comes_back_again_and_again_is_named(host: Host):
    _parent, worker = host.job("--worker", "sglang::scheduler_TP0", "--open", "/dev/nvidia0", "--respawn")
    done = host.module(drain_timeout_s=0.3)
    assert done["failed"] is True
    assert done["ended"][0]["pid"] == worker
    assert len(done["ended"]) == 3
    assert "was started again after each of 3 attempts; end what starts it first" in done["msg"]


def test_a_hung_driver_changes_nothing(host: Host):
    (job,) = host.job("--open", "/dev/nvidia0")
    host.tell_driver(hang=True)
    done = host.module(query_timeout_s=0.5)
    assert done["failed"] is True
    assert "nothing was changed" in done["msg"]
    assert "did not answer in 0.5 s" in done["msg"]
    assert host.alive(job) == [job]
    seen = host.module("gpu_info", query_timeout_s=0.5)
    assert (seen["failed"], seen["available"], seen["gpus"]) == (False, "unknown", [])


def test_an_unknown_gpu_is_refused_before_anything(host: Host):
    (job,) = host.job("--open", "/dev/nvidia0")
    done = host.module(gpus=["0", "5"])
    assert "gpus: no GPU 5 on this host; there: 0 (GPU-stand-in-0), 1 (GPU-stand-in-1)" in done["msg"]
    assert host.alive(job) == [job]


def test_a_port_of_a_foreign_process_is_a_failure_that_names_it(host: Host):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening; its owner is outside of the namespace
        port = taken.getsockname()[1]
        done = host.module(ports=[port])
    assert done["failed"] is True
    assert f"port {port} is taken by a process that is not visible, bound" in done["msg"]
    assert host.module(ports=[port])["failed"] is False


def test_facts(host: Host):
    (job,) = host.job("--open", "/dev/nvidia0")
    host.tell_driver(hidden={"1": 300})
    seen = host.module("gpu_info")
    assert (seen["available"], seen["driver"], seen["changed"]) == (True, "580.0", False)
    first, second = seen["gpus"]
    assert (first["uuid"], first["memory_used"], first["owner"], first["pids"]) == (
        "GPU-stand-in-0",
        1000 * 2**20,
        "visible",
        [job],
    )
    assert (second["owner"], second["pids"]) == ("not visible", [])
    (process,) = seen["processes"]
    item = procfs.process(job, host.proc)
    assert (process["pid"], process["start"], process["gpus"]) == (job, item.start, [0])
    assert process["gpu_memory"] == 1000 * 2**20


def test_the_idle_level_of_the_host_is_recorded_at_the_first_clean_state(host: Host):
    host.tell_driver(hidden={"0": 40})
    assert host.module()["failed"] is False
    recorded = files.read_json(str(host.home / "cache" / "gpu_idle.json"))
    assert recorded["gpus"] == {"GPU-stand-in-0": 40 * 2**20, "GPU-stand-in-1": 0}
    host.tell_driver(hidden={"0": 100, "1": 100})
    done = host.module(drain_timeout_s=0.2)
    assert "GPU 1: 100 MiB still used" in done["msg"]
    assert "GPU 0" not in done["msg"]


def keeper(host: Host) -> int:
    return host.start("sh", "-c", f"exec 3</dev/nvidia0; exec {host.bin}/nvidia-persistenced 1000000")


def test_what_the_driver_tells_of_a_protected_process_is_no_memory_to_wait_for(host: Host):
    """A keeper of 1,131 MiB beside stale jobs: seen on an H200, where each reset waited two minutes, and failed."""
    (stale,) = host.job("--open", "/dev/nvidia0")
    protected = keeper(host)
    host.tell_driver(memory={str(protected): 1131}, late=2)
    done = host.module()
    assert done["failed"] is False, done["msg"]
    assert kinds(done) == {stale: "python"}
    recorded = files.read_json(str(host.home / "cache" / "gpu_idle.json"))
    assert recorded["gpus"] == {"GPU-stand-in-0": 0, "GPU-stand-in-1": 0}, "its memory is no part of the idle level"
    assert (host.module()["changed"], host.alive(protected)) == (False, [protected])
    # What nobody visible has beside it is still waited for, and told.
    host.tell_driver(memory={str(protected): 1131}, hidden={"0": 100})
    again = host.module(drain_timeout_s=0.3)
    assert "GPU 0: 1231 MiB still used, at most 1195 MiB expected when idle" in again["msg"]


def test_memory_of_a_protected_process_that_the_driver_does_not_tell_is_not_waited_for(host: Host):
    protected = keeper(host)
    host.tell_driver(memory={str(protected): 1131}, untold=[protected])
    done = host.module(drain_timeout_s=3600)  # it would not come back in the time that a test has
    assert f"held by process {protected} " in done["msg"]
    host.tell_driver(memory={str(protected): 500}, untold=[protected])
    assert host.module()["failed"] is False


def test_an_impossible_port_is_refused_before_anything(host: Host):
    (job,) = host.job("--open", "/dev/nvidia0")
    done = host.module(ports=[8000, 80000])
    assert done["msg"] == "ports has 80000: TCP ports are 1 to 65535"
    assert host.alive(job) == [job]


def test_a_server_that_systemd_runs_is_stopped_by_systemd(host: Host):
    root, worker = host.job("--worker", "VLLM::Worker_TP0", "--open", "/dev/nvidia0")
    # What systemctl stop does: end the processes of the unit, and not start them again.
    systemctl = host.bin / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >>{host.bin}/asked\nkill {root}\n', encoding="ascii")
    systemctl.chmod(0o755)
    host.record("mine", root, launcher="systemd", unit="groundstate-mine.service")
    done = host.module()
    assert kinds(done) == {root: "server", worker: "server"}
    assert {one["how"] for one in done["ended"]} <= {
        "stopped by systemctl stop groundstate-mine.service",
        "exited on TERM",
    }
    assert (host.bin / "asked").read_text(encoding="ascii") == "stop groundstate-mine.service\n"
    assert servers.load(str(host.home), "mine").state == "stopped"

    root, _worker = host.job("--worker", "VLLM::Worker_TP0", "--open", "/dev/nvidia0")
    systemctl.write_text("#!/bin/sh\necho Access denied >&2; exit 1\n", encoding="ascii")
    host.record("mine", root, launcher="systemd", unit="groundstate-mine.service")
    done = host.module()
    assert "server mine: 'systemctl stop groundstate-mine.service' failed (status 1: Access denied)" in done["msg"]
