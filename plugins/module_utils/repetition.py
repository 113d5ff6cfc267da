# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How much a text repeats itself: what repeats is easy to draft, so its accept length is nobody else's.

The measure is seq-rep-4 of Welleck et al. 2020 (arXiv:1908.04319): the share of a text's 4-grams that were there
before. It is below 0.01 in text by people; greedy answers that run into a loop come to 0.4 and more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

N = 4
_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Words and signs: a reader of a stream is not told its tokens."""
    return _WORD.findall(text)


def share(items: Sequence[Any], before: Sequence[Any] = ()) -> float | None:
    """Share of the 4-grams of ``items`` that were in ``before`` or earlier in ``items``; None where there are none."""
    seen = {tuple(before[index : index + N]) for index in range(len(before) - N + 1)}
    total = len(items) - N + 1
    repeated = 0
    for index in range(total):
        gram = tuple(items[index : index + N])
        repeated += gram in seen
        seen.add(gram)
    return repeated / total if total > 0 else None


def of_request(prompt: str | list[int], answer: str) -> tuple[float | None, float | None]:
    """(share of the prompt, share of the answer); an answer may repeat its prompt, where that is a text, too."""
    asked: list[Any] = words(prompt) if isinstance(prompt, str) else prompt
    return share(asked), share(words(answer), asked if isinstance(prompt, str) else ())
