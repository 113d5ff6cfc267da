"""Runs compare.yml as a user does, for tests: with any declaration, killed at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ansible_collections.groundstate.llm.plugins.module_utils import procfs, servers
from killing import kill_if_there

ROOT = Path(__file__).resolve().parents[2]


class CompareBed:
    """Runs the playbook for the host "h" with ``variables`` as its inventory; state and records below ``folder``."""

    def __init__(self, folder: Path, **variables) -> None:
        self.folder, self.home, self.records = folder, folder / "home", folder / "records"
        self.variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "groundstate_home": str(self.home),
            "groundstate_records_dir": str(self.records),
            "ml_env_lock": "",
            "ml_env_path": str(folder / "env"),
            "gpu_state_gpus": [],
            "baseline_local_fact": "",
            **variables,
        }
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment["ANSIBLE_NOCOLOR"] = "1"
        # It names a task when it begins: the moment at which the tests kill it.
        self.environment["ANSIBLE_STDOUT_CALLBACK"] = "default"

    def start(self, *arguments: str, playbook: str = "compare.yml", **variables) -> subprocess.Popen:
        """Start the playbook; ``variables`` go in with -e, as a person would give them."""
        inventory = self.folder / "hosts.json"
        told = {"groundstate": {"hosts": {"h": {}}, "vars": self.variables}}
        inventory.write_text(json.dumps(told))
        return subprocess.Popen(
            [
                "ansible-playbook",
                f"playbooks/{playbook}",
                "-i",
                str(inventory),
                "-e",
                json.dumps(variables),
                *arguments,
            ],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, rc: int = 0, **variables) -> str:
        """Run it to its end, which has to be ``rc``; its output."""
        process = self.start(*arguments, **variables)
        output, _ = process.communicate(timeout=1200)
        assert process.returncode == rc, output
        return output

    def killed_at(self, words: str, **variables) -> str:
        """Run it until the output has ``words``, then kill all of the controller at once; what it had said."""
        process = self.start(**variables)
        said: list[str] = []
        watchdog = threading.Timer(600, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        try:
            for line in process.stdout:
                said.append(line)
                if words in line:
                    break
            os.killpg(process.pid, signal.SIGKILL)
        finally:
            watchdog.cancel()
            process.stdout.close()
            process.wait()
        assert said, "it said nothing at all"
        assert words in said[-1], "".join(said)
        return "".join(said)

    @contextmanager
    def held_at(self, words: str, **variables) -> Iterator[subprocess.Popen]:
        """Run it until the output has ``words``, then stop all of the controller; the end of the block kills it."""
        process = self.start(**variables)
        watchdog = threading.Timer(600, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        said: list[str] = []
        try:
            for line in process.stdout:
                said.append(line)
                if words in line:
                    break
            assert words in said[-1], "".join(said)
            os.killpg(process.pid, signal.SIGSTOP)
            yield process
        finally:
            watchdog.cancel()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()
            process.wait()

    def launch(self, **variables) -> str:
        """Launch the declared server, with other values of some variables, as somebody beside a comparison would."""
        return self.run("--tags", "llm_server", playbook="deploy_baseline.yml", **variables)

    def documents(self) -> list[dict]:
        """The comparisons on the controller, oldest first."""
        found = sorted(self.records.glob("h/comparisons/*/comparison.json"))
        return [json.loads(path.read_text()) for path in found]

    def document(self) -> dict:
        """The only one."""
        [found] = self.documents()
        return found

    def record_files(self) -> list[Path]:
        """The records on the controller, oldest first."""
        return sorted(self.records.glob("h/*.json"))

    def ours(self) -> list[procfs.Process]:
        """The processes of the declared server."""
        return servers.started_by_us(str(self.home), self.variables["llm_server"]["name"], procfs.processes())

    def end(self) -> None:
        """End what a failed test left."""
        for item in self.ours():
            kill_if_there(item.pid)
