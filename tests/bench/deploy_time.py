#!/usr/bin/env python3
"""How long the main job takes on the local default: the first start by step, and runs with nothing to do.

usage: python tests/bench/deploy_time.py [--repeats 5] [--cold]

Runs playbooks/deploy_baseline.yml through ansible-runner with state and records in a temporary folder, and prints the
seconds of each task (its own end minus its start, as Ansible reports them) and of the whole. --cold gives uv and pip
empty caches, so that the packages are fetched.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import ansible_runner

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def state(cold: bool) -> Iterator[dict[str, str]]:
    """Environment with folders of its own; the server is stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="groundstate-bench-") as folder:
        environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GROUNDSTATE_HOME": f"{folder}/home",
            "GROUNDSTATE_RECORDS": f"{folder}/records",
        }
        if cold:
            environment |= {"UV_CACHE_DIR": f"{folder}/uv", "PIP_CACHE_DIR": f"{folder}/pip", "PIP_NO_CACHE_DIR": "1"}
        try:
            yield environment
        finally:
            play("teardown", environment)


def play(playbook: str, environment: dict[str, str]) -> tuple[float, list[tuple[str, float]]]:
    """Wall seconds of a playbook and of each of its tasks. Ends the program when it fails."""
    tasks: list[tuple[str, float]] = []

    def seen(event: dict) -> bool:
        data = event.get("event_data", {})
        if event["event"] in ("runner_on_ok", "runner_on_skipped") and data.get("start") and data.get("end"):
            start, end = (datetime.fromisoformat(data[key]) for key in ("start", "end"))
            tasks.append((data["task"], (end - start).total_seconds()))
        return True

    with tempfile.TemporaryDirectory() as private:
        began = time.perf_counter()
        result = ansible_runner.run(
            private_data_dir=private,
            project_dir=str(ROOT),
            playbook=f"playbooks/{playbook}.yml",
            envvars=environment,
            event_handler=seen,
            quiet=True,
        )
        seconds = time.perf_counter() - began
        if result.rc != 0:
            sys.exit(f"{playbook} failed:\n{result.stdout.read()}")
    return seconds, tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    with state(options.cold) as environment:
        seconds, tasks = play("deploy_baseline", environment)
        print(f"first run{' with cold package caches' if options.cold else ''}: {seconds:.1f} s")
        for name, spent in tasks:
            if spent >= 0.3:
                print(f"  {spent:6.2f} s  {name}")
        walls = []
        for _ in range(options.repeats):
            seconds, tasks = play("deploy_baseline", environment)
            walls.append(seconds)
        spread = f"{min(walls):.2f} to {max(walls):.2f}"
        print(f"nothing to do: {statistics.median(walls):.2f} s, median of {len(walls)} ({spread})")
        for name, spent in tasks:
            print(f"  {spent:6.2f} s  {name}")


if __name__ == "__main__":
    main()
