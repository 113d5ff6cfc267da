"""Exports, read by what reads them: Prometheus' own parser, csv, json."""

from __future__ import annotations

import csv
import io
import json

import page_data
import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import fleet, fleet_export, records
from prometheus_client.parser import text_string_to_metric_families


def survey(tmp_path, hosts: int = 2):
    page_data.fleet(tmp_path, hosts)
    return fleet.survey(str(tmp_path))


def families(content: bytes):
    return {one.name: one for one in text_string_to_metric_families(content.decode())}


def test_prometheus_reads_every_number_of_the_newest_records(tmp_path):
    found = survey(tmp_path)
    told = families(fleet_export.as_prometheus(found))
    assert all(name.startswith("groundstate_") for name in told)
    assert {one.type for one in told.values()} == {"gauge"}
    assert all(one.documentation.endswith(".") for one in told.values())
    for name, column in {
        "decode_tokens_per_second": "decode_tok_s",
        "time_to_first_token_seconds": "ttft_s",
        "ready_seconds": "ready_s",
        "baseline_ratio": "ratio",
        "requests_failed": "failed",
        "baseline_starts": "baseline_starts",
    }.items():
        samples = told[f"groundstate_{name}"].samples
        assert {one.labels["host"]: one.value for one in samples} == {
            one.row["host"]: pytest.approx(one.row[column]) for one in found.entries
        }
        assert all(one.labels["server"] == "bench" and one.timestamp is None for one in samples)
    bounds = {one.labels["bound"]: one.value for one in told["groundstate_decode_tokens_per_second_bound"].samples[:2]}
    assert bounds == {"low": found.entries[0].row["decode_low"], "high": found.entries[0].row["decode_high"]}
    assert told["groundstate_measured_timestamp_seconds"].samples[0].value == page_data.BEGIN + 60 * 900


def test_exactly_one_verdict_and_one_proof_hold(tmp_path):
    found = survey(tmp_path, 6)
    told = families(fleet_export.as_prometheus(found))
    for name in ("verdict", "proof"):
        holding = [one.labels for one in told[f"groundstate_{name}"].samples if one.value == 1.0]
        assert [(one["host"], one[name]) for one in holding] == [
            (one.row["host"], one.row[name]) for one in found.entries
        ]
    assert [one.value for one in told["groundstate_outlier"].samples] == [0, 0, 0, 0, 0, 1]


def test_texts_of_hosts_stay_within_their_label(tmp_path):
    hostile = 'a"b\\c\nd{e="f"} 1 # HELP x'
    made = page_data.record("h", 1)
    made["measurement"]["server"].update(name=hostile, served_model_name=hostile)
    records.write_record(str(tmp_path), "h", made)
    told = families(fleet_export.as_prometheus(fleet.survey(str(tmp_path))))
    [info] = told["groundstate_server_info"].samples
    assert (info.labels["server"], info.labels["model"], info.value) == (hostile, hostile, 1.0)
    assert all(one.labels["server"] == hostile for family in told.values() for one in family.samples)


def test_what_is_not_known_is_left_out_of_prometheus_and_empty_in_csv(tmp_path):
    made = page_data.record("h", 1, verdict="first")
    made["verdict"].update(ratio=None, ratio_low=None, ratio_high=None)
    made["ready"] = {}
    records.write_record(str(tmp_path), "h", made)
    found = fleet.survey(str(tmp_path))
    told = families(fleet_export.as_prometheus(found))
    assert not {"groundstate_baseline_ratio", "groundstate_baseline_ratio_bound", "groundstate_ready_seconds"} & set(
        told
    )
    [row] = csv.DictReader(io.StringIO(fleet_export.as_csv(found).decode(), newline=""))
    assert (row["ratio"], row["ready_s"], row["host"], row["verdict"]) == ("", "", "h", "first")


def test_csv_has_a_line_a_server_with_all_that_json_has(tmp_path):
    found = survey(tmp_path, 5)
    rows = list(csv.DictReader(io.StringIO(fleet_export.as_csv(found).decode(), newline="")))
    assert [row["host"] for row in rows] == [f"gpu00{number}" for number in range(5)]
    servers = json.loads(fleet_export.as_json(found))["servers"]
    for row, server in zip(rows, servers, strict=True):
        assert row == {name: "" if server[name] is None else str(server[name]) for name in row}
    assert servers[4]["differs_from_group"][0] == "GPU 0, 1 pcie width max: 8x instead of 16x"


def test_json_is_the_same_for_the_same_records(tmp_path):
    content = fleet_export.as_json(survey(tmp_path, 4))
    assert content == fleet_export.as_json(fleet.survey(str(tmp_path)))
    told = json.loads(content)
    assert sorted(told) == ["groups", "schema", "servers", "warnings"]
    assert told["groups"][0]["servers"] == [{"host": f"gpu00{number}", "server": "bench"} for number in range(4)]
