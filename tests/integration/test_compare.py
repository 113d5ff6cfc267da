"""compare.yml as a user runs it: on the deterministic server, so that arms differ by what is known, and fast.

The server is real (a process, HTTP, streams), only its speed is made: what kills and resumes a comparison, and what it
refuses, does not depend on an engine. Real engines are in test_compare_engines.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import files, gpu_clocks
from compare_bed import CompareBed

ROOT = Path(__file__).resolve().parents[2]
MOCK = str(ROOT / "tests" / "tools" / "mock_llm.py")
SERVER = {
    "name": "mock",
    "engine": "generic",
    "model": "mock",
    "gpus": [],
    "command": [sys.executable, MOCK, "--port", "{port}"],
    "extra_args": "{{ mock_arguments }}",  # a template of a dictionary, into which an arm's is merged
}
ARGUMENTS = {"ttft": 0.01, "step": 0.01}
WORKLOAD = {
    "prompt_tokens": 16,
    "output_tokens": 16,
    "repeats": 3,
    "warmup_requests": 1,
    "warmup_cap_s": 1,
    "steady_share": 0.5,
}


def step_of_the_server(bed: CompareBed) -> str:
    """Seconds a token of the server that runs: which arm it is."""
    [server] = bed.ours()
    words = server.cmdline.split()
    return words[words.index("--step") + 1]


@pytest.fixture
def bed(tmp_path):
    made = CompareBed(tmp_path, llm_server=SERVER, mock_arguments=ARGUMENTS, baseline_workload=WORKLOAD)
    yield made
    made.end()


def arm(name: str, **arguments) -> dict:
    return {"name": name, "vars": {"llm_server": {"extra_args": arguments}} if arguments else {}}


#: Twice as long a token: no machine is so busy that it could hide that, and 2 blocks are enough to be resumed in.
ARMS = [arm("quick"), arm("slow", step=0.03)]
SHORT = {"compare_arms": ARMS, "compare_looks": [2]}


@pytest.mark.timeout(1500)
def test_killed_in_the_second_start_it_goes_on_and_a_third_run_has_nothing_to_do(bed):
    bed.killed_at("start 2 of", **SHORT)
    before = bed.document()
    assert [one["arm"] for one in before["starts"]] == ["quick"]
    [kept] = bed.record_files()
    content = kept.read_bytes()

    output = bed.run(**SHORT)
    after = bed.document()
    assert after["id"] == before["id"]
    assert after["starts"][0] == before["starts"][0]
    assert kept.read_bytes() == content
    assert [one["arm"] for one in after["starts"]] == ["quick", "slow", "slow", "quick"]
    assert len(bed.record_files()) == 4
    assert "goes on after 1 starts" in output
    assert "start 1 of at most" not in output
    # Every start was a fresh one, and each record says whose it is.
    made = [json.loads(path.read_text()) for path in bed.record_files()]
    for one in made:
        argv = one["fingerprints"]["before"]["sections"]["server"]["argv"]
        assert argv[argv.index("--step") + 1] == {"quick": "0.01", "slow": "0.03"}[one["comparison"]["arm"]]
    assert len({one["measurement"]["server"]["start_id"] for one in made}) == 4
    assert sorted(one["comparison"]["number"] for one in made) == [1, 2, 3, 4]
    # On a busy machine the client may be the limit: then no verdict is given, and that is said.
    [pair] = after["result"]["pairs"]
    assert pair["arm"] == "slow"
    assert pair["reasons"] or pair["verdict"] == "slower"
    assert after["state"] in ("decided", "exhausted")
    # The reference serves at the end.
    assert step_of_the_server(bed) == "0.01"
    assert after["left"] == "reference"
    assert not (bed.records / "h" / "baseline.json").exists()
    assert not (bed.records / "h" / "comparisons" / "running.json").exists()

    again = bed.run(**SHORT)
    assert "compare_anew=true compares anew" in again
    assert "slow against quick" in again
    assert "changed=0" in again
    assert bed.document() == after


def test_a_plan_in_check_mode_changes_nothing_and_shows_no_secret(bed):
    secret = {"name": "slow", "vars": {"llm_server": {"extra_args": {"step": 0.03}, "api_key": "not-to-be-seen"}}}
    output = bed.run("--check", "-vvv", **{**SHORT, "compare_arms": [arm("quick"), secret]})
    assert "not-to-be-seen" not in output
    assert "environment OPENAI_API_KEY: not set in quick, sha256:" in output
    assert "argument --step: 0.01 in quick, 0.03 in slow (declared)" in output
    assert "order       quick slow, slow quick" in output
    assert not bed.home.exists()
    assert not bed.records.exists()


def test_what_cannot_be_compared_is_refused_in_one_sentence_before_anything_is_changed(bed):
    both = bed.run(rc=2, compare_arms=ARMS, compare_profiles=["stock", "nvlink"])
    assert "has to be said in one way" in " ".join(both.split())
    unknown = bed.run(rc=2, compare_arms=[arm("a"), {"name": "b", "vars": {"nccl_profile_nmae": "stock"}}])
    assert "Did you mean nccl_profile_name?" in unknown
    # What -e sets wins over every arm.
    wins = bed.run(rc=2, compare_arms=ARMS, llm_server=SERVER)
    assert "wins over every arm" in " ".join(wins.split())
    assert not bed.home.exists()
    assert not bed.records.exists()


def test_clocks_that_an_arm_cannot_have_are_refused_before_the_first_start(bed):
    locked = {"name": "locked", "clocks": {"sm_mhz": 99999}}
    output = bed.run(rc=2, compare_arms=[arm("free"), locked])
    # Without a GPU it is that there is none; what else a driver refuses is in test_gpu_clocks.py.
    assert "groundstate.llm.gpu_clocks : Set the clocks of the GPUs" in output
    assert "start 1 of" not in output
    assert not bed.home.exists()


@pytest.mark.timeout(1500)
def test_a_second_run_on_the_host_is_refused_and_a_killed_one_is_in_nobodys_way(bed):
    """Two runs at once ended each other's servers."""
    with bed.held_at("start 1 of", **SHORT) as first:
        before = bed.document()
        refused = " ".join(bed.run(rc=2, **SHORT).split())
        assert f"another run compares on h now: ansible-playbook with process {first.pid}" in refused
        assert "start 1 of" not in refused
        other = bed.run(rc=2, compare_arms=[arm("a"), arm("b", step=0.02)])
        assert "another run compares on h now" in " ".join(other.split())
        told = bed.run("--check", **SHORT)
        assert "another run compares on h now" in " ".join(told.split())
        assert bed.documents() == [before]
    assert (bed.records / "h" / "comparisons" / "running.json").exists()
    output = bed.killed_at("start 1 of", **SHORT)
    assert "another run" not in output


