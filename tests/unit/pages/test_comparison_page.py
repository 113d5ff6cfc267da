"""The page of a comparison: the verdict first, every start, and no word of a host as HTML."""

from __future__ import annotations

import copy
import json
from typing import Any

import page_data
import pytest
import vl_convert
from ansible_collections.groundstate.llm.plugins.plugin_utils import comparisons, records
from ansible_collections.groundstate.llm.plugins.plugin_utils.pages import charts, comparison_page, html
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parsed_page import HOSTILE, Parsed, fits


def page(tmp_path, document) -> Parsed:
    return Parsed(comparison_page.of(str(tmp_path), document["host"], document["id"]))


def test_the_verdict_comes_first_in_words(tmp_path):
    found = page(tmp_path, page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "fast": 1.1}))
    assert found.words.count("faster \u2013 fast is faster than base: +") == 1
    assert found.words.index("fast is faster") < found.words.index("Every start, in the order")
    assert "6 starts of 6 planned · tolerance 2.0 % · decided" in found.words


def test_every_start_is_a_dot_of_its_arm_in_time_order_with_its_repeats(tmp_path):
    document = page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "same": 1.0})
    drawn = page(tmp_path, document).json["rows-starts"]
    assert [one["number"] for one in drawn["starts"]] == [1, 2, 3, 4, 5, 6]
    assert [one["arm"] for one in drawn["starts"]] == ["base", "same", "same", "base", "base", "same"]
    assert [one["rate"] for one in drawn["starts"]] == [one["value"] for one in document["starts"]]
    assert len(drawn["repeats"]) == sum(len(one["repeats"]) for one in document["starts"]) == 18
    assert [one["arm"] for one in drawn["means"]] == ["base", "same"]
    assert [(one["from"], one["to"]) for one in drawn["blocks"]] == [(0.5, 2.5), (4.5, 6.5)]
    colours = {one["arm"]: one["colour"] for one in drawn["starts"]}
    assert colours == {"base": "var(--c1)", "same": "var(--c2)"}


def test_the_ratio_stands_with_its_interval_against_the_tolerance(tmp_path):
    document = page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "slow": 0.9, "same": 1.0}, looks=(4,), blocks=4)
    found = page(tmp_path, document)
    [slow, same] = document["result"]["pairs"]
    assert (slow["verdict"], same["verdict"]) == ("slower", "same")
    drawn = found.json["rows-ratio"]
    assert drawn["tolerance"] == [{"low": -2.0, "high": 2.0, "zero": 0}]
    assert [one["change"] for one in drawn["pairs"]] == pytest.approx(
        [100 * (slow["ratio"] - 1), 100 * (same["ratio"] - 1)]
    )
    assert [one["low"] for one in drawn["pairs"]] == pytest.approx(
        [100 * (one["ratio_low"] - 1) for one in (slow, same)]
    )
    assert "slow is slower than base" in found.words
    assert "same is as fast as base, within 2.0 %" in found.words


def test_two_blocks_tell_no_numbers_that_nobody_can_use(tmp_path):
    document = page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "other": 1.0}, looks=(2,), blocks=2)
    document["result"]["pairs"][0].update(ratio=0.333, ratio_low=0.00002, ratio_high=5403.4, mde=2280.489)
    document["result"]["drift"].update(per_block=0.246, low=-0.99999, high=5402.366)
    comparisons.write(str(tmp_path), document)
    found = page(tmp_path, document)
    assert "\u221266.7 % (below \u221299 % to above +1000 %)" in found.words
    assert "2 above 1000 %" in found.words, "blocks, then the smallest difference"
    assert "+24.60 % a block (below \u221299 % to above +1000 %)" in found.words
    assert found.json["rows-ratio"]["pairs"][0]["high"] == 1000.0


def test_what_an_open_comparison_needs_is_said(tmp_path):
    found = page(tmp_path, page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "noisy": 1.02}, spread=0.03))
    assert "noisy against base:" in found.words
    assert "is not decided at a tolerance of 2.0 %. The differences of the blocks spread by" in found.words


def test_accept_length_stands_against_break_even(tmp_path):
    found = page(tmp_path, page_data.speculation(tmp_path, "gpu1"))
    assert "eagle3 does not pay: accept length 2.00, break-even 2.75, 0.727 times as fast." in found.words
    drawn = found.json["rows-speculation"]["quantities"]
    assert [(one["quantity"], one["value"], one["low"], one["high"]) for one in drawn] == [
        ("accept length", 2.0, 1.96, 2.04),
        ("break-even", 2.75, 2.7, 2.8),
    ]
    for words in (
        "A plain step of base takes 12.1 ms (12.0 to 12.2)",
        "48 instead of 2048",
        "a cheaper cycle",
    ):
        assert words in found.words


