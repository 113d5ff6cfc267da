"""Limits by the size of the model, and what the last start says about this one."""

from __future__ import annotations

import json

from ansible_collections.groundstate.llm.plugins.module_utils import phase_times

GIB = 2**30


def phase(name, seconds, disk_bytes=None):
    return {"name": name, "at_s": 0.0, "seconds": seconds, "disk_bytes": disk_bytes}


def notes(now, was):
    return [one["note"] for one in phase_times.compare(now, {"phases": was})]


def test_a_cold_page_cache_is_named_only_where_the_disk_says_so():
    cold, warm = 57 * GIB, 12 * 1024**2
    assert notes([phase("loading weights", 214.0, cold)], [phase("loading weights", 96.0, warm)]) == [
        "loading weights 214 s, was 96 s: page cache cold (57.0 GiB read from disk, was 0.0)"
    ]
    assert notes([phase("loading weights", 96.0, warm)], [phase("loading weights", 214.0, cold)]) == [
        "loading weights 96 s, was 214 s: page cache warm (0.0 GiB read from disk, was 57.0)"
    ]
    # The same bytes, or none known: slower, and nobody knows why.
    for now, was in ((cold, cold), (None, warm), (cold, None), (None, None)):
        assert notes([phase("loading weights", 214.0, now)], [phase("loading weights", 96.0, was)]) == [
            "loading weights 214 s, was 96 s"
        ]


def test_small_differences_are_no_news():
    assert notes([phase("a", 11.0)], [phase("a", 10.0)]) == [""]
    assert notes([phase("a", 1.9)], [phase("a", 0.1)]) == [""]
    assert notes([phase("a", None)], [phase("a", 100.0)]) == [""]
    assert notes([phase("a", 100.0)], []) == [""]


def test_a_phase_that_was_over_before_the_first_look_is_not_compared():
    phases = [
        {**phase("loading", 2.0), "at_s": 0.0},
        {**phase("up", 3.0), "at_s": 2.0},
        {**phase("ready", None), "at_s": 5.0},
    ]
    assert [one["seconds"] for one in phase_times.comparable(phases, 4.9)] == [2.0, None, None]
    assert phase_times.comparable(phases, 1.0) == phases
    assert phase_times.comparable([], 1.0) == []
    # While a phase runs, the one before it has ended long ago.
    assert [one["seconds"] for one in phase_times.comparable(phases[:1], 4.9)] == [None]


def test_a_phase_that_comes_twice_is_compared_with_its_like():
    was = [phase("loading weights", 90.0), phase("capturing graphs", 5.0), phase("loading weights", 3.0)]
    found = phase_times.compare([phase("loading weights", 91.0), phase("loading weights", 30.0)], {"phases": was})
    assert [one["was_s"] for one in found] == [90.0, 3.0]
    assert [one["note"] for one in found] == ["", "loading weights 30 s, was 3 s"]


def test_limits_grow_with_the_model():
    assert phase_times.limit_s("distributed init", 600.0) == phase_times.limit_s("distributed init", 0.0) == 300.0
    assert phase_times.limit_s("loading weights", 0.5) == 605.0
    assert phase_times.limit_s("loading weights", 600.0) == 6600.0
    # Fetched while it starts: nobody knows how much is to come.
    assert phase_times.limit_s("loading weights", None) is None
    assert phase_times.limit_s("a phase of another engine", 1.0) is None
    # What took long before may take long again; what the user says counts, 0 is no limit.
    assert phase_times.limit_s("distributed init", 1.0, was_s=200.0) == 600.0
    assert phase_times.limit_s("distributed init", 1.0, 200.0, {"distributed init": 20}) == 20.0
    assert phase_times.limit_s("distributed init", 1.0, None, {"distributed init": 0}) is None
    assert phase_times.total_s(None) == 600.0
    assert phase_times.total_s(600.0, was_s=100.0) == 6600.0
    assert phase_times.total_s(1.0, was_s=1000.0) == 3000.0


def test_every_phase_of_every_engine_that_loads_has_a_limit():
    from ansible_collections.groundstate.llm.plugins.module_utils.engines import ENGINES

    names = {one.name for engine in ENGINES.values() for one in engine.phases} - {"up", "listening"}
    assert names <= set(phase_times.LIMITS)


def test_size_of_a_model(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc").write_bytes(b"x" * 1000)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(tmp_path / "blobs" / "abc")
    (tmp_path / "snapshot" / "broken").symlink_to(tmp_path / "blobs" / "none")
    (tmp_path / "snapshot" / "config.json").write_text("{}")
    assert phase_times.model_bytes(str(tmp_path / "snapshot")) == 1002
    assert phase_times.model_bytes(str(tmp_path / "blobs" / "abc")) == 1000
    assert phase_times.model_bytes("meta-llama/Llama-3.1-8B") is None


def test_the_last_starts_are_kept_by_declaration(tmp_path):
    folder = str(tmp_path)
    assert phase_times.last_start(folder, "hash0") == {}
    for number in range(12):
        start = {"elapsed_s": number, "ready_at": 100.0 + number, "phases": [phase("a", number)]}
        phase_times.remember(folder, f"hash{number}", start)
    kept = json.loads((tmp_path / phase_times.FILE).read_text())
    assert sorted(kept) == sorted(f"hash{number}" for number in range(4, 12))
    assert phase_times.last_start(folder, "hash11")["phases"] == [phase("a", 11)]
    phase_times.remember(folder, "hash5", {"elapsed_s": 1, "ready_at": 200.0, "phases": []})
    assert phase_times.last_start(folder, "hash5")["elapsed_s"] == 1


def test_a_damaged_file_is_done_without(tmp_path):
    for text in ("", "[]", '{"h": 1}', '{"h": {"phases": 3}}', '{"h": {"phases": [1, {"name": 2}]}}'):
        (tmp_path / phase_times.FILE).write_text(text)
        last = phase_times.last_start(str(tmp_path), "h")
        assert phase_times.compare([phase("a", 1.0)], last)[0]["was_s"] is None
