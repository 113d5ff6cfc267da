"""The file of a rollout: going on, beginning anew, the way back of each host."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import files
from ansible_collections.groundstate.llm.plugins.plugin_utils import records, rollout_host, rollout_state

DECLARED = {"variables": {"x": 1}, "secrets": {}, "lock": None}


def begin(where: Path, hashes: dict[str, str], resume: bool = True, write: bool = True):
    return rollout_state.begin(str(where), rollout_state.latest(str(where)), hashes, resume, write)


def finish(where: Path, identifier: str, state: str = "stopped", **outcomes: str) -> None:
    with rollout_state.changing(str(where), identifier) as found:
        found["state"] = state
        for host, outcome in outcomes.items():
            found["hosts"][host]["outcome"] = outcome


@pytest.fixture
def ordered(monkeypatch):
    """Names of rollouts are times to the second: let each be a second later."""
    clock = iter(range(1_800_000_000, 1_900_000_000))
    monkeypatch.setattr(rollout_state.time, "time", lambda: next(clock))


def keep_record(where: Path, host: str, number: int, declared: bool = True) -> str:
    """A record of a deployed host."""
    identifier = f"20261129T17000{number}Z-a1b2c3"
    kept = {"schema": 1, "hash": files.digest(DECLARED), **DECLARED} if declared else None
    server = {"name": "chat", "start_id": "s", "declaration_hash": f"hash{number}"}
    names = ("engine", "served_model_name", "base_url")
    rate = {"metric": "decode_tok_s", "unit": "tok/s", "value": 90.0 + number, "low": None, "high": None, "n": 1}
    level = {name: {"mean": 0.1} for name in ("ttft_s", "tpot_s", "output_tok_s")}
    measured = {
        **{"schema": 1, "id": identifier, "identity": "i", "started_at": "t", "workload": {}, "workload_hash": "w"},
        **{"server": {**server, **dict.fromkeys(names, "x")}, "levels": [level]},
        **{"headline": {**rate, "confidence": 0.95, "interval_over": "repeats", "concurrency": 1}},
        **{"client": {"limited": False}, "warmup": {"steady": True}},
    }
    record = {
        **{"schema": 1, "id": identifier, "host": host, "group": host, "key": f"key{number}", "declared": kept},
        **{"fingerprints": {}, "proof": {}, "ready": {}, "verdict": {}, "measurement": measured},
    }
    records.write_record(str(where), host, record)
    return identifier


def test_one_that_is_not_over_goes_on_and_hosts_may_join_it(tmp_path, ordered):
    first, resumed = begin(tmp_path, {"a": "1", "b": "1"})
    assert not resumed
    finish(tmp_path, first["id"], a="passed", b="failed")
    second, resumed = begin(tmp_path, {"b": "1", "c": "9"})
    assert resumed
    assert second["id"] == first["id"]
    assert {host: one["outcome"] for host, one in second["hosts"].items()} == {"a": "passed", "b": "failed", "c": ""}
    assert rollout_state.latest(str(tmp_path))["state"] == "running"


def test_one_that_is_complete_for_some_hosts_goes_on_with_the_others(tmp_path, ordered):
    first, _resumed = begin(tmp_path, {"canary": "1"})
    finish(tmp_path, first["id"], "complete", canary="passed")
    second, resumed = begin(tmp_path, {"canary": "1", "other": "1"})
    assert resumed
    assert second["id"] == first["id"]
    finish(tmp_path, first["id"], "complete", other="passed")
    assert not begin(tmp_path, {"canary": "1", "other": "1"})[1], "nothing is left to do"
    assert not begin(tmp_path, {"canary": "2", "more": "1"})[1], "another declaration"


@pytest.mark.parametrize(
    ("state", "hashes", "resume"),
    [("stopped", {"a": "2"}, True), ("complete", {"a": "1"}, True), ("stopped", {"a": "1"}, False)],
    ids=["declared otherwise", "it is complete", "not wanted"],
)
def test_otherwise_another_begins(tmp_path, ordered, state, hashes, resume):
    first, _resumed = begin(tmp_path, {"a": "1"})
    finish(tmp_path, first["id"], state, a="passed")
    second, resumed = begin(tmp_path, hashes, resume)
    assert not resumed
    assert second["id"] > first["id"]
    assert second["hosts"]["a"]["outcome"] == ""
    old = rollout_state.read(rollout_state.path_of(str(tmp_path), first["id"]))
    assert old["state"] == ("complete" if state == "complete" else "superseded")


def test_nothing_is_written_unless_asked_for(tmp_path):
    begin(tmp_path, {"a": "1"}, write=False)
    assert list(tmp_path.iterdir()) == []


def test_the_way_back_is_the_newest_record_that_tells_what_was_declared(tmp_path, ordered):
    keep_record(tmp_path, "a", 1)
    newest = keep_record(tmp_path, "a", 2)
    keep_record(tmp_path, "a", 3, declared=False)
    state, _resumed = begin(tmp_path, {"a": "1", "b": "1"})
    assert state["hosts"]["a"]["before"] == {
        "record": newest,
        "declaration": files.digest(DECLARED),
        "declaration_hash": "hash2",
        "server": "chat",
        "key": "key2",
        "value": 92.0,
    }
    assert state["hosts"]["b"]["before"] is None


def test_what_never_passed_is_no_way_back(tmp_path, ordered):
    good = keep_record(tmp_path, "a", 1)
    keep_record(tmp_path, "b", 1)
    first, _resumed = begin(tmp_path, {"a": "1", "b": "1"})
    # Both were deployed and measured; a is slower with it.
    keep_record(tmp_path, "a", 2)
    passed = keep_record(tmp_path, "b", 2)
    finish(tmp_path, first["id"], a="slower", b="passed")
    between, _resumed = begin(tmp_path, {"b": "2"})
    finish(tmp_path, between["id"], b="passed")
    state, _resumed = begin(tmp_path, {"a": "3", "b": "3"})
    assert state["hosts"]["a"]["before"]["record"] == good
    assert state["hosts"]["b"]["before"]["record"] == passed


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path):
    state, _resumed = begin(tmp_path, {"a": "1"})
    path = Path(rollout_state.path_of(str(tmp_path), state["id"]))
    was = path.read_bytes()
    with pytest.raises(ZeroDivisionError), rollout_state.changing(str(tmp_path), state["id"]) as found:
        found["hosts"]["a"]["outcome"] = 1 // 0
    assert path.read_bytes() == was


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 2, "hosts": {}}', '{"schema": 1}', "{" * 5000])
def test_a_damaged_file_is_named(tmp_path, content):
    folder = tmp_path / "rollouts"
    folder.mkdir()
    (folder / "notes.txt").write_text("somebody's")
    path = folder / "rollout-20261129T170000Z-a1b2c3.json"
    path.write_text(content)
    with pytest.raises(records.RecordError, match=str(path)):
        rollout_state.latest(str(tmp_path))


# --- one host ----------------------------------------------------------------------------------------

BEFORE = {"record": "r1", "declaration_hash": "h1", "server": "chat", "key": "k1", "value": 90.0}


def slurped(value: object) -> dict:
    return {"content": base64.b64encode(json.dumps(value).encode()).decode()}


@pytest.mark.parametrize(
    ("before", "seen", "words"),
    [
        (BEFORE, slurped({"declaration_hash": "h1"}), ""),
        (BEFORE, slurped({"declaration_hash": "h2"}), "deployed again since record r1"),
        (BEFORE, {"failed": True, "msg": "file not found"}, "server chat of record r1 is gone"),
        (BEFORE, {"content": "not base64!"}, "is gone"),
        (BEFORE, slurped(["no record"]), "is gone"),
        (None, slurped({"declaration_hash": "h1"}), "no record tells"),
    ],
)
def test_the_way_back_is_checked_against_what_the_host_serves(before, seen, words):
    entry = rollout_host.begin({"before": before, "declaration": "d"}, 2, seen)
    assert entry["batch"] == 2
    assert words in entry["way_back"]
    assert bool(entry["way_back"]) == bool(words)


def test_at_the_second_try_the_host_serves_what_the_rollout_brought():
    entry = rollout_host.begin({"before": BEFORE}, 0, slurped({"declaration_hash": "h1"}))
    again = rollout_host.begin({**entry, "outcome": "slower"}, 0, slurped({"declaration_hash": "new"}))
    assert again["way_back"] == ""
    assert again["outcome"] == ""


RECORD = {"id": "r2", "key": "k1", "measurement": {"headline": {"value": 89.5}}}


@pytest.mark.parametrize(
    ("error", "proof", "record", "outcome", "words"),
    [
        ("", {"verdict": "proved"}, RECORD, "rolled_back", "back at record r1, proved, 89.5 tok/s (was 90.0)"),
        ("", {}, RECORD, "rolled_back", "back at record r1, 89.5"),
        ("it died", {}, RECORD, "rollback_failed", "NOT back at record r1: it died"),
        ("", {"verdict": "contradicted"}, RECORD, "rollback_failed", "not proved: contradicted"),
        ("", {"verdict": "proved"}, None, "rollback_failed", "not measured"),
        ("", {"verdict": "proved"}, {**RECORD, "key": "k2"}, "rollback_failed", "does not serve"),
    ],
)
def test_back_is_what_is_proved_and_measured_as_before(error, proof, record, outcome, words):
    entry = rollout_host.came_back({"before": BEFORE, "outcome": "slower", "why": []}, error, proof, record)
    assert entry["outcome"] == outcome
    assert words in entry["rolled_back"]


HOSTS = ("hosts", "a")


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (HOSTS, None, "hosts.a"),
        (HOSTS, "passed", "hosts.a"),
        ((*HOSTS, "outcome"), None, "hosts.a"),
        ((*HOSTS, "declaration"), 5, "hosts.a"),
        ((*HOSTS, "why"), "text", "hosts.a"),
        ((*HOSTS, "why"), [None], "hosts.a"),
        ((*HOSTS, "before"), [], "hosts.a"),
        ((*HOSTS, "before", "record"), "../../etc/passwd", "hosts.a"),
        ((*HOSTS, "before", "value"), float("nan"), "hosts.a"),
        ((*HOSTS, "before", "server"), {}, "hosts.a"),
        (("gates",), {}, "gates"),
        (("gates",), [{}], "gates"),
        (("state",), "paused", "state"),
        (("id",), "../../elsewhere", "id"),
    ],
)
def test_a_damaged_rollout_is_named_with_its_part_and_left_as_it_is(tmp_path, place, value, named):
    keep_record(tmp_path, "a", 1)
    state, _resumed = begin(tmp_path, {"a": "1"})
    assert state["hosts"]["a"]["before"]
    path = Path(rollout_state.path_of(str(tmp_path), state["id"]))
    within = found = json.loads(path.read_text())
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = value
    path.write_text(json.dumps(found))
    before = path.read_bytes()
    with pytest.raises(records.RecordError, match=rf"{state['id']}.json is damaged \({named}\); move it away"):
        begin(tmp_path, {"a": "1"})
    assert [path] == list(path.parent.iterdir())
    assert path.read_bytes() == before
