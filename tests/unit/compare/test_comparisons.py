"""The document of a comparison: order of the starts, what is left, and what survives a killed controller."""

from __future__ import annotations

import copy
import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import files, procfs
from ansible_collections.groundstate.llm.plugins.plugin_utils import (
    arm_state,
    comparison_lines,
    comparison_run,
    comparison_steps,
    comparison_verdict,
    comparisons,
    difference_lines,
    records,
)
from hypothesis import given
from hypothesis import strategies as st

RECORD = json.loads((Path(__file__).resolve().parents[2] / "data" / "baseline" / "record.json").read_text())
SERVER = {"name": "local", "engine": "llama_cpp", "model": "/m.gguf"}


def document(arms=("A", "B"), looks=(3, 5)):
    declared = [{"name": name, "variables": {"llm_server": SERVER, "x": name}} for name in arms]
    declaration = {"arms": declared, "looks": list(looks), "tolerance": 0.02}
    told = [{"name": name, "declared": {}} for name in arms]
    return comparisons.new("h", "compare", "t", told, declaration, 0.02, looks)


def found(number, rate=100.0, start_id="s"):
    """What a finished start hands over."""
    measured = copy.deepcopy(RECORD["measurement"])
    measured["id"] = f"20991129T1800{number:02d}Z-{number:06x}"
    measured["server"]["start_id"] = f"{start_id}{number}"
    measured["warmup"]["steady"] = True
    measured["client"]["limited"] = False
    measured["headline"]["value"] = rate
    for repeat in measured["levels"][0]["repeats"]:
        repeat["decode_tok_s"] = rate
    launched = {name: measured["server"][name] for name in ("start_id", "declaration_hash")}
    return {
        "began": 0.0,
        "launched": {"action": "started", **launched},
        "measurement": measured,
        "fingerprints": copy.deepcopy(RECORD["fingerprints"]),
        "proof": {"verdict": "proved"},
        "ready": {"elapsed_s": 2.5},
        "profile": "stock",
        "info": {},
    }


@pytest.mark.parametrize("count", range(2, 9))
def test_every_block_has_every_arm_once_and_positions_are_balanced(count):
    arms = [f"arm{number}" for number in range(count)]
    cycle = count if count % 2 == 0 else 2 * count
    blocks = comparisons.schedule(arms, cycle)
    assert all(sorted(block) == arms for block in blocks)
    for place in range(count):
        seen = [block[place] for block in blocks]
        assert {seen.count(arm) for arm in arms} == {cycle // count}
    followed = [pair for block in blocks for pair in pairwise(block)]
    assert {followed.count(pair) for pair in followed} == {cycle // count}, "each arm follows each other equally often"
    # A steady drift cancels within every two blocks.
    for first, second in zip(blocks[::2], blocks[1::2], strict=True):
        assert second == first[::-1]


def test_two_arms_take_turns_at_being_first():
    assert comparisons.schedule("AB", 3) == [["A", "B"], ["B", "A"], ["A", "B"]]


def test_the_plan_counts_starts_from_one():
    made = document(looks=(2,))
    assert [(one["number"], one["block"], one["position"], one["arm"]) for one in comparisons.planned(made)] == [
        (1, 1, 1, "A"),
        (2, 1, 2, "B"),
        (3, 2, 1, "B"),
        (4, 2, 2, "A"),
    ]


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        ([], "numbers of blocks"),
        ([0], "numbers of blocks"),
        ([5, 3], "numbers of blocks"),
        ([1, 3], "one block says nothing"),
        ([3, 10**9], "at most"),
    ],
)
def test_looks_that_cannot_be_are_refused(looks, words):
    with pytest.raises(ValueError, match=words):
        comparisons.check_looks(looks)


