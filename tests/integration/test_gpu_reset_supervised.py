"""The reset where something works against it: services that start again, newcomers, reused numbers, hung processes."""

from __future__ import annotations

import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import files, procfs
from gpu_host import CGROUPS, DATA, ROOT, Host, can_unshare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_unshare(), reason="needs root and private mount and process namespaces"),
]
JOB = (sys.executable, str(DATA / "job.py"))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    one = Host(tmp_path)
    yield one
    one.close()


def until(found: Callable[[], Any], what: str) -> Any:
    """What the function returns once that is true."""
    for _turn in range(3000):
        value = found()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"it did not happen: {what}")


def kinds(result: dict[str, Any], key: str = "ended") -> dict[int, str]:
    return {one["pid"]: one["kind"] for one in result[key]}


class Service:
    """A service of the stand-in systemd."""

    def __init__(self, host: Host, unit: str, *command: str) -> None:
        if not host.groups and not host.make_groups():
            pytest.skip("needs the unified hierarchy of control groups")
        shutil.copy(DATA / "systemctl", host.bin)
        self.host, self.unit, self.folder = host, unit, host.bin
        self.ready = host.folder / f"ready.{unit}"
        group = f"{CGROUPS}/{host.groups}/system.slice/{unit}"
        ready = [str(self.ready) if word == "READY" else word for word in command]
        host.start(sys.executable, str(DATA / "systemd.py"), str(host.bin), unit, group, *ready)
        until(self.ready.exists, f"{unit} is up")

    @property
    def main(self) -> int:
        return int((self.folder / f"{self.unit}.main").read_text(encoding="ascii"))

    @property
    def pids(self) -> list[int]:
        """Of the job: what it wrote when it last was ready."""
        return [int(one) for one in self.ready.read_text(encoding="ascii").split()]

    def calls(self, verb: str) -> list[str]:
        calls = self.folder / "systemctl.calls"
        lines = calls.read_text(encoding="ascii").splitlines() if calls.exists() else []
        return [line for line in lines if line.startswith(verb)]


def test_a_service_is_stopped_through_systemd_and_does_not_come_back(host: Host):
    service = Service(host, "vllm.service", *JOB, "--open", "/dev/nvidia0", "--ready", "READY")
    (job,) = service.pids
    assert service.main == job
    planned = host.module(check=True)
    assert [one["how"] for one in planned["ended"]] == ["planned: systemctl stop vllm.service"]
    assert service.calls("stop") == []
    done = host.module()
    assert done["failed"] is False, done["msg"]
    assert [(one["pid"], one["how"]) for one in done["ended"]] == [(job, "stopped by systemctl stop vllm.service")]
    (seen,) = done["before"]["processes"]
    assert (seen["unit"], seen["cgroup"]) == ("vllm.service", f"/{host.groups}/system.slice/vllm.service")
    assert service.calls("stop") == ["stop vllm.service"]
    assert host.module()["changed"] is False


def test_a_service_whose_main_process_is_a_wrapper_is_stopped_once_it_was_seen_to_restart(host: Host):
    script = f"{JOB[0]} {JOB[1]} --open /dev/nvidia0 --ready $0; exit 1"
    service = Service(host, "wrapped.service", "sh", "-c", script, "READY")
    assert service.pids != [service.main]
    done = host.module()
    assert done["failed"] is False, done["msg"]
    assert len(done["ended"]) in (2, 3)  # the restarted one may have been found while it still started
    assert service.calls("stop") == ["stop wrapped.service"]
    assert host.module()["changed"] is False


def test_a_service_that_merely_started_the_job_goes_on(host: Host):
    # As cron does: its main process holds nothing, and lives on when the job ends.
    command = (*JOB, "--worker", "job", "--open", "/dev/nvidia0", "--ready", "READY")
    service = Service(host, "cron.service", *command)
    main, worker = service.pids
    done = host.module(policy="all")
    assert done["failed"] is False, done["msg"]
    assert kinds(done) == {worker: "holder"}
    assert host.alive(main) == [main]
    assert service.calls("stop") == []


