"""Where a fleet stands, from records on the disk: what is newest, what changed, who is apart."""

from __future__ import annotations

import page_data
import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import fleet, records


def entry(found, host):
    [one] = [one for one in found.entries if one.row["host"] == host]
    return one


def test_each_host_stands_where_its_newest_record_says(tmp_path):
    names = page_data.fleet(tmp_path, 3)
    found = fleet.survey(str(tmp_path))
    assert [one.row["host"] for one in found.entries] == names
    assert found.warnings == []
    row = entry(found, "gpu001").row
    newest = records.read_record(str(tmp_path), "gpu001", row["record"])
    assert row["record"] == records.identifiers(str(tmp_path), "gpu001")[-1]
    assert row["decode_tok_s"] == newest["measurement"]["headline"]["value"]
    assert (row["group"], row["engine"], row["model"], row["profile"]) == ("pool", "sglang", "mock", "stock")
    assert (row["verdict"], row["proof"], row["in_baseline"], row["baseline_starts"]) == ("same", "proved", False, 9)
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"]
    assert len(entry(found, "gpu001").history) == 4


def test_the_one_apart_is_found_and_explained_by_its_fingerprint(tmp_path):
    page_data.fleet(tmp_path, 8)
    found = fleet.survey(str(tmp_path))
    [group] = found.groups
    assert group.name == "pool: sglang, mock, 128 -> 512 tokens, 1 at a time"
    assert len(group.entries) == 8
    assert [one.row["host"] for one in found.entries if one.row["outlier"]] == ["gpu007"]
    apart = entry(found, "gpu007")
    assert apart.row["group_z"] < -3.5
    assert apart.outlier[0] == "GPU 0, 1 pcie width max: 8x instead of 16x"
    assert "apart from its group" in apart.attention
    assert entry(found, "gpu006").attention == ["its profile is not in force"]
    assert all(not one.attention for one in found.entries[:6])


def test_hosts_that_share_no_baseline_are_compared_where_they_answer_the_same_question(tmp_path):
    for number in range(4):
        records.write_record(str(tmp_path), f"h{number}", page_data.record(f"h{number}", number, 1 + number / 1000))
    other = page_data.record("h9", 9)
    other["measurement"]["workload"]["output_tokens"] = 64
    records.write_record(str(tmp_path), "h9", other)
    [group] = fleet.survey(str(tmp_path)).groups
    assert [one.row["host"] for one in group.entries] == ["h0", "h1", "h2", "h3"]
    assert group.median == pytest.approx(page_data.REAL[0]["measurement"]["headline"]["value"] * 1.0015)


def test_changes_are_told_with_what_changed(tmp_path):
    for number in range(6):
        made = page_data.record("h", number)
        section = made["fingerprints"]["before"]["sections"]
        if number >= 2:
            section["kernel"]["release"] = "9.9.9"
            made["fingerprints"]["before"]["state_hash"] = "new"
        if number >= 4:
            section["server"]["argv"] += ["--mem", "0.5"]
            made.update(key="other")
        records.write_record(str(tmp_path), "h", made)
    changes = entry(fleet.survey(str(tmp_path)), "h").changes
    assert [(one.kind, one.record) for one in changes] == [
        ("state", page_data.identifier(2)),
        ("declaration", page_data.identifier(4)),
    ]
    assert changes[0].text.endswith("-> 9.9.9")
    assert changes[1].text == "argument --mem: not there -> 0.5"
    assert changes[0].at == "2026-11-29T21:02:00Z"


def test_a_drift_while_nothing_changed_is_a_change_point(tmp_path):
    jitter = [0.001, -0.002, 0.002, -0.001, 0.0015, -0.0015, 0.001, -0.001, 0.002, -0.002]
    for number in range(20):
        factor = (1 if number < 10 else 0.95) + jitter[number % 10]
        records.write_record(str(tmp_path), "h", page_data.record("h", number, factor))
    [change] = entry(fleet.survey(str(tmp_path)), "h").changes
    assert change.kind == "drift"
    assert page_data.identifier(8) < change.record < page_data.identifier(12)
    assert change.text.startswith("-")


def test_starts_of_a_comparison_are_no_part_of_it(tmp_path):
    page_data.fleet(tmp_path, 1)
    page_data.comparison(tmp_path, "gpu000", {"base": 1.0, "other": 1.1})
    found = entry(fleet.survey(str(tmp_path)), "gpu000")
    assert len(found.history) == 4
    assert found.row["record"] == page_data.identifier(900)


def test_host_and_group_choose(tmp_path):
    page_data.fleet(tmp_path, 3)
    records.write_record(str(tmp_path), "alone", page_data.record("alone", 5))
    assert [one.row["host"] for one in fleet.survey(str(tmp_path), host="gpu002").entries] == ["gpu002"]
    assert len(fleet.survey(str(tmp_path), group="pool").entries) == 3
    with pytest.raises(records.RecordError, match="no record of host 'gone'"):
        fleet.survey(str(tmp_path), host="gone")
    with pytest.raises(records.RecordError, match="no record of group 'gone'"):
        fleet.survey(str(tmp_path), group="gone")


def test_an_empty_folder_is_one_clear_sentence(tmp_path):
    with pytest.raises(records.RecordError, match=r"has no records; deploy_baseline\.yml writes the first"):
        fleet.survey(str(tmp_path))


def test_a_damaged_record_is_a_warning_and_the_others_stand(tmp_path):
    page_data.fleet(tmp_path, 2)
    (tmp_path / "gpu000" / f"{page_data.identifier(2000)}.json").write_text("{")
    found = fleet.survey(str(tmp_path))
    assert len(found.entries) == 2
    assert "is not valid JSON" in found.warnings[0]


def test_a_record_damaged_after_it_was_indexed_is_a_warning(tmp_path):
    page_data.fleet(tmp_path, 2)
    fleet.survey(str(tmp_path))
    newest = records.identifiers(str(tmp_path), "gpu000")[-1]
    (tmp_path / "gpu000" / f"{newest}.json").write_text("[]")
    found = fleet.survey(str(tmp_path))
    assert [one.row["host"] for one in found.entries] == ["gpu001"]
    assert any(newest in line for line in found.warnings)