def test_a_document_is_read_as_it_was_written(tmp_path):
    made = document()
    where = comparisons.write(str(tmp_path), made)
    assert where.endswith(f"/h/comparisons/{made['id']}/comparison.json")
    assert comparisons.read(str(tmp_path), "h", made["id"]) == made
    assert comparisons.find(str(tmp_path), "h", made["declaration"])["id"] == made["id"]
    assert comparisons.find(str(tmp_path), "h", {"another": 1}) is None
    assert comparisons.read(str(tmp_path), "h", "20260101T000000Z-000000") is None
    # A host's comparisons are none of its records.
    assert records.identifiers(str(tmp_path), "h") == []


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 2}', '{"schema": 1, "id": "x"}'])
def test_a_damaged_document_is_named_and_never_continued(tmp_path, text):
    made = document()
    path = Path(comparisons.write(str(tmp_path), made))
    path.write_text(text)
    with pytest.raises(records.RecordError, match=made["id"]):
        comparisons.read(str(tmp_path), "h", made["id"])
    assert comparisons.find(str(tmp_path), "h", made["declaration"]) is None


@pytest.mark.parametrize("identifier", ["../../etc", "x", "20260101T000000Z-00000g"])
def test_an_identifier_stays_one_folder(tmp_path, identifier):
    with pytest.raises(records.RecordError, match="not of the form"):
        comparisons.path(str(tmp_path), "h", identifier)


@given(st.integers(2, 5), st.integers(0, 25))
def test_what_is_left_and_what_is_complete_follow_the_starts(count, done):
    made = document([f"arm{number}" for number in range(count)], (5,))
    plan = comparisons.planned(made)
    done = min(done, len(plan))
    for one in plan[:done]:
        assert comparisons.add(made, {**one, "record": "r"})
    assert comparisons.remaining(made) == plan[done:]
    assert comparisons.complete_blocks(made) == done // count
    if done:
        assert not comparisons.add(made, {**plan[0], "record": "again"}), "a start counts once"


# --- what a killed controller leaves ----------------------------------------------------------------


def steps(tmp_path, made=None, anew=False, check=False):
    return comparison_steps.begin(str(tmp_path), made or document(), comparison_steps.Policy(), anew, check)


def keep(tmp_path, made, number=1, **more):
    start = comparisons.remaining(made)[0]
    policy = comparison_steps.Policy(allow=["*"])
    return comparison_steps.keep(str(tmp_path), made, start, found(number, **more), policy)


def test_a_finished_start_is_a_normal_record_that_belongs_to_no_baseline(tmp_path):
    made = document()
    kept = keep(tmp_path, made)
    record = records.read_record(str(tmp_path), "h", kept["record"])
    assert record["comparison"]["id"] == made["id"]
    assert {name: record["comparison"][name] for name in ("number", "block", "position", "arm")} == {
        "number": 1,
        "block": 1,
        "position": 1,
        "arm": "A",
    }
    assert record["verdict"]["verdict"] == "incomparable"
    before = record["fingerprints"]["before"]
    measured = record["measurement"]
    assert record["key"] != records.baseline_key(measured["server"]["name"], before, measured["workload_hash"])
    assert records.last_of_server(str(tmp_path), "h", measured["server"]["name"]) is None
    assert kept["ready_s"] == 2.5
    assert comparisons.read(str(tmp_path), "h", made["id"])["starts"] == [kept]


