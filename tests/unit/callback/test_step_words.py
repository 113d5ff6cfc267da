"""Lines of the callback: a step, a failure, a verdict, from whatever a module returned."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import step_words
from hypothesis import given, settings
from hypothesis import strategies as st

SOME = settings(max_examples=60)


@pytest.mark.parametrize(
    ("title", "parts"),
    [
        ("groundstate.llm.ml_env : Build it", ("ml_env", "Build it")),
        ("mine : Do : two things", ("mine", "Do : two things")),
        ("Alone: here", ("", "Alone: here")),
        ("", ("", "")),
    ],
)
def test_a_title_is_role_and_name(title, parts):
    assert step_words.split(title) == parts


@pytest.mark.parametrize(
    ("counts", "seconds", "line"),
    [
        ({"ok": 1}, 0.04, "ok            0.0 s  ml_env        Build"),
        ({"changed": 1}, 1234.56, "changed    1234.6 s  ml_env        Build"),
        ({"changed": 2, "ok": 8}, 3.0, "8 ok, 2 changed               3.0 s  ml_env        Build"),
        ({"failed": 1, "unreachable": 1}, 3.0, "1 failed, 1 unreachable       3.0 s  ml_env        Build"),
    ],
)
def test_one_line_a_step(counts, seconds, line):
    assert step_words.line(counts, seconds, "ml_env", "Build") == line


def test_a_step_without_a_role_has_no_gap():
    assert step_words.line({"ok": 1}, 1.0, "", "Build") == "ok            1.0 s  Build"


@pytest.mark.parametrize(
    ("action", "counts", "worth"),
    [
        ("groundstate.llm.gpu_info", {"ok": 1}, True),
        ("groundstate.llm.gpu_info", {"skipped": 3}, False),
        ("groundstate.llm.gpu_info", {"skipped": 3, "ok": 1}, True),
        ("groundstate.llm.show", {"ok": 1}, False),
        ("groundstate.llm.show", {"failed": 1}, True),
        ("ansible.builtin.set_fact", {"ok": 2}, False),
        ("ansible.builtin.assert", {"ok": 1, "failed": 1}, True),
    ],
)
def test_what_is_worth_a_line(action, counts, worth):
    assert step_words.worth_a_line(action, counts) is worth


def test_a_failure_is_its_message_and_what_a_program_said():
    assert step_words.failure({"msg": "2 problems:\n  1. one\n  2. two\n"}) == ["2 problems:", "  1. one", "  2. two"]
    said = step_words.failure({"msg": "bad", "cmd": ["a", "b"], "rc": 3, "stderr": "x\n" * 50, "stdout": ""})
    assert said[:3] == ["bad", "command: a b (exit status 3)", "stderr:"]
    assert len(said) == 23, "the end of it"
    crashed = step_words.failure({"msg": "Module failed", "module_stderr": "Traceback\nValueError: x"})
    assert crashed == ["Module failed", "stderr:", "  Traceback", "  ValueError: x"]
    assert step_words.failure({}) == ["it gave no message"]


def test_a_script_of_several_lines_is_told_in_one():
    said = step_words.failure({"msg": "bad", "cmd": "set -e\nfalse\n", "rc": "1\n", "assertion": "a\nb"})
    assert said == ["bad", "assertion: a b", "command: set -e false (exit status 1)"]


def test_what_is_hidden_stays_hidden():
    assert step_words.failure({"censored": "no_log", "stderr": "the password"}) == ["no_log"]


def test_of_a_loop_each_item_that_failed():
    items = [{"item": "a", "failed": True, "msg": "no a"}, {"item": "b", "msg": "fine"}]
    assert step_words.failure({"msg": "One or more items failed", "results": items}) == [
        *("One or more items failed", "a:", "  no a"),
    ]


def test_a_measurement_has_a_verdict_and_a_rate():
    def told(**fact):
        return step_words.verdict({"ansible_facts": {"groundstate": fact}})

    assert told(value=70.06, unit="tok/s", verdict="same") == "same, 70.1 tok/s"
    assert told(value=70.06, unit="tok/s") == "70.1 tok/s"
    assert told(value=None, verdict="same") == ""
    assert step_words.verdict({"ansible_facts": {"other": 1}}) == ""
    assert step_words.verdict({"ansible_facts": None}) == ""


values = st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.lists(st.text(max_size=3), max_size=3)
keys = st.sampled_from(["msg", "cmd", "rc", "stderr", "stdout", "results", "assertion", "module_stderr"])


@given(st.dictionaries(keys, values))
@SOME
def test_whatever_a_module_returns_there_is_a_line(result):
    lines = step_words.failure(result)
    assert lines
    assert all(isinstance(line, str) and "\n" not in line for line in lines)
