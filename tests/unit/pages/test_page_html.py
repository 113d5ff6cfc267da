"""The frame of a page: text stays text, one script, nothing fetched, written once."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils.pages import charts, html, words
from hypothesis import given, settings
from hypothesis import strategies as st

# A busy machine is no failure.
SOME = settings(max_examples=60)

LOOK = charts.Look("it", "var(--c1)")


def page(**context) -> str:
    """The smallest page that there is: a comparison of nothing, with one chart."""
    drawn = [charts.chart("load", "a title", "a description", starts=[{"number": 1, "value": 2.0, **LOOK.row}])]
    return html.render("base.html.j2", charts=drawn, specifications=charts.specifications(drawn), **context)


@SOME
@given(st.recursive(st.text() | st.none() | st.booleans() | st.integers(), st.lists, max_leaves=8))
def test_json_in_a_page_is_the_same_value_and_holds_no_tag(value):
    text = str(html.json_in_html(value))
    assert json.loads(text) == value
    assert not set("<>&") & set(text)


def test_numbers_that_json_lacks_are_refused_and_left_out_of_rows():
    with pytest.raises(ValueError, match="JSON"):
        html.json_in_html(float("nan"))
    drawn = charts.chart("load", "", "", starts=[{"value": float("inf"), "number": 1, "low": float("nan")}])
    assert drawn.datasets == {"starts": [{"value": None, "number": 1, "low": None}]}


@SOME
@given(st.lists(st.text(), min_size=1, max_size=3))
def test_anchors_are_the_same_for_the_same_words_and_safe_in_an_address(parts):
    made = html.anchor(*parts)
    assert made == html.anchor(*parts)
    assert re.fullmatch(r"[a-z0-9-]+", made)


def test_anchors_differ_where_the_readable_part_does_not():
    assert html.anchor("a b") != html.anchor("a-b")
    assert html.anchor("ab", "c") != html.anchor("a", "bc")


def test_only_the_script_of_the_page_may_run_and_nothing_is_fetched():
    class Scripts(HTMLParser):
        policy, script, inside, types = "", "", False, []

        def handle_starttag(self, tag, attrs):
            told = dict(attrs)
            if told.get("http-equiv") == "Content-Security-Policy":
                self.policy = told["content"]
            if tag == "script":
                self.types.append(told["type"])
            self.inside = tag == "script" and told["type"] == "module"
            assert not any(name.startswith("on") or name == "src" for name in told)

        def handle_data(self, data):
            if self.inside:
                self.script += data

        def handle_endtag(self, tag):
            self.inside = False

    found = Scripts()
    found.feed(page())
    assert found.types.count("module") == 1
    assert set(found.types) == {"module", "application/json"}
    digest = base64.b64encode(hashlib.sha256(found.script.encode()).digest()).decode()
    told = dict(part.strip().split(" ", 1) for part in found.policy.split(";"))
    assert told["script-src"] == f"'sha256-{digest}'"
    assert told["default-src"] == "'none'"
    assert "connect-src" not in told


def test_the_same_input_gives_the_same_page():
    assert page() == page()


def test_without_the_library_the_page_has_no_script_and_says_what_is_missing(monkeypatch):
    html._script.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    try:
        assert not html.can_plot()
        made = page()
    finally:
        html._script.cache_clear()
    assert "<script" not in made
    assert "script-src 'none'" in made
    assert "pip install" in made


def test_the_script_is_bundled_once_for_all_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    html._script.cache_clear()
    try:
        made = page()
        [kept] = (tmp_path / "groundstate").iterdir()
        assert kept.read_text() in made
        html._script.cache_clear()
        monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_words, **_options: pytest.fail("bundled again"))
        assert page() == made
        html._script.cache_clear()
        monkeypatch.undo()
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
        assert page() == made, "a cache that cannot be written to is done without"
    finally:
        html._script.cache_clear()


def test_a_page_is_written_once(tmp_path):
    path = tmp_path / "new" / "page.html"
    assert html.write(str(path), "<p>é\ud800", check=True)
    assert not path.exists()
    assert html.write(str(path), "<p>é\ud800")
    assert path.read_bytes() == "<p>é?".encode()
    before = path.stat().st_mtime_ns
    assert not html.write(str(path), "<p>é\ud800")
    assert path.stat().st_mtime_ns == before
    assert html.write(str(path), "<p>e")
    assert path.read_text() == "<p>e"
    assert os.listdir(path.parent) == ["page.html"]


def test_a_folder_in_the_way_is_told(tmp_path):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(OSError, match=r"page\.html"):
        html.write(str(tmp_path / "page.html"), "x")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (words.number(None), "\u2013"),
        (words.number(0.1239), "0.124"),
        (words.number(2.754), "2.75"),
        (words.number(12.06, "ms"), "12.1\u00a0ms"),
        (words.number(41234.5), "41234"),
        (words.change(0.913), "\u22128.7\u00a0%"),
        (words.change_interval(0.99, 1.02), "\u22121.0\u00a0% to +2.0\u00a0%"),
        (words.change_interval(None, 1.02), ""),
        (words.interval(1.5, None), ""),
        (words.signed_percent(-0.0123), "\u22121.23\u00a0%"),
        (words.milliseconds(0.0121), "12.1\u00a0ms"),
        (words.moment("2026-11-29T21:36:05Z"), "2026-11-29 21:36:05 UTC"),
        (words.count(1, "start"), "1 start"),
        (words.count(0, "start"), "0 starts"),
    ],
)
def test_words(made, expected):
    assert made == expected
