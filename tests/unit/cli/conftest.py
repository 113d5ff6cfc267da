"""A small collection of the real one's name, and the command line on it through ansible-runner and ansible-playbook."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

PLAYBOOK = """---
- name: Try the command line
  hosts: all
  gather_facts: false
  tasks:
    - name: Show what arrived
      ansible.builtin.debug:
        msg: "host={{ inventory_hostname }} word={{ word | default('none') }} check={{ ansible_check_mode }}"

    - name: Say where it runs
      ansible.builtin.debug:
        msg: "real={{ '.' | ansible.builtin.realpath }}"

    - name: Use what nobody may see
      ansible.builtin.command:
        argv: ["{{ ansible_playbook_python }}", "-c", "import sys; print(len(sys.stdin.read()))"]
        stdin: "{{ api_key | default('') }}{{ hidden | default('') }}{{ token | default('') }}"
      no_log: true
      changed_when: true

    - name: Fail when asked to
      ansible.builtin.assert:
        that: not (broken | default(false) | bool)

    - name: Show a table
      groundstate.llm.show:
        title: "{{ inventory_hostname }}: table"
        lines: [one, two]

    - name: Wait when asked to
      ansible.builtin.command:
        argv: [sleep, "{{ seconds }}"]
      when: seconds is defined
      changed_when: false
"""

INVENTORY = """---
all:
  hosts:
    here:
      ansible_connection: local
      ansible_python_interpreter: "{{ ansible_playbook_python }}"
"""


class Site:
    """A folder as the wheel makes it, but with a collection of one playbook."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "site packages"
        self.temporary, self.work, self.cache = folder / "tmp", folder / "work", folder / "cache"
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src" / "groundstate", self.folder / "groundstate", ignore=unwanted)
        self.collection = self.folder / "ansible_collections" / "groundstate" / "llm"
        shutil.copytree(ROOT / "plugins", self.collection / "plugins", ignore=unwanted)
        for place, name, text in (
            ("playbooks", "verify.yml", PLAYBOOK),
            ("inventories/local", "hosts.yml", INVENTORY),
            ("meta", "runtime.yml", '---\nrequires_ansible: ">=2.19.0"\n'),
        ):
            (self.collection / place).mkdir(parents=True, exist_ok=True)
            (self.collection / place / name).write_text(text)
        self.temporary.mkdir()
        self.work.mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
            "PYTHONPATH": str(self.folder),
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(self.cache),
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "groundstate", *words]

    def start(self, *words: str, **more) -> subprocess.Popen[str]:
        """Start the command line in the folder `work` with temporary files in `tmp`."""
        return subprocess.Popen(
            self.command(*words),
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **more},
        )

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and output of the command line."""
        process = self.start(*words)
        output, _ = process.communicate(timeout=240)
        return process.returncode, output

    def left_behind(self) -> list[str]:
        """What is left of the private data of ansible-runner."""
        return sorted(path.name for path in self.temporary.glob("groundstate-*"))


def sleeping(seconds: str) -> list[int]:
    """The processes that run `sleep` for exactly so long."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if command == f"sleep\0{seconds}\0".encode():
                found.append(int(entry.name))
    return found


class Sleep:
    """Lets the last step of the playbook sleep, and waits until it does."""

    def __init__(self) -> None:
        # Nobody else sleeps for so long.
        self.seconds = f"600.{os.getpid()}{time.monotonic_ns() % 1_000_000}"

    def wait(self, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 120
        while not self.pids():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "the task did not start"
            time.sleep(0.05)

    def pids(self) -> list[int]:
        return sleeping(self.seconds)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def sleep():
    made = Sleep()
    yield made
    for pid in made.pids():
        os.kill(pid, 9)
