"""An import that fails for want of a system library names the package to install."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import imports

SEEN = "ImportError: libgomp.so.1: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (SEEN, ["libgomp.so.1", "apt-get install libgomp1"]),
        ("OSError: libfoo-2.so.7: cannot open shared object file: No such file", ["libfoo-2.so.7", "apt-file"]),
    ],
)
def test_the_library_and_its_package_are_named(output, words):
    said = imports.missing_library(output)
    for word in words:
        assert word in said


@pytest.mark.parametrize("output", ["", "ModuleNotFoundError: No module named 'x'", "cannot open shared object file"])
def test_anything_else_adds_nothing(output):
    assert imports.missing_library(output) == ""