def test_every_figure_of_speculation_has_its_interval(tmp_path):
    document = page_data.speculation(tmp_path, "gpu1")
    found = page(tmp_path, document)
    row = "eagle3 does not pay 2 2.00 1.96 to 2.04 2.75 2.70 to 2.80 33.3 32.9 to 33.8 0.727 0.710 to 0.740 "
    row += "0.618 0.601 to 0.635 0.914 0.895 to 0.932 1.09 1.07 to 1.11 1.75 1.72 to 1.78"
    assert row in found.words
    assert "64.0 % (62.0 % to 66.0 %), 56.0 % (53.0 % to 59.0 %)" in found.words
    [one] = document["speculation"]["configurations"]
    one["break_even"] = {"value": 2.95, "low": 2.85, "high": 3.05}
    one.update(needed_acceptance=0.983, needed_acceptance_interval=[0.949, None])
    comparisons.write(str(tmp_path), document)
    assert "0.983 0.949 to out of reach" in page(tmp_path, document).words


def test_a_comparison_of_before_these_intervals_is_a_page_all_the_same(tmp_path):
    document = page_data.speculation(tmp_path, "gpu1")
    [one] = document["speculation"]["configurations"]
    for told in (one, document["speculation"]):
        for name in [name for name in told if "interval" in name or name in ("acceptance", "confidence")]:
            del told[name]
    comparisons.write(str(tmp_path), document)
    found = page(tmp_path, document)
    assert "0.727 0.710 to 0.740 \u2013 0.914 1.09 1.75" in found.words
    assert "64.0 %, 56.0 %" in found.words


def test_clocks_power_and_temperature_under_load_are_by_start(tmp_path):
    found = page(tmp_path, page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "other": 1.0}))
    titles = [told["aria-label"].split(":")[0] for _tag, told in found.tags if told.get("data-chart") == "load"]
    assert {"SM clock, MHz", "power of a GPU, W", "hottest GPU, °C"} <= set(titles)
    place = 1 + titles.index("power of a GPU, W")
    rows = found.json[f"rows-load-{place}"]["starts"]
    seen = page_data.REAL[0]["measurement"]["levels"][0]["machine"]["gpus"]
    assert [one["value"] for one in rows] == 6 * [min(gpu["power_w"]["median"] for gpu in seen)]


def test_differences_of_arguments_and_fingerprints_are_listed(tmp_path):
    document = page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "other": 1.0})
    document["differences"].append(
        {
            "arm": "other",
            "what": "argument --max",
            "reference": "2048",
            "value": "48",
            "declared": False,
            "why": "by itself",
        }
    )
    comparisons.write(str(tmp_path), document)
    found = page(tmp_path, document)
    assert "other argument --arm not set other yes extra_args" in found.words
    assert "other argument --max 2048 48 no by itself" in found.words
    assert "Fingerprints: other against base argument --arm: base -> other" in found.words


def test_a_state_that_changed_within_an_arm_is_told(tmp_path):
    document = page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "other": 1.0})
    path = records.record_path(str(tmp_path), "gpu1", document["starts"][3]["record"])
    changed = records.read_record(str(tmp_path), "gpu1", document["starts"][3]["record"])
    changed["fingerprints"]["before"]["state_hash"] = "another"
    changed["fingerprints"]["before"]["sections"]["kernel"]["release"] = "9.9.9"
    with open(path, "w", encoding="utf-8") as out:
        json.dump(changed, out)
    found = page(tmp_path, document)
    assert "Fingerprints: base: start 4 against its first start release:" in found.words
    assert "9.9.9" in found.words


@pytest.mark.parametrize("stop", [0, 1])
def test_one_that_has_just_begun_says_how_far_it_is(tmp_path, stop):
    found = page(tmp_path, page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "other": 1.0}, stop=stop))
    assert f"Nothing is decided yet: {stop} start{'s' * (stop != 1)} of 6 planned." in found.words
    assert ("rows-starts" in found.json) == bool(stop)
    assert "rows-ratio" not in found.json


def test_one_that_ended_for_want_of_usable_blocks_does_not_say_that_all_is_done(tmp_path):
    document = page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "other": 1.0}, looks=(3, 5))
    document["state"] = "exhausted"
    comparisons.write(str(tmp_path), document)
    assert "ended early: too few blocks can be used" in page(tmp_path, document).words


