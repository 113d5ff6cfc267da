"""The page of a fleet: every host, what asks for attention first, and no word of a host as HTML."""

from __future__ import annotations

import json

import page_data
import pytest
import vl_convert
from ansible_collections.groundstate.llm.plugins.plugin_utils import fleet, records
from ansible_collections.groundstate.llm.plugins.plugin_utils.pages import charts, fleet_page, html
from parsed_page import HOSTILE, Parsed, fits

MADE_AT = "2026-11-29T22:00:00Z"


def page(tmp_path, **chosen) -> Parsed:
    return Parsed(fleet_page.page(fleet.survey(str(tmp_path), **chosen), "All hosts", MADE_AT))


def test_what_asks_for_attention_comes_first(tmp_path):
    page_data.fleet(tmp_path, 8)
    found = page(tmp_path)
    assert "2 of 8 servers ask for attention: gpu006: its profile is not in force; gpu007: apart" in found.words
    links = [told["href"] for tag, told in found.tags if tag == "a"]
    assert links[:2] == ["#" + html.anchor("gpu006", "bench"), "#" + html.anchor("gpu007", "bench")]
    assert len(links) == 8
    identifiers = [told["id"] for _tag, told in found.tags if told.get("id")]
    assert len(identifiers) == len(set(identifiers))
    assert {link[1:] for link in links} <= set(identifiers)


def test_a_calm_fleet_says_so(tmp_path):
    page_data.fleet(tmp_path, 3)
    assert "Nothing asks for attention. 3 servers: 3 same." in page(tmp_path).words


def test_a_row_has_rate_interval_verdict_proof_state_and_time(tmp_path):
    page_data.fleet(tmp_path, 1)
    found = page(tmp_path)
    row = fleet.survey(str(tmp_path)).entries[0].row
    told = found.words[found.words.index("measured gpu000") :]
    for words in (
        f"{row['decode_tok_s']:.1f}",
        "same",
        "proved stock",
        row["state_hash"][:8],
        "2026-11-30 12:00:00 UTC",
    ):
        assert words in told[:200]


def test_one_server_is_shown_open_with_phases_telemetry_and_proof(tmp_path):
    page_data.fleet(tmp_path, 1)
    found = page(tmp_path)
    assert [told for tag, told in found.tags if tag == "details"] == [{"open": None}]
    phases = found.json["rows-phases-1"]["phases"]
    real = [one for one in page_data.REAL[0]["ready"]["phases"] if one["seconds"] is not None]
    assert [one["name"] for one in phases] == [one["name"] for one in real]
    assert phases[1]["from"] == pytest.approx(real[0]["seconds"])
    assert "GPU 1 power, W" in found.words
    assert "ready in 41.4 s" in found.words
    assert len(found.json["rows-history-1"]["records"]) == 4
    assert sum(one["colour"] == "var(--c1)" for one in found.json["rows-history-1"]["records"]) == 3


def test_the_outlier_of_a_group_is_marked_and_explained(tmp_path):
    page_data.fleet(tmp_path, 8)
    found = page(tmp_path)
    rows = found.json["rows-group-1"]["hosts"]
    assert len(rows) == 8
    assert [one["host"] for one in rows if one["kind"] == "outlier"] == ["gpu007"]
    assert "GPU 0, 1 pcie width max: 8x instead of 16x" in found.words


def test_change_points_stand_in_the_chart_and_in_words(tmp_path):
    for number in range(4):
        made = page_data.record("h", number)
        if number >= 2:
            made["fingerprints"]["before"]["sections"]["kernel"]["release"] = "9.9.9"
            made["fingerprints"]["before"]["state_hash"] = "new"
        records.write_record(str(tmp_path), "h", made)
    found = page(tmp_path)
    [change] = found.json["rows-history-1"]["changes"]
    assert (change["kind"], change["at"]) == ("state", "2026-11-29T21:02:00Z")
    assert [one["segment"] for one in found.json["rows-history-1"]["records"]] == [0, 0, 1, 1]
    assert "9.9.9" in found.words


def test_two_hundred_hosts_are_one_page(tmp_path):
    names = page_data.fleet(tmp_path, 200, each=2)
    made = fleet_page.page(fleet.survey(str(tmp_path)), "All hosts", MADE_AT)
    found = Parsed(made)
    assert sum(tag == "details" for tag, _told in found.tags) == 200
    assert all(name in found.text for name in names)
    assert len(found.json["rows-group-1"]["hosts"]) == 200
    assert [name for name in found.json if name.startswith("chart-")] == [
        f"chart-{name}" for name in ("config", "distribution", "fleet", "history", "phases")
    ], "each specification once, however many charts are drawn of it"
    assert len(made) < 4 << 20


def test_a_record_with_next_to_nothing_in_it_is_shown(tmp_path):
    made = page_data.record("h", 1)
    made.update(proof={}, ready={}, fingerprints={}, profile=None)
    made["measurement"]["levels"][0].pop("machine")
    records.write_record(str(tmp_path), "h", made)
    found = page(tmp_path)
    assert "rows-phases-1" not in found.json
    assert "While it was measured" not in found.words
    assert "h bench, mock" in found.words


def test_no_text_of_a_record_becomes_html_or_script(tmp_path):
    page_data.fleet(tmp_path, 6)
    clean = page(tmp_path)
    for name in records.hosts(str(tmp_path)):
        for identifier in records.identifiers(str(tmp_path), name):
            path = tmp_path / name / f"{identifier}.json"
            made = json.loads(path.read_text())
            made["proof"].update(table=[HOSTILE], why=[HOSTILE])
            made["profile"] = HOSTILE
            made["verdict"].update(explanations=[HOSTILE] * 5, reasons=[HOSTILE])
            made["ready"]["phases"][0].update(name=HOSTILE, note=HOSTILE)
            made["measurement"]["server"].update(name=HOSTILE, engine=HOSTILE, served_model_name=HOSTILE)
            made["measurement"]["levels"][0]["machine"]["gpus"][0]["reasons"] = {HOSTILE: 0.5}
            made["fingerprints"]["before"]["unknown"] = {HOSTILE: HOSTILE}
            made["fingerprints"]["before"]["state_hash"] = f"{HOSTILE}{identifier}"
            path.write_text(json.dumps(made))
    (tmp_path / "history.sqlite").unlink()
    found = page(tmp_path)
    extra = {("h3", frozenset()), ("ul", frozenset()), ("li", frozenset()), ("pre", frozenset()), ("code", frozenset())}
    assert found.shapes <= clean.shapes | extra | {("details", frozenset({"open"})), ("details", frozenset())}
    assert [told["type"] for tag, told in found.tags if tag == "script"].count("module") == 1
    assert "49" not in found.words.split()
    assert found.text.count(HOSTILE) > 6 * 10


def test_vega_lite_takes_every_specification_and_finds_its_fields(tmp_path):
    page_data.fleet(tmp_path, 6)
    found = page(tmp_path)
    drawn = {told["data-chart"]: told["data-rows"] for _tag, told in found.tags if told.get("data-chart")}
    assert set(drawn) == {"fleet", "distribution", "history", "phases"}
    for name, rows in drawn.items():
        specification, datasets = charts.specification(name), found.json[rows]
        fits(specification, datasets)
        full = {**specification, "datasets": datasets, "height": 100}
        assert vl_convert.vegalite_to_vega(full, vl_version=html.VEGA_LITE)["marks"], name
