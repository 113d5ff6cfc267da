"""The stdout callback on real runs: what a person reads, and what a machine finds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PLAY = """
- name: Try the callback
  hosts: all
  gather_facts: false
  tasks:
    - name: Say hello to {{ inventory_hostname | length }} letters
      ansible.builtin.debug:
        msg: hello

    - name: Show a value
      ansible.builtin.debug:
        var: inventory_hostname

    - name: Write a file
      ansible.builtin.copy:
        content: "abc"
        dest: "{{ folder }}/{{ inventory_hostname }}"
        mode: "0644"
      notify: Hear of it
      tags: [file]

    - name: Warn
      warns:
      when: inventory_hostname == 'a'

    - name: Try several
      ansible.builtin.command: "{{ item }}"
      loop: ["true", "false"]
      ignore_errors: "{{ inventory_hostname != 'c' }}"

    - name: Nobody does this
      ansible.builtin.command: "true"
      when: false

    - name: Say it in words
      ansible.builtin.fail:
        msg: "2 problems on {{ inventory_hostname }}, nothing was changed:\\n  1. one\\n  2. two"
      when: inventory_hostname == 'b'
      tags: [words]

    - name: Hide it
      ansible.builtin.command: "false"
      no_log: true
      when: inventory_hostname == 'a'
      ignore_errors: true
  handlers:
    - name: Hear of it
      ansible.builtin.debug:
        msg: heard
"""

WARNS = """
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule(argument_spec={})
module.warn("mind the step")
module.exit_json(changed=False)
"""


@pytest.fixture
def run(tmp_path):
    """Run a play on the hosts a, b and c; (exit code, output)."""
    book = tmp_path / "play.yml"
    book.write_text(PLAY)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "warns.py").write_text(WARNS)

    def play(*arguments: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [
                *(str(Path(sys.executable).with_name("ansible-playbook")), str(book), "-i", "a,b,c", "-c", "local"),
                *("-e", json.dumps({"folder": str(tmp_path), "ansible_python_interpreter": sys.executable})),
                *arguments,
            ],
            cwd=ROOT,
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")},
                "ANSIBLE_NOCOLOR": "1",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        return done.returncode, done.stdout.replace(str(tmp_path), "FOLDER")

    return play


def test_one_line_a_step_failures_in_words_and_a_recap(run):
    code, said = run("--diff")
    assert code == 2, said
    steps = [re.sub(r"  +", "  ", line) for line in said.splitlines() if re.search(r" \d+\.\d s  \w", line)]
    assert [re.sub(r"\d+\.\d s", "N s", line) for line in steps] == [
        "3 changed  N s  Write a file",
        "1 ok, 2 skipped  N s  Warn",
        "1 failed, 2 ignored  N s  Try several",
        "1 failed, 1 skipped  N s  Say it in words",
        "ignored  N s  Hide it",
    ]
    assert "Say hello" not in said, "what only prints has no line"
    assert "Nobody does this" not in said
    assert said.count("hello\n") == 3
    assert "+abc" in said
    assert said.count("c: failed for false: Try several") == 1
    assert "command: false (exit status 1)" in said
    # A message as it is: others look for its lines.
    assert "\n2 problems on b, nothing was changed:\n  1. one\n  2. two\n" in said
    assert "b: failed: Say it in words" in said
    assert re.search(r"\(task in .*play\.yml:\d+; -v shows all of its result\)", said)
    assert "no_log" in said
    assert "[WARNING]: mind the step" in said
    assert '"msg":' not in said, "no walls of JSON"
    recap = said[said.index("PLAY RECAP") :].splitlines()[1:4]
    form = r"^(\w) +: ok=\d+ +changed=\d+ +unreachable=0 +failed=(\d+) +skipped=\d+ +rescued=0 +ignored=\d+ +\d+\.\d s$"
    assert [re.match(form, line).groups() for line in recap] == [("a", "0"), ("b", "1"), ("c", "1")]


def test_check_mode_says_so_and_shows_differences(run, tmp_path):
    code, said = run("--check", "--diff", "--tags", "file")
    assert code == 0, said
    assert "Try the callback (check mode: nothing is changed)" in said
    assert "+abc" in said
    assert said.count("heard\n") == 3
    assert not (tmp_path / "a").exists()


def test_another_strategy_loses_no_host(run):
    code, said = run("--tags", "file", ANSIBLE_STRATEGY="free")
    assert code == 0, said
    counts = re.findall(r"^(?:(\d) )?changed +\d+\.\d s +Write a file$", said, re.MULTILINE)
    assert sum(int(number or 1) for number in counts) == 3, said


@pytest.mark.parametrize(("arguments", "environment"), [(["-v"], {}), ([], {"ANSIBLE_STDOUT_CALLBACK": "default"})])
def test_ansible_own_output_is_one_word_away(run, arguments, environment):
    code, said = run("--tags", "words", *arguments, **environment)
    assert code == 2, said
    assert "TASK [Say it in words]" in said
    assert "fatal: [b]: FAILED! =>" in said
    assert said.count("ok=") == 3
