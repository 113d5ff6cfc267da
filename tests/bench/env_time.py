#!/usr/bin/env python3
"""How long python_env takes when nothing changed, on an environment of many distributions, and how long to make it.

usage: python tests/bench/env_time.py [--distributions 250] [--files 400] [--repeats 5]

The wheels are made on the spot and installed from a folder, so that no network takes part. Printed: the build (with uv
where it is there), then the unchanged call in this process and as an Ansible task on this machine, beside a ping.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "playbooks" / "collections"), str(ROOT / "tests" / "tools")]

from ansible_collections.groundstate.llm.plugins.module_utils.venvs import build  # noqa: E402
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.installers import Sources  # noqa: E402
from made_wheels import wheel  # noqa: E402


def timed(action: Callable[[], object], repeats: int) -> str:
    """Median and range in seconds."""
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return f"{statistics.median(taken):.3f} s ({min(taken):.3f} to {max(taken):.3f})"


def task(module: str, arguments: dict) -> Callable[[], None]:
    """A run of one module by `ansible` on this machine."""
    command = [
        str(Path(sys.executable).parent / "ansible"),
        "localhost",
        "--connection=local",
        f"--extra-vars=ansible_python_interpreter={sys.executable}",
        f"--module-name={module}",
        *([f"--args={json.dumps(arguments)}"] if arguments else []),
    ]

    def run() -> None:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)

    return run


def main() -> None:
    """Build, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distributions", type=int, default=250)
    parser.add_argument("--files", type=int, default=400, help="in each of them")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="groundstate-bench-") as folder:
        index = Path(folder) / "index"
        files = {f"module{number}.py": f"VALUE = {number}\n" for number in range(options.files - 1)}
        lock = "".join(wheel(index, f"dist{number}", "1.0", data=files) for number in range(options.distributions))
        spec = build.Spec(
            path=os.path.join(folder, "envs", "many"),
            requirements=lock,
            python=sys.executable,
            imports=("dist0",),
            sources=Sources(find_links=(str(index),), no_index=True),
        )
        begin = time.perf_counter()
        made = build.ensure(spec)
        seconds = time.perf_counter() - begin
        print(f"made: {len(made.items)} distributions of {options.files} files in {seconds:.1f} s")
        print(f"unchanged, the function: {timed(lambda: build.ensure(spec), options.repeats)}")
        arguments = {"path": spec.path, "requirements": lock, "python": spec.python, "imports": ["dist0"]}
        print(f"unchanged, ansible python_env: {timed(task('groundstate.llm.python_env', arguments), options.repeats)}")
        print(f"beside it, ansible ping:       {timed(task('ansible.builtin.ping', {}), options.repeats)}")


if __name__ == "__main__":
    main()
