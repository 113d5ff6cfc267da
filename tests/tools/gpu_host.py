"""A stand-in GPU host: real processes hold nodes named /dev/nvidia*, and a driver counts their memory.

The host is a private mount and process namespace, so that nothing outside can be seen, ended or left behind.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ansible_collections.groundstate.llm.plugins.module_utils import files, procfs, servers

RUN_MODULE = f"""
import importlib, json, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[2] / "playbooks" / "collections")!r})
from ansible.module_utils.testing import patch_module_args
with patch_module_args(json.loads(sys.argv[2])):
    importlib.import_module("ansible_collections.groundstate.llm.plugins.modules." + sys.argv[1]).main()
"""
ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "gpu_host"
CGROUPS = "/sys/fs/cgroup"
UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def can_unshare() -> bool:
    """Whether this machine lets us make such a host."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"):
        return False
    probe = "mount -t tmpfs x /mnt && mknod /mnt/n c 1 3 && : < /mnt/n"
    return subprocess.run([*UNSHARE, "sh", "-c", probe], capture_output=True, check=False).returncode == 0


class Host:
    """The stand-in host. All pids are those of its namespace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.bin = folder / "bin"
        for one in (folder / "dev", self.bin, self.home):
            one.mkdir()
        shutil.copy(DATA / "nvidia-smi", self.bin)
        shutil.copy("/bin/sleep", self.bin / "nvidia-persistenced")
        self.tell_driver()
        self.groups = ""  # a part of the names of its control groups, once it has some
        self.unshare = subprocess.Popen(
            [*UNSHARE, sys.executable, str(DATA / "init.py"), str(folder / "dev")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"
        (self.init,) = [one.pid for one in procfs.processes().values() if one.ppid == self.unshare.pid]
        # Its /proc, looked at from outside.
        self.proc = f"/proc/{self.init}/root/proc"

    def close(self) -> None:
        """End everything in the host, and remove its control groups."""
        if self.groups:
            self.run("sh", "-c", "kill -9 -1", check=False)
            ours = ("find", CGROUPS, "-depth", "-type", "d", "-path", f"*{self.groups}*")
            for _turn in range(100):
                self.run(*ours, "-exec", "rmdir", "{}", ";", check=False)
                if not self.run(*ours):
                    break
                time.sleep(0.1)
        os.kill(self.init, signal.SIGKILL)  # the kernel ends the whole namespace with its process 1
        self.unshare.communicate()

    def _answer(self) -> str:
        return self.unshare.stdout.readline().strip()

    def tell_driver(self, **told: Any) -> None:
        files.write_json(str(self.bin / "smi.json"), told)

    def calls(self) -> int:
        return len((self.bin / "calls").read_text(encoding="utf-8").splitlines())

    def start(self, *argv: str, title: str = "", env: dict[str, str] | None = None) -> int:
        """Start a program as a child of the host's init."""
        command = {"argv": list(argv), "env": env or {}, "title": title}
        self.unshare.stdin.write(json.dumps(command) + "\n")
        self.unshare.stdin.flush()
        return int(self._answer())

    def job(self, *arguments: str, program: tuple[str, ...] = (), **more: Any) -> list[int]:
        """Start job.py and wait until it holds what it is to hold; its pid, and its worker's."""
        ready = self.folder / f"ready.{len(list(self.folder.glob('ready.*')))}"
        self.start(*(program or (sys.executable, str(DATA / "job.py"))), *arguments, "--ready", str(ready), **more)
        for _turn in range(3000):
            if ready.exists():
                return [int(one) for one in ready.read_text(encoding="ascii").split()]
            time.sleep(0.01)
        raise AssertionError(f"{arguments} did not start")

    def make_groups(self) -> bool:
        """Mount the unified hierarchy of control groups; False where that is not possible.

        It is the machine's own: names begin with ``groups``, a text that nobody else has, and are removed at the end.
        """
        self.run("umount", "-l", CGROUPS, check=False)
        self.run("mount", "-t", "cgroup2", "stand-in", CGROUPS, check=False)
        self.groups = f"gs{os.getpid()}x{self.init}"
        made = self.run("sh", "-c", f"mkdir {CGROUPS}/{self.groups} && echo made", check=False)
        return made == "made\n"

    def in_group(self, group: str, *argv: str) -> tuple[str, ...]:
        """The command that runs another one in a control group (a path below the mount)."""
        return (
            "sh",
            "-c",
            f'mkdir -p {CGROUPS}/{group} && echo $$ >{CGROUPS}/{group}/cgroup.procs && exec "$@"',
            "sh",
            *argv,
        )

    def foreign(self, node: str) -> int:
        """A process of which no policy but ``all`` knows anything, that holds a node."""
        pid = self.start("sh", "-c", f"exec 3</dev/{node}; exec sleep 1000000")
        for _turn in range(3000):
            found = procfs.process(pid, self.proc)
            if found and found.comm == "sleep":
                return pid
            time.sleep(0.01)
        raise AssertionError("sleep did not start")

    def alive(self, *pids: int) -> list[int]:
        """Those of the pids that still run."""
        table = procfs.processes(self.proc)
        return [pid for pid in pids if pid in table and not table[pid].zombie]

    def record(self, name: str, pid: int = 0, start_id: str = "new", **more: Any) -> str:
        """Record a server as launched; its folder, which its processes carry as a variable."""
        item = procfs.process(pid, self.proc) if pid else None
        record = servers.ServerRecord(
            name=name,
            start_id=start_id,
            state="launched",
            pid=pid or 999999,
            pid_start=item.start if item else 1,
            boot_id=procfs.boot_id() or "",
            **more,
        )
        servers.save(str(self.home), record)
        return servers.folder(str(self.home), name)

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command inside and return its standard output."""
        done = subprocess.run(
            # Entering a mount namespace leaves the current folder.
            [
                *("nsenter", "--target", str(self.init), "--mount", "--pid"),
                *("sh", "-c", f'cd {shlex.quote(str(ROOT))} && exec "$@"', "sh", *command),
            ],
            env={**os.environ, "PATH": f"{self.bin}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout

    def direct(self, name: str = "gpu_reset", **arguments: Any) -> dict[str, Any]:
        """Run a module as a target does, without the seconds that Ansible takes; its result."""
        given = json.dumps({"home": str(self.home), **arguments})
        out = self.run(sys.executable, "-c", RUN_MODULE, name, given, check=False)
        return json.loads(out.splitlines()[-1])

    def module(self, name: str = "gpu_reset", check: bool = False, **arguments: Any) -> dict[str, Any]:
        """Run a module through ansible, as a playbook would; its result."""
        given = {"home": str(self.home), **arguments}
        if name == "gpu_reset":
            given = {"grace_s": 1, "drain_timeout_s": 20, **given}
        out = self.run(
            "ansible",
            "localhost",
            "--connection=local",
            "--one-line",
            f"--extra-vars=ansible_python_interpreter={sys.executable}",
            f"--module-name=groundstate.llm.{name}",
            f"--args={json.dumps(given)}",
            *(["--check"] if check else []),
            check=False,
        )
        for line in out.splitlines():
            head, arrow, text = line.partition(" => ")
            if arrow:
                return {"failed": "FAILED" in head, **json.loads(text)}
        raise AssertionError(out)
