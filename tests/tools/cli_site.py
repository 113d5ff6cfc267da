"""A host of a test's own with a stand-in engine, and the command line `groundstate` on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from ansible_collections.groundstate.llm.plugins.module_utils import procfs, servers

ROOT = Path(__file__).resolve().parents[2]
MARK = "GROUNDSTATE_TEST_RUN"


class Site:
    """That host, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.home, self.temporary = folder / "home", folder / "tmp"
        self.temporary.mkdir()
        self.mark = folder.name + str(os.getpid())
        mock = str(ROOT / "tests" / "tools" / "mock_llm.py")
        host = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "groundstate_home": str(self.home),
            "groundstate_records_dir": str(folder / "records"),
            "ml_env_lock": "",
            "ml_env_path": sys.prefix,
            "nccl_profile_name": "stock",
            "llm_server": {
                "name": "mock",
                "engine": "generic",
                "model": sys.prefix,
                "served_model_name": "mock",
                "command": [sys.executable, mock, "--port", "{port}", "--step", "0.01"],
                "port_from": 19800,
                "gpus": [],
            },
            "llm_server_launcher": "process",
            "baseline_workload": {
                **{"prompt_tokens": 16, "output_tokens": 8, "concurrency": [1], "requests": 1, "repeats": 3},
                **{"warmup_requests": 1, "warmup_cap_s": 2},
            },
        }
        self.inventory = folder / "hosts.json"
        self.inventory.write_text(json.dumps({"groundstate": {"hosts": {"one": host}}}))
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "GROUNDSTATE_"))},
            "PYTHONPATH": str(ROOT / "src"),
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(folder / "cache"),
            MARK: self.mark,
        }

    def start(self, command: str = "deploy", *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "groundstate", command, "-i", str(self.inventory), "--json", *words],
            cwd=self.inventory.parent,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str = "deploy", *words: str, code: int = 0) -> list[dict]:
        """Run a command to its end; its events."""
        process = self.start(command, *words)
        output, _ = process.communicate(timeout=400)
        assert process.returncode == code, output
        return [json.loads(line) for line in output.splitlines()]

    def at_work(self) -> list[int]:
        """What still runs of the command: it, ansible-playbook, its workers, modules on this host."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def ours(self) -> list[procfs.Process]:
        return servers.started_by_us(str(self.home), "mock", procfs.processes())

    def end(self) -> None:
        """End the server, and what a failed test left."""
        for pid in [*self.at_work(), *(item.pid for item in self.ours())]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
