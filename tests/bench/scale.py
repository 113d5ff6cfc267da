#!/usr/bin/env python3
"""What a deploy with nothing to do and a reset cost for 1, 10, 50, 100, 200 hosts, as a table of Markdown.

usage: python tests/bench/scale.py [--hosts 1,10,50,100,200] [--forks 0] [--tasks]

The hosts are simulated on this machine: connection local, a home of its own each, one tiny process each in place of the
engine, whose answers come from one server. So the modules of all hosts run on the cores of the controller, which no
fleet does: their CPU time is counted apart. What is left, the controller's own, is what grows with a fleet: the third
table is of the same deploys with the modules' answers replayed, each after as long as the lone first host took for it,
as machines elsewhere would answer.

"controller" is CPU time of ansible-playbook and its forks, "hosts" that of the Python processes on the hosts. Memory
is the greatest sum of the proportional set sizes (PSS) of ansible-playbook and its forks, sampled twice a second. Hosts
that are not deployed yet are deployed first, with a measurement each: that takes some ten seconds of CPU a host.
--forks 0 is what ansible.cfg says; --tasks shows where the time goes. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = Path(__file__).resolve().parent / "scale_parts"
sys.path.insert(0, str(ROOT / "playbooks" / "collections"))
from ansible_collections.groundstate.llm.plugins.module_utils import procfs  # noqa: E402

FIRST_PORT = 21000
WORKLOAD = {
    "prompt_tokens": 16,
    "output_tokens": 8,
    "repeats": 3,
    "warmup_requests": 1,
    "warmup_cap_s": 0,
    "max_error_share": 0.9,
}


@dataclass
class Cost:
    """What one run of a playbook took."""

    wall: float
    controller: float  # CPU seconds
    hosts: float
    memory: float  # MiB
    changed: int
    tasks: list[tuple[str, float]] = field(default_factory=list)


class Fleet:
    """The simulated hosts, and the playbooks run on them."""

    def __init__(self, folder: Path, forks: int) -> None:
        self.folder, self.forks = folder, forks
        (folder / "model").mkdir()
        self.compile("relay")
        self.compile("timed", f'-DPYTHON="{sys.executable}"', f'-DLOG="{folder / "cpu"}"')
        self.answers = folder / "said"
        self.compile("answers", f'-DPYTHON="{folder / "timed"}"', f'-DFOLDER="{self.answers}"')
        self.inventory = folder / "hosts.json"

    def compile(self, name: str, *flags: str) -> None:
        subprocess.run(["cc", "-O1", "-o", str(self.folder / name), *flags, str(PARTS / f"{name}.c")], check=True)

    def declare(self, size: int, backend: int) -> None:
        """Write the inventory."""
        hosts = {}
        (self.folder / "python").mkdir()
        for number in range(size):
            python = self.folder / "python" / f"{number:03}"
            python.symlink_to(self.folder / "answers")  # it knows the host by its own name
            hosts[f"host{number:03}"] = {
                "groundstate_home": f"{self.folder}/homes/{number:03}",
                "ansible_python_interpreter": str(python),
                "port": FIRST_PORT + number,
            }
        variables: dict[str, Any] = {
            "ansible_connection": "local",
            "groundstate_records_dir": str(self.folder / "records"),
            "ml_env_lock": "llama_cpp",
            "ml_env_path": str(self.folder / "envs" / "llama_cpp"),
            "baseline_local_fact": "{{ groundstate_home }}/fact",
            "baseline_workload": WORKLOAD,
            "llm_server_launcher": "process",
            "llm_server": {
                "name": "local",
                "engine": "generic",
                "model": str(self.folder / "model"),
                "served_model_name": "mock",
                "port": "{{ port | int }}",
                "gpus": [],
                "command": [str(self.folder / "relay"), "{port}", str(backend)],
            },
        }
        document = {"groundstate": {"hosts": hosts, "vars": variables}}
        self.inventory.write_text(json.dumps(document), encoding="utf-8")

    def play(self, playbook: str, *words: str, replay: bool = False) -> Cost:
        """Run a playbook; ``replay``: with the answers of the last run. Ends the program when it fails."""
        self.forget("*.taken" if replay else "*")
        times, cpu = self.folder / "times", self.folder / "cpu"
        for one in (times, cpu):
            one.write_text("", encoding="ascii")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CALLBACK_PLUGINS": str(PARTS),
            "ANSIBLE_CALLBACKS_ENABLED": "task_times",
            "SCALE_TIMES": str(times),
            "SCALE_ANSWERS": "replay" if replay else "record",
        }
        command = ["ansible-playbook", f"playbooks/{playbook}.yml", "-i", str(self.inventory), *words]
        if self.forks:
            command += ["--forks", str(self.forks)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        with open(self.folder / "output", "w", encoding="utf-8") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
            watch = Watch(process.pid)
            process.wait()
            wall = time.perf_counter() - began
            watch.stop()
        said = (self.folder / "output").read_text(encoding="utf-8")
        if process.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{said[-6000:]}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        every = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        hosts = sum(map(int, cpu.read_text(encoding="ascii").split())) / 1e6
        changed = sum(map(int, re.findall(r"changed=(\d+)", said)))
        return Cost(wall, every - hosts, hosts, watch.peak / 2**20, changed, durations(times))

    def forget(self, what: str) -> None:
        """Remove files of the kept answers, and see that each host has a folder for them."""
        for host in (self.folder / "python").iterdir():
            (self.answers / host.name).mkdir(parents=True, exist_ok=True)
            for one in (self.answers / host.name).glob(what):
                one.unlink()


def durations(path: Path) -> list[tuple[str, float]]:
    """Seconds from the begin of each task to that of the next."""
    noted = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(name, after - at) for (name, at), (_next, after) in itertools.pairwise(noted)]


class Watch:
    """Memory of a process and what it forked, sampled in a thread."""

    def __init__(self, pid: int) -> None:
        self.pid, self.peak = pid, 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.5):
            table = procfs.processes()
            if self.pid in table:
                tree = [table[self.pid], *procfs.descendants(self.pid, table)]
                self.peak = max(self.peak, sum(pss(one.pid) for one in tree if "ansible-playbook" in one.cmdline))


def pss(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as source:
            found = re.search(r"^Pss:\s+(\d+) kB", source.read(), re.M)
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


@contextmanager
def backend() -> Iterator[int]:
    """The server behind all relays; its port."""
    command = [sys.executable, str(ROOT / "tests" / "tools" / "mock_llm.py"), "--ttft", "0.02", "--step", "0.05"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def rows(size: int, cost: Cost, one: Cost) -> str:
    cells = [
        str(size),
        f"{cost.wall:.1f}",
        f"{cost.wall / one.wall:.1f}",
        f"{cost.controller:.1f}",
        f"{cost.hosts:.1f}",
        f"{cost.controller / size:.2f}",
        f"{cost.memory:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = """
{what}

