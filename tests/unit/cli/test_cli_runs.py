"""The command line against a small collection of its name, through the real ansible-runner and ansible-playbook."""

from __future__ import annotations

import shutil
import signal

import pytest


def test_it_runs_the_playbook_in_the_current_folder_with_what_it_was_given(site):
    code, output = site.run("verify", "--check", "-e", '{"word": "two words"}')
    assert code == 0, output
    assert "host=here word=two words check=True" in output
    assert f"real={site.work}" in output
    assert "\x1b[" not in output
    assert site.left_behind() == []


def test_the_exit_code_is_that_of_the_playbook(site):
    code, output = site.run("verify", "-e", "broken=true")
    assert code == 2, output
    assert "Assertion failed" in output
    assert site.left_behind() == []


def test_a_limit_without_hosts_fails_and_says_why(site):
    code, output = site.run("verify", "-l", "nowhere")
    assert code == 1, output
    assert "no hosts to target" in output


@pytest.mark.skipif(shutil.which("ssh") is None, reason="it takes ssh to find nobody")
def test_an_unreachable_host_is_told_apart(site):
    (site.work / "hosts.yml").write_text(
        "all:\n  hosts:\n    far: {ansible_host: 127.0.0.1, ansible_port: 1, ansible_ssh_common_args: -F none}\n"
    )
    code, output = site.run("verify", "-i", "hosts.yml")
    assert code == 4, output
    assert "far: unreachable: Use what nobody may see" in output
    assert "unreachable=1" in output


def test_what_follows_two_dashes_goes_to_ansible_playbook(site):
    code, output = site.run("verify", "--", "--list-tasks")
    assert code == 0, output
    assert "Wait when asked to" in output
    assert "PLAY RECAP" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_ends_the_tasks_too_and_leaves_nothing(site, sleep, number):
    process = site.start("verify", "-e", f"seconds={sleep.seconds}")
    try:
        sleep.wait(process)
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 130, output
        assert "interrupted" in output
        assert sleep.pids() == []
        assert site.left_behind() == []
    finally:
        process.kill()


def test_a_reader_that_goes_away_ends_nothing(site):
    process = site.start("verify", "-e", "seconds=0")
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=240) == 0
    assert site.left_behind() == []


def test_a_run_that_did_nothing_is_no_success(site):
    (site.work / "hosts.yml").write_text("all: {children: {another_group: {}}}\n")
    code, output = site.run("verify", "-i", "hosts.yml")
    assert code == 1, output
    assert "groundstate: nothing was done: no host of the inventory is in the group" in output
    assert site.left_behind() == []