def test_a_service_with_a_protected_process_is_never_stopped(host: Host):
    service = Service(host, "mixed.service", *JOB, "--open", "/dev/nvidia0", "--ready", "READY")
    where = f"{host.groups}/system.slice/mixed.service"
    driver = host.start(
        *host.in_group(where, "sh", "-c", f"exec 3</dev/nvidia1; exec {host.bin}/nvidia-persistenced 9999")
    )
    until(lambda: procfs.process(driver, host.proc).comm.startswith("nvidia-"), "the protected process runs")
    host.tell_driver(memory={str(driver): 3})
    host.module(drain_timeout_s=1)
    assert service.calls("stop") == []
    assert host.alive(driver) == [driver]


def test_a_service_of_which_only_a_part_is_named_is_not_stopped(host: Host):
    service = Service(host, "vllm.service", *JOB, "--open", "/dev/nvidia0", "--ready", "READY")
    where = f"{host.groups}/system.slice/vllm.service"
    (other,) = host.job("--open", "/dev/nvidia1", program=host.in_group(where, *JOB))
    done = host.module(policy="only", only=[str(service.main)], drain_timeout_s=1)
    assert kinds(done, "left")[other] == "unnamed"
    assert service.calls("stop") == []
    assert host.alive(other) == [other]
    # systemd starts the named one again: it has another number then, which nobody named.
    assert f"held by process {other} (" in done["msg"]


def test_only_ends_the_service_that_it_names(host: Host):
    service = Service(host, "vllm.service", *JOB, "--open", "/dev/nvidia0", "--ready", "READY")
    (other,) = host.job("--open", "/dev/nvidia1")
    (third,) = host.job("--open", "/dev/nvidia1")
    done = host.module(policy="only", only=["vllm.service", str(third)], drain_timeout_s=1)
    assert set(kinds(done)) == {*service.pids, third}
    assert host.alive(other) == [other]
    assert f"held by process {other}" in done["msg"]
    assert "policy only does not name it" in done["msg"]
    assert host.module(policy="only", only=["job\\.py .*nvidia1"])["ended"][0]["pid"] == other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "only"}, "policy only and the option only go together"),
        ({"only": ["42"]}, "policy only and the option only go together"),
        ({"policy": "only", "only": ["("]}, "only: '(' is neither a process number, nor a .service"),
        ({"scope": "vm:7"}, "scope is 'vm:7': use namespace, or lxc:"),
        ({"scope": "lxc:../7"}, "scope is 'lxc:../7': use namespace, or lxc:"),
        ({"scope": "lxc:424242"}, "scope: this host has no container 424242"),
        ({"scope": "lxc:7", "ports": [8000]}, "ports is about this host and cannot be used with scope lxc:7"),
    ],
)
def test_options_that_make_no_sense_are_refused(host: Host, arguments: dict[str, Any], message: str):
    (job,) = host.job("--open", "/dev/nvidia0")
    assert message in host.direct(**arguments)["msg"]
    assert host.alive(job) == [job]


def test_a_process_that_starts_while_the_memory_drains_is_ended_too(host: Host):
    (first,) = host.job("--open", "/dev/nvidia0")
    host.tell_driver(late=8)
    started: list[int] = []

    def start_another() -> None:
        until(lambda: not host.alive(first), "the first one ended")
        until(lambda: host.calls() > calls + 3, "the memory is being polled")
        started.extend(host.job("--open", "/dev/nvidia1"))

    calls = host.calls() if (host.bin / "calls").exists() else 0
    thread = threading.Thread(target=start_another)
    thread.start()
    done = host.module()
    thread.join()
    assert done["failed"] is False, done["msg"]
    assert list(kinds(done)) == [first, *started]
    assert [one["memory_used"] for one in done["after"]["gpus"]] == [0, 0]


