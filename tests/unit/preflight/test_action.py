"""Parts of the controller half that need no host."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible_collections.groundstate.llm.plugins.action import preflight
from ansible_collections.groundstate.llm.plugins.module_utils.preflight.checks import problem, sentence
from ansible_collections.groundstate.llm.plugins.plugin_utils import role_values


@pytest.mark.parametrize(
    ("version", "problems", "warnings"),
    [("2.18.9", 1, 0), ("2.19.0", 0, 0), ("2.21.5", 0, 0), ("2.22.0b1", 0, 1), ("3.0.0", 0, 1)],
)
def test_versions_of_ansible_core(version, problems, warnings):
    found = preflight.core_version(version)
    assert [len(found[0]), len(found[1])] == [problems, warnings]
    assert all(version in text for text in [*map(sentence, found[0]), *found[1]])


def test_one_undefined_variable_is_one_problem_wherever_it_is_used():
    def undefined(where, what="'nope' is undefined"):
        return problem(what, where, role_values.UNDEFINED)

    other = problem("'x' is not of type int", "d", "Correct it")
    found = role_values.once(
        [undefined("a"), other, undefined("b"), undefined("c", "'more' is undefined"), dict(other)]
    )
    assert [sentence(one) for one in found] == [
        "a, b: 'nope' is undefined. Define it, or correct the template.",
        "d: 'x' is not of type int. Correct it.",
        "c: 'more' is undefined. Define it, or correct the template.",
        "d: 'x' is not of type int. Correct it.",
    ]


def test_the_records_folder_is_looked_at_and_not_made(tmp_path):
    assert preflight.records_folder(str(tmp_path / "a" / "b"), "node1") == []
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "node1").write_text("a file with the host's name")
    assert sentence(preflight.records_folder(str(tmp_path / "records"), "node1")[0]).startswith(
        f"groundstate_records_dir (on the controller): records cannot be written to {tmp_path}/records/node1: "
    )
    assert preflight.records_folder(None, "node1") == []
    assert sorted(one.name for one in tmp_path.iterdir()) == ["records"]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (
            {"module_stderr": "Traceback\nSyntaxError: invalid syntax\n", "msg": "MODULE FAILURE"},
            "SyntaxError: invalid syntax",
        ),
        ({"msg": "no python"}, "no python"),
        ({"exception": SimpleNamespace(event=SimpleNamespace(msg="not subscriptable"))}, "not subscriptable"),
        ({}, "it gave no message"),
    ],
)
def test_the_last_words_of_a_module_that_could_not_run(result, words):
    assert preflight.last_words(result) == words
