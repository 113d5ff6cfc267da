"""An inventory that is not there, or cannot be read: Ansible would go on with this machine, the playbooks do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PLAYS = {
    path.name: play
    for path in sorted(ROOT.glob("playbooks/*.yml"))
    for play in yaml.safe_load(path.read_text())
    if "'localhost'" in str(play.get("hosts"))
}


@pytest.mark.parametrize("name", PLAYS)
def test_every_playbook_that_may_take_this_machine_looks_at_the_inventory_first(name):
    first = [*PLAYS[name].get("pre_tasks", []), *PLAYS[name].get("tasks", [])][0]
    assert first["ansible.builtin.import_tasks"] == "tasks/no_inventory.yml"
    assert not PLAYS[name].get("roles")


def test_a_mistyped_and_a_broken_inventory_are_refused_before_anything_else(tmp_path):
    (tmp_path / "broken.yml").write_text("all:\n  hosts: [\n")
    done = subprocess.run(
        [
            os.path.join(os.path.dirname(sys.executable), "ansible-playbook"),
            *("playbooks/verify.yml", "-i", str(tmp_path / "missing.yml"), "-i", str(tmp_path / "broken.yml")),
        ],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "groundstate.llm.baseline"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    words = " ".join((done.stdout + done.stderr).split())
    for said in ("missing.yml", "broken.yml", "this inventory has no host, is not there, or cannot be read"):
        assert said in words
    assert "ok=1 " in words, "the include of the check, and nothing after it"
