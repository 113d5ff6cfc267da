"""Each trap is reported by its name, and only then."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import speculation_analysis, speculation_lines

BASE = {"rate": 80.0}
EAGLE = {"algorithm": "EAGLE3", "draft_model": "/d", "draft_tokens": 2}
GOOD = {"rate": 60.0, "length": 2.0, "speculation": EAGLE, "workload": {"prompts_file": "real.txt"}}


@pytest.fixture
def traps(compared):
    """Names of the traps of a configuration, with changes to its level, workload, length or the document."""

    def find(base=None, differences=(), **changes) -> dict[str, str]:
        document, records = compared({"base": {**BASE, **(base or {})}, "spec": {**GOOD, **changes}})
        document["differences"] = list(differences)
        (one,) = speculation_analysis.analyse(document, records)["configurations"]
        return {trap["name"]: trap["text"] for trap in one["traps"]}

    return find


def test_a_sound_measurement_has_none(traps):
    assert traps() == {}


@pytest.mark.parametrize("length", [1.0, 1.05])
def test_a_draft_that_is_never_accepted(traps, length):
    assert "an EAGLE-3 draft run as EAGLE" in traps(length=length)["draft misconfigured"]


def test_a_draft_that_is_hardly_accepted_is_a_bad_one_but_no_trap(traps):
    assert "draft misconfigured" not in traps(length=1.06)


@pytest.mark.parametrize("algorithm", ["ngram", "NGRAM", "suffix"])
def test_lookup_has_no_draft_that_could_be_the_wrong_one(traps, algorithm):
    told = traps(length=1.03, speculation={"algorithm": algorithm, "draft_tokens": 4})
    assert "draft misconfigured" not in told
    assert "accept length 1.03: next to nothing of what was looked up" in told["nothing to look up"]


def test_more_tokens_than_a_cycle_can_give(traps):
    told = traps(length=3.3)
    assert "accept length 3.30, and a cycle of 2 drafts gives 3 tokens at most" in told["impossible accept length"]


def test_one_start_without_an_accept_length_leaves_those_of_the_others(compared):
    document, records = compared({"base": BASE, "spec": GOOD})
    silent = [one for one in document["starts"] if one["arm"] == "spec"][1]
    records[silent["record"]]["measurement"]["levels"][0]["speculation"] = None
    (one,) = speculation_analysis.analyse(document, records)["configurations"]
    assert one["accept_length"]["value"] == pytest.approx(2.0)
    assert one["break_even"]["low"] <= one["break_even"]["value"] == pytest.approx(8 / 3)
    assert [trap["name"] for trap in one["traps"]] == ["starts without an accept length"]
    assert one["traps"][0]["text"].startswith(f"start {silent['number']} told none")


def test_nothing_was_drafted_at_all(traps, window):
    told = traps(level={"speculation": window(1.0, drafts=0, draft_tokens=0)})
    assert "nothing drafted" in told
    assert "draft misconfigured" not in told


@pytest.mark.parametrize(
    ("algorithm", "rate", "advice"),
    [
        ("EAGLE3", 75.0, "drafts, first: see in the log of its server why it drafts nothing"),
        ("EAGLE3", 80.5, "drafts, first: "),
        ("ngram", 75.0, "something to draft, first: nothing that could go on was found in the text"),
    ],
)
def test_where_nothing_was_drafted_no_better_draft_is_advised(compared, window, algorithm, rate, advice):
    """Nor a cheaper cycle: what was measured is the cycle without drafts, and acceptance is of nothing."""
    idle = window(1.0, drafts=0, draft_tokens=0, acceptance_per_position=[None, None])
    arm = {**GOOD, "rate": rate, "speculation": {**EAGLE, "algorithm": algorithm}, "level": {"speculation": idle}}
    if algorithm == "ngram":
        del arm["speculation"]["draft_model"]
    document, records = compared({"base": BASE, "spec": arm})
    found = speculation_analysis.analyse(document, records)
    [one] = found["configurations"]
    [line] = one["would_pay_if"]
    assert line.startswith(advice)
    assert one["acceptance"] is one["needed_acceptance"] is one["ceiling"] is None
    told = "\n".join(speculation_lines.lines(found))
    assert f"it needs    {line}" in told
    assert "trap        nothing drafted" in told
    assert "acceptance" not in told
    assert "ceiling" not in told


def test_a_declaration_that_reached_no_server(compared):
    document, records = compared({"base": BASE, "spec": GOOD})
    for arm in document["arms"]:
        arm["resolved"] = {"arguments": {"--model": "m"}}
    (one,) = speculation_analysis.analyse(document, records)["configurations"]
    assert [trap["name"] for trap in one["traps"]] == ["not in effect"]
    document["arms"][1]["resolved"]["arguments"]["--speculative-algorithm"] = "EAGLE3"
    (one,) = speculation_analysis.analyse(document, records)["configurations"]
    assert one["traps"] == []


def test_cycles_without_a_draft(traps, window):
    told = traps(level={"speculation": window(1.112, cycles=179, drafts=103, accepted=20)})
    assert "58 % of the cycles drafted something; in these the accept length is 1.19" in told["cycles without a draft"]


def test_an_engine_without_counters(traps, window):
    assert "accept length of the last interval" in traps(
        level={"speculation": window(2.0, source="gauge", cycles=None)}
    )
    assert "unknown accept length" in traps(length=None)


@pytest.mark.parametrize(
    "what",
    [
        "resolved argument max_running_requests",
        "argument --max-running-requests",
        "the engine says: Max running requests is reset to 48 for speculative decoding.",
        "argument --max-num-seqs",
    ],
)
def test_a_limit_that_speculation_lowered(traps, what):
    row = {"arm": "spec", "what": what, "reference": 4096, "value": 48, "declared": True, "why": "accepted"}
    assert "4096 in the base, 48 here" in traps(differences=[row])["different limit of requests"]
    assert "different limit of requests" not in traps(differences=[{**row, "arm": "another"}])
    assert "different limit of requests" not in traps(differences=[{**row, "what": "argument --threads"}])


def test_short_answers_and_few_cycles(traps, window):
    told = traps(workload={"output_tokens": 64, "prompts_file": "x"}, level={"speculation": window(2.0, cycles=150)})
    assert "by up to 2 %; raise output_tokens to 100 or more" in told["short answers"]
    assert "a start has 150 cycles" in told["few cycles"]


def test_texts_that_repeat_themselves(traps):
    told = traps(level={"repetition": {"prompts": 0.5, "answers": 0.44}})
    assert told["repeated answers"].startswith("44 % of the 4-word sequences in the answers")
    assert told["repeated prompts"].startswith("50 % of the 4-word sequences in the prompts")
    assert traps(level={"repetition": {"prompts": None, "answers": None}}) == {}


def test_the_same_prompts_in_every_repeat(traps):
    told = traps(workload={"prefix_cache": "keep", "prompts_file": "x"})
    assert "an n-gram table that outlives a request" in told["the same prompts again"]


def test_random_prompts_say_nothing_of_real_text(traps):
    assert "Give real prompts" in traps(workload={"prompts_file": ""})["synthetic prompts"]


def test_a_prefix_cache_that_speculation_cost(traps):
    length = {"prompt_tokens": {"min": 100, "max": 100}}
    told = traps(base={"level": {"cached_tokens": 450, **length}}, level={"cached_tokens": 10, **length})
    assert "served 90 % of the prompts in the base and 2 % here" in told["prefix cache differs"]
    same = {"level": {"cached_tokens": 450, **length}}
    assert "prefix cache differs" not in traps(base=same, level=same["level"])
    assert "prefix cache differs" not in traps(
        base={"level": {"cached_tokens": None}}, level={"cached_tokens": 10, **length}
    )


def test_somebody_elses_requests_and_several_streams(traps):
    told = traps(level={"server_metrics": {"foreign_tokens": 100}, "concurrency": 8})
    assert "300 tokens were generated for somebody else" in told["somebody else's requests"]  # in three starts
    assert told["several streams"].startswith("8 streams at once")
