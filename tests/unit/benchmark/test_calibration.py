"""The client's own error: measured for real against the deterministic server, and what follows from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import calibration, load, procfs
from ansible_collections.groundstate.llm.plugins.module_utils.endpoint import Sample
from ansible_collections.groundstate.llm.plugins.module_utils.known_server import Settings

ROOT = Path(__file__).resolve().parents[3]


def test_every_level_is_compared_with_what_was_really_sent():
    told = calibration.calibrate([1, 3], Settings(ttft=0.05, step=0.004))
    assert [(one["concurrency"], one["requests"]) for one in told["levels"]] == [(1, 2), (3, 6)]
    for level in told["levels"]:
        # Bytes cannot arrive before they were sent: what a busy machine does is make it later.
        assert level["ttft_error"] > -0.01
        assert set(level) >= set(calibration.LIMITS)
    assert (told["tokens"], told["ttft_s"]) == (calibration.TOKENS, 0.05)


def sample(at: float, ttft: float, whole: float) -> Sample:
    return Sample(sent_at=at, ttft_s=ttft, e2e_s=whole, tpot_s=(whole - ttft) / 9, tokens=10)


def truth(at: float, ttft: float, whole: float) -> dict:
    return {"received_at": at, "first_at": at + ttft, "last_at": at + whole, "tokens": 10, "complete": True}


def run(samples: list[Sample]) -> load.Run:
    repeat = load.Repeat(2, 0, samples)
    return load.Run(0.0, 1.0, [repeat], {}, {}, {}, [load.Level(2, 9.0, 20.0, {}, None)])


def test_errors_are_shares_of_the_truth_and_too_great_ones_are_problems():
    (level,) = calibration.compare(
        run([sample(10.0, 0.22, 1.13), sample(10.0, 0.24, 1.15)]), [truth(10.0, 0.2, 1.1), truth(10.0, 0.2, 1.1)]
    )
    assert level["ttft_error"] == pytest.approx(0.15)
    assert level["tpot_error"] == pytest.approx(0.01111, abs=1e-4)
    assert level["output_error"] == pytest.approx(1.1 / 1.15 - 1)
    told = calibration.problems([level])
    assert [one.split(":")[1].split(" of ")[0].strip() for one in told] == ["ttft error", "tpot error", "output error"]
    assert "+15.0% at concurrency 2" in told[0]
    good = {"concurrency": 2, "ttft_error": 0.01, "tpot_error": -0.001, "output_error": None}
    assert calibration.problems([good]) == []


def test_a_client_that_lost_requests_is_not_calibrated():
    lost = Sample(sent_at=10.0, error="reset")
    with pytest.raises(load.LoadError, match="1 of 2 requests"):
        calibration.compare(run([sample(10.0, 0.2, 1.1), lost]), [truth(10.0, 0.2, 1.1)])


def test_the_server_ends_with_a_client_that_is_killed():
    code = (
        "import os, time\n"
        "from ansible_collections.groundstate.llm.plugins.module_utils import calibration\n"
        "from ansible_collections.groundstate.llm.plugins.module_utils.known_server import Settings\n"
        "with calibration.server(Settings()) as url:\n"
        "    print(url, flush=True)\n"
        "    time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "playbooks" / "collections")}
    client = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert client.stdout is not None
        assert client.stdout.readline().startswith("http://127.0.0.1:")
        children = [one for one in procfs.processes().values() if one.ppid == client.pid]
    finally:
        client.send_signal(signal.SIGKILL)
        client.communicate()
    assert len(children) == 1
    deadline = time.monotonic() + 30
    while (now := procfs.process(children[0].pid)) is not None and now.start == children[0].start and not now.zombie:
        assert time.monotonic() < deadline
        time.sleep(0.02)