@pytest.mark.timeout(1500)
def test_a_server_that_somebody_else_launched_in_between_does_not_count(bed):
    """It counted, with a note that it was in another state."""
    with bed.held_at("Look into every worker", **SHORT) as process:
        bed.launch(mock_arguments={**ARGUMENTS, "step": 0.02})
        os.killpg(process.pid, signal.SIGCONT)
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 2, output
    assert "start 1 (arm quick) of comparison" in output
    assert "is not kept: the server mock that was measured is not the one that this start launched" in output
    assert bed.document()["starts"] == []
    assert bed.record_files() == []
    # The same command goes on; here as far as the start that was not kept.
    bed.killed_at("start 2 of", **SHORT)
    assert [one["number"] for one in bed.document()["starts"]] == [1]


@pytest.mark.timeout(1500)
def test_a_profile_that_the_server_takes_away_is_no_profile_to_be_compared(bed):
    """With warn, two arms that ran the same were called the same, and no word said that nothing was compared."""
    bed.variables["llm_server"] = {
        **SERVER,
        "command": ["env", "-u", "NCCL_PROTO", "-u", "NCCL_ALGO", *SERVER["command"]],
    }
    bed.variables["nccl_profile_proof"] = "warn"
    output = " ".join(bed.run(rc=2, compare_profiles=["stock", "pcie_ll_ring"], compare_looks=[2]).split())
    assert "NOT DECLARED NCCL profile in force: proved in stock, contradicted in pcie_ll_ring (start 2: " in output
    document = bed.document()
    assert (document["state"], document["result"]) == ("refused", None)
    assert [one["proof"] for one in document["starts"]] == ["proved", "contradicted"]


