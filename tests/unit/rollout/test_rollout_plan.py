"""Batches, gate and the outcome of a host: the arithmetic of a rollout."""

from __future__ import annotations

from fractions import Fraction

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import rollout_plan
from ansible_collections.groundstate.llm.plugins.plugin_utils.rollout_plan import Amount, amount, batches, gate, units
from hypothesis import given, settings
from hypothesis import strategies as st

SIZES = st.lists(
    st.one_of(
        st.integers(0, 30).map(lambda number: Amount(number=number)),
        st.fractions(0, 1).map(lambda share: Amount(share=share)),
    ),
    max_size=4,
)

# A busy machine is no failure.
SOME = settings(max_examples=60)


def names(count: int) -> list[str]:
    return [f"host{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("raw", "size", "wanted"),
    [
        (0, 10, 0),
        (3, 10, 3),
        ("3", 2, 3),
        ("10%", 10, 1),
        ("10 %", 19, 1),
        ("10%", 20, 2),
        ("12.5%", 8, 1),
        (0.1, 10, 1),
        ("0.25", 8, 2),
        ("100%", 7, 7),
        # 0.29 * 100 is 28.999999999999996 in floating point.
        ("29%", 100, 29),
        (0.29, 100, 29),
    ],
)
def test_amounts(raw, size, wanted):
    assert amount(raw, "rollout_max_failed").of(size) == wanted


@pytest.mark.parametrize("raw", [-1, 1.5, 1.0, True, None, "", "ten", "110%", "-5%", "5%%", "1e3", [], "²"])
def test_what_is_no_amount_is_refused_by_name(raw):
    with pytest.raises(ValueError, match=r"^rollout_max_failed: .*neither a number of hosts"):
        amount(raw, "rollout_max_failed")


@SOME
@given(st.integers(1, 60), st.integers(0, 10), SIZES)
def test_every_host_is_in_one_batch_canaries_first(count, canaries, sizes):
    hosts = names(count)
    first = set(hosts[::3][:canaries])
    found = batches([[host] for host in hosts], first, sizes)
    assert sorted(host for batch in found for host in batch) == sorted(hosts)
    assert all(found)
    if first:
        assert set(found[0]) == first
    rest = [host for batch in found[bool(first) :] for host in batch]
    assert rest == [host for host in hosts if host not in first], "in the order of the inventory"
    for number, batch in enumerate(found[bool(first) : -1]):
        assert len(batch) == max(1, sizes[min(number, len(sizes) - 1)].of(count))


def test_batches_as_with_serial():
    sizes = [amount(raw, "rollout_batches") for raw in (1, "10%", "50%")]
    found = batches([[host] for host in names(23)], ["host4", "host9"], sizes)
    assert [len(batch) for batch in found] == [2, 1, 2, 11, 7]
    assert found[0] == ["host4", "host9"]


def test_without_sizes_all_others_are_one_batch():
    assert batches([["a"], ["b"], ["c"]], ["b"], []) == [["b"], ["a", "c"]]
    assert batches([], [], []) == []


def test_hosts_of_one_server_are_never_divided():
    hosts = ["a1", "b1", "a2", "b2", "c"]
    together = {"a1": ["a1", "a2"], "a2": ["a1", "a2"], "b1": ["b1", "b2"], "b2": ["b1", "b2"]}
    parts = units(hosts, together)
    assert parts == [["a1", "a2"], ["b1", "b2"], ["c"]]
    assert batches(parts, ["b2"], [Amount(number=1)]) == [["b1", "b2"], ["a1", "a2"], ["c"]]


def test_a_part_of_a_server_alone_is_refused():
    with pytest.raises(ValueError, match=r"^a1 serves together with a2, which this rollout lacks"):
        units(["a1", "c"], {"a1": ["a1", "a2"]})


@SOME
@given(
    st.lists(st.sampled_from([rollout_plan.PASSED, *rollout_plan.BAD, ""]), min_size=1, max_size=50),
    st.one_of(st.integers(0, 60).map(lambda n: Amount(number=n)), st.fractions(0, 1).map(lambda s: Amount(share=s))),
)
def test_the_gate_counts_all_that_did_not_pass(outcomes, limit):
    found = gate(dict(zip(names(len(outcomes)), outcomes, strict=True)), limit)
    bad = sum(outcome != "passed" for outcome in outcomes)
    assert len(found.bad) == bad
    assert "" not in found.bad.values(), "a host that told nothing is unreachable"
    if limit.share is None:
        assert found.stop == (bad > limit.number)
    else:
        # "More than the share", exactly: no rounding may let one more host fail, or one less.
        assert found.stop == (Fraction(bad, len(outcomes)) > limit.share)


def verdict(word: str, ratio: float | None, **more) -> dict:
    return {"verdict": word, "ratio": ratio, "baseline_value": 100.0 if ratio else None, "unit": "tok/s", **more}


PROVED = {"verdict": "proved"}


@pytest.mark.parametrize(
    ("given", "outcome", "words"),
    [
        ({}, "passed", ""),
        ({"proof": {}}, "passed", ""),
        ({"unreachable": True, "error": "ssh: refused"}, "unreachable", "ssh: refused"),
        ({"error": "it died"}, "failed", "it died"),
        (
            {"error": "x", "proof_failed": True, "proof": {"verdict": "contradicted", "why": ["rank 1"]}},
            "unproved",
            "rank 1",
        ),
        ({"proof": {"verdict": "unknown", "why": ["not read"]}}, "unproved", "unknown: not read"),
        ({"verdicts": [verdict("slower", 0.97)]}, "slower", "3.0 % below 100.0 tok/s, its baseline"),
        ({"verdicts": [verdict("inconclusive", 0.93)]}, "passed", ""),
        ({"verdicts": [verdict("inconclusive", 0.85)]}, "slower", "more than 10 % (rollout_max_drop)"),
        (
            {"verdicts": [verdict("first", None), verdict("incomparable", 0.5, what="declaration before")]},
            "slower",
            "before",
        ),
        ({"verdicts": [verdict("faster", 1.4)]}, "passed", ""),
    ],
)
def test_what_became_of_a_host(given, outcome, words):
    asked = {"error": "", "unreachable": False, "proof": PROVED, "proof_failed": False, "verdicts": [], **given}
    found = rollout_plan.judge(**asked, max_drop=0.1)
    assert found.outcome == outcome
    assert words in "; ".join(found.why)
    assert bool(found.why) == (outcome != "passed")
