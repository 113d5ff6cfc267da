"""Real processes, started for a test and ended with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TITLED = Path(__file__).parents[2] / "tools" / "titled_process.py"


class Processes:
    """Starts processes that say "ready" on stdout; ends them all."""

    def __init__(self):
        self.started = []

    def run(self, command, env=None):
        """Start a command and wait for its "ready"."""
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.started.append(process)
        line = process.stdout.readline()
        assert line == b"ready\n", (command, line)
        return process

    def python(self, code, env=None, python=sys.executable):
        """Run Python code, then say ready, then wait."""
        return self.run([python, "-c", f"import os, sys\n{code}\nos.write(1, b'ready\\n')\nsys.stdin.read()"], env)

    def titled(self, *arguments, env=None, python=sys.executable):
        """Run tests/tools/titled_process.py."""
        return self.run([python, str(TITLED), *arguments], env)

    def end(self):
        for process in self.started:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


@pytest.fixture
def start():
    processes = Processes()
    yield processes
    processes.end()
