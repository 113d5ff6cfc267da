"""Six real starts of SGLang on two H200, with and without an EAGLE-3 draft of random weights: docs/gpu/records."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from ansible_collections.groundstate.llm.plugins.plugin_utils import (
    arm_state,
    comparisons,
    records,
    speculation_analysis,
    speculation_lines,
)

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "docs" / "gpu" / "records"
COVERS = yaml.safe_load((ROOT / "roles" / "compare" / "vars" / "main.yml").read_text())["__compare_covers"]
SERVER = {"name": "speculation", "engine": "sglang", "model": "/models/tiny-llama", "tensor_parallel": 2}
EAGLE = {"algorithm": "EAGLE3", "draft_model": "/models/tiny-eagle3", "num_steps": 2, "topk": 1, "draft_tokens": 3}


@pytest.fixture(scope="module")
def document() -> dict:
    [found] = (one for one in comparisons.documents(str(RECORDS), "gpu") if one["kind"] == "speculation")
    return found


@pytest.fixture(scope="module")
def starts(document) -> dict[str, dict]:
    return {one["record"]: records.read_record(str(RECORDS), "gpu", one["record"]) for one in document["starts"]}


def test_a_random_draft_does_not_pay(document, starts):
    found = speculation_analysis.analyse(document, starts)
    [one] = found["configurations"]
    assert one["verdict"] == "does not pay"
    assert one["accept_length"]["value"] == pytest.approx(1.0, abs=0.005)
    # T over t_b is break-even: twice a step, which two drafts and their verification cost here.
    assert one["break_even"]["value"] == pytest.approx(2.04, abs=0.005)
    assert one["break_even"]["low"] < one["cycle_s"]["value"] / found["base_step_s"] < one["break_even"]["high"]
    assert one["speedup"]["high"] < 0.53
    assert {trap["name"] for trap in one["traps"]} >= {"draft misconfigured", "repeated answers", "synthetic prompts"}


def test_the_documentation_has_what_its_records_say(document, starts):
    told = (ROOT / "docs" / "speculation.md").read_text()
    found = speculation_lines.lines(speculation_analysis.analyse(document, starts))
    for line in found:
        if not line.startswith("trap"):
            assert line in told


def first_of(document, starts):
    """The first record of each arm."""
    return [
        next(starts[one["record"]] for one in document["starts"] if one["arm"] == arm) for arm in ("base", "eagle3")
    ]


def differences(*two):
    asked = [arm_state.declared({"llm_server": {**SERVER, **more}}, {}) for more in ({}, {"speculation": EAGLE})]
    return arm_state.differences("eagle3", asked, [arm_state.ran(one) for one in two], COVERS, ())


def test_all_that_the_arms_differ_in_follows_from_the_speculation(document, starts):
    """Without compare_allow: SGLang captures graphs for other batch sizes when it speculates."""
    rows = differences(*first_of(document, starts))
    assert not [row for row in rows if "not compared" in row["what"]], "of these starts everything is known"
    assert arm_state.undeclared(rows) == []
    [graphs] = [row for row in rows if row["what"] == "resolved argument cuda_graph_bs"]
    assert (graphs["reference"], graphs["value"]) == ("[1, 2, 4]", "[1, 2, 3, 4]")
    assert graphs["why"] == "follows from argument --speculative-algorithm"


def test_a_limit_that_only_the_speculating_arm_tells_does_not_vanish_with_the_rest(document, starts):
    """Without the base's resolved arguments the lowered limit of requests was no row at all."""
    base, eagle = copy.deepcopy(first_of(document, starts))
    eagle["fingerprints"]["before"]["sections"]["server"]["resolved"]["max_running_requests"] = "24"
    [limit] = arm_state.undeclared(differences(base, eagle))
    assert limit["what"] == "resolved argument max_running_requests"
    base["fingerprints"]["before"]["sections"]["server"]["resolved"] = None
    [part] = arm_state.undeclared(differences(base, eagle))
    assert (part["what"], part["reference"], part["value"]) == ("resolved arguments", "not known", "known")
