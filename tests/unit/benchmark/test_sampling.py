"""Samples of the machine: what a real nvidia-smi streamed, a driver that lacks fields, one that hangs up, no GPU."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs, sampling
from hypothesis import given
from hypothesis import strategies as st

CAPTURE = Path(__file__).resolve().parents[2] / "data" / "benchmark" / "nvidia-smi.h200.lms200.csv"

# Says what the capture says, in the columns that are asked for, and refuses fields as the driver does.
PROGRAM = """#!{python}
import sys, time
known = {known!r}
head, *rows = open({capture!r}).read().splitlines()
names = [one.split(" [")[0].strip() for one in head.split(",")]
alias = {{"clocks_throttle_reasons.active": "clocks_event_reasons.active"}}
asked = next(word for word in sys.argv if word.startswith("--query-gpu=")).partition("=")[2].split(",")
assert sys.argv[-2] == "-lms"
for field in asked:
    if field not in known:
        print(f'Field "{{field}}" is not a valid field to query.\\n')
        sys.exit(2)
for round in range({rounds}):
    for row in rows:
        cells = [one.strip() for one in row.split(",")]
        print(", ".join(cells[names.index(alias.get(field, field))] for field in asked), flush=True)
        time.sleep(0.002)
"""
ALL = ["index", "clocks.current.sm", "clocks.current.memory", "power.draw", "temperature.gpu", "utilization.gpu"]
ALL += ["memory.used", "clocks_event_reasons.active"]


@pytest.fixture
def driver(tmp_path):
    def make(known=ALL, rounds=10_000) -> str:
        path = tmp_path / "nvidia-smi"
        path.write_text(PROGRAM.format(python=sys.executable, known=known, capture=str(CAPTURE), rounds=rounds))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def wait_for(condition, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def test_a_stream_is_read_while_it_runs_and_its_process_ends_with_us(driver):
    with sampling.Sampler(program=driver()) as sampler:
        wait_for(lambda: len(sampler.rows) >= 80)
        pid = sampler._child.pid
    assert procfs.process(pid) is None
    assert sampler.about() == {"source": "nvidia-smi", "interval_s": 0.2, "why": ""}
    told = sampling.summarise(sampler.rows[:80], 0.0, float("inf"))
    (gpu,) = told["gpus"]
    assert (gpu["index"], gpu["n"], told["n"], told["host"]) == (0, 80, 80, {})
    assert gpu["sm_mhz"] == {"min": 1980.0, "median": 1980.0, "max": 1980.0}
    assert gpu["power_w"]["min"] == 126.46
    assert gpu["power_w"]["max"] > 400
    assert gpu["utilisation"] == {"min": 0.0, "median": 100.0, "max": 100.0}


def test_only_samples_of_the_window_count(driver):
    rows = [sampling.Row(float(when), 0, {"sm_mhz": 1000.0 + when}, 4 if when % 2 else 0) for when in range(10)]
    (gpu,) = sampling.summarise(rows, 2.0, 5.0)["gpus"]
    assert gpu["sm_mhz"] == {"min": 1002.0, "median": 1003.5, "max": 1005.0}
    assert (gpu["n"], gpu["reasons"]) == (4, {"sw_power_cap": 0.5})
    assert sampling.summarise(rows, 20.0, 30.0) == {"n": 0, "gpus": [], "host": {}}


def test_an_older_driver_is_asked_by_the_old_name_and_without_what_it_lacks(driver):
    old = [name for name in ALL if name not in ("clocks_event_reasons.active", "temperature.gpu")]
    with sampling.Sampler(program=driver([*old, "clocks_throttle_reasons.active"])) as sampler:
        wait_for(lambda: sampler.rows)
    row = sampler.rows[0]
    assert "temperature_c" not in row.values
    assert (row.reasons, row.values["sm_mhz"]) == (0, 1980.0)


def test_a_driver_that_stops_is_named_and_what_was_seen_stays(driver):
    with sampling.Sampler(program=driver(rounds=1)) as sampler:
        wait_for(lambda: sampler.why)
    assert "ended by itself: exit status 0" in sampler.about()["why"]
    assert len(sampler.rows) == 80


def test_without_a_gpu_clocks_and_load_of_the_host_are_sampled(tmp_path):
    failing = tmp_path / "nvidia-smi"
    failing.write_text(
        "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the driver.'\nexit 9\n"
    )
    failing.chmod(0o755)
    with sampling.Sampler(program=str(failing)) as sampler:
        wait_for(lambda: sampler.rows)
    told = sampler.about()
    assert told["source"] == "host"
    assert "could not communicate" in told["why"]
    host = sampling.summarise(sampler.rows, 0.0, float("inf"))["host"]
    assert host["load1"]["min"] >= 0
    assert os.getloadavg()[0] >= 0


def test_switched_off_nothing_is_sampled(driver):
    with sampling.Sampler(enabled=False, program=driver()) as sampler:
        pass
    assert (sampler.rows, sampler.about()["source"]) == ([], "off")


def test_values_that_the_driver_does_not_tell_are_left_out():
    names = ["index", "sm_mhz", "power_w", "reasons"]
    row = sampling.parse_row("1, 1980, [N/A], 0x0000000000000084", names, 5.0)
    assert (row.index, row.values, row.reasons) == (1, {"sm_mhz": 1980.0}, 0x84)
    assert sampling.parse_row("Unable to determine the device handle", names, 5.0) is None


@given(st.text(max_size=80))
def test_no_line_breaks_it(line):
    row = sampling.parse_row(line, ["index", "sm_mhz", "reasons"], 0.0)
    assert row is None or isinstance(row.index, int)
