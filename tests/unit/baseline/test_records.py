"""Records: written once, found again, never mixed up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.action.baseline_record import ActionModule
from ansible_collections.groundstate.llm.plugins.plugin_utils import records

ID = "20261129T170000Z-a1b2c3"
LATER = "20261129T180000Z-a1b2c3"
MEASUREMENT = json.loads((Path(__file__).parents[2] / "data" / "baseline" / "measurement.json").read_text())


def make(identifier=ID, server="local", **extra):
    measurement = {**MEASUREMENT, "server": {**MEASUREMENT["server"], "name": server}}
    parts = {"fingerprints": {}, "proof": {}, "ready": {}, "verdict": {}, "measurement": measurement}
    return {"schema": 1, "id": identifier, **parts, **extra}


def test_round_trip_and_no_overwriting(tmp_path):
    path = records.write_record(str(tmp_path), "h", make(note="ü"))
    assert records.read_record(str(tmp_path), "h", ID)["note"] == "ü"
    before = Path(path).read_text()
    with pytest.raises(records.RecordError, match="never overwritten"):
        records.write_record(str(tmp_path), "h", make(note="other"))
    assert Path(path).read_text() == before


@pytest.mark.parametrize("host", ["", ".", "..", "a/b", "x\0y"])
def test_a_host_name_stays_one_folder(tmp_path, host):
    with pytest.raises(records.RecordError, match="host name"):
        records.write_record(str(tmp_path), host, make())


@pytest.mark.parametrize("identifier", ["", "../x", "20261129T170000Z-XXXXXX", ID + "/..", ID + "\n"])
def test_an_identifier_is_no_path(tmp_path, identifier):
    with pytest.raises(records.RecordError, match="not of the form"):
        records.read_record(str(tmp_path), "h", identifier)


def test_a_damaged_record_is_named(tmp_path):
    path = records.write_record(str(tmp_path), "h", make())
    with open(path, "w") as out:
        out.write("{")
    with pytest.raises(records.RecordError, match=ID):
        records.read_record(str(tmp_path), "h", ID)


@pytest.mark.parametrize("name", ["id", "fingerprints", "proof", "ready", "verdict", "measurement"])
@pytest.mark.parametrize("value", [None, 7, []], ids=repr)
def test_a_record_with_a_damaged_part_is_named(tmp_path, name, value):
    path = records.write_record(str(tmp_path), "h", make())
    Path(path).write_text(json.dumps(make(**{name: value})))
    with pytest.raises(records.RecordError, match=rf"{ID}.json is damaged \({name}\); move it away"):
        records.read_record(str(tmp_path), "h", ID)


def test_a_record_under_another_name_is_refused(tmp_path):
    path = records.write_record(str(tmp_path), "h", make())
    Path(path).write_text(json.dumps(make(LATER)))
    with pytest.raises(records.RecordError, match=r"damaged \(id\)"):
        records.read_record(str(tmp_path), "h", ID)


@pytest.mark.parametrize("entry", [None, 7, [], {}, {"records": None}, {"records": [7]}], ids=repr)
def test_a_damaged_baseline_is_named(tmp_path, entry):
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "baseline.json").write_text(json.dumps({"schema": 1, "baselines": {"k": entry}}))
    with pytest.raises(records.RecordError, match=r"damaged \(baseline k\)"):
        records.baseline_records(str(tmp_path), "h", "k")


def test_another_schema_is_refused(tmp_path):
    path = records.write_record(str(tmp_path), "h", make())
    with open(path, "w") as out:
        json.dump({"schema": 99}, out)
    with pytest.raises(records.RecordError, match="another version"):
        records.read_record(str(tmp_path), "h", ID)


def test_baseline_keeps_order_and_reports_what_is_gone(tmp_path):
    records.write_record(str(tmp_path), "h", make())
    for identifier in (ID, LATER, ID):
        records.add_to_baseline(str(tmp_path), "h", "k", "label", "h", identifier)
    found, warnings = records.baseline_records(str(tmp_path), "h", "k")
    assert [one["id"] for one in found] == [ID]
    assert LATER in warnings[0]
    assert records.baseline_records(str(tmp_path), "h", "other") == ([], [])


def test_last_of_server_skips_damaged_and_other_servers(tmp_path):
    records.write_record(str(tmp_path), "h", make(ID))
    records.write_record(str(tmp_path), "h", make(LATER, server="other"))
    broken = records.write_record(str(tmp_path), "h", make("20261129T190000Z-a1b2c3"))
    with open(broken, "w") as out:
        out.write("{")
    assert records.last_of_server(str(tmp_path), "h", "local")["id"] == ID
    assert records.last_of_server(str(tmp_path), "nobody", "local") is None


@pytest.mark.parametrize(("key", "expected"), [("k", "first"), ("other", "incomparable")])
def test_a_record_that_was_no_baseline_is_not_of_another_declaration(tmp_path, key, expected):
    records.write_record(str(tmp_path), "h", make(key=key))
    new = make(LATER, host="h", key="k")
    arguments = {"tolerance": 0.02, "looks": [1]}
    assert ActionModule._decide(str(tmp_path), new, [], [], arguments).verdict == expected


def test_hosts_of_a_group_share_a_baseline(tmp_path):
    records.write_record(str(tmp_path), "a", make())
    records.write_record(str(tmp_path), "b", make(LATER))
    records.add_to_baseline(str(tmp_path), "pool", "k", "label", "a", ID)
    records.add_to_baseline(str(tmp_path), "pool", "k", "label", "b", LATER)
    found, warnings = records.baseline_records(str(tmp_path), "pool", "k")
    assert [one["id"] for one in found] == [ID, LATER]
    assert warnings == []
    assert records.baseline_names(str(tmp_path), "pool") == [("a", ID), ("b", LATER)]


def fingerprint(port=18000, flag="4096", model="m"):
    return {
        "sections": {
            "server": {
                "engine": "vllm",
                "port": port,
                "argv": ["vllm", "--port", str(port), "--max-model-len", flag],
                "environment": {"GROUNDSTATE_START": str(port), "A": "1"},
            }
        },
        "hashes": {"model": model},
    }


def test_key_ignores_port_and_start_but_no_argument():
    key = records.baseline_key("local", fingerprint(), "w")
    assert key == records.baseline_key("local", fingerprint(port=18001), "w")
    others = {
        records.baseline_key("local", fingerprint(flag="8192"), "w"),
        records.baseline_key("local", fingerprint(model="n"), "w"),
        records.baseline_key("local", fingerprint(), "v"),
        records.baseline_key("b", fingerprint(), "w"),
    }
    assert key not in others
    assert len(others) == 4


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "h").write_text("a file, not a folder")
    with pytest.raises(records.RecordError, match="groundstate_records_dir"):
        records.write_record(str(tmp_path), "h", make())
