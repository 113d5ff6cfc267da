"""Three real starts of SGLang on two H200, three repeats each: the second was 4.5 % slower at the same clocks."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import stats
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import under_load
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint.explain import explain
from ansible_collections.groundstate.llm.plugins.plugin_utils import starts, summary, verdict

DATA = Path(__file__).parents[2] / "data" / "baseline"
RECORDS = json.loads((DATA / "sglang.two-gpus.records.json").read_text())
WAITED = (
    "GPU power under load 380 -> 367 W at the same clocks, utilisation 98 -> 95 %: the GPUs waited more for the host "
    "or each other"
)


def explained(old, new) -> list[str]:
    loads = [under_load.summary(one["measurement"], one["fingerprints"]) for one in (old, new)]
    before = [one["fingerprints"].get("before") or {} for one in (old, new)]
    return explain(*before, *loads)


def judged(new, *old) -> dict:
    """The record as the controller keeps and shows it."""
    found = verdict.decide(new, list(old), 0.02, explained(old[-1], new))
    return {**new, "verdict": found.as_dict(), "baseline": verdict.standing(list(old)), "in_baseline": False}


def shown(record, reused=False) -> str:
    return "\n".join(summary.lines(record, "/records/x.json", reused))


def test_starts_of_one_state_differ_more_than_repeats_within_them():
    logs = list(starts.headlines(RECORDS).values())
    within = math.sqrt(stats.mean([stats.sample_sd(one) ** 2 for one in logs]))
    between = stats.sample_sd([stats.mean(one) for one in logs])
    assert len({one["fingerprints"]["before"]["state_hash"] for one in RECORDS}) == 1
    assert (round(100 * within, 1), round(100 * between, 1)) == (1.2, 2.5)


def test_a_slower_start_of_the_same_state_is_explained_by_where_the_gpus_waited():
    first, second, third = RECORDS
    assert explained(first, second) == [WAITED]
    assert explained(first, third) == []
    # Anything that can be a cause comes before it.
    changed = copy.deepcopy(second)
    changed["fingerprints"]["before"]["sections"]["server"]["environment"]["NCCL_DEBUG"] = "WARN"
    assert explained(first, changed) == ["environment NCCL_DEBUG: INFO -> WARN", WAITED]


def test_one_start_in_the_baseline_decides_nothing():
    found = judged(RECORDS[1], RECORDS[0])
    assert (found["verdict"]["verdict"], found["verdict"]["starts_needed"]) == ("inconclusive", 2)
    text = shown(found)
    for line in (
        "workload  128 to 137 (declared: 128) -> 512 tokens, 1 at a time, 3 of 3 requests ok",
        "decode    394.7 tok/s (375.2 to 414.2), 3 repeats within one start",
        "TPOT      2.53 ms (2.41 to 2.66)",
        "proof     proved, profile stock, 2 workers",
        "baseline  413.2 tok/s, 1 start, provisional: accept at least 3 starts",
        "verdict   INCONCLUSIVE -4.5 % (-7.5 % to -1.4 % if starts did not differ): the baseline has one start",
        "MDE       at least 4.3 %: how much starts differ is not known yet",
        f"changed   {WAITED}",
    ):
        assert line in text, text


def test_two_starts_that_differ_leave_the_third_undecided():
    found = judged(RECORDS[2], RECORDS[0], RECORDS[1])
    assert found["verdict"]["reasons"] == [
        "starts differ by 3.2 %: no number of new starts decides against 2 starts; it takes more than 20 on each side"
    ]
    assert "MDE       74.9 %: true differences from here on are found in 80 of 100 such comparisons" in shown(found)
    alike = judged(RECORDS[2], RECORDS[0])
    assert "changed   nothing that is looked at: state, clocks, limits and load are as they were" in shown(alike)


def test_a_baseline_that_grew_since_says_so():
    found = judged(RECORDS[2], RECORDS[0], RECORDS[1])
    found["baseline"] = verdict.standing(RECORDS)
    assert "baseline  403.8 tok/s (301.8 to 540.3), 2 starts when this was compared; 3 now\n" in shown(found)


def test_an_edit_while_the_server_runs_asks_for_another_start():
    again = copy.deepcopy(RECORDS[0])
    same = judged(again, RECORDS[0])
    assert same["verdict"]["reasons"] == [
        "it is the very start that the baseline was measured on: its repeats say nothing about another"
    ]
    again["fingerprints"]["before"]["state_hash"] = "other"
    [reason] = judged(again, RECORDS[0])["verdict"]["reasons"]
    assert reason.startswith(same["verdict"]["reasons"][0])
    assert "a change while a server runs may show only in the next one" in reason


@pytest.mark.parametrize(
    ("prompts", "seen", "words"),
    [
        ({"method": "token ids", "exact": True}, {"min": 128, "max": 128}, "128 -> 512 tokens"),
        ({"method": "words fitted", "exact": False}, {"min": 127, "max": 127}, "127 (declared: 128) -> 512 tokens"),
        ({"method": "words fitted", "exact": False}, None, "about 128 -> 512 tokens"),
        ({"method": "file", "exact": None}, {"min": 7, "max": 90}, "7 to 90 -> 512 tokens"),
        ({"method": "file", "exact": None}, None, "the file's -> 512 tokens"),
        ({}, None, "128 -> 512 tokens"),
    ],
)
def test_the_length_of_prompts_is_what_the_server_counted(prompts, seen, words):
    made = copy.deepcopy(judged(RECORDS[1], RECORDS[0]))
    made["measurement"]["prompts"] = prompts
    made["measurement"]["levels"][0]["prompt_tokens"] = seen
    assert f"workload  {words}, 1 at a time" in shown(made)


def test_without_a_fingerprint_nothing_is_said_to_be_unchanged():
    bare = [{**one, "fingerprints": {}} for one in RECORDS]
    assert "changed" not in shown(judged(bare[2], bare[0]))
