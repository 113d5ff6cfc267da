# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What makes a figure of speculation mean something else than it seems to, each with a name and a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..module_utils import speculation, stats

Record = Mapping[str, Any]
Trap = dict[str, str]

#: Cycles of a start below which its accept length is a matter of luck: of k drafts the number accepted has a standard
#: deviation of up to k / 2, so that of its mean over 200 cycles, with two drafts, is up to 0.07.
FEW_CYCLES = 200
#: Share of an answer that may lie in its last cycle, whose drafts are cut off at the end of the answer.
CUT_OFF = 0.01
#: Share of repeated 4-grams from which on an answer is a loop rather than a text, see module_utils/repetition.py.
REPETITIVE = 0.2
#: Share of the prompt that a prefix cache may serve in one arm and not in the other.
CACHED = 0.05
#: Share of the cycles that draft nothing, below which nobody would notice.
IDLE = 0.05
#: Algorithms that find their drafts in the text, by the names that engines have for them.
_LOOKUP = re.compile(r"n-?gram|lookup|suffix", re.IGNORECASE)
#: The limit on requests at the same time, as SGLang and vLLM call it.
_LIMIT = re.compile(r"max[ _-]running[ _-]requests|max[ _-]num[ _-]seqs", re.IGNORECASE)


def find(
    document: Mapping[str, Any], configuration: Mapping[str, Any], own: Sequence[Record], base: Sequence[Record]
) -> list[Trap]:
    """The traps of a configuration, from its figures, its starts' records and those of the base."""
    if not own or not base:
        return []
    found = [*_effect(document, configuration["arm"]), *_draft(document, configuration, own)]
    found += _untold(document, configuration["arm"], own)
    found += _limits(document, configuration["arm"])
    found += [*_lengths(configuration, own), *_texts(own), *_caches(own, base), *_others(own, base)]
    return [{"name": name, "text": text} for name, text in found]


