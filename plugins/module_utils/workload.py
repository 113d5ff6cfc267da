# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A declared workload: defaults, validation, and synthetic prompts that a seed reproduces.

Prompts are random on purpose: every one begins with a nonce of its own, so that no prefix cache can serve it. The
nonce depends on the measurement too (its id is recorded), else a second measurement of the same server would find the
first one's prompts in the cache. The rest depends on the seed, the repeat and the index alone.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable
from typing import Any, Callable

DEFAULTS: dict[str, Any] = {
    "prompt_tokens": 128,
    "output_tokens": 128,
    "concurrency": [1],
    "requests": 1,
    "repeats": 5,
    "warmup_requests": 3,
    "warmup_cap_s": 20.0,
    "steady_share": 0.01,
    "seed": 0,
    "temperature": 0.0,
    "api": "completions",
    "request_timeout_s": 300.0,
    "max_error_share": 0.0,
}
APIS = ("completions", "chat")

#: Name -> (type, lowest, highest value).
_RANGES: dict[str, tuple[type, float, float]] = {
    "prompt_tokens": (int, 8, 10_000_000),  # fewer leave no room for the nonce
    "output_tokens": (int, 2, 10_000_000),  # a rate needs two
    "requests": (int, 1, 1_000_000),
    "repeats": (int, 1, 10_000),
    "warmup_requests": (int, 0, 100_000),
    "warmup_cap_s": (float, 0, 86_400),
    "steady_share": (float, 0, 1),
    "seed": (int, 0, 2**63 - 1),
    "temperature": (float, 0, 10),
    "request_timeout_s": (float, 0.1, 86_400),
    "max_error_share": (float, 0, 0.99),
}
MAX_CONCURRENCY = 4096
NONCE_TOKENS = 8
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


class WorkloadError(ValueError):
    """A workload that cannot be run; the message says what to change."""


def resolve(given: dict[str, Any] | None) -> dict[str, Any]:
    """The complete workload: what was given over the defaults, each value of its type and in its range.

    Raises WorkloadError that names every problem.
    """
    given = dict(given or {})
    options = ", ".join(sorted(DEFAULTS))
    problems = [f"{name}: no such option; use some of {options}" for name in sorted(set(given) - set(DEFAULTS))]
    found: dict[str, Any] = {}
    for name, default in DEFAULTS.items():
        value = given.get(name)
        value = default if value is None else value
        if name == "concurrency":
            found[name] = _concurrency(value, problems)
        elif name == "api":
            found[name] = value
            if value not in APIS:
                problems.append(f"api: {value!r} is none of {', '.join(APIS)}")
        else:
            found[name] = _number(name, value, problems)
    if problems:
        raise WorkloadError("workload: " + "; ".join(problems))
    return found


def _number(name: str, value: Any, problems: list[str]) -> Any:
    kind, low, high = _RANGES[name]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or (kind is int and value != int(value)):
        problems.append(f"{name}: {value!r} is not {'a whole' if kind is int else 'a'} number")
    elif not low <= value <= high:
        problems.append(f"{name}: {value} is not within {low:g} to {high:g}")
    else:
        return int(value) if kind is int else float(value)
    return value


def _concurrency(value: Any, problems: list[str]) -> list[int]:
    levels = value if isinstance(value, list) else [value]
    good = [one for one in levels if isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= MAX_CONCURRENCY]
    if not levels or len(good) != len(levels):
        problems.append(f"concurrency: {value!r} is not a list of whole numbers from 1 to {MAX_CONCURRENCY}")
    elif len(set(good)) != len(good):
        problems.append(f"concurrency: {value!r} names a level twice")
    return good


def total_requests(workload: dict[str, Any]) -> int:
    """How many measured requests a workload makes (warm-up not counted)."""
    return int(sum(workload["concurrency"]) * workload["requests"] * workload["repeats"])


def vocabulary(tokens: list[int]) -> list[int]:
    """The token ids that prompts may be made of, from the ids of :data:`WORDS` as a text.

    Begin and end are left out: an engine may have put special tokens there.
    """
    edge = {tokens[0], tokens[-1]} if tokens else set()
    return sorted(set(tokens[1:-1]) - edge)


class Prompts:
    """Prompts by key; the same seed, measurement and key give the same prompt.

    With ``ids`` a prompt is a list of exactly ``length`` token ids, else a text of ``length`` words.
    """

    def __init__(self, seed: int, measurement: str, length: int, ids: list[int] | None = None) -> None:
        self.seed, self.measurement, self.length, self.ids = seed, measurement, length, ids

    def make(self, *key: str | int, length: int | None = None) -> str | list[int]:
        """The prompt for a key such as ("measure", concurrency, repeat, index)."""
        size = length or self.length
        name = ":".join(str(part) for part in key)
        first = min(NONCE_TOKENS, size)
        nonce = self._draw(f"{self.seed}:{self.measurement}:{name}", first)
        body = self._draw(f"{self.seed}:{name}", size - first)
        return " ".join(nonce + body) if self.ids is None else nonce + body

    def _draw(self, seed: str, size: int) -> list[Any]:
        source = random.Random(seed)
        values: list[Any] = WORDS if self.ids is None else self.ids
        return [values[int(source.random() * len(values))] for _index in range(size)]


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
