"""What is wrong with a host, from the results of modules: of such that work, fail, and were never asked."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import compare
from ansible_collections.groundstate.llm.plugins.plugin_utils import doctor
from hypothesis import given, settings
from hypothesis import strategies as st

SOME = settings(max_examples=60)
SKIPPED = {"changed": False, "skipped": True, "skip_reason": "Conditional result was False"}


def levels(found):
    return [one["level"] for one in found]


def test_a_host_where_all_is_well():
    healthy = {"health": "healthy", "why": [], "notes": [], "server": "kimi", "uptime_s": 5.0}
    state = {"fingerprint": {"sections": {"kernel": {"release": "6.8"}}}}
    record = {"fingerprints": {"before": state["fingerprint"]}, "created_at": "2026-11-01T00:00:00Z"}
    assert doctor.preflight({"problems": [], "facts": {}}) == []
    assert doctor.leftovers({"ended": [], "removed": [], "left": []}) == []
    assert doctor.gpus({"available": True, "gpus": [], "xid": []}) == []
    assert doctor.gpus({"available": False, "why": "no nvidia-smi", "gpus": [], "xid": None}) == []
    assert doctor.server(healthy, "kimi") == []
    assert doctor.proof({"verdict": "proved", "why": [], "flags": []}) == []
    assert doctor.environment({"checks": [{"name": "torch", "verdict": "ok", "detail": ""}]}, True) == []
    assert doctor.changes(state, record) == []


@pytest.mark.parametrize(
    "examine",
    [
        doctor.preflight,
        doctor.leftovers,
        doctor.gpus,
        lambda result: doctor.server(result, "kimi"),
        doctor.proof,
        lambda result: doctor.environment(result, True),
        lambda result: doctor.changes(result, None),
    ],
)
def test_who_was_not_asked_says_nothing_and_who_cannot_tell_is_a_problem(examine):
    assert examine(SKIPPED) == []
    assert examine({}) == []
    [found] = examine({"changed": False, "failed": False, "msg": "boot id is unreadable\nTraceback"})
    assert found["level"] == "problem"
    assert found["what"] == "this could not be told: boot id is unreadable"
    assert found["fix"]


def test_problems_of_the_declaration_are_taken_over_in_its_words():
    one = {"what": "port 8000 is taken", "where": "llm_server.port", "fix": "declare another"}
    assert doctor.preflight({"problems": [one]}) == [{"level": "problem", **one}]


def test_leftovers_are_what_a_reset_would_end():
    stale = {
        "pid": 4711,
        "cmdline": "sglang::scheduler_TP0",
        "gpus": [0, 1],
        "kind": "engine",
        "why": "worker of sglang",
    }
    other = {"pid": 99, "cmdline": "Xorg", "why": "is protected"}
    found = doctor.leftovers({"ended": [stale], "removed": ["/dev/shm/psm_1"] * 7, "left": [other]})
    assert levels(found) == ["problem", "problem", "note"]
    assert found[0]["what"] == "process 4711 (sglang::scheduler_TP0) is left over: worker of sglang; GPUs: 0, 1"
    assert found[0]["fix"].startswith("groundstate reset")
    assert found[1]["what"].endswith("and 2 more")


def gpu(**more):
    return {"index": 3, "pids": [], "owner": "not visible", "memory_used": 40 << 30, **more}


def test_memory_in_use_by_nobody_who_can_be_seen():
    [found] = doctor.gpus({"available": True, "gpus": [gpu()], "xid": []})
    assert found["what"].startswith("GPU 3: 40960 MiB")
    for harmless in (gpu(pids=[1]), gpu(memory_used=5 << 20), gpu(owner="visible"), gpu(memory_used=None)):
        assert doctor.gpus({"available": True, "gpus": [harmless], "xid": None}) == []


def test_a_driver_that_does_not_answer():
    [found] = doctor.gpus({"available": "unknown", "why": "nvidia-smi did not answer in 30 s", "gpus": [], "xid": None})
    assert (found["level"], found["where"]) == ("problem", "driver")
    assert "did not answer in 30 s" in found["what"]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("NVRM: Xid (PCI:0000:41:00): 79, pid=1, name=python, GPU has fallen off the bus.", "problem"),
        ("NVRM: Xid (PCI:0000:41:00): 94, Contained memory error", "problem"),
        ("NVRM: GPU at PCI:0000:41:00 has fallen off the bus.", "problem"),
        ("NVRM: Xid (PCI:0000:41:00): 31, pid=1, MMU Fault", "note"),
        ("NVRM: Xid (PCI:0000:41:00): 43, Ch 00000010", "note"),
    ],
)
def test_faults_of_the_hardware_are_told_from_those_of_programs(line, level):
    [found] = doctor.gpus({"available": True, "gpus": [], "xid": [line]})
    assert found["level"] == level
    assert line in found["what"]


@pytest.mark.parametrize(
    ("health", "level"),
    [
        *((one, "note") for one in ("absent", "stopped", "starting")),
        *((one, "problem") for one in ("dead", "hung", "sick", "unreachable", "incomplete", "a new one")),
    ],
)
def test_health(health, level):
    [found] = doctor.server({"health": health, "why": ["no token was made"], "notes": []}, "kimi")
    assert found["level"] == level
    assert found["what"].startswith("server kimi ")
    assert ("no token was made" in found["what"]) is (level == "problem")


def test_arguments_that_the_server_changed_are_worth_knowing():
    found = doctor.server({"health": "busy", "notes": ["--mem-fraction-static: declared 0.88, it runs with 0.85"]}, "k")
    assert levels(found) == ["note"]


def test_a_profile_that_is_not_in_force():
    assert levels(doctor.proof({"verdict": "contradicted", "why": ["rank 3: NCCL_ALGO is Tree"]})) == ["problem"]
    assert levels(doctor.proof({"verdict": "unknown", "why": []})) == ["note"]


def test_an_environment_that_is_not_there_is_wrong_only_when_a_server_runs_from_it():
    gone = {"failed": False, "msg": "/e: no bin/python"}
    assert levels(doctor.environment(gone, launched=False)) == ["note"]
    assert levels(doctor.environment(gone, launched=True)) == ["problem"]
    checks = [
        {"name": n, "verdict": v, "detail": "d"} for n, v in (("a", "failed"), ("b", "unknown"), ("c", "skipped"))
    ]
    assert levels(doctor.environment({"checks": checks}, True)) == ["problem", "note"]


def fingerprint(release, uptime):
    return {"sections": {"kernel": {"release": release}}, "conditions": {"uptime_s": uptime}, "taken_at": uptime}


def test_only_what_lasts_counts_as_changed_since_the_baseline():
    record = {"fingerprints": {"before": fingerprint("6.8", 10.0)}, "created_at": "2026-11-01T00:00:00Z"}
    [found] = doctor.changes({"fingerprint": fingerprint("6.9", 99999.0)}, record)
    assert found["level"] == "problem"
    assert found["what"].startswith("changed since the baseline of 2026-11-01T00:00:00Z: ")
    assert "6.8 -> 6.9" in found["what"]
    assert "baseline_accept=true" in found["fix"]
    assert doctor.changes({"fingerprint": fingerprint(None, 5.0)}, record) == [], "unknown is not changed"
    assert compare.findings(record["fingerprints"]["before"], fingerprint(None, 5.0)), "though it is a difference"


def test_no_baseline_is_no_fault():
    assert levels(doctor.changes({"fingerprint": fingerprint("6.8", 1.0)}, None)) == ["note"]


def test_problems_come_first_and_each_once():
    note, problem = (doctor.finding(level, "w", "x", "f") for level in ("note", "problem"))
    found = doctor.ordered([note, problem, note, problem])
    assert found == [problem, note]
    assert doctor.count(found) == "1 problem, 1 note"
    assert doctor.count([problem, {**problem, "what": "v"}]) == "2 problems"
    assert doctor.count([note]) == "nothing is wrong, 1 note"
    assert doctor.count([]) == "nothing is wrong"
    assert doctor.lines(found) == ["problem  x: w", "     fix f", "note     x: w", "     fix f"]


@given(st.dictionaries(st.sampled_from(["msg", "skipped", "why"]), st.none() | st.booleans() | st.text(max_size=9)))
@SOME
def test_a_module_that_died_is_told_in_one_line(result):
    for found in doctor.gpus(result):
        assert "\n" not in found["what"]
