"""The pages in a real browser (headless Chromium): drawn, silent, alone, light and dark, on a telephone, on paper."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_data
import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import fleet, records
from ansible_collections.groundstate.llm.plugins.plugin_utils.pages import comparison_page, fleet_page
from parsed_page import HOSTILE
from playwright.sync_api import Browser, Page, sync_playwright

# A browser of its own, several seconds a page on a busy machine.
pytestmark = pytest.mark.slow

PATIENCE_MS = 120_000
NAMES = ("chromium", "chromium-browser", "google-chrome")
LIGHT, DARK = "rgb(252, 252, 251)", "rgb(21, 24, 28)"

# Colours of a screenshot's pixels, counted by the browser itself: {"r,g,b": number}.
COUNT_COLOURS = """async (picture) => {
  const image = new Image();
  image.src = "data:image/png;base64," + picture;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, image.width, image.height).data;
  const found = {};
  for (let at = 0; at < pixels.length; at += 4) {
    const colour = `${pixels[at]},${pixels[at + 1]},${pixels[at + 2]}`;
    found[colour] = (found[colour] || 0) + 1;
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; skipped where there is none, failed where CI knows that there is (.ci/run)."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        told = "no browser on this machine: apt-get install chromium"
        if os.environ.get("GROUNDSTATE_BROWSER_REQUIRED") == "1":
            pytest.fail(told)
        pytest.skip(told)
    with sync_playwright() as driver:
        one = driver.chromium.launch(executable_path=program, timeout=PATIENCE_MS)
        yield one
        one.close()


class Opened:
    """A page in a tab of its own that may load nothing but its file, and all that it said."""

    def __init__(self, browser: Browser, path: Path, anchor: str = "", **options: Any) -> None:
        self.said: list[str] = []
        self.refused: list[str] = []
        self.context = browser.new_context(**{"viewport": {"width": 1100, "height": 900}, **options})
        self.context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda one: self.said.append(f"{one.type}: {one.text}"))
        self.page.on("pageerror", lambda one: self.said.append(f"error: {one}"))
        self.page.on("dialog", lambda one: (self.said.append(f"dialog: {one.message}"), one.dismiss()))
        address = path.as_uri()

        def guard(route: Any) -> None:
            if route.request.url.split("#")[0] == address:
                route.continue_()
            else:
                self.refused.append(route.request.url)
                route.abort()

        self.context.route("**/*", guard)
        self.page.goto(address + anchor)

    def drawn(self, expected: int) -> None:
        """Waits until so many charts are drawn, and no more are asked for."""
        self.page.wait_for_function(
            "(expected) => document.querySelectorAll('[data-drawn] svg').length === expected", arg=expected
        )
        assert self.page.locator("[data-drawn]").count() == expected

    def marks(self, chart: str, kind: str = "symbol") -> list[dict[str, Any]]:
        """Each mark of a kind in the charts of a specification: its size and colours as they are shown."""
        found: list[dict[str, Any]] = self.page.eval_on_selector_all(
            f"[data-chart={chart}] .mark-{kind} path, [data-chart={chart}] .mark-{kind} line",
            """(marks) => marks.map((mark) => {
              const box = mark.getBoundingClientRect(), style = getComputedStyle(mark);
              return {width: box.width, height: box.height, fill: style.fill, stroke: style.stroke};
            })""",
        )
        return found

    def close(self) -> None:
        """Asserts that nothing went wrong until now."""
        assert self.said == []
        assert self.refused == []
        self.context.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A comparison, one of speculation, a fleet and a host, as files."""
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "comparison": page_data.comparison(
            folder / "a", "gpu1", {"base": 1.0, "other": 0.9, "third": 1.0}, looks=(4,), blocks=4
        ),
        "speculation": page_data.speculation(folder / "b", "gpu1"),
    }
    found = {}
    for (name, document), records_dir in zip(made.items(), ("a", "b"), strict=True):
        found[name] = folder / f"{name}.html"
        found[name].write_text(comparison_page.of(str(folder / records_dir), "gpu1", document["id"]))
    page_data.fleet(folder / "c", 8)
    for name, chosen in (("fleet", {}), ("host", {"host": "gpu003"})):
        found[name] = folder / f"{name}.html"
        survey = fleet.survey(str(folder / "c"), **chosen)
        found[name].write_text(fleet_page.page(survey, name, "2026-11-29T22:00:00Z"))
    return found


def test_every_start_of_a_comparison_is_drawn(browser: Browser, pages: dict[str, Path]):
    opened = Opened(browser, pages["comparison"])
    loads = opened.page.locator("[data-chart=load]").count()
    assert loads >= 5
    opened.drawn(2 + loads)
    dots = opened.marks("starts")
    assert len(dots) == 12
    assert all(one["width"] > 5 and one["height"] > 5 for one in dots)
    assert len({one["fill"] for one in dots}) == 3, "an arm, a colour"
    assert len(opened.marks("ratio")) == 2
    for name in ("Starts", "Ratio", "Under load", "What the arms differ in", "Every start", "Declared"):
        assert opened.page.get_by_role("heading", name=name, exact=True).is_visible()
    assert opened.page.locator(".answer").first.is_visible()
    opened.close()


def test_accept_length_and_break_even_are_drawn_with_their_intervals(browser: Browser, pages: dict[str, Path]):
    opened = Opened(browser, pages["speculation"])
    opened.drawn(3 + opened.page.locator("[data-chart=load]").count())
    assert len(opened.marks("speculation")) == 2
    assert len([one for one in opened.marks("speculation", "rule") if one["width"] > 5]) >= 2
    opened.close()


def test_a_mark_tells_what_it_is_when_it_is_pointed_at(browser: Browser, pages: dict[str, Path]):
    opened = Opened(browser, pages["comparison"])
    opened.drawn(2 + opened.page.locator("[data-chart=load]").count())
    opened.page.locator("[data-chart=starts] .mark-symbol path").first.hover()
    opened.page.wait_for_selector("#vg-tooltip-element.visible")
    told = opened.page.locator("#vg-tooltip-element").inner_text()
    assert "arm" in told
    assert "base" in told
    opened.close()


@pytest.mark.parametrize("name", ["comparison", "speculation", "fleet", "host"])
def test_light_and_dark_differ_and_neither_is_blank(browser: Browser, pages: dict[str, Path], name: str):
    seen = {}
    opened = Opened(browser, pages[name], color_scheme="light")
    counting = opened.context.browser.new_context().new_page()  # the page's own policy forbids pictures of others
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        opened.page.wait_for_selector("[data-drawn] svg")
        picture = base64.b64encode(opened.page.screenshot()).decode()
        colours = counting.evaluate(COUNT_COLOURS, picture)
        assert len(colours) > 50, "text, lines and marks"
        assert max(colours.values()) < 0.97 * sum(colours.values())
        background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        chart = opened.page.locator("[data-drawn]").first.get_attribute("data-chart")
        kind = {"starts": "symbol", "fleet": "symbol", "history": "symbol"}[chart]
        seen[scheme] = (background, opened.marks(chart, kind)[0]["fill"])
    assert (seen["light"][0], seen["dark"][0]) == (LIGHT, DARK)
    assert seen["light"][1] != seen["dark"][1], "a mark follows the scheme without being drawn again"
    counting.context.close()
    opened.close()


def test_a_fleet_draws_what_is_open_and_the_rest_when_it_is_opened(browser: Browser, pages: dict[str, Path]):
    opened = Opened(browser, pages["fleet"])
    # The history of all, the group, and two charts of each of the two servers that ask for attention.
    opened.drawn(1 + 1 + 4)
    assert len(opened.marks("distribution")) == 8
    assert opened.page.locator("#hosts tbody tr").count() == 8
    opened.page.locator("#hosts a", has_text="gpu002").click()
    opened.drawn(1 + 1 + 6)
    assert opened.page.locator("details", has_text="gpu002").get_attribute("open") is not None
    assert "gpu002" in opened.page.locator(":target").locator("xpath=..").inner_text()
    opened.close()


def test_a_link_to_a_server_opens_its_section(browser: Browser, pages: dict[str, Path]):
    opened = Opened(browser, pages["fleet"])
    anchor = opened.page.locator("#hosts a", has_text="gpu004").get_attribute("href")
    opened.close()
    there = Opened(browser, pages["fleet"], anchor)
    there.drawn(1 + 1 + 6)
    [where] = there.page.locator(f'details:has([id="{anchor[1:]}"])').all()
    assert where.get_attribute("open") is not None
    there.close()


@pytest.mark.parametrize("name", ["comparison", "speculation", "fleet", "host"])
@pytest.mark.parametrize("width", [360, 700])
def test_a_narrow_screen_needs_no_scrolling_sideways(browser: Browser, pages: dict[str, Path], name: str, width: int):
    opened = Opened(browser, pages[name], viewport={"width": width, "height": 800})
    opened.page.wait_for_selector("[data-drawn] svg")
    wide = opened.page.evaluate("document.documentElement.scrollWidth")
    charts = opened.page.eval_on_selector_all("[data-drawn] svg", "(all) => all.map((one) => one.clientWidth)")
    assert wide <= width
    assert all(200 < one <= width for one in charts)
    opened.close()


def test_on_paper_it_is_black_on_white_whatever_the_screen(browser: Browser, pages: dict[str, Path]):
    opened = Opened(browser, pages["comparison"], color_scheme="dark")
    opened.page.wait_for_selector("[data-drawn] svg")
    opened.page.emulate_media(media="print")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert opened.page.pdf().startswith(b"%PDF-")
    opened.close()


def test_without_scripts_the_answer_and_the_tables_are_there(browser: Browser, pages: dict[str, Path]):
    opened = Opened(browser, pages["comparison"], java_script_enabled=False)
    assert opened.page.locator(".answer").first.is_visible()
    assert opened.page.locator("table").count() >= 4
    opened.close()


def test_no_text_of_a_host_is_obeyed(browser: Browser, tmp_path: Path):
    """Every text of records and document is hostile; were one of them obeyed, there would be a picture or a dialog."""
    page_data.fleet(tmp_path, 5)
    for name in records.hosts(str(tmp_path)):
        for identifier in records.identifiers(str(tmp_path), name):
            path = tmp_path / name / f"{identifier}.json"
            made = json.loads(path.read_text())
            made["proof"]["table"] = [HOSTILE]
            made["profile"] = HOSTILE
            made["verdict"].update(explanations=[HOSTILE] * 5)
            made["ready"]["phases"][0].update(name=HOSTILE, note=HOSTILE)
            made["measurement"]["server"].update(name=HOSTILE, served_model_name=HOSTILE)
            path.write_text(json.dumps(made))
    path = tmp_path / "page.html"
    path.write_text(fleet_page.page(fleet.survey(str(tmp_path)), HOSTILE, "2026-11-29T22:00:00Z"))
    opened = Opened(browser, path)
    opened.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    opened.drawn(1 + 1 + 10)
    opened.page.locator("[data-chart=phases] .mark-rect path").first.hover()
    opened.page.wait_for_selector("#vg-tooltip-element.visible")
    assert "onerror" in opened.page.locator("#vg-tooltip-element").inner_text()
    assert opened.page.locator("img").count() == 0
    opened.close()


def test_a_script_that_is_not_the_page_s_own_does_not_run(browser: Browser, pages: dict[str, Path], tmp_path: Path):
    """Were the template to let a tag through one day, the page's policy still stands before it."""
    broken = tmp_path / "broken.html"
    text = pages["comparison"].read_text()
    broken.write_text(
        text.replace("<main>", "<main><script>document.title = 'obeyed'</script><img src='http://x.test/'>")
    )
    opened = Opened(browser, broken)
    opened.drawn(2 + opened.page.locator("[data-chart=load]").count())
    assert opened.page.title() != "obeyed"
    assert opened.refused == [], "the policy stops it before a request is made"
    assert len([line for line in opened.said if "Content Security Policy" in line]) == 2
    opened.context.close()
