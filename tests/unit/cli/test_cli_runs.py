"""The command line against a small collection of its name, through the real ansible-runner and ansible-playbook."""

from __future__ import annotations

import os
import shutil
import signal
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
        msg: "cwd={{ lookup('ansible.builtin.env', 'PWD') }} real={{ '.' | ansible.builtin.realpath }}"

    - name: Fail when asked to
      ansible.builtin.assert:
        that: not (broken | default(false) | bool)

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


@pytest.fixture(name="site")
def site_packages(tmp_path: Path) -> Path:
    """A folder as the wheel makes it, but with a collection of one playbook."""
    site = tmp_path / "site packages"
    shutil.copytree(ROOT / "src" / "groundstate", site / "groundstate", ignore=shutil.ignore_patterns("__pycache__"))
    collection = site / "ansible_collections" / "groundstate" / "llm"
    shutil.copytree(ROOT / "plugins", collection / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    for folder, name, text in (
        ("playbooks", "verify.yml", PLAYBOOK),
        ("inventories/local", "hosts.yml", INVENTORY),
        ("meta", "runtime.yml", '---\nrequires_ansible: ">=2.19.0"\n'),
    ):
        (collection / folder).mkdir(parents=True, exist_ok=True)
        (collection / folder / name).write_text(text)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "work").mkdir()
    return site


def start(site: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command line in the folder `work` with temporary files in `tmp`."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
        "PYTHONPATH": str(site),
        "TMPDIR": str(site.parent / "tmp"),
        "XDG_CACHE_HOME": str(site.parent / "cache"),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "groundstate", *words],
        cwd=site.parent / "work",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_behind(site: Path) -> list[str]:
    """What is left of the private data of ansible-runner."""
    return sorted(path.name for path in (site.parent / "tmp").glob("groundstate-*"))


def test_it_runs_the_playbook_in_the_current_folder_with_what_it_was_given(site):
    process = start(site, "verify", "--check", "-e", '{"word": "two words"}')
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "host=here word=two words check=True" in output
    assert f"real={site.parent / 'work'}" in output
    assert "\x1b[" not in output
    assert left_behind(site) == []


def test_the_exit_code_is_that_of_the_playbook(site):
    process = start(site, "verify", "-e", "broken=true")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert "Assertion failed" in output
    assert left_behind(site) == []


def test_a_limit_without_hosts_fails_and_says_why(site):
    process = start(site, "verify", "-l", "nowhere")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "no hosts to target" in output


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_tasks_too_and_leaves_nothing(site, number):
    seconds = f"600.{os.getpid()}{number:d}"
    process = start(site, "verify", "-e", f"seconds={seconds}")
    try:
        deadline = time.monotonic() + 60
        while not sleeping(seconds):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "the task did not start"
            time.sleep(0.05)
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130, output
        assert "interrupted" in output
        assert sleeping(seconds) == []
        assert left_behind(site) == []
    finally:
        process.kill()
        for pid in sleeping(seconds):
            os.kill(pid, signal.SIGKILL)
