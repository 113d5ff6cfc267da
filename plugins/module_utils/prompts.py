# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prompts: synthetic ones of an exact length that a seed reproduces, or those of a file.

Synthetic prompts are random on purpose: every one begins with a nonce of its own, so that no prefix cache can serve it.
The nonce depends on the measurement too (its id is recorded), else a second measurement of the same server would find
the first one's prompts in the cache. The rest depends on the seed, the repeat and the index alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable
from typing import Any, Callable

from . import files
from .workload import WorkloadError

NONCE_TOKENS = 8
LARGEST_FILE = 256 << 20  # bytes of a prompts_file
#: Fewer different tokens would make the nonces of a few hundred prompts begin alike.
MIN_VOCABULARY = 32

#: Words that are one token, with the space before them, in the vocabularies of all common models.
WORD_TEXT = (
    "the of and to in is was for that on with as by at from his it an are were which this be or had not but one their "
    "first has its also new after have who they two her she been other when time during there into all may more would "
    "years up only some than city made about over out used between state can no him you we if so now then these where "
    "world most many known part later such before under her while each being both same through year until well three "
    "people since against any back called number could day small end long name house war high water group left life "
    "line work play river book land field old team great school south north west east king law art"
)
WORDS = WORD_TEXT.split()


def vocabulary(tokens: list[int]) -> list[int]:
    """The token ids that prompts may be made of, from the ids of :data:`WORDS` as a text.

    Begin and end are left out: an engine may have put special tokens there.
    """
    edge = {tokens[0], tokens[-1]} if tokens else set()
    return sorted(set(tokens[1:-1]) - edge)


class Prompts:
    """Prompts by key; the same seed, measurement and key give the same prompt.

    With ``ids`` a prompt is a list of exactly ``length`` token ids, else a text of ``length`` of the ``words``. With
    ``texts`` it is one of those, in their order. ``unique``: every prompt begins with a nonce of its own; else the n-th
    stream gets the same prompt in every wave.
    """

    def __init__(
        self,
        seed: int,
        measurement: str,
        length: int,
        ids: list[int] | None = None,
        texts: list[str] | None = None,
        unique: bool = True,
        words: list[str] | None = None,
    ) -> None:
        self.seed, self.measurement, self.length, self.ids = seed, measurement, length, ids
        self.texts, self.unique, self.words = texts, unique, words or WORDS

    def make(self, *key: str | int, length: int | None = None) -> str | list[int]:
        """The prompt for a key such as ("measure", concurrency, repeat, index); the index is its last part."""
        size = length or self.length
        index = int(key[-1])
        name = ":".join(str(part) for part in key) if self.unique else str(index)
        first = min(NONCE_TOKENS, size) if self.unique else 0
        nonce = self._draw(f"{self.seed}:{self.measurement}:{name}", first)
        if self.texts is not None:
            return " ".join([*nonce, self.texts[index % len(self.texts)]])
        body = self._draw(f"{self.seed}:{name}", size - first)
        return " ".join(nonce + body) if self.ids is None else nonce + body

    def _draw(self, seed: str, size: int) -> list[Any]:
        source = random.Random(seed)
        values: list[Any] = self.words if self.ids is None else self.ids
        return [values[int(source.random() * len(values))] for _index in range(size)]


def read_file(path: str) -> list[str]:
    """The prompts of a file on this host: a text a line or, when its name ends in .jsonl, an object with "prompt".

    Raises WorkloadError for a file without prompts, OSError for one that cannot be read.
    """
    with open(path, "rb") as source:
        raw = source.read(LARGEST_FILE + 1)
    if len(raw) > LARGEST_FILE:
        raise WorkloadError(f"workload: prompts_file {path} has more than {LARGEST_FILE >> 20} MiB")
    try:
        # No splitlines(): a prompt may hold the other line ends of Unicode.
        lines = re.split(r"\r\n|\n|\r", raw.decode("utf-8-sig"))
    except ValueError as error:
        raise WorkloadError(f"workload: prompts_file {path} is not UTF-8 text: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        text: Any = line
        if path.endswith(".jsonl"):
            try:
                text = files.decode_json(line)["prompt"]
            except (ValueError, TypeError, KeyError):
                text = None
        if not isinstance(text, str) or not text.strip():
            raise WorkloadError(
                f'workload: line {number} of prompts_file {path} is no object with a text "prompt", as .jsonl needs it'
            )
        found.append(text)
    if not found:
        raise WorkloadError(f"workload: prompts_file {path} holds no prompts")
    return found


async def fit_words(count: Callable[[int], Awaitable[int]], target: int) -> tuple[int, bool]:
    """How many words make a prompt of ``target`` tokens, and whether it was met exactly.

    ``count(words)`` asks the server how many tokens it saw. The relation is taken as a line (template and special
    tokens are its offset) and then corrected. Raises WorkloadError when the template alone is longer.
    """
    few, more = target // 8 + 1, target // 4 + 2
    low, high = await count(few), await count(more)
    slope = max(0.1, (high - low) / (more - few))
    offset = low - slope * few
    words = round((target - offset) / slope)
    if words < 1:
        raise WorkloadError(
            f"workload: prompt_tokens {target} cannot be met: the template of this model alone takes about "
            f"{round(offset)} tokens; raise prompt_tokens or use api: completions"
        )
    for _index in range(4):
        seen = await count(words)
        better = max(1, words + round((target - seen) / slope))
        if better == words:
            return words, seen == target
        words = better
    return words, False
