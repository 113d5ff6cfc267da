"""`groundstate deploy` ended by Ctrl-C at any moment: nothing goes on without it, and the same command succeeds."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs, servers

ROOT = Path(__file__).resolve().parents[2]
MARK = "GROUNDSTATE_TEST_RUN"
SEED = 20261129
TIMES = 8  # moments; with the seed, always the same ones


class Site:
    """A host of a test's own with a stand-in engine, and the command line on it."""

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

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "groundstate", "deploy", "-i", str(self.inventory), "--json"],
            cwd=self.inventory.parent,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def deploy(self) -> dict:
        """Run it to its end; the last event."""
        process = self.start()
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        return json.loads(output.splitlines()[-1])

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


@pytest.fixture(name="site")
def made_site(tmp_path):
    made = Site(tmp_path)
    yield made
    for pid in [*made.at_work(), *(item.pid for item in made.ours())]:  # of the server, and after a failed test
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def wait_for(condition, seconds: float = 120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def interrupt(site: Site, chance: random.Random) -> str:
    """Send SIGINT at a moment that the generator chooses; where that was."""
    after, more_s = chance.randrange(2, 55), chance.uniform(0, 1.5)
    process = site.start()
    seen = []
    for line in process.stdout:
        seen.append(line)
        if len(seen) >= after:
            break
    time.sleep(more_s)  # somewhere within what begins there
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=120)
    told = f"after {after} lines and {more_s:.2f} s:\n{''.join(seen)}{rest}"
    # A moment may lie behind the end of the run.
    assert process.returncode in (0, 130), told
    if process.returncode == 130:
        assert "The same command picks up from here" in rest, told
    return told


@pytest.mark.slow  # eight runs that are interrupted, and eight that are not
@pytest.mark.parametrize("number", range(TIMES))
def test_the_same_command_succeeds_after_ctrl_c_at_any_moment(site, number):
    told = interrupt(site, random.Random(SEED + number))
    wait_for(lambda: not site.at_work())
    assert not list(site.temporary.glob("groundstate-*")), told

    end = site.deploy()
    assert end["hosts"]["one"]["failed"] == 0, told
    record = servers.load(str(site.home), "mock")
    assert record.running(), told
    ours = site.ours()
    roots = [one for one in ours if one.ppid not in {other.pid for other in ours}]
    assert [one.pid for one in roots] == [record.pid], told
    assert not site.at_work(), told
