# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a server says of itself (Prometheus text), before and after a level: queue, KV cache, accept length, tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LINE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_RANK = re.compile(r'(?:^|,)\s*tp_rank="(\d+)"')
_POSITION = re.compile(r'(?:^|,)\s*position="(\d{1,3})"')

#: Our names that only ever grow; the rest are gauges.
COUNTERS = frozenset(
    {
        "drafts",
        "draft_tokens",
        "accepted_tokens",
        "verify_calls",
        "cached_tokens",
        "prompt_tokens",
        "generated_tokens",
    }
)
#: A counter for each position of a draft; its first one becomes ``accepted_at_0``.
PER_POSITION = "accepted_at"
#: No counter comes to this; sums and ratios of smaller ones stay finite.
_LARGEST = 2.0**63
#: Gauges that are summed over the engines of one server; of others the greatest counts.
SUMMED = frozenset({"running_requests", "queued_requests"})


def parse(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """Our name -> value, for those of ``names`` (our name -> the engine's) that the text has.

    Tensor-parallel ranks tell the same thing each, so only rank 0 counts. What is no number is left out.
    """
    wanted = {theirs: ours for ours, theirs in names.items()}
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        parts = _LINE.match(line)
        if parts is None or parts.group(1) not in wanted:
            continue
        rank = _RANK.search(parts.group(2) or "")
        if rank and rank.group(1) != "0":
            continue
        ours = wanted[parts.group(1)]
        if ours == PER_POSITION:
            position = _POSITION.search(parts.group(2) or "")
            if position is None:
                continue
            ours = f"{PER_POSITION}_{int(position.group(1))}"
        try:
            value = float(parts.group(3))
        except ValueError:
            continue
        if abs(value) < _LARGEST:  # False for NaN, too
            found.setdefault(ours, []).append(value)
    return {ours: sum(all_) if counts(ours) or ours in SUMMED else max(all_) for ours, all_ in sorted(found.items())}


def counts(name: str) -> bool:
    """Whether this name of ours is that of a counter."""
    return name in COUNTERS or name.startswith(PER_POSITION)


def positive(gauge: float | None) -> float | None:
    """The value of a gauge that tells something; SGLang tells 0 when it does not speculate, nobody less."""
    return gauge if gauge is not None and gauge > 0 else None


def compare(before: dict[str, float] | None, after: dict[str, float] | None, own_tokens: int) -> dict[str, Any] | None:
    """The document of a level; None when the server told nothing.

    ``own_tokens``: tokens that our complete requests got between the two. ``accept_length`` is tokens per draft cycle:
    from the counters where there are some, else the gauge (which holds the server's last interval only).
    ``foreign_tokens``: tokens generated for somebody else meanwhile.
    """
    if not before or not after:
        return None
    delta = {name: after[name] - before[name] for name in sorted(set(before) & set(after)) if counts(name)}
    if any(value < 0 for value in delta.values()):  # the server restarted its counters
        delta = {}
    accept = positive(after.get("accept_length"))
    if delta.get("drafts", 0.0) >= 1.0:
        accept = 1.0 + delta.get("accepted_tokens", 0.0) / delta["drafts"]
    generated = delta.get("generated_tokens")
    return {
        "before": before,
        "after": after,
        "delta": delta,
        "accept_length": accept,
        "foreign_tokens": None if generated is None else max(0, round(generated) - own_tokens),
    }
