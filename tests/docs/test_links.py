"""Every link in the documentation leads somewhere: files, and headings in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# CHANGELOG.md is made by antsibull-changelog.
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "roles/*/README.md",
        "plugins/**/*.md",
        "extensions/**/*.md",
        "tests/**/*.md",
    )
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md" and "output" not in path.parts
)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|!\[[^\]]*\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)


def prose(path: Path) -> str:
    """A page without its code, where brackets are not links."""
    return re.sub(r"`[^`\n]*`", "``", FENCE.sub("", path.read_text(encoding="utf-8")))


def anchors(path: Path) -> set[str]:
    """The anchors that the headings of a page get (as GitHub makes them)."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = base = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while slug in found:
            number += 1
            slug = f"{base}-{number}"
        found.add(slug)
    return found


def test_the_pages_a_reader_starts_from_exist():
    names = {str(path.relative_to(ROOT)) for path in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md"} <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = prose(page)
    targets = [inline or image for inline, image in LINK.findall(text)] + REFERENCE.findall(text)
    broken = []
    for target in targets:
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue  # another site: not looked at, so that this needs no network
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            broken.append(f"{target}: no such file")
        elif not path.is_relative_to(ROOT):
            broken.append(f"{target}: outside of the repository")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            broken.append(f"{target}: no such heading")
    assert not broken, broken


def test_a_broken_link_and_a_broken_anchor_are_seen(tmp_path):
    """The patterns above, tried on a page: a checker that sees nothing passes everything."""
    page = tmp_path / "page.md"
    page.write_text("# One `two`\n\n[a](b.md) ![c](d.png) `[e](f)`\n\n```\n[g](h)\n```\n\n[i]: j.md\n\n## One `two`\n")
    assert [inline or image for inline, image in LINK.findall(prose(page))] == ["b.md", "d.png"]
    assert REFERENCE.findall(prose(page)) == ["j.md"]
    assert anchors(page) == {"one-two", "one-two-1"}
