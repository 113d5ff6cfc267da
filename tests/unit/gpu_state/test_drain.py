"""Waiting for the memory to drain, with a clock of its own."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import drain
from ansible_collections.groundstate.llm.plugins.module_utils.nvidia import MIB


class Host:
    """A driver that answers one sample after the other (the last for ever), and a clock that only sleeping moves."""

    def __init__(self, *samples: dict[str, int | None]) -> None:
        self.samples = list(samples)
        self.now = 0.0
        self.asked = 0

    def read(self) -> dict[str, int | None]:
        self.asked += 1
        return self.samples.pop(0) if len(self.samples) > 1 else self.samples[0]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, limits: dict[str, int], timeout_s: float = 120.0, settle: bool = True) -> drain.Drained:
        return drain.drain(limits, self.read, timeout_s, settle, lambda: self.now, self.sleep)


def test_three_equal_samples_below_the_limit():
    host = Host({"a": 900}, {"a": 40}, {"a": 10}, {"a": 8}, {"a": 8}, {"a": 8}, {"a": 7})
    done = host.wait({"a": 64})
    assert (done.levels, done.over, done.unknown) == ({"a": 8}, {}, [])
    assert host.asked == 6
    assert done.waited_s == pytest.approx(host.now)


def test_waiting_is_given_up_where_it_is_of_no_use():
    host = Host({"a": 900})
    answers = [False, False, True]
    done = drain.drain({"a": 64}, host.read, 120, True, lambda: host.now, host.sleep, lambda: answers.pop(0))
    assert (done.over, host.asked, answers) == ({"a": 64}, 3, [])
    assert done.waited_s < 1


def test_what_is_good_is_never_given_up():
    host = Host({"a": 8})
    done = drain.drain({"a": 64}, host.read, 120, True, lambda: host.now, host.sleep, lambda: True)
    assert (done.over, host.asked) == ({}, 3)


def test_nothing_was_ended_so_one_sample_is_enough():
    host = Host({"a": 8}, {"a": 9})
    assert host.wait({"a": 64}, settle=False).over == {}
    assert (host.asked, host.now) == (1, 0)


def test_memory_that_stays_is_bounded_and_named():
    host = Host({"a": 8, "b": 900, "other": 5000})
    done = host.wait({"a": 64, "b": 64}, timeout_s=30)
    assert done.over == {"b": 64}
    assert done.levels == {"a": 8, "b": 900}
    assert host.now == pytest.approx(30)
    assert host.asked < 60  # fast at first, slower later


def test_moving_below_the_limit_is_no_failure():
    host = Host(*[{"a": value % 60} for value in range(1000)])
    assert host.wait({"a": 64}, timeout_s=10).over == {}


def test_unknown_is_neither_drained_nor_over():
    done = Host({"a": None}).wait({"a": 64, "b": 64})
    assert (done.over, done.unknown) == ({}, ["a", "b"])


def test_no_patience_is_one_sample():
    host = Host({"a": 900})
    assert host.wait({"a": 64}, timeout_s=0).over == {"a": 64}
    assert host.asked == 1


def test_idle_levels_are_recorded_once(tmp_path):
    home = str(tmp_path)
    assert drain.load_idle(home) == {}
    assert drain.record_idle(home, {"a": 4 * MIB, "b": None, "c": drain.IDLE_MAX + 1}) == {"a": 4 * MIB}
    assert drain.record_idle(home, {"a": 60 * MIB, "d": 0}) == {"d": 0}
    assert drain.load_idle(home) == {"a": 4 * MIB, "d": 0}


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "gpu_idle.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"gpu_idle\.json is not valid JSON"):
        drain.load_idle(str(tmp_path))
