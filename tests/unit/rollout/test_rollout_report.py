"""Outliers within a group, what differs on them, how a group changed, and the table."""

from __future__ import annotations

import math

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import outliers, rollout_report
from hypothesis import given, settings
from hypothesis import strategies as st

RATES = {f"host{number}": 98.0 + 0.4 * (number % 5) for number in range(1, 9)}

# A busy machine is no failure.
SOME = settings(max_examples=60)


def record(host: str, rate: float, width: str = "16x", group: str = "pcie", **more) -> dict:
    gpu = {"index": 0, "uuid": f"GPU-{host}", "name": "RTX PRO 6000", "pcie_width_max": width}
    sections = {"hardware": {"gpus": [gpu]}, "kernel": {"release": "6.12"}}
    taken = {"sections": sections, "conditions": {"uptime_s": 10.0 * len(host)}, "taken_at": 1000.0}
    return {
        "host": host,
        "group": group or host,
        "key": "0f3a5c7e9b1d2f40",
        "fingerprints": {"before": taken},
        "measurement": {"server": {"name": "chat"}, "headline": {"value": rate}, "levels": [{}]},
        **more,
    }


def test_a_host_below_its_group_is_named_with_what_differs():
    found = {host: record(host, rate) for host, rate in RATES.items()}
    found["host7"] = record("host7", 86.0, "8x")
    [group] = rollout_report.groups(found, {}, 0.02)
    [one] = group["outliers"]
    assert one["host"] == "host7"
    assert one["z"] < -3.5
    line = rollout_report.outlier_line(one)
    assert line.startswith("host7: 12.")
    assert "% below its group (z -" in line
    assert line.endswith("GPU 0 pcie width max: 8x instead of 16x"), "neither its own uuid nor its uptime explains it"


def test_a_host_that_differs_in_nothing_is_told_so():
    found = {host: record(host, rate) for host, rate in RATES.items()}
    found["host7"] = record("host7", 86.0)
    [group] = rollout_report.groups(found, {}, 0.02)
    middle = group["outliers"][0]["than"]
    assert f"nothing that is looked at differs from {middle}" in rollout_report.outlier_line(group["outliers"][0])


def test_groups_are_those_declared_else_what_is_alike():
    found = {
        "a": record("a", 10.0),
        "b": record("b", 11.0),
        "c": record("c", 50.0, group=""),
        "d": record("d", 51.0, group=""),
        "e": record("e", 52.0, group="", key="another"),
    }
    groups = rollout_report.groups(found, {"c": 25.0, "d": 25.5}, 0.02)
    assert sorted(one["hosts"] for one in groups) == [["a", "b"], ["c", "d"], ["e"]]
    [changed] = [one["change"] for one in groups if one["change"]]
    assert changed["hosts"] == 2
    assert changed["ratio"] == pytest.approx(2.0)


def test_three_hosts_have_no_outlier():
    assert outliers.outliers({"a": 100.0, "b": 100.1, "c": 50.0}, 0.02) == {}


def test_a_distance_within_the_tolerance_is_nothing_to_know_of():
    rates = {"a": 100.0, "b": 100.01, "c": 100.02, "d": 99.99, "e": 99.0}
    assert outliers.robust_z(rates)["e"] < -3.5
    assert outliers.outliers(rates, 0.02) == {}
    assert list(outliers.outliers(rates, 0.005)) == ["e"]


def test_one_that_differs_from_hosts_that_are_all_equal_is_found():
    # Their MAD is 0: by it every distance would be infinite.
    rates = {**{f"h{number}": 100.0 for number in range(9)}, "odd": 80.0}
    assert list(outliers.outliers(rates, 0.02)) == ["odd"]
    assert outliers.robust_z({f"h{number}": 100.0 for number in range(9)}) == {}


@SOME
@given(st.dictionaries(st.text(min_size=1, max_size=4), st.floats(1e-3, 1e6), min_size=4, max_size=30))
def test_z_is_a_number_whatever_the_rates_and_the_median_host_is_no_outlier(rates):
    assert all(math.isfinite(z) for z in outliers.robust_z(rates).values())
    if len(rates) % 2:
        assert outliers.median_host(rates) not in outliers.outliers(rates, 0.0)


def test_the_change_of_a_group_is_that_of_each_host_against_itself():
    # Hosts differ by a factor of two, and all lost 3 %.
    pairs = {"a": (100.0, 97.0), "b": (50.0, 48.5), "c": (200.0, 194.0)}
    found = rollout_report.change(pairs)
    assert found["ratio"] == pytest.approx(0.97)
    assert found["ratio_high"] - found["ratio_low"] < 1e-6
    assert rollout_report.change({"a": (100.0, 97.0)})["ratio_low"] is None
    assert rollout_report.change({}) is None


def test_the_table_has_a_row_for_each_host_and_cuts_long_reasons():
    hosts = {
        "pcie-2": {"outcome": "failed", "why": ["x" * 400 + "\nmore"], "batch": 1, "drained": True},
        "pcie-1": {
            **{"outcome": "passed", "why": [], "batch": 0, "value": 95.0, "proof": "proved"},
            **{"before": {"value": 100.0}, "against": {"ratio": 0.95}},
        },
        "pcie-3": {"outcome": "", "why": []},
    }
    report = {"groups": [], "drained": rollout_report.drained(hosts)}
    lines = rollout_report.lines({"hosts": hosts}, report)
    assert [line.split()[0] for line in lines[:4]] == ["host", "pcie-1", "pcie-2", "pcie-3"]
    assert lines[1].split() == ["pcie-1", "1", "passed", "95.0", "100.0", "-5.0", "%", "proved"]
    assert lines[2].endswith("xxx...")
    assert "waits" in lines[3]
    assert lines[-1] == "Still drained: pcie-2"
    assert rollout_report.counts(hosts) == "1 passed, 1 failed, 1 waiting"
