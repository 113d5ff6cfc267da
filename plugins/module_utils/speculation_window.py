# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What speculative decoding did while a level was measured: never since the start of the server. Pure.

Accept length here is *tokens per cycle over all cycles*: n / cycles, with n the generated tokens without the first of
each request, which its prefill gives. Every cycle gives one token of the target's own, so that cycles = n - accepted,
also where some of them drafted nothing (n-gram lookup). Only so L / rate is the time of a cycle. Engines report it per
cycle *that drafted*; without such gaps the two are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import speculation

#: Where the numbers come from, best first, and what is known to be wrong with them.
SOURCES = {
    "requests": "told by the server with each of our answers",
    "counters": "what the server's counters grew by; drafts accepted beyond the end of an answer count as well",
    "verify counter": "tokens of our requests over the growth of the server's counter of verifications",
    "gauge": "the server's last interval only, not the whole level: it has no counters for it",
}


def window(
    delta: Mapping[str, float],
    gauge: float | None,
    told: Iterable[Mapping[str, Any]],
    tokens: int,
    requests: int,
) -> dict[str, Any] | None:
    """The ``speculation`` of a level; None where the server told nothing of it.

    ``delta``: growth of the server's counters in the level, ``gauge``: its accept length afterwards. ``told``: of each
    good request what the engine said of it (``verify_calls``, ``accepted``, ``draft_tokens``, ``accepted_counts``: the
    number of cycles by how many drafts they accepted). ``tokens``, ``requests``: of the good requests.
    """
    each = list(told)
    decoded = tokens - requests
    if decoded <= 0:
        return None
    if each and len(each) == requests:
        return _of_requests(each, decoded)
    # Numerator and denominator have to be of the same requests, even when somebody else's are among them.
    generated = round(delta.get("generated_tokens", tokens)) - requests
    drafts, accepted = (delta.get(name) for name in ("drafts", "accepted_tokens"))
    # A counter may lag behind; and what was accepted was drafted, or these are no counters of one thing.
    if drafts is not None and accepted is not None and generated > 0 and (drafts > 0 or accepted <= 0):
        return _of_counters(delta, generated)
    if delta.get("verify_calls", 0.0) >= 1.0:
        return _document("verify counter", decoded, round(delta["verify_calls"]))
    if gauge and gauge > 0:
        return {**_document("gauge", decoded, None), "accept_length": gauge}
    return None


def _document(source: str, tokens: int, cycles: int | None) -> dict[str, Any]:
    return {
        "source": source,
        "note": SOURCES[source],
        "accept_length": tokens / cycles if cycles else None,
        "tokens": tokens,
        "cycles": cycles,
        "drafts": None,
        "draft_tokens": None,
        "accepted": None,
        "acceptance_per_position": [],
    }


def _of_counters(delta: Mapping[str, float], tokens: int) -> dict[str, Any]:
    drafts, accepted = round(delta["drafts"]), round(delta["accepted_tokens"])
    at = [delta[name] for name in sorted((one for one in delta if one.startswith("accepted_at_")), key=_position)]
    return {
        # What was accepted beyond the end of an answer is no token of it, but every draft was a cycle.
        **_document("counters", tokens, max(tokens - accepted, drafts, 1)),
        "drafts": drafts,
        "draft_tokens": None if "draft_tokens" not in delta else round(delta["draft_tokens"]),
        "accepted": accepted,
        "acceptance_per_position": speculation.conditional(at, drafts),
    }


def _position(name: str) -> int:
    return int(name.rpartition("_")[2])


def _of_requests(told: list[Mapping[str, Any]], tokens: int) -> dict[str, Any] | None:
    cycles = sum(one["verify_calls"] for one in told)
    if cycles < 1:
        return None
    counts = [0] * max(len(one["accepted_counts"]) for one in told)
    for one in told:
        for accepted, number in enumerate(one["accepted_counts"]):
            counts[accepted] += number
    at = [sum(counts[position:]) for position in range(1, len(counts))]
    return {
        **_document("requests", tokens, cycles),
        "drafts": cycles,
        "draft_tokens": sum(one["draft_tokens"] for one in told),
        "accepted": sum(one["accepted"] for one in told),
        "acceptance_per_position": speculation.conditional(at, sum(counts)),
    }