# --- slow: each is several runs of a whole playbook ----------------------------------------------------

STAGES = [
    "Plan the comparison",
    "Check the declaration and the host",
    "start 1 of",
    "Bring the GPUs to the clean state",
    "Launch the server as declared",
    "Wait until the server serves",
    "Look into every worker",
    "Measure, with the fingerprint",
    "Keep the start, and judge",
    "start 2 of",
]


@pytest.mark.slow  # a dozen runs of the playbook
@pytest.mark.timeout(2400)
def test_killed_at_every_stage_the_same_command_completes_it(bed):
    finished: dict[int, dict] = {}
    identifiers = set()
    for stage in STAGES:
        bed.killed_at(stage, **SHORT)
        for document in bed.documents():
            identifiers.add(document["id"])
            for number, start in finished.items():
                assert document["starts"][number - 1] == start, f"killed at {stage}"
            finished = {one["number"]: one for one in document["starts"]}
    assert 1 in finished
    bed.run(**SHORT)
    document = bed.document()
    assert identifiers == {document["id"]}
    assert document["starts"][0] == finished[1]
    assert [one["number"] for one in document["starts"]] == [1, 2, 3, 4]
    counted = {one["record"] for one in document["starts"]}
    assert {path.stem for path in bed.record_files()} == counted, "no record without its start"
    assert len(bed.ours()) == 1


@pytest.mark.slow  # two runs of the playbook
@pytest.mark.timeout(1500)
def test_killed_at_the_end_it_still_leaves_the_reference(bed):
    bed.killed_at("Leave the host as asked for", **SHORT)
    before = bed.document()
    assert before["left"] is None
    assert len(before["starts"]) == 4
    bed.run(**SHORT)
    assert bed.document() == {**before, "left": "reference"}
    assert step_of_the_server(bed) == "0.01"


@pytest.mark.slow  # two whole comparisons
@pytest.mark.timeout(1500)
def test_a_file_that_is_edited_between_the_arms_stops_it_until_it_is_accepted(bed):
    """An environment that somebody edits between two starts: the arms differ in what nobody declared."""
    site = bed.folder / "env" / "lib" / "python3.11" / "site-packages"
    package = site / "thing-1.0.dist-info"
    package.mkdir(parents=True)
    (bed.folder / "env" / "bin").mkdir()
    (bed.folder / "env" / "bin" / "python").symlink_to(sys.executable)
    (package / "METADATA").write_text("Name: thing\nVersion: 1.0\n")
    (package / "RECORD").write_text("thing.py,,\nthing-1.0.dist-info/METADATA,,\n")
    (site / "thing.py").write_text("")
    bed.killed_at("start 2 of", **SHORT)
    (package / "METADATA").write_text("Name: thing\nVersion: 2.0\n")
    output = bed.run(rc=2, **SHORT)
    words = " ".join(output.split())
    assert "NOT DECLARED package thing: 1.0 in quick, 2.0 in slow" in words
    assert 'compare_allow: ["package thing"]' in words
    refused = bed.document()
    assert (refused["state"], len(refused["starts"])) == ("refused", 2)
    again = bed.run(rc=2, **SHORT)
    assert "NOT DECLARED" in again
    assert bed.document()["starts"] == refused["starts"], "nothing is started that cannot count"

    bed.run(**SHORT, compare_allow=["package thing"], compare_leave="stopped")
    accepted = bed.document()
    assert accepted["id"] == refused["id"]
    assert accepted["starts"][:2] == refused["starts"]
    [row] = [one for one in accepted["differences"] if one["what"] == "package thing"]
    assert row["declared"]
    assert "compare_allow" in row["why"]
    assert bed.ours() == []