REUSE = """
import os, subprocess, sys, time
sys.path.insert(0, sys.argv[2])
from ansible_collections.groundstate.llm.plugins.module_utils import ending, procfs
seen = procfs.process(int(sys.argv[1]))
os.kill(seen.pid, 9)
while procfs.process(seen.pid):
    time.sleep(0.01)
time.sleep(0.05)  # start times count in hundredths of a second
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(seen.pid - 1))
heir = subprocess.Popen(["sleep", "1000"])
done = ending.end([seen], [seen], 0.1)
print(heir.pid == seen.pid, done[0].how, heir.poll())
heir.kill()
"""


@pytest.mark.skipif(not Path("/proc/sys/kernel/ns_last_pid").exists(), reason="the kernel does not let us choose a pid")
def test_a_number_that_another_process_got_between_look_and_signal(host: Host):
    (job,) = host.job("--open", "/dev/nvidia0")
    out = host.run(sys.executable, "-c", REUSE, str(job), str(ROOT / "playbooks" / "collections"))
    assert out == "True was gone None\n"


def test_a_process_that_hangs_in_the_kernel_is_reported_and_not_waited_for(host: Host):
    (job,) = host.job("--open", "/dev/nvidia0")
    mounted = "mount -t tmpfs stand-in /mnt && mkdir /mnt/f && mount -t cgroup -o freezer stand-in /mnt/f"
    where = f"/mnt/f/gs{host.init}"
    frozen = f"mkdir {where} && echo {job} >{where}/tasks && echo FROZEN >{where}/freezer.state && echo done"
    if host.run("sh", "-c", f"{mounted} && {frozen}", check=False) != "done\n":
        pytest.skip("needs the old freezer: a process in it is in state D, and does not even die of SIGKILL")
    try:
        until(lambda: procfs.process(job, host.proc).state == "D", "the process hangs")
        done = host.module()
        assert done["failed"] is True
        assert f"process {job} (" in done["msg"]
        assert "hangs in the kernel (state D" in done["msg"]
        assert "only a reboot of the host ends it; " in done["msg"]  # and what the kernel log says
        assert "GPU 0: 1000 MiB still used" in done["msg"]
        assert done["ended"][0]["how"] == "left: still in state D 10 s after KILL"
        (process,) = host.direct("gpu_info")["processes"]
        assert (process["state"], process["pid"]) == ("D", job)
    finally:
        host.run("sh", "-c", f"echo THAWED >{where}/freezer.state")
        until(lambda: not host.alive(job), "it died of the signal that was pending")
        host.run("rmdir", where)
    assert host.module()["failed"] is False


def test_a_zombie_is_told_with_its_parent_and_holds_nothing(host: Host):
    parent, worker = host.job("--worker", "sglang::scheduler_TP0", "--open", "/dev/nvidia0", "--no-wait")
    done = host.module()
    assert done["failed"] is False, done["msg"]
    (ended,) = done["ended"]
    assert (ended["pid"], ended["zombie_of"], ended["gone"]) == (worker, parent, True)
    assert host.module()["changed"] is False


def test_ports_of_those_that_hold_the_gpu_and_of_others(host: Host):
    (own,) = host.job("--open", "/dev/nvidia0", "--bind", "0")
    port = int((host.folder / f"port.{own}").read_text(encoding="ascii"))
    seen = host.direct("gpu_info", ports=[port])["ports"]
    assert [(one["state"], one["pid"]) for one in seen] == [("bound", own)]
    assert host.module(ports=[port])["ports"] == []  # it fell under the policy, and the port with it

    (other,) = host.job("--bind", "0", "--listen")
    port = int((host.folder / f"port.{other}").read_text(encoding="ascii"))
    done = host.module(ports=[port])
    assert f"port {port} is taken by process {other} (" in done["msg"]
    assert host.alive(other) == [other]


