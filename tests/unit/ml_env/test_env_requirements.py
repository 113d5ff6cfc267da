"""Locks: what is read, what is refused, and what an environment lacks of one."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import requirements
from hypothesis import given
from hypothesis import strategies as st

LOCK = """\
# a comment
Foo.Bar==1.2 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
torch==2.13.0+cpu
extra[one,two]==3.0 ; python_version >= "3.10"  # why
"""


def test_a_lock_is_read():
    items = requirements.parse(LOCK)
    assert [(item.name, item.version, item.hashed) for item in items] == [
        ("foo-bar", "1.2", True),
        ("torch", "2.13.0+cpu", False),
        ("extra", "3.0", False),
    ]
    assert items[0].text == "Foo.Bar==1.2 --hash=sha256:aa --hash=sha256:bb"
    assert requirements.parse(requirements.render(items)) == items


@pytest.mark.parametrize(
    "line",
    [
        "foo",
        "foo>=1",
        "foo~=1.0",
        "--index-url https://x",
        "-e .",
        "foo @ file:///x.whl",
        "./x.whl",
        "foo==1.*",
        "-r y",
    ],
)
def test_what_is_not_pinned_or_not_a_requirement_is_refused(line):
    with pytest.raises(ValueError, match="is not 'name==version'"):
        requirements.parse(f"good==1\n{line}\n")


def test_all_problems_are_said_at_once():
    with pytest.raises(ValueError, match=r"'a>=1'.*'-e \.'.*good is locked twice"):
        requirements.parse("a>=1\n-e .\ngood==1\nGood==2\n")


@pytest.mark.parametrize("text", ["", "\n", "# uv pip compile lock.in\n\n"])
def test_a_lock_that_names_nothing_is_refused(text):
    with pytest.raises(ValueError, match=r"the lock names no distribution.*uv pip compile.*Make it again"):
        requirements.parse(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    try:
        items = requirements.parse(text)
    except ValueError:
        return
    assert all(item.name == requirements.normal(item.name) and item.version for item in items)
    assert requirements.parse(requirements.render(items)) == items


def test_differences_name_what_is_missing_and_what_is_another_version():
    items = requirements.parse(LOCK)
    assert requirements.differences(items, {"foo-bar": "1.2.0", "torch": "2.13.0+cpu", "extra": "3.0"}) == []
    assert requirements.differences(items, {"torch": "2.13.0"}) == [
        "foo-bar 1.2 is not installed",
        "torch is 2.13.0, locked is 2.13.0+cpu",
    ]


@pytest.mark.parametrize(
    ("version", "text", "inside"),
    [
        ("3.11.7", "", True),
        ("3.11.7", "==3.11.*", True),
        ("3.12.0", "==3.11.*", False),
        ("3.9.18", ">=3.10,<3.15", False),
        ("3.10.0", ">=3.10,<3.15", True),
        ("3.15.0", ">=3.10, <3.15", False),
        ("3.11.7", "!=3.11.7", False),
        ("3.11.7", "==3.11", False),
        ("3.11.0", "==3.11", True),
        ("3.11.1", ">3.11", True),
        ("3.11.0", "<=3.11", True),
        ("4.0.0", "<4", False),
    ],
)
def test_ranges_of_python_versions(version, text, inside):
    assert requirements.in_range(version, text) is inside


@pytest.mark.parametrize("text", ["3.11", "~=3.11", ">=three", ">= 3.10 <3.12"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ValueError, match="is not a bound of a Python version"):
        requirements.in_range("3.11.7", text)
