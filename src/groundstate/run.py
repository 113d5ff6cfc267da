"""Runs a playbook with ansible-runner: shown while it goes on, ended in order, nothing secret left on disk."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import ansible_runner

from . import progress
from .content import cache_folder, collections_root
from .durations import Durations
from .events import SCHEMA, Event, Translator, text_of
from .interruption import INTERRUPTED, Interruption

NOTHING_DONE = 1  # exit code
KEPT_RUNS = 20  # logs of events
# ansible-playbook asks on the terminal that ansible-runner gives it, where nobody could answer: option -> (what to ask
# here, what it asks there).
QUESTIONS = {
    ("-K", "--ask-become-pass"): ("BECOME password: ", r"BECOME password.*:\s*?$"),
    ("-k", "--ask-pass"): ("SSH password: ", r"SSH password:\s*?$"),
    ("-J", "--ask-vault-pass", "--ask-vault-password"): ("Vault password: ", r"Vault password.*:\s*?$"),
}


@dataclass(frozen=True)
class Request:
    """What is to be run."""

    command: str
    playbook: str
    arguments: Sequence[str]
    kind: str  # what its durations are kept by
    check: bool
    json: bool


class _Log:
    """The events of a run in the user's cache, for later; the oldest logs go."""

    def __init__(self, command: str) -> None:
        self._file: TextIO | None = None
        folder = cache_folder() / "runs"
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            for old in sorted(folder.glob("*.jsonl"))[: 1 - KEPT_RUNS]:
                old.unlink(missing_ok=True)
            name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{command}-{os.getpid()}.jsonl"
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = os.fdopen(handle, "w", encoding="utf-8", buffering=1)
        except OSError:
            pass  # a run does not depend on it

    def event(self, event: Event) -> None:
        try:
            if self._file is not None:
                self._file.write(json.dumps(event, ensure_ascii=False) + "\n")
        except (OSError, ValueError):
            self._file = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Run:
    """One run: takes the events of ansible-runner, passes ours on."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.began = time.monotonic()
        self.durations = Durations()
        self.translator = Translator()
        self.log = _Log(request.command)
        self.shown = progress.display(request.json, request.kind, self.durations)
        self.steps: dict[str, list[tuple[str, float]]] = {}
        self.bad: set[str] = set()
        self.hosts: dict[str, Any] | None = None  # until the recap

    def tell(self, event: Event) -> None:
        """Pass on one of our events."""
        stamped = {"event": event["event"], "time": round(time.time(), 3), **event}
        self.shown.event(stamped)
        self.log.event(stamped)

    def handle(self, raw: Event) -> bool:
        """An event of ansible-runner. False: it shall not keep it on disk."""
        events = list(self.translator.translate(raw))
        if text := text_of(raw):
            self.shown.text(text, progress=any(one["event"] == "host_progress" for one in events))
        for event in events:
            if event["event"] == "host_start":
                key = progress.step_key(event)
                left = self.durations.remaining(self.request.kind, event["host"], key, 0.0)
                event["eta_s"] = None if left is None else round(left, 1)
            elif event["event"] == "host_end":
                self.steps.setdefault(event["host"], []).append((progress.step_key(event), event["seconds"]))
                if event["status"] in ("failed", "unreachable"):
                    self.bad.add(event["host"])
            elif event["event"] == "recap":
                self.hosts = event["hosts"]
                continue  # it is part of the last event
            self.tell(event)
        return False

    def status(self, status: Event, runner_config: Any) -> None:
        """ansible-runner has written down what it was called with, environment included: nobody needs that file."""
        if status.get("status") != "starting":
            Path(runner_config.artifact_dir, "command").unlink(missing_ok=True)

    def interrupted(self, text: str) -> None:
        self.tell({"event": "interrupted"})
        self.shown.text(f"groundstate: {text}")

    def nothing_done(self) -> None:
        text = (
            "nothing was done: no host of the inventory is in the group that this playbook is for, or no step has "
            "these tags; see 'hosts:' of the playbook, -i and --tags"
        )
        self.tell({"event": "output", "text": text})
        self.shown.text(f"groundstate: {text}")

    def over(self, code: int) -> None:
        """Show the end, and remember how long the steps took of the hosts that went through all."""
        self.shown.close()
        seconds = round(time.monotonic() - self.began, 3)
        self.tell({"event": "run_end", "rc": code, "seconds": seconds, "hosts": self.hosts or {}})
        self.log.close()
        if code != INTERRUPTED:
            for host in (self.hosts or {}).keys() - self.bad:
                self.durations.add(self.request.kind, host, self.steps.get(host, []))
            self.durations.save()


def playbook(request: Request) -> int:
    """Run a playbook in the current folder; its exit code."""
    passwords = answers(request.arguments)
    run = _Run(request)
    interruption = Interruption(run.interrupted)
    interruption.install()
    start = {"schema": SCHEMA, "command": request.command, "playbook": request.playbook, "check": request.check}
    run.tell({"event": "run_start", **start})
    code = 1
    try:
        # For what ansible-runner and its callback exchange. Readable for the user alone, and gone afterwards.
        with tempfile.TemporaryDirectory(prefix="groundstate-") as private:
            done = ansible_runner.run(
                private_data_dir=private,
                project_dir=os.getcwd(),
                playbook=request.playbook,
                cmdline=shlex.join(request.arguments),
                envvars=environment(live=not request.json and progress.can_be_live(sys.stdout)),
                passwords=passwords,
                cancel_callback=interruption,
                event_handler=run.handle,
                status_handler=run.status,
                quiet=True,
                suppress_env_files=True,
                # pexpect_timeout: how often it asks whether to stop, in seconds (its own default is 5).
                settings={"pexpect_timeout": 0.2, "suppress_output_file": True},
            )
        code = 1 if done.rc is None else int(done.rc)
        if code == 0 and run.hosts == {}:  # for Ansible that is a success; whoever mistyped would believe it
            code = NOTHING_DONE
            run.nothing_done()
        if interruption.count:
            code = INTERRUPTED
    finally:
        run.over(code)
    if interruption.count:
        with contextlib.suppress(OSError):  # the terminal may be what is gone
            print(
                "groundstate: interrupted. The same command picks up from here; 'groundstate reset' ends what a host "
                "may still be doing.",
                file=sys.stderr,
            )
    return code


def answers(arguments: Sequence[str]) -> dict[str, str]:
    """Ask the user what ansible-playbook will ask for: {its question, as a pattern: the answer}."""
    made = {}
    for names, (question, pattern) in QUESTIONS.items():
        short = re.compile(rf"-[A-Za-z]*{names[0][1]}[A-Za-z]*")
        if any(word in names or short.fullmatch(word) for word in arguments):
            made[pattern] = getpass.getpass(question)
    return made


def environment(live: bool) -> dict[str, str]:
    """What is added to the environment of ansible-playbook. ``live``: the output goes to a terminal."""
    inherited = os.environ.get("ANSIBLE_COLLECTIONS_PATH") or "~/.ansible/collections:/usr/share/ansible/collections"
    added = {
        # First, so that a collection installed by ansible-galaxy at another time cannot stand in for this version.
        "ANSIBLE_COLLECTIONS_PATH": f"{collections_root()}:{inherited}",
        "ANSIBLE_STDOUT_CALLBACK": os.environ.get("ANSIBLE_STDOUT_CALLBACK") or "groundstate.llm.baseline",
        # ansible-runner starts ansible-playbook from PATH, where a virtual environment that is not activated isn't.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
    if not live or os.environ.get("NO_COLOR"):
        # ansible-runner gives ansible-playbook a terminal of its own and asks for colours.
        added |= {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}
    return added
