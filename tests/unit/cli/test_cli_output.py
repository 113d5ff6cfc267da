"""What a run shows: the plain log, events as JSON, the terminal; and that no secret gets out or stays."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data" / "cli"
DOCUMENTED = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SECRETS = {
    "extra": "e7Lq-extra-variable",
    "api_key": "k3Vz-api-key",
    "vault": "p9Xw-vault-password",
    "kept": "v1Bn-vaulted",
}


def normal(text: str, site) -> str:
    """A log without what differs from run to run: seconds, places, the widths of both."""
    text = text.replace(str(site.work), "WORK").replace(str(site.folder), "SITE")
    return re.sub(r" +\d+\.\d s", " N s", text)


def test_the_plain_log_has_one_line_a_step_and_a_table(site):
    code, output = site.run("verify", "-e", "word=x")
    assert code == 0, output
    assert normal(output, site) == (DATA / "verify.log").read_text()


def test_the_plain_log_of_a_failure_says_what_and_where(site):
    code, output = site.run("verify", "-e", "broken=true")
    assert code == 2, output
    assert normal(output, site) == (DATA / "verify.failed.log").read_text()


def test_ansible_plain_output_stays_usable(site):
    site.environment["ANSIBLE_STDOUT_CALLBACK"] = "default"
    code, output = site.run("verify")
    assert code == 0, output
    assert "TASK [Show what arrived]" in output


def documented(event: dict) -> None:
    """Every event and each of its keys stand in docs/cli.md."""
    [row] = [line for line in DOCUMENTED.splitlines() if line.startswith(f"| `{event['event']}` |")]
    for key in event.keys() - {"event", "time"}:
        assert f"`{key}`" in row, (key, row)


def test_events_are_one_documented_json_object_a_line(site):
    code, output = site.run("verify", "--json", "-e", "broken=true")
    assert code == 2, output
    events = [json.loads(line) for line in output.splitlines()]
    for event in events:
        documented(event)
    kinds = [event["event"] for event in events]
    assert kinds[0] == "run_start"
    assert events[0]["schema"] == 1
    assert kinds[-1] == "run_end"
    assert events[-1]["rc"] == 2
    assert events[-1]["hosts"] == {
        "here": {"ok": 3, "changed": 1, "unreachable": 0, "failed": 1, "skipped": 0, "rescued": 0, "ignored": 0}
    }
    ends = [event for event in events if event["event"] == "host_end"]
    # That a step changed something is hidden with the rest of its result (no_log); the recap counts it.
    assert [event["status"] for event in ends] == ["ok", "ok", "ok", "failed"]
    assert ends[-1]["msg"].startswith("Assertion failed")
    times = [event["time"] for event in events]
    assert times == sorted(times)
    # The same is kept, for later.
    [kept] = (site.cache / "groundstate" / "runs").iterdir()
    assert [json.loads(line) for line in kept.read_text().splitlines()] == events
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700


def test_only_the_last_runs_are_kept(site):
    runs = site.cache / "groundstate" / "runs"
    runs.mkdir(parents=True)
    for number in range(25):
        (runs / f"20200101T0000{number:02}Z-verify-1.jsonl").write_text("{}\n")
    code, output = site.run("verify", "--", "--syntax-check")
    assert code == 0, output
    names = sorted(path.name for path in runs.iterdir())
    assert len(names) == 20
    assert names[0] == "20200101T000006Z-verify-1.jsonl"


def vaulted(site) -> Path:
    """An inventory with a key in plain text and a vaulted variable; the vault's password lies beside it."""
    password = site.work / "password"
    password.write_text(SECRETS["vault"])
    program = Path(sys.executable).with_name("ansible-vault")
    done = subprocess.run(
        [program, "encrypt_string", "--vault-password-file", password, SECRETS["kept"], "--name", "token"],
        capture_output=True,
        text=True,
        check=True,
    )
    inventory = site.work / "secret.yml"
    host = "ansible_connection: local\n      ansible_python_interpreter: '{{ ansible_playbook_python }}'"
    value = done.stdout.replace("\n", "\n      ").rstrip()
    inventory.write_text(
        f"all:\n  hosts:\n    here:\n      {host}\n      api_key: {SECRETS['api_key']}\n      {value}\n"
    )
    return inventory


