#!/usr/bin/env python3
"""How long after the fact readiness and death of a server are noticed and reported.

usage: python tests/bench/ready_lag.py ENV_PATH [--starts 5] [--delay 8]     ENV_PATH: an environment of the role ml_env

Readiness: an observer of its own asks the starting server for one token every 5 ms; its first answer is the truth.
Death: the engine gets SIGKILL while it starts. Noticed is when the module knew (ready.json), reported when Ansible had
the result of the task that waits. The small model of the local default is ready before the module has started;
``--delay`` puts the engine's start off by some seconds, so that the module waits, as it does for larger models.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import ansible_runner

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "playbooks" / "collections"))

from ansible_collections.groundstate.llm.plugins.module_utils import servers  # noqa: E402


class Watcher(threading.Thread):
    """Waits for the next launch under a home, then does its one thing; ``moment`` is when that was (unix time)."""

    def __init__(self, home: str, last_start: str, delay_s: float) -> None:
        super().__init__(daemon=True)
        self.home, self.last_start, self.delay_s, self.moment = home, last_start, delay_s, 0.0

    def launched(self) -> servers.ServerRecord:
        while True:
            record = servers.load(self.home, "local")
            if record and record.state == "launched" and record.start_id != self.last_start:
                return record
            time.sleep(0.002)


class FirstToken(Watcher):
    """Asks for one token until there is an answer."""

    def run(self) -> None:
        record = self.launched()
        body = json.dumps({"model": record.served_model_name, "prompt": "a", "max_tokens": 1}).encode()
        while not self.moment and record.running():
            request = urllib.request.Request(
                f"{record.base_url}/v1/completions", body, {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=5):
                    self.moment = time.time()
            except OSError:  # refused, or 503 while it loads
                time.sleep(0.005)


class Killer(Watcher):
    """Kills the engine while it loads the model."""

    def run(self) -> None:
        record = self.launched()
        time.sleep(0.4 + 0.8 * self.delay_s)
        os.kill(record.pid, signal.SIGKILL)
        self.moment = time.time()


def put_off(env_path: str, delay_s: float) -> dict[str, Any]:
    """The server of inventories/local, with an engine that sleeps before it starts."""
    return {
        "name": "local",
        "engine": "llama_cpp",
        "model": f"{env_path}/models/smollm2-135m.gguf",
        "served_model_name": "smollm2-135m",
        "context_length": 2048,
        "gpus": [],
        "command": ["/bin/sh", "-c", f'sleep {delay_s}; exec "$0" "$@"', f"{env_path}/bin/groundstate-llama-cpp"],
    }


def deploy(environment: dict[str, str], variables: dict[str, Any]) -> tuple[float, int]:
    """Run the job up to readiness; when the waiting task's result was there (unix time), and the exit code."""
    reported = []

    def seen(event: dict) -> bool:
        task = str(event.get("event_data", {}).get("task"))
        if event["event"] in ("runner_on_ok", "runner_on_failed") and "until the server serves" in task:
            reported.append(time.time())
        return True

    with tempfile.TemporaryDirectory() as private:
        result = ansible_runner.run(
            private_data_dir=private,
            project_dir=str(ROOT),
            playbook="playbooks/deploy_baseline.yml",
            envvars=environment,
            extravars=variables,
            tags="nccl_profile,llm_server",
            event_handler=seen,
            quiet=True,
        )
    return (reported or [0.0])[0], result.rc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env_path")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.0)
    options = parser.parse_args()
    env_path = os.path.abspath(options.env_path)
    lags: dict[str, list[float]] = {f"{one} {how}": [] for one in ("ready", "dead") for how in ("noticed", "reported")}
    with tempfile.TemporaryDirectory(prefix="groundstate-bench-") as home:
        environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GROUNDSTATE_HOME": home,
        }
        variables: dict[str, Any] = {"ml_env_path": env_path, "ml_env_lock": ""}
        if options.delay:
            variables["llm_server"] = put_off(env_path, options.delay)
        last = ""
        for _ in range(options.starts):
            for name, kind in (("ready", FirstToken), ("dead", Killer)):
                watcher = kind(home, last, options.delay)
                watcher.start()
                reported, code = deploy(environment, variables)
                watcher.join(30)
                if not reported or not watcher.moment or (code == 0) != (name == "ready"):
                    sys.exit(f"{name}: the run ended with {code}, reported {reported}, fact {watcher.moment}")
                lags[f"{name} reported"].append(reported - watcher.moment)
                record = servers.load(home, "local")
                known = Path(servers.folder(home, "local"), "ready.json")
                noticed = json.loads(known.read_text())["ready_at"] if name == "ready" else known.stat().st_mtime
                lags[f"{name} noticed"].append(noticed - watcher.moment)
                if record and record.running():
                    os.kill(record.pid, signal.SIGKILL)
                last = record.start_id if record else ""
    for name, values in lags.items():
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"{name} {statistics.median(values):.2f} s after the fact, median of {len(values)} ({spread})")


if __name__ == "__main__":
    main()