| hosts | wall, s | times one host | CPU controller, s | CPU hosts, s | controller, s a host | memory, MiB |
| --- | --- | --- | --- | --- | --- | --- |"""


def measure(fleet: Fleet, sizes: list[int], tasks: bool) -> None:
    deploys: list[tuple[int, Cost]] = []
    resets: list[tuple[int, Cost]] = []
    elsewhere: list[tuple[int, Cost]] = []
    for size in sizes:
        limit = ("--limit", f"groundstate[0:{size - 1}]")
        print(f"{size} hosts: deploying what is not yet", file=sys.stderr)
        fleet.play("deploy_baseline", *limit)
        cost = fleet.play("deploy_baseline", *limit)
        if cost.changed:
            sys.exit(f"the second deploy of {size} hosts changed {cost.changed} things: see {fleet.folder}/output")
        deploys.append((size, cost))
        if not elsewhere:
            shutil.copytree(fleet.answers / "000", fleet.answers / "alone")
        elsewhere.append((size, fleet.play("deploy_baseline", *limit, replay=True)))
        # A reset of a host whose server is to stay: what a fleet pays for a look that finds nothing to end.
        resets.append((size, fleet.play("reset_gpus", *limit, "-e", '{"gpu_state_keep_servers": ["local"]}')))
        print(rows(size, cost, deploys[0][1]), file=sys.stderr)
        print(rows(size, elsewhere[-1][1], elsewhere[0][1]), file=sys.stderr)
    for what, found in (
        ("Deploy with nothing to do", deploys),
        ("Reset with nothing to do", resets),
        ("Deploy with nothing to do, answers replayed", elsewhere),
    ):
        print(HEAD.format(what=what))
        for size, cost in found:
            print(rows(size, cost, found[0][1]))
        if tasks:
            for size, cost in found:
                print(f"\n{what}, {size} hosts, seconds by task:\n")
                for name, seconds in sorted(cost.tasks, key=lambda pair: -pair[1])[:12]:
                    print(f"    {seconds:7.2f}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="1,10,50,100,200")
    parser.add_argument("--forks", type=int, default=0)
    parser.add_argument("--tasks", action="store_true")
    options = parser.parse_args()
    sizes = sorted({1, *map(int, options.hosts.split(","))})
    with tempfile.TemporaryDirectory(prefix="groundstate-scale-") as name, backend() as port:
        fleet = Fleet(Path(name), options.forks)
        fleet.declare(sizes[-1], port)
        try:
            measure(fleet, sizes, options.tasks)
        finally:
            fleet.play("teardown")


if __name__ == "__main__":
    main()
