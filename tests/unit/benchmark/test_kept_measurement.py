"""A measurement that was kept is used again only when it is whole."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import measurement

WHOLE = json.loads((Path(__file__).parents[2] / "data" / "baseline" / "measurement.json").read_text())


def test_a_whole_one_is_usable():
    assert measurement.usable(WHOLE)


@pytest.mark.parametrize("name", sorted(WHOLE))
@pytest.mark.parametrize("value", [None, 7, {}, []], ids=repr)
def test_one_with_a_damaged_part_is_not(name, value):
    damaged = copy.deepcopy(WHOLE)
    damaged[name] = value
    # Facts that are only passed on may be anything.
    passed_on = name in ("id", "started_at", "workload_hash")
    assert measurement.usable(damaged) is (passed_on or (name, value) == ("workload", {}))


@pytest.mark.parametrize("found", [None, [], "x", 1, {}, {"schema": measurement.SCHEMA}])
def test_what_is_none_is_not(found):
    assert not measurement.usable(found)
