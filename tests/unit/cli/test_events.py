"""Events of ansible-runner made into ours: of a captured run on two hosts, and of anything else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from groundstate.events import Translator, text_of

SOME = settings(max_examples=60)
CAPTURED = Path(__file__).resolve().parents[2] / "data" / "cli" / "runner-events.jsonl"
RAW = [json.loads(line) for line in CAPTURED.read_text(encoding="utf-8").splitlines()]

DOCUMENTED = {
    "play_start",
    "step_start",
    "host_start",
    "host_progress",
    "host_end",
    "verdict",
    "finding",
    "output",
    "recap",
}


def translated(raw: list[dict]) -> list[dict]:
    """All events, without the seconds."""
    translator = Translator()
    found = [event for one in raw for event in translator.translate(one)]
    for event in found:
        event.pop("seconds", None)
    assert translator.running == {}
    return found


def test_a_captured_run():
    events = translated(RAW)
    assert [event["event"] for event in events if "host" not in event] == [
        *("play_start", "step_start", "step_start", "step_start", "step_start", "output", "output"),
        *("step_start", "step_start", "step_start", "recap"),
    ]
    ends = {(one["step"], one["host"]): one["status"] for one in events if one["event"] == "host_end"}
    assert ends == {
        ("Say hello", "a"): "ok",
        ("Say hello", "b"): "ok",
        ("Make a file", "a"): "changed",
        ("Make a file", "b"): "changed",
        ("Try several", "a"): "ignored",
        ("Try several", "b"): "ignored",
        ("Show a table", "a"): "ok",
        ("Show a table", "b"): "ok",
        ("Fail on one", "a"): "ok",
        ("Fail on one", "b"): "failed",
        ("Not here", "a"): "skipped",
        ("Tell of it", "a"): "ok",
    }
    [failed] = [one for one in events if one.get("status") == "failed"]
    assert failed["msg"] == "Assertion failed\nassertion: inventory_hostname != 'b'"
    assert events[-1]["hosts"]["a"] == {
        **{"ok": 6, "changed": 2, "unreachable": 0, "failed": 0, "skipped": 1, "rescued": 0, "ignored": 1}
    }
    starts = Counter((one["step"], one["host"]) for one in events if one["event"] == "host_start")
    assert starts == Counter(ends.keys()), "each that ended was begun, once"


def start(host: str, task: str, number: str = "t") -> dict:
    return {"event": "runner_on_start", "event_data": {"host": host, "task": task, "task_uuid": number}}


def end(host: str, task: str, result: dict, number: str = "t") -> dict:
    data = {"host": host, "task": task, "task_uuid": number, "res": result}
    return {"event": "runner_on_ok", "event_data": data}


def test_the_phase_is_the_role():
    data = {"task_uuid": "t", "name": "groundstate.llm.ml_env : Build it"}
    [event] = translated([{"event": "playbook_on_task_start", "event_data": data}])
    assert (event["phase"], event["step"]) == ("ml_env", "Build it")


def test_a_step_that_comes_again_on_a_host_has_a_number():
    raw = [start("a", "x"), end("a", "x", {}), start("b", "x"), end("b", "x", {}), start("a", "x"), end("a", "x", {})]
    names = [(one["host"], one["step"]) for one in translated(raw) if one["event"] == "host_start"]
    assert names == [("a", "x"), ("b", "x"), ("a", "x (2)")]


def test_a_line_of_a_host_that_works_is_its_progress():
    def said(text: str) -> dict:
        return {"event": "verbose", "stdout": text, "event_data": {}}

    raw = [
        said("a: not yet"),
        start("a", "x"),
        said("\x1b[0;32ma: loading weights 12/62 (19 %)\x1b[0m"),
        said("b: not at work"),
        said("a: two\r\nlines"),
        said(" "),
        end("a", "x", {}),
    ]
    told = [(one["event"], one.get("text")) for one in translated(raw) if "text" in one]
    assert told == [
        ("output", "a: not yet"),
        ("host_progress", "loading weights 12/62 (19 %)"),
        ("output", "b: not at work"),
        ("output", "a: two\nlines"),
    ]


def test_verdicts_and_findings_are_events():
    fact = {"verdict": "same", "metric": "decode_tok_s", "value": 70.1, "low": 66.4, "high": 73.8, "unit": "tok/s"}
    fact.update(proof="proved", record="/r/x.json", start_id="not told")
    finding = {"level": "problem", "what": "w", "where": "x", "fix": "f"}
    result = {"ansible_facts": {"groundstate": fact}, "findings": [finding, "no finding"]}
    events = translated([start("a", "x"), end("a", "x", result)])
    assert events[-2] == {"event": "verdict", "host": "a", **{k: v for k, v in fact.items() if k != "start_id"}}
    assert events[-1] == {"event": "finding", "host": "a", **finding}


def test_a_measurement_without_verdict_is_none():
    events = translated([start("a", "x"), end("a", "x", {"ansible_facts": {"groundstate": {"value": 1.0}}})])
    assert [one["event"] for one in events] == ["host_start", "host_end"]


def test_findings_that_are_no_list_are_none():
    """Of modules of others, "findings" may be anything."""
    events = translated([start("a", "x"), end("a", "x", {"findings": True})])
    assert [one["event"] for one in events] == ["host_start", "host_end"]


def test_a_result_that_is_hidden_says_so():
    censored = {"event": "runner_on_failed", "event_data": {"host": "a", "task": "x", "res": {"censored": "hidden"}}}
    [event] = translated([censored])
    assert event["msg"] == "hidden"


def test_the_lines_of_a_terminal():
    assert text_of({"stdout": "a\r\nb"}) == "a\nb"
    assert text_of({"event": "EOF"}) == ""


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
results = st.dictionaries(
    st.sampled_from(["changed", "msg", "findings", "ansible_facts", "results", "cmd", "rc", "stderr", "assertion"]),
    anything,
)
kinds = st.sampled_from(sorted({one["event"] for one in RAW} | {"verbose", "warning", "error", "EOF"}))


@given(
    st.lists(
        st.fixed_dictionaries(
            {"event": kinds},
            optional={
                "stdout": st.text(max_size=20),
                "event_data": st.fixed_dictionaries(
                    {}, optional={"host": st.sampled_from("ab"), "task": anything, "name": anything, "res": results}
                ),
            },
        ),
        max_size=8,
    )
)
@SOME
def test_whatever_a_module_returns_a_run_goes_on(raw):
    translator = Translator()
    for one in raw:
        for event in translator.translate(one):
            json.dumps(event)
            assert event["event"] in DOCUMENTED
