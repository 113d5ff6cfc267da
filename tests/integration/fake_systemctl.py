#!/usr/bin/env python3
"""The part of systemctl that the launcher uses, on units in $FAKE_UNITS; every call is noted in $FAKE_UNITS/calls."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_UNITS"])


def settings(unit: str) -> dict[str, str]:
    lines = (FOLDER / unit).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def unquoted(text: str) -> str:
    return text.replace("%%", "%").replace("$$", "$")


def start(unit: str) -> int:
    options = settings(unit)
    environment = {}
    for line in Path(unquoted(options["EnvironmentFile"])).read_text().splitlines():
        for word in shlex.split(line):
            key, _, value = word.partition("=")
            environment[key] = value
    log = open(unquoted(options["StandardOutput"]).removeprefix("append:"), "ab")  # noqa: SIM115
    words = [unquoted(word) for word in shlex.split(options["ExecStart"])]
    try:
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    except OSError as error:
        print(f"Failed to start {unit}: {error}", file=sys.stderr)
        return 1
    (FOLDER / f"{unit}.pid").write_text(str(process.pid))
    return 0


def stop(unit: str) -> int:
    path = FOLDER / f"{unit}.pid"
    if not path.exists():
        print(f"Failed to stop {unit}: Unit {unit} not loaded.", file=sys.stderr)
        return 5
    pid = int(path.read_text())
    path.unlink()
    try:
        os.kill(pid, signal.SIGTERM)
        while Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.02)
    except OSError:
        pass  # it is gone
    return 0


def main(words: list[str]) -> int:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(" ".join(words) + "\n")
    if words[0] == "start":
        return start(words[1])
    if words[0] == "stop":
        return stop(words[1])
    if words[0] == "show":
        path = FOLDER / f"{words[-1]}.pid"
        if words[1] == "--property=MainPID":
            print(path.read_text() if path.exists() else 0)
        else:
            print("active" if path.exists() else "failed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