def test_a_record_that_the_document_does_not_know_is_adopted(tmp_path, monkeypatch):
    """Killed after the record was written and before the document was."""
    made, _fate, _warnings = steps(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(comparisons, "write", lambda *_arguments: "")
        kept = keep(tmp_path, copy.deepcopy(made))
    assert comparisons.read(str(tmp_path), "h", made["id"])["starts"] == []
    again, fate, _warnings = steps(tmp_path)
    assert again["id"] == made["id"]
    assert again["starts"] == [kept]
    assert "1 of which had been recorded" in fate
    assert comparisons.read(str(tmp_path), "h", made["id"])["starts"] == [kept]


def test_the_same_declaration_goes_on_and_anew_does_not(tmp_path):
    made, fate, warnings = steps(tmp_path)
    assert (fate, warnings) == ("new", [])
    assert steps(tmp_path)[0]["id"] == made["id"]
    assert steps(tmp_path, anew=True)[0]["id"] != made["id"]


def test_another_declaration_of_the_same_name_is_another_comparison_and_says_so(tmp_path):
    made = steps(tmp_path)[0]
    other, _fate, [warning] = steps(tmp_path, document(looks=(4,)))
    assert other["id"] != made["id"]
    assert made["id"] in warning


def test_a_finished_comparison_is_not_repeated(tmp_path):
    made = document(looks=(2,))
    for number, rate in enumerate((100.0, 50.0, 50.0, 100.0)):
        keep(tmp_path, made, number, rate=rate)
    assert made["state"] == "decided"
    again, fate, _warnings = steps(tmp_path, document(looks=(2,)))
    assert again == made
    assert "compare_anew" in fate


def test_check_mode_writes_nothing(tmp_path):
    steps(tmp_path, check=True)
    assert list(tmp_path.iterdir()) == []


def test_a_start_in_another_state_than_its_arm_was_is_noted(tmp_path):
    made = document()
    for number in (1, 2, 3):
        keep(tmp_path, made, number)
    changed = found(4)
    changed["fingerprints"]["before"]["state_hash"] = "another"
    changed["fingerprints"]["before"]["sections"]["kernel"]["release"] = "9.9"
    policy = comparison_steps.Policy(allow=["*"])
    kept = comparison_steps.keep(str(tmp_path), made, comparisons.remaining(made)[0], changed, policy)
    assert kept["notes"] == [f"in another state than start 1 of its arm: release: "
                             f"{RECORD['fingerprints']['before']['sections']['kernel']['release']} -> 9.9"]  # fmt: skip


def test_a_start_that_drafted_nothing_is_noted_and_told_at_the_end(tmp_path):
    made = document()
    for one in made["declaration"]["arms"]:
        one["variables"]["llm_server"] = {**SERVER, "speculation": {"algorithm": "ngram"} if one["name"] == "B" else {}}
    policy = comparison_steps.Policy(allow=["*"])
    kept = {}
    for number in (1, 2):
        handed = found(number)
        handed["measurement"]["levels"][0]["speculation"] = {"drafts": 0, "accept_length": 1.0}
        start = comparisons.remaining(made)[0]
        kept[start["arm"]] = comparison_steps.keep(str(tmp_path), made, start, handed, policy)["notes"]
    assert kept == {"A": [], "B": ["speculation is declared, and nothing was drafted"]}
    told = "\n".join(comparison_lines.result(made, "p"))
    assert "note      speculation is declared, and nothing was drafted: 1 start of B" in told


@pytest.mark.parametrize("written", [None, -7140.0])
def test_a_clock_that_was_set_back_makes_no_negative_times(tmp_path, written):
    made = document()
    keep(tmp_path, made)
    made["starts"][0]["seconds"] = 60.0
    late = {**found(2), "began": time.time() + 7200.0}
    kept = comparison_steps.keep(
        str(tmp_path), made, comparisons.remaining(made)[0], late, comparison_steps.Policy(allow=["*"])
    )
    assert kept["seconds"] == 0.0
    if written is not None:  # as documents have it from before
        made["starts"][1]["seconds"] = written
    line = comparison_lines.begins(made, comparisons.remaining(made)[0])
    assert "60 s so far, about 4 min to the look at 3 blocks, 8 min at most" in line
    assert "2 in 60 s, unfinished" in "\n".join(comparison_lines.result(made, "p"))


@pytest.mark.parametrize(
    ("launched", "words"),
    [
        ({"start_id": "of somebody else"}, "is not the one that this start launched"),
        ({"declaration_hash": "another"}, "is not the one that this start launched"),
        ({"action": "unchanged"}, "was there already"),
    ],
)
def test_a_server_that_the_start_did_not_launch_does_not_count(tmp_path, launched, words):
    """It was kept with a note that it was in another state."""
    made = steps(tmp_path)[0]
    kept = keep(tmp_path, made)
    foreign = found(2)
    foreign["launched"].update(launched)
    with pytest.raises(records.RecordError, match=rf"start 2 \(arm B\) .* is not kept: the server .* {words}"):
        comparison_steps.keep(
            str(tmp_path), made, comparisons.remaining(made)[0], foreign, comparison_steps.Policy(allow=["*"])
        )
    assert comparisons.read(str(tmp_path), "h", made["id"])["starts"] == [kept]
    assert records.identifiers(str(tmp_path), "h") == [kept["record"]]
    keep(tmp_path, made, 3)
    assert [one["number"] for one in made["starts"]] == [1, 2]


def another_run_lives(tmp_path, monkeypatch):
    """The next run is another one than those before, which go on."""
    own = {**comparison_run.this(), "pid": 1, "start": procfs.process(1).start}
    monkeypatch.setattr(comparison_run, "this", lambda: own)


def test_a_second_run_on_the_host_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    """Two runs ended each other's servers."""
    made = steps(tmp_path)[0]
    another_run_lives(tmp_path, monkeypatch)
    where = Path(comparisons.path(str(tmp_path), "h", made["id"]))
    before = where.stat()
    for second in (document(), document(looks=(4,))):  # the same comparison, and another one of the host
        with pytest.raises(records.RecordError, match="another run compares on h now"):
            steps(tmp_path, second)
    assert where.stat() == before
    assert len(comparisons.identifiers(str(tmp_path), "h")) == 1
    # In check mode it is told.
    _document, fate, [warning] = steps(tmp_path, check=True)
    assert "goes on" in fate
    assert "another run compares on h now" in warning


def test_a_finished_comparison_is_shown_while_another_runs(tmp_path, monkeypatch):
    made = document(looks=(2,))
    for number, rate in enumerate((100.0, 50.0, 50.0, 100.0)):
        keep(tmp_path, made, number, rate=rate)
    comparisons.write(str(tmp_path), {**made, "left": "reference"})
    steps(tmp_path)
    another_run_lives(tmp_path, monkeypatch)

    def again(leave):
        policy = comparison_steps.Policy()
        return comparison_steps.begin(str(tmp_path), document(looks=(2,)), policy, False, False, leave)

    assert again("reference")[0]["id"] == made["id"]
    with pytest.raises(records.RecordError, match="another run compares"):
        again("stopped")  # that would end the other one's server


def of_profiles(tmp_path, *verdicts, looks=(2,), allow=(), profiles=("stock", "ring")):
    """A comparison of profiles whose starts have these proofs, and the starts as they were kept."""
    made = document(looks=looks)
    for one, profile in zip(made["declaration"]["arms"], profiles, strict=True):
        one["variables"]["nccl_profile_name"] = profile
    made["declaration_hash"] = files.digest(made["declaration"])
    shipped = {"stock": {"variables": {}}, "ring": {"variables": {"NCCL_ALGO": "Ring"}}}
    policy = comparison_steps.Policy(allow=["variable x", "model *", "argument *", *allow], profiles=shipped)
    kept = []
    for number, told in enumerate(verdicts, 1):
        start = comparisons.remaining(made)[0]
        profile = profiles[0] if start["arm"] == "A" else profiles[1]
        one = {**found(number), "profile": profile}
        one["proof"] = {"verdict": told, "why": ["rank 0 (pid 7): NCCL_ALGO is not set (declared: 'Ring')"]}
        kept.append(comparison_steps.keep(str(tmp_path), made, start, one, policy))
    return made, kept


def test_a_profile_that_was_not_in_force_stops_the_comparison(tmp_path):
    """With nccl_profile_proof: warn the arms were called the same without a word."""
    made, kept = of_profiles(tmp_path, "proved", "contradicted")
    assert [one["proof"] for one in kept] == ["proved", "contradicted"]
    assert made["state"] == "refused"
    [row] = arm_state.undeclared(made["differences"])
    told = difference_lines.refusal([row], "A")
    assert "NOT DECLARED  NCCL profile in force: proved in A, contradicted in B (start 2: rank 0 (pid 7): " in told
    assert 'compare_allow: ["NCCL profile in force"]' in told


def test_it_stops_it_at_whatever_start_and_in_whichever_arm(tmp_path):
    made, _kept = of_profiles(tmp_path, "proved", "proved", "proved", "contradicted")
    [row] = arm_state.undeclared(made["differences"])
    assert (row["reference"], row["value"]) == ("contradicted", "proved")
    assert row["why"].startswith("start 4: ")
    assert (made["state"], made["result"]) == ("refused", None)


def test_accepted_it_goes_on_and_every_result_says_so(tmp_path):
    made, _kept = of_profiles(tmp_path, *["proved", "contradicted"] * 2, allow=["NCCL profile in force"])
    assert made["state"] in comparisons.FINISHED
    [row] = [one for one in made["differences"] if one["what"] == "NCCL profile in force"]
    assert row["why"].startswith("accepted by compare_allow: NCCL profile in force; start 2: ")
    told = comparison_lines.result(made, "p")
    assert "note      NCCL profile contradicted: it was not in force: 1 start of A, 1 start of B" in told


@pytest.mark.parametrize(("verdict", "why"), [("off", "nccl_profile_proof is off"), ("unknown", "could not tell")])
def test_a_profile_that_nobody_proved_is_noted_where_the_arms_differ_in_it(tmp_path, verdict, why):
    made, kept = of_profiles(tmp_path, verdict, verdict)
    assert made["state"] == "running"
    assert all("NCCL profile not proved" in one["notes"][0] and why in one["notes"][0] for one in kept)
    assert any("NCCL profile not proved" in line for line in comparison_lines.result(made, "p"))
    assert why in comparison_lines.ended(made, kept[0])
    _made, kept = of_profiles(tmp_path / "same", verdict, verdict, profiles=("stock", "stock"))
    assert [one["notes"] for one in kept] == [[], []]


def test_two_runs_of_one_comparison_do_not_count_a_start_twice(tmp_path):
    made = document()
    start = comparisons.remaining(made)[0]
    keep(tmp_path, made)
    with pytest.raises(records.RecordError, match="another run works on it"):
        comparison_steps.keep(str(tmp_path), made, start, found(2), comparison_steps.Policy())
    assert len(records.identifiers(str(tmp_path), "h")) == 1, "the one that came too late leaves no record either"


# --- a document that something else changed ----------------------------------------------------------

JUNK = (None, True, -1, float("inf"), 10**400, "x", "../../x", [], [None], {}, {"a": 1}, "gone")


def places(value, path=()):
    """The path of every part of a document, of lists the first two."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def damaged(document, path, junk):
    """A copy in which the part at ``path`` is another, or gone."""
    made = {"whole": copy.deepcopy(document)}
    within, last = made, "whole"
    for key in path:
        within, last = within[last], key
    if junk == "gone" and path:
        del within[last]
    else:
        within[last] = junk
    return made["whole"]


def compared_before():
    """A document with two blocks of starts and the result of one look."""
    made = document(looks=(2, 3))
    for one in comparisons.planned(made)[:4]:
        start = {**one, "seconds": 2.0, "record": f"20261129T2300{one['number']:02d}Z-00000a", "value": 100.0}
        start.update(repeats=[99.0, 101.0], ready_s=2.5, finished_at="x", accept_length=None, gpu=None, proof="proved")
        comparisons.add(made, {**start, "state_hash": "s", "weak": [], "notes": []})
    comparison_verdict.look(made)
    return made


def read_or_refused(tmp_path, identifier):
    """The document, or the sentence that refuses it."""
    try:
        return comparisons.read(str(tmp_path), "h", identifier)
    except records.RecordError as error:
        return str(error)


def test_whatever_is_wrong_in_a_document_it_is_refused_by_name_or_does_no_harm(tmp_path):
    made = compared_before()
    path = Path(comparisons.write(str(tmp_path), made))
    refused = 0
    for place in places(made):
        for junk in JUNK:
            path.write_text(json.dumps(damaged(made, place, junk)))
            found = read_or_refused(tmp_path, made["id"])
            if isinstance(found, str):
                assert str(path) in found
                refused += 1
                continue
            left = comparisons.remaining(found)
            assert comparison_lines.plan(found, "new")
            assert comparison_lines.result(found, "path")
            assert not left or comparison_lines.begins(found, left[0])
            assert comparison_verdict.judge(found)["reference"] == "A"
    assert refused > 500


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("starts", lambda made: [made["starts"][0], made["starts"][0]]),
        ("starts", lambda made: [{**made["starts"][0], "number": 2}]),
        ("starts", lambda made: [{**made["starts"][0], "arm": "B"}]),
        ("starts", lambda made: [{**made["starts"][0], "record": "../../etc/passwd"}]),
        ("starts", lambda made: [{**made["starts"][0], "repeats": [0.0]}]),
        ("starts", lambda made: [{**made["starts"][0], "value": 1e-307}]),
        ("starts", lambda made: [{**made["starts"][0], "repeats": [1e308]}]),
        ("blocks", lambda made: [["A", "A"]] * 3),
        ("blocks", lambda made: made["blocks"][:2]),
        ("looks", lambda made: [3, 2]),
        ("declaration", lambda made: {"arms": made["declaration"]["arms"][::-1]}),
        ("arms", lambda made: [made["arms"][0]] * 2),
        ("state", lambda made: "winning"),
        ("tolerance", lambda made: 1.0),
        ("tolerance", lambda made: 0.3),
        ("looks", lambda made: [1, 3]),
        ("declaration_hash", lambda made: "x"),
        ("declaration_hash", lambda made: made["declaration_hash"][::-1]),
    ],
)
def test_parts_that_do_not_fit_each_other_are_named(tmp_path, part, value):
    made = compared_before()
    made[part] = value(made)
    comparisons.write(str(tmp_path), made)
    with pytest.raises(records.RecordError, match=rf"is damaged \(.*{part}.*\); move its folder away"):
        comparisons.read(str(tmp_path), "h", made["id"])


def test_a_declaration_that_was_edited_by_hand_is_named(tmp_path):
    """It was found by the hash that stands beside it, and went on, or ended with an error of Python."""
    made = compared_before()
    made["declaration"]["arms"][0]["variables"]["llm_server"] = 5
    comparisons.write(str(tmp_path), made)
    with pytest.raises(records.RecordError, match=r"is damaged \(declaration_hash\)"):
        comparisons.read(str(tmp_path), "h", made["id"])


def test_a_document_that_was_copied_from_another_host_is_not_written_back_there(tmp_path):
    made = document()
    path = Path(comparisons.write(str(tmp_path), made))
    (tmp_path / "other" / "comparisons").mkdir(parents=True)
    path.parent.rename(tmp_path / "other" / "comparisons" / made["id"])
    with pytest.raises(records.RecordError, match="is of host 'h', not other"):
        comparisons.read(str(tmp_path), "other", made["id"])


def test_a_new_comparison_tells_of_the_damaged_one_that_it_does_not_go_on_with(tmp_path):
    old = document()
    path = Path(comparisons.write(str(tmp_path), old))
    path.write_text("{")
    made = document()
    found, fate, warnings = steps(tmp_path, made)
    assert (found["id"], fate) == (made["id"], "new")
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert "does not go on with that one" in warnings[0]
    assert path.read_text() == "{", "what is damaged is left for a person to look at"


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *((part, {"no": "number"}) for part in ("seconds", "block", "weak")),
        ("arm", "B"),
        ("arm", "C"),
        ("position", 2),
        ("block", 2),
        ("number", 999),
    ],
)
def test_a_damaged_record_of_a_start_is_named_when_it_would_be_adopted(tmp_path, part, value):
    """Taken over, it would make the whole document one that is damaged, and lose all its starts."""
    made, _fate, _warnings = steps(tmp_path)
    keep(tmp_path, made)
    [identifier] = records.identifiers(str(tmp_path), "h")
    path = Path(records.record_path(str(tmp_path), "h", identifier))
    record = json.loads(path.read_text())
    record["comparison"][part] = value
    path.write_text(json.dumps(record))
    comparisons.write(str(tmp_path), {**made, "starts": []})  # killed between the record and the document
    with pytest.raises(records.RecordError, match=f"{identifier}.json is damaged as a start of comparison"):
        steps(tmp_path, made)
