"""A page as a browser reads it: tags, text, and the JSON in it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

HOSTILE = """</script><img src=x onerror="alert(1)">'\\u2028{{ 7 * 7 }}"""


class Parsed(HTMLParser):
    """What a browser would make of a page: tags, text, and the JSON in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.json: dict[str, Any] = {}
        self._inside = ""
        self._kind = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        self.tags.append((tag, told))
        self.text += " " if tag == "small" else ""
        if tag in ("script", "style"):
            self._inside, self._kind = told.get("id") or tag, told.get("type") or tag

    def handle_endtag(self, tag):
        self.text += " " if tag in ("td", "th", "dt", "dd", "li", "h3", "small") else ""
        if tag in ("script", "style"):
            self._inside = self._kind = ""

    def handle_data(self, data):
        if self._kind == "application/json":
            self.json[self._inside] = json.loads(data)
        elif not self._inside:
            self.text += data

    @property
    def shapes(self) -> set[tuple[str, frozenset[str]]]:
        """Every kind of tag with the names of its attributes: what a page may hold however its words read."""
        return {(tag, frozenset(told)) for tag, told in self.tags}

    @property
    def words(self) -> str:
        """The text with single spaces."""
        return " ".join(self.text.replace("\u00a0", " ").split())


def fits(specification: dict[str, Any], datasets: dict[str, list[dict[str, Any]]]) -> None:
    """Asserts that each layer's dataset is there, with every field that its encodings name."""
    for layer in specification.get("layer") or [specification]:
        rows = datasets[layer["data"]["name"]]
        channels = [one for told in layer["encoding"].values() for one in (told if isinstance(told, list) else [told])]
        for field in {one["field"] for one in channels if "field" in one}:
            assert all(field in row for row in rows), (layer["data"]["name"], field)