def test_what_the_facts_tell_of_a_process(host: Host):
    worker = host.job("--worker", "sglang::scheduler_TP0 x", "--open", "/dev/nvidia0", "--open", "/dev/nvidiactl")[1]
    facts = host.direct("gpu_info")
    (process,) = facts["processes"]
    assert (process["pid"], process["user"], process["nodes"]) == (worker, "root", ["/dev/nvidia0", "/dev/nvidiactl"])
    assert (process["unit"], process["container"], process["engine"]) == ("", "", "sglang")
    assert facts["xid"] is None or isinstance(facts["xid"], list)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        assert host.direct("gpu_info", ports=[one.getsockname()[1]])["ports"][0]["pid"] is None


@pytest.mark.skipif(not shutil.which("lxc-execute"), reason="needs LXC")
def test_from_the_node_only_one_container_is_cleared(host: Host):
    if not host.make_groups():
        pytest.skip("needs the unified hierarchy of control groups")
    host.run("mount", "-t", "tmpfs", "stand-in", "/var/lib/lxc")
    pivot = host.run("find", CGROUPS, "-maxdepth", "1", "-name", "lxc.pivot")  # one for all of LXC's containers
    jobs = {}
    for number in ("101", "102"):
        name = f"{host.groups}x{number}"
        config = host.folder / f"{name}.conf"
        config.write_text(
            "lxc.rootfs.path = dir:/\nlxc.autodev = 0\nlxc.console.path = none\nlxc.tty.max = 0\nlxc.pty.max = 0\n"
            "lxc.net.0.type = none\nlxc.mount.auto = proc:rw\n",
            encoding="ascii",
        )
        ready = host.folder / f"ready.{name}"
        command = (*JOB, "--open", "/dev/nvidia0", "--ready", str(ready))
        host.run("lxc-execute", "-n", name, "-f", str(config), "-d", "--", *command)
        until(ready.exists, f"container {name} has its job")
        inside = [
            pid
            for pid in procfs.pids(host.proc)
            if f"lxc.payload.{name}" in (Path(host.proc) / str(pid) / "cgroup").read_text(encoding="ascii")
            and "job.py" in procfs.process(pid, host.proc).cmdline
        ]
        jobs[name] = inside[-1]
    (own,) = host.job("--open", "/dev/nvidia1")
    (first, second), pids = jobs, list(jobs.values())

    seen = {one["pid"]: one["container"] for one in host.direct("gpu_info")["processes"]}
    assert seen == {pids[0]: first, pids[1]: second, own: ""}
    planned = host.module(scope=f"lxc:{first}", check=True)
    assert kinds(planned) == {pids[0]: "python"}
    done = host.module(scope=f"lxc:{first}")
    assert done["failed"] is False, done["msg"]
    assert kinds(done) == {pids[0]: "python"}
    assert kinds(done, "left") == {pids[1]: "scope", own: "scope"}
    assert host.alive(*pids, own) == [pids[1], own]
    assert host.module(scope=f"lxc:{first}")["changed"] is False

    # Without that scope the node's own process ends, and the container is named, not touched.
    done = host.module()
    assert kinds(done) == {own: "python"}
    assert kinds(done, "left") == {pids[1]: "namespace"}
    assert "in another container (PID namespace): reset it there" in done["msg"]
    assert host.alive(pids[1]) == [pids[1]]
    if not pivot:
        host.run("rmdir", f"{CGROUPS}/lxc.pivot", check=False)


def test_a_hung_driver_is_reported_with_what_the_kernel_log_says(host: Host):
    host.tell_driver(hang=True)
    done = host.direct(query_timeout_s=0.3)
    assert "did not answer in 0.3 s" in done["msg"]
    assert "kernel log" in done["msg"]
    assert files.read_json(str(host.home / "cache" / "gpu_idle.json")) is None