def test_a_gain_below_the_tolerance_is_told_beside_its_verdict():
    measured = {"value": 1.01, "low": 1.005, "high": 1.015}
    told = {"accept_length": measured, "break_even": measured, "speedup": measured, "arm": "eagle3"}
    one = {**told, "verdict": "does not pay", "verdict_note": "it gains less than the tolerance of 2 %"}
    document = {"speculation": {"configurations": [one]}, "result": None}
    [line] = comparison_page.headline(document)
    assert line["text"].endswith("1.01 times as fast: it gains less than the tolerance of 2 %.")


def test_a_refused_one_says_why_nothing_was_measured(tmp_path):
    document = page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "other": 1.0}, stop=0)
    document["state"] = "refused"
    document["differences"][0]["declared"] = False
    comparisons.write(str(tmp_path), document)
    found = page(tmp_path, document)
    assert "differ by more than was declared" in found.words
    assert "other argument --arm not set other no" in found.words


def test_records_that_are_gone_or_damaged_leave_what_the_document_kept(tmp_path):
    document = page_data.comparison(tmp_path, "gpu1", {"base": 1.0, "other": 1.0})
    for place, one in enumerate(document["starts"]):
        path = tmp_path / "gpu1" / f"{one['record']}.json"
        if place % 2:
            path.unlink()
        elif place:
            path.write_text("{")
        else:  # readable, and no record of a start any more
            path.write_text(json.dumps({**json.loads(path.read_text()), "fingerprints": {"before": None, "after": 5}}))
    found = page(tmp_path, document)
    assert len(found.json["rows-starts"]["starts"]) == 6
    labels = [told.get("aria-label") or "" for _tag, told in found.tags]
    assert any(label.startswith("SM clock, MHz: ") for label in labels)


def hostile(value: Any) -> Any:
    """The value with every text made hostile, but those that the page looks things up by."""
    if isinstance(value, dict):
        return {key: one if key in ("record", "id", "host", "verdict") else hostile(one) for key, one in value.items()}
    if isinstance(value, list):
        return [hostile(one) for one in value]
    return value + HOSTILE if isinstance(value, str) else value


def test_no_text_of_a_document_becomes_html_or_script(tmp_path):
    document = page_data.speculation(tmp_path, "gpu1")
    clean = page(tmp_path, document)
    made = comparison_page.page(hostile(document), lambda one: hostile(records.read_record(str(tmp_path), "gpu1", one)))
    found = Parsed(made)
    assert found.shapes <= clean.shapes
    assert [told["type"] for tag, told in found.tags if tag == "script"].count("module") == 1
    assert "49" not in found.words.split(), "Jinja did not look into it"
    assert HOSTILE.replace("\u00a0", " ") in found.text
    assert any(HOSTILE in row["arm"] for row in found.json["rows-starts"]["starts"])


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """The path of everything within a document."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, one in value.items():
            found += places(one, (*path, key))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            found += places(one, (*path, number))
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Any]:
    """A document that has everything."""
    return page_data.speculation(tmp_path_factory.mktemp("records"), "gpu1")


# A busy machine is no failure.
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_a_damaged_document_is_a_page_or_one_clear_sentence(whole, data):
    document = copy.deepcopy(whole)
    for path in data.draw(st.lists(st.sampled_from(places(document)), min_size=1, max_size=3)):
        at: Any = document
        try:
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = data.draw(st.sampled_from([None, "x", -1, [], {}, 1e308, float("nan"), [None], {"a": 1}]))
        except (LookupError, TypeError):
            continue  # the change before took it away
    try:
        made = comparison_page.page(document, lambda _one: None)
    except html.PageError as error:
        made = str(error)
    assert made.startswith("<!doctype html>") or "is damaged" in made


def test_an_unknown_comparison_is_one_clear_sentence(tmp_path):
    with pytest.raises(records.RecordError, match=r"there is no comparison .*comparison\.json; compare\.yml makes one"):
        comparison_page.of(str(tmp_path), "gpu1", page_data.identifier(1))


def test_vega_lite_takes_every_specification_and_finds_its_fields(tmp_path):
    """Every field that a mark asks for is in the rows, and Vega-Lite compiles what the page holds."""
    found = page(tmp_path, page_data.speculation(tmp_path, "gpu1"))
    drawn = [(told["data-chart"], told["data-rows"]) for _tag, told in found.tags if told.get("data-chart")]
    assert {name for name, _rows in drawn} == {"starts", "ratio", "speculation", "load"}
    for name, rows in dict(drawn).items():
        specification, datasets = charts.specification(name), found.json[rows]
        fits(specification, datasets)
        compiled = vl_convert.vegalite_to_vega(
            {**specification, "datasets": datasets, "height": 100}, vl_version=html.VEGA_LITE
        )
        assert compiled["marks"], name