def _level(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = record["measurement"]["levels"][0]
    return found


def _told(own: Sequence[Record], name: str) -> list[Any]:
    """A value of each start's ``speculation``, where it is told."""
    values = [(_level(record).get("speculation") or {}).get(name) for record in own]
    return [one for one in values if one is not None]


def _effect(document: Mapping[str, Any], arm: str) -> Iterator[tuple[str, str]]:
    ran = {one["name"]: (one.get("resolved") or {}).get("arguments") for one in document["arms"]}
    if ran[arm] and ran[arm] == ran[document["arms"][0]["name"]]:
        yield (
            "not in effect",
            "its servers ran with the very arguments of the base: nothing of what was declared reached them, and the "
            "two are the same",
        )


def _draft(
    document: Mapping[str, Any], configuration: Mapping[str, Any], own: Sequence[Record]
) -> Iterator[tuple[str, str]]:
    length, depth = configuration["accept_length"]["value"], configuration["drafts"]
    drafts, cycles = _drafted(own)
    if length is None:
        yield (
            "unknown accept length",
            "the engine told no accept length of the measured window, so that cycle and break-even are not known; the "
            "speed-up is (SGLang needs enable-metrics)",
        )
    elif nothing_drafted(own):
        yield "nothing drafted", "no token was drafted in any cycle: what was measured is not speculation"
    elif length <= speculation.MISCONFIGURED and _looks_up(document, configuration["arm"]):
        yield (
            "nothing to look up",
            f"accept length {length:.2f}: next to nothing of what was looked up is accepted. Lookup drafts what stood "
            "in the text before: it pays where answers repeat their prompt or themselves, and these hardly do",
        )
    elif length <= speculation.MISCONFIGURED:
        yield (
            "draft misconfigured",
            f"accept length {length:.2f}: next to nothing of the draft is accepted. It is hardly the draft of this "
            "model (random or other weights, another tokenizer), or of this method (an EAGLE-3 draft run as EAGLE)",
        )
    if length and depth and length > depth + 1:
        yield (
            "impossible accept length",
            f"accept length {length:.2f}, and a cycle of {depth} drafts gives {depth + 1} tokens at most: the drafts "
            "are more than was declared, or what was counted is not this level's. Acceptance is not known",
        )
    if drafts and cycles and drafts < (1.0 - IDLE) * cycles:
        accepted = sum(_told(own, "accepted"))
        yield (
            "cycles without a draft",
            f"{100 * drafts / cycles:.0f} % of the cycles drafted something; in these the accept length is "
            f"{1 + accepted / drafts:.2f}, over all cycles {length or 1.0:.2f}. Acceptance and ceiling take "
            "every cycle for one with a draft",
        )
    if any(one == "gauge" for one in _told(own, "source")):
        yield (
            "accept length of the last interval",
            "the engine has no counters of speculation: the accept length is that of its last interval, not of the "
            "level",
        )


def _drafted(own: Sequence[Record]) -> tuple[int, int]:
    """Cycles that drafted and all cycles, of all starts together; 0 where no start tells them."""
    return sum(_told(own, "drafts")), sum(_told(own, "cycles"))


def nothing_drafted(own: Sequence[Record]) -> bool:
    """Whether the starts count their drafts, and counted none: what they measured is no speculation."""
    drafts, cycles = _drafted(own)
    return bool(cycles and not drafts and _told(own, "drafts"))


def to_draft(document: Mapping[str, Any], arm: str) -> str:
    """What has to be done first where nothing was drafted: until then nothing is known of draft and cycle."""
    if _looks_up(document, arm):
        return (
            "something to draft, first: nothing that could go on was found in the text. Measure with prompts whose "
            "answers repeat them (prompts_file), or let the engine look up shorter sequences"
        )
    return (
        "drafts, first: see in the log of its server why it drafts nothing (the draft is not loaded, or held back: at "
        "so many streams, for these sampling parameters, below a least probability), then measure again"
    )


def _looks_up(document: Mapping[str, Any], arm: str) -> bool:
    """Whether an arm drafts from the text instead of with a model."""
    declared = next(one["declared"] for one in document["arms"] if one["name"] == arm)
    told = (declared.get("llm_server") or {}).get("speculation") or {}
    return not told.get("draft_model") and bool(_LOOKUP.search(str(told.get("algorithm"))))


def _untold(document: Mapping[str, Any], arm: str, own: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Starts without an accept length, where others have one."""
    numbers = [one["number"] for one in document["starts"] if one["arm"] == arm]
    silent = [
        str(number)
        for number, record in zip(numbers, own)
        if not (_level(record).get("speculation") or {}).get("accept_length")
    ]
    if silent and len(silent) < len(own):
        yield (
            "starts without an accept length",
            f"start {', '.join(silent)} told none: accept length, cycle and break-even are of the blocks of the others",
        )


def _limits(document: Mapping[str, Any], arm: str) -> Iterator[tuple[str, str]]:
    rows = [row for row in document["differences"] if row["arm"] == arm and _LIMIT.search(row["what"])]
    for row in rows[:1]:
        values = f"{row['reference']} in the base, {row['value']} here"
        yield (
            "different limit of requests",
            f"{row['what']}: {values}. Speculation lowers it silently; declare the same in all arms, or what is "
            "compared are two limits, too",
        )


def _lengths(configuration: Mapping[str, Any], own: Sequence[Record]) -> Iterator[tuple[str, str]]:
    tokens = own[0]["measurement"]["workload"]["output_tokens"]
    drafts = configuration["drafts"]
    # The cycle that reaches the end of an answer loses half of what it could have accepted, on average.
    if drafts and drafts / 2 > CUT_OFF * tokens:
        yield (
            "short answers",
            f"answers of {tokens} tokens: the last cycle of each is cut off at the end, which shifts the accept length "
            f"by up to {100 * drafts / 2 / tokens:.0f} %; raise output_tokens to {round(drafts / 2 / CUT_OFF)} or more",
        )
    cycles = _told(own, "cycles")
    if cycles and min(cycles) < FEW_CYCLES:
        yield (
            "few cycles",
            f"a start has {min(cycles)} cycles: its accept length depends on luck; raise output_tokens, requests or "
            f"repeats until there are {FEW_CYCLES}",
        )


def _texts(own: Sequence[Record]) -> Iterator[tuple[str, str]]:
    workload = own[0]["measurement"]["workload"]
    for name, what in (("answers", "repeated answers"), ("prompts", "repeated prompts")):
        shares = [(_level(record).get("repetition") or {}).get(name) for record in own]
        known = [one for one in shares if one is not None]
        if known and stats.mean(known) > REPETITIVE:
            yield (
                what,
                f"{100 * stats.mean(known):.0f} % of the 4-word sequences in the {name} were there before: what "
                "repeats is easily drafted, by n-grams above all. The accept length of other text is lower",
            )
    if workload["prefix_cache"] != "defeat" and workload["repeats"] > 1:
        yield (
            "the same prompts again",
            f"prefix_cache: {workload['prefix_cache']} sends the same prompts in every repeat: an n-gram table that "
            "outlives a request has seen their answers; use defeat",
        )
    if not workload["prompts_file"]:
        yield (
            "synthetic prompts",
            "the prompts are random words, and answers to them are no text of your users: cycle and break-even hold, "
            "the accept length may not. Give real prompts (prompts_file)",
        )


def _caches(own: Sequence[Record], base: Sequence[Record]) -> Iterator[tuple[str, str]]:
    shares = [_cached(one) for one in (base, own)]
    if None not in shares and abs((shares[0] or 0.0) - (shares[1] or 0.0)) > CACHED:
        yield (
            "prefix cache differs",
            f"the prefix cache served {100 * (shares[0] or 0.0):.0f} % of the prompts in the base and "
            f"{100 * (shares[1] or 0.0):.0f} % here: speculation can cost the reuse of prefixes, which the decode "
            "rate does not show (time to first token does)",
        )


def _cached(records: Sequence[Record]) -> float | None:
    """Share of the prompts' tokens that a cache served; None where the server does not tell."""
    cached = asked = 0
    for record in records:
        found, lengths = _level(record).get("cached_tokens"), _level(record).get("prompt_tokens")
        if found is None or not lengths:
            return None
        cached += found
        asked += _level(record)["ok"] * (lengths["min"] + lengths["max"]) / 2
    return cached / asked if asked else None


def _others(own: Sequence[Record], base: Sequence[Record]) -> Iterator[tuple[str, str]]:
    foreign = sum((_level(record).get("server_metrics") or {}).get("foreign_tokens") or 0 for record in (*own, *base))
    if foreign:
        yield (
            "somebody else's requests",
            f"{foreign} tokens were generated for somebody else meanwhile: the counters are theirs, too",
        )
    concurrency = _level(own[0])["concurrency"]
    if concurrency > 1:
        yield (
            "several streams",
            f"{concurrency} streams at once: a cycle verifies the drafts of all of them, so that cycle and break-even "
            "hold for this concurrency alone; at one stream speculation pays soonest",
        )