@pytest.mark.slow  # a whole comparison
@pytest.mark.timeout(1500)
def test_equal_arms_differ_in_nothing_and_are_not_called_changed(bed):
    equal = {"compare_arms": [arm("a"), arm("b"), arm("c")], "compare_looks": [2], "compare_tolerance": 0.3}
    bed.run(**equal)
    document = bed.document()
    assert [one["what"] for one in document["differences"] if not one["what"].startswith("not compared: ")] == []
    assert {one["arm"] for one in document["result"]["pairs"]} == {"b", "c"}
    # With this tolerance nothing but a mistake (a start counted for another arm) makes them differ.
    assert {one["verdict"] for one in document["result"]["pairs"]} <= {"same", "inconclusive"}
    assert document["blocks"][:2] == [["a", "b", "c"], ["c", "b", "a"]]


needs_clocks = pytest.mark.skipif(
    bool(gpu_clocks.obstacle()), reason=f"clocks cannot be set here: {gpu_clocks.obstacle()}"
)


def stand_in_driver(bed: CompareBed) -> Path:
    """A driver that keeps what was set (settings.json), and a list of what it was asked for (calls)."""
    folder = bed.folder / "bin"
    folder.mkdir()
    shutil.copy(ROOT / "tests" / "data" / "gpu_host" / "nvidia-smi", folder)
    files.write_json(str(folder / "smi.json"), {})
    bed.environment["PATH"] = f"{folder}{os.pathsep}{bed.environment['PATH']}"
    return folder


@pytest.mark.slow  # a start, and one that fails
@pytest.mark.timeout(900)
@needs_clocks
@pytest.mark.parametrize("declared", [{}, {"persistence": True, "sm_mhz": 1500}], ids=["none declared", "declared"])
def test_an_arm_that_fails_leaves_its_clocks_on_no_gpu(bed, declared):
    folder = stand_in_driver(bed)
    bed.variables["gpu_clocks"] = declared
    dies = {"llm_server": {"command": [sys.executable, "-c", "raise SystemExit('no such thing')"]}}
    locked = {"name": "locked", "clocks": {"persistence": True, "sm_mhz": 900}, "vars": dies}
    output = bed.run(rc=2, compare_arms=[arm("free"), locked], compare_looks=[2])
    assert len(bed.document()["starts"]) == 1
    assert "-lgc 900,900" in (folder / "calls").read_text()
    wanted = [declared["sm_mhz"]] * 2 if declared else None
    assert [one["-lgc"] for one in files.read_json(str(folder / "settings.json"))] == [wanted, wanted]
    assert (bed.home / "gpu_clocks.json").exists() is bool(declared)
    # What is read last is why the server died.
    last = output.rpartition("TASK [")[2]
    assert last.startswith("groundstate.llm.compare : Fail as it did]")
    assert "no such thing" in last


@pytest.mark.slow  # a start that fails
@pytest.mark.timeout(900)
def test_a_failure_of_arms_without_clocks_is_told_once(bed):
    dies = {"name": "dies", "vars": {"llm_server": {"command": [sys.executable, "-c", "raise SystemExit('no such')"]}}}
    output = bed.run(rc=2, compare_arms=[dies, arm("b")], compare_looks=[2])
    assert "Fail as it did" not in output
    assert "clocks back" not in output


@pytest.mark.slow  # a whole comparison
@pytest.mark.timeout(1500)
@needs_clocks
def test_the_clocks_of_the_inventory_hold_for_the_arm_without_its_own_and_at_the_end(bed):
    folder = stand_in_driver(bed)
    bed.variables["gpu_clocks"] = {"persistence": True, "sm_mhz": 1500}
    bed.run(compare_arms=[arm("as_declared"), {"name": "free", "clocks": {}}], compare_looks=[2])
    asked = [line.split()[2:] for line in (folder / "calls").read_text().splitlines() if line.startswith("-i ")]
    changes = [one for one in asked if one[0] in ("-lgc", "-rgc")]
    # as_declared, then free, which also begins the second block; as_declared follows.
    lock, release = ["-lgc", "1500,1500"], ["-rgc"]
    assert [one for index, one in enumerate(changes) if index == 0 or one != changes[index - 1]][:3] == [
        lock,
        release,
        lock,
    ]
    assert {tuple(one["-lgc"]) for one in files.read_json(str(folder / "settings.json"))} == {(1500, 1500)}
