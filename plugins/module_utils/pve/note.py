# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The marks by which a container is known as ours: a tag, and a block in its description. Pure.

The block also names the raw ``lxc.*`` lines that we added. It stands in the description because that is the one place
that PVE keeps: every change through PVE rewrites ID.conf and moves each comment of the file into the description.
The marks are HTML comments, which PVE's web interface (the description is Markdown) does not show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

TAG = "groundstate"
DEFAULT = "Managed with Ansible (groundstate.llm): what is declared there is set again by the next run."
_BEGIN, _END = "<!-- groundstate -->", "<!-- /groundstate -->"
_BLOCK = re.compile(re.escape(_BEGIN) + r"\n(.*?)\n?" + re.escape(_END) + r"\n?", re.DOTALL)
_LINE = re.compile(r"<!-- (lxc\.[a-z0-9_.-]+): (.*?) -->")

RawLine = tuple[str, str]


def tags(text: object) -> list[str]:
    """The tags in a value of ``tags``, sorted as PVE keeps them."""
    return sorted({one.lower() for one in re.split(r"[;, ]+", str(text or "")) if one})


def is_ours(config: Mapping[str, str]) -> bool:
    """Whether a container carries our tag or block. (A clone that was interrupted has only the block.)"""
    return TAG in tags(config.get("tags")) or bool(_BLOCK.search(config.get("description", "")))


def raw_lines(description: str) -> list[RawLine]:
    """The raw lines that the block names as added by us."""
    found = _BLOCK.search(description)
    return _LINE.findall(found.group(1)) if found else []


def write(description: str, text: str | None, lines: Iterable[RawLine]) -> str:
    """The description with our block in it; what stands outside of the block stays.

    ``text``: what the block says; None keeps what it says, or says the default.
    """
    found = _BLOCK.search(description)
    if text is None:
        text = (_LINE.sub("", found.group(1)).strip("\n") if found else "") or DEFAULT
    parts = [_BEGIN, _without_marks(text).strip("\n")]
    parts += [f"<!-- {key}: {value} -->" for key, value in lines]
    block = "\n".join([*parts, _END]) + "\n"
    if found:
        return description[: found.start()] + block + description[found.end() :]
    before = description.rstrip("\n")
    return f"{before}\n\n{block}" if before else block


def _without_marks(text: str) -> str:
    """A text that cannot be taken for a mark or a line of ours, nor become one when those in it are taken out."""
    while True:
        plain = _LINE.sub("", text.replace(_BEGIN, "").replace(_END, ""))
        if plain == text:
            return text
        text = plain
