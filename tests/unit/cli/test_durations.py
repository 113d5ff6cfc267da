"""How long the steps of earlier runs took, kept in a file that may be anything."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groundstate import durations
from groundstate.durations import Durations

STEPS = [("a: one", 2.0), ("b: two", 10.0), ("b: three", 4.0)]


def test_what_is_left_is_the_rest_of_this_step_and_all_later_ones(tmp_path):
    made = Durations(tmp_path)
    assert made.remaining("deploy", "h", "a: one", 0.0) is None
    made.add("deploy", "h", STEPS)
    made.save()
    again = Durations(tmp_path)
    assert again.remaining("deploy", "h", "a: one", 0.5) == 15.5
    assert again.remaining("deploy", "h", "b: two", 3.0) == 11.0
    assert again.remaining("deploy", "h", "b: three", 60.0) == 0.0, "longer than ever"
    assert again.remaining("deploy", "h", "c: new", 0.0) is None
    assert again.remaining("deploy", "other", "a: one", 0.0) is None
    assert again.remaining("deploy --check", "h", "a: one", 0.0) is None


def test_one_odd_run_does_not_decide_and_old_ones_are_forgotten(tmp_path):
    made = Durations(tmp_path)
    for seconds in (100.0, 3.0, 2.0, 2.0):
        made.add("k", "h", [("s", seconds)])
    assert made.remaining("k", "h", "s", 0.0) == 2.5
    for _time in range(durations.KEPT):
        made.add("k", "h", [("s", 7.0)])
    assert made.remaining("k", "h", "s", 0.0) == 7.0


def test_steps_that_are_no_longer_run_are_forgotten(tmp_path):
    made = Durations(tmp_path)
    made.add("k", "h", STEPS)
    made.add("k", "h", [STEPS[0], STEPS[2]])
    assert made.remaining("k", "h", "b: two", 0.0) is None
    assert made.remaining("k", "h", "a: one", 0.0) == 6.0


def test_the_file_is_the_users_alone_and_does_not_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(durations, "HOSTS", 3)
    folder = tmp_path / "cache"
    made = Durations(folder)
    for host in ("e", "d", "c", "b"):
        made.add("k", host, STEPS)
    made.add("k", "d", STEPS)  # the newest now
    made.save()
    again = Durations(folder)
    again.add("k", "a", STEPS)
    again.save()
    [path] = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(json.loads(path.read_text())["k"]) == ["b", "d", "a"]


def test_a_cache_that_cannot_be_written_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    made = Durations(tmp_path / "file")
    made.add("k", "h", STEPS)
    made.save()
    assert (tmp_path / "file").read_text() == ""


def test_its_place_is_the_cache_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = Durations()
    made.add("k", "h", STEPS)
    made.save()
    assert (tmp_path / "groundstate" / "durations.json").exists()


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "h", "s"]), inner, max_size=3),
    max_leaves=8,
)


@given(st.one_of(json_values, st.builds(lambda v: {"k": {"h": v}}, json_values)))
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_the_file_holds_it_is_no_more_than_a_cache(tmp_path, value):
    (tmp_path / "durations.json").write_text(json.dumps(value))
    made = Durations(tmp_path)
    left = made.remaining("k", "h", "s", 0.0)
    assert isinstance(left, (float, type(None)))
    made.add("k", "h", STEPS)
    assert made.remaining("k", "h", "b: three", 0.0) == pytest.approx(4.0)


@pytest.mark.parametrize("text", ["", "{", "\x00", "[" * 10000])
def test_a_file_that_is_no_json(tmp_path, text):
    (tmp_path / "durations.json").write_text(text)
    assert Durations(tmp_path).remaining("k", "h", "s", 0.0) is None