def leaks(*places: Path) -> list[tuple[str, str]]:
    """(file, secret) for each secret in a file below these folders."""
    return [
        (str(path), name)
        for place in places
        for path in sorted(place.rglob("*"))
        if path.is_file()
        for name, secret in SECRETS.items()
        if secret.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_secrets_are_neither_shown_nor_written_down(site, sleep, form):
    inventory = vaulted(site)
    arguments = ["-i", str(inventory), "-e", f"hidden={SECRETS['extra']} seconds={sleep.seconds}"]
    site.environment["A_SECRET_OF_THE_SHELL"] = SECRETS["extra"]
    process = site.start("verify", *form, *arguments, "--", "--vault-password-file", str(site.work / "password"))
    try:
        sleep.wait(process)
        # While it runs, ansible-runner has its private data on disk, for this user alone.
        [private] = site.temporary.glob("groundstate-*")
        assert private.stat().st_mode & 0o777 == 0o700
        assert any(path.is_file() for path in private.rglob("*"))
        during = leaks(private, site.cache)
        for pid in sleep.pids():
            os.kill(pid, 15)
        output, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 2, output  # sleep was ended
    assert during == []
    assert leaks(site.temporary, site.cache) == []
    # The step that uses them ran, and nothing was shown of it.
    assert "Use what nobody may see" in output
    assert [name for name, secret in SECRETS.items() if secret in output] == []


def test_a_terminal_shows_what_every_host_does_and_can_be_asked_for_passwords(site):
    inventory = vaulted(site)
    command, *words = site.command("verify", "-i", str(inventory), "--", "--ask-vault-pass")
    environment = {**site.environment, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    child = pexpect.spawn(
        command, words, cwd=site.work, env=environment, dimensions=(40, 120), encoding="utf-8", timeout=240
    )
    try:
        child.expect("Vault password: ")
        child.sendline(SECRETS["vault"])
        child.expect("PLAY RECAP")
        shown = child.before
        child.expect(pexpect.EOF)
    finally:
        child.close()
    assert child.exitstatus == 0, shown
    # Below the lines: the play, the host, its step.
    assert re.search(r"Try the command line, \d+ s", shown)
    assert re.search(r"here.*Use what nobody may see.*\d s", shown)
    assert "\x1b[2K" in shown, "the table is taken back"
    assert SECRETS["kept"] not in shown


@pytest.fixture
def terminal(site, sleep):
    """The command line on a terminal, while its last step sleeps."""
    command, *words = site.command("verify", "-e", f"seconds={sleep.seconds}")
    environment = {**site.environment, "TERM": "xterm-256color"}
    child = pexpect.spawn(command, words, cwd=site.work, env=environment, encoding="utf-8", timeout=240)
    try:
        deadline = time.monotonic() + 240
        while not sleep.pids():
            assert child.isalive(), child.read()
            assert time.monotonic() < deadline, "the step did not begin"
            with contextlib.suppress(pexpect.TIMEOUT):
                child.read_nonblocking(size=65536, timeout=0.1)  # what is written has to be read
        yield child
    finally:
        child.close(force=True)


def test_ctrl_c_ends_in_order_and_gives_the_terminal_back(site, sleep, terminal):
    terminal.sendintr()
    terminal.expect("interrupted: ending what runs, in order")
    terminal.expect("The same command picks up from here")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    assert sleep.pids() == []
    assert site.left_behind() == []


def test_a_terminal_that_is_closed_ends_in_order(site, sleep, terminal):
    terminal.ptyproc.fileobj.close()  # as a window that is closed: nobody reads, the kernel sends SIGHUP
    deadline = time.monotonic() + 240
    while sleep.pids() or site.left_behind():
        assert time.monotonic() < deadline, "it goes on without its terminal"
        time.sleep(0.1)
