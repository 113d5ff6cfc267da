"""The measurement of a fleet, with two simulated hosts, so that it does not rot."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow(reason="two main jobs on each of two hosts")
@pytest.mark.skipif(shutil.which("cc") is None, reason="the simulated hosts are compiled")
def test_a_fleet_of_two_is_measured():
    command = [sys.executable, ROOT / "tests" / "bench" / "scale.py", "--hosts", "1,2", "--tasks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    replayed = "Deploy with nothing to do, answers replayed"
    for what in ("Deploy with nothing to do", "Reset with nothing to do", replayed):
        table = re.search(rf"^{what}\n\n\| hosts .*\n\| ---.*\n((?:\|.*\n)+)", done.stdout, re.MULTILINE).group(1)
        rows = [[float(cell) for cell in line.strip("| ").split("|")] for line in table.splitlines()]
        assert [row[0] for row in rows] == [1, 2]
        hosts = [row.pop(4) for row in rows]
        assert all(cell > 0 for row in rows for cell in row)
        assert all((cpu == 0) is (what == replayed) for cpu in hosts)
        assert f"{what}, 2 hosts, seconds by task:" in done.stdout
