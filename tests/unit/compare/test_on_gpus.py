"""Six real starts of SGLang on two H200, with the profiles stock and pcie_ll_ring: docs/gpu/records."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from ansible_collections.groundstate.llm.plugins.plugin_utils import (
    arm_state,
    comparison_lines,
    comparison_verdict,
    comparisons,
    records,
)

ROOT = Path(__file__).resolve().parents[3]
RECORDS = str(ROOT / "docs" / "gpu" / "records")
COVERS = yaml.safe_load((ROOT / "roles" / "compare" / "vars" / "main.yml").read_text())["__compare_covers"]
PROFILES = yaml.safe_load((ROOT / "roles" / "nccl_profile" / "vars" / "main.yml").read_text())
ARMS = ("stock", "pcie_ll_ring")


@pytest.fixture(scope="module")
def document() -> dict:
    [found] = [one for one in comparisons.documents(RECORDS, "gpu") if one["kind"] == "compare"]
    return found


@pytest.fixture(scope="module")
def starts(document) -> dict[str, dict]:
    return {one["record"]: records.read_record(RECORDS, "gpu", one["record"]) for one in document["starts"]}


def test_the_starts_ran_in_balanced_order_and_are_those_of_the_records(document, starts):
    stock, ring = ARMS
    assert [one["arm"] for one in document["starts"]] == [stock, ring, ring, stock, stock, ring]
    for one in document["starts"]:
        record = starts[one["record"]]
        assert record["comparison"]["id"] == document["id"]
        assert record["proof"]["verdict"] == "proved"
        again = comparisons.start_of(record)
        assert again.pop("proof") == "proved"  # of later documents
        assert {key: one[key] for key in again} == again


def test_one_start_of_another_level_leaves_three_blocks_undecided(document):
    """The rates of five starts lie within 0.4 %; the sixth, of the second arm, was 6 % lower."""
    again = copy.deepcopy(document)
    again.update(state="running", result=None)
    assert comparison_verdict.look(again)
    assert again["result"] == document["result"]
    [pair] = again["result"]["pairs"]
    assert (again["state"], pair["verdict"]) == ("exhausted", "inconclusive")
    assert pair["ratio_low"] < 0.98
    assert pair["ratio_high"] > 1.02
    rates = [one["value"] for one in document["starts"]]
    assert max(rates[:5]) / min(rates[:5]) < 1.004
    assert rates[5] < 0.95 * min(rates[:5])


def test_all_that_the_arms_differ_in_is_declared(document, starts):
    first = {one["arm"]: starts[one["record"]] for one in reversed(document["starts"])}
    [profiles] = PROFILES.values()
    asked = [arm_state.declared({"llm_server": {}, "nccl_profile_name": arm}, profiles) for arm in ARMS]
    ran = [arm_state.ran(first[arm]) for arm in ARMS]
    rows = arm_state.differences("pcie_ll_ring", asked, ran, COVERS, ())
    assert arm_state.undeclared(rows) == []
    workers = {row["what"]: row["value"] for row in rows if row["what"].startswith("worker environment")}
    assert workers["worker environment NCCL_PROTO"] == "LL"
    assert len(workers) == 6


def test_the_documentation_has_what_its_records_say(document):
    told = (ROOT / "docs" / "compare.md").read_text()
    for line in comparison_lines.result(document, "-"):
        if not line.startswith(("result", "page")):
            assert line in told
