"""baseline_record through Ansible: real records and a real index of measurements whose numbers are made.

What a busy machine measures is no help here; that the main job feeds it is tested in test_main_job.py.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import index, records

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "tests" / "data" / "baseline" / "record.json").read_text())


def measured(number: int, rate: float, start: str, limited: bool = False) -> dict:
    """A measurement like the real one of the data, with other numbers."""
    made = copy.deepcopy(RECORD["measurement"])
    made.update(id=f"20261129T1800{number:02d}Z-{number:06x}")
    made["server"]["start_id"] = start
    made["client"]["limited"] = limited
    made["warmup"]["steady"] = True
    made["headline"]["value"] = rate
    level = made["levels"][0]
    level["decode_tok_s"]["mean"] = rate
    for step, repeat in zip((-1.26, -0.63, 0, 0.63, 1.26), level["repeats"], strict=True):
        repeat["decode_tok_s"] = rate * (1 + 0.003 * step)
    return made


class Bed:
    """Runs the action for one or several hosts in one play each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = folder / "records"
        self.count = 0
        self.said = ""  # by the last run, line breaks taken out

    def record(
        self, rate: float, start: str, hosts=("gpu1",), rc: int = 0, fingerprint=None, limited=False, **arguments
    ):
        """The module's result for each host (the only one: itself)."""
        self.count += 1
        made = measured(self.count, rate, start, limited)
        fingerprints = {"before": fingerprint or RECORD["fingerprints"]["before"], "after": {}}
        task = {"records_dir": str(self.records), "measurement": made, "fingerprints": fingerprints, **arguments}
        inventory = self.folder / "hosts.json"
        inventory.write_text(json.dumps({"all": {"hosts": {host: {"ansible_connection": "local"} for host in hosts}}}))
        output = self.folder / "out"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        done = subprocess.run(
            [
                Path(sys.executable).parent / "ansible",
                "all",
                f"--inventory={inventory}",
                f"--tree={output}",
                "--module-name=groundstate.llm.baseline_record",
                f"--args={json.dumps(task)}",
            ],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        self.said = " ".join((done.stdout + done.stderr).split())
        found = [json.loads((output / host).read_text()) for host in hosts]
        return found[0] if len(found) == 1 else found


@pytest.fixture
def bed(tmp_path):
    return Bed(tmp_path)


def test_three_accepted_starts_judge_the_next_and_an_edit_is_named_first(bed):
    first = bed.record(88.8, "s1")
    assert (first["verdict"]["verdict"], first["baseline"]) == ("first", {"starts": 1, "provisional": True})
    second = bed.record(89.4, "s2", accept=True)
    assert second["verdict"]["verdict"] == "inconclusive"
    assert second["verdict"]["basis"] == "repeats"
    third = bed.record(89.0, "s3", accept=True)
    assert third["baseline"] == {"starts": 3, "provisional": False}

    edited = copy.deepcopy(RECORD["fingerprints"]["before"])
    name = "xllamacpp/__init__.py"
    edited["sections"]["python_env"].update(edited=[name], owners={name: "xllamacpp"}, difference_hash="other")
    edited["sections"]["kernel"]["release"] = "6.9.1"
    edited["state_hash"] = "other"
    fourth = bed.record(82.2, "s4", fingerprint=edited)
    verdict = fourth["verdict"]
    assert verdict["verdict"] == "slower"
    assert verdict["explanations"][0] == f"1 file of xllamacpp differs from the wheel: {name}"
    assert (verdict["baseline_starts"], verdict["basis"], fourth["in_baseline"]) == (3, "starts", False)
    text = "\n".join(fourth["summary"])
    for words in ("baseline  89.1 tok/s (", "SLOWER -7.7 % (", "MDE ", "changed   1 file of xllamacpp", "release: "):
        assert words in text, text
    facts = fourth["ansible_facts"]["groundstate"]
    assert facts["verdict"] == "slower"
    assert facts["mde"] == verdict["mde"]
    assert facts["explanations"][0].endswith(name)
    assert "in another state" not in bed.said
    rows = index.open_index(str(bed.records)).rows()
    assert [row["in_baseline"] for row in rows] == [True, True, True, False]
    assert [row["verdict"] for row in rows] == ["first", "inconclusive", third["verdict"]["verdict"], "slower"]
    bed.record(82.3, "s5", fingerprint=edited, accept=True)
    assert "is now part of a baseline whose last start was in another state (1 file of xllamacpp differs" in bed.said


def test_a_plan_collects_its_starts_from_the_history(bed):
    for number, rate in enumerate((100, 101, 99)):
        bed.record(rate, f"old{number}", accept=True)
    told = [bed.record(rate, f"new{rate}", looks=[3])["verdict"] for rate in (94.1, 94.9, 93.8)]
    assert [one["verdict"] for one in told] == ["inconclusive", "inconclusive", "slower"]
    assert [one["new_starts"] for one in told] == [1, 2, 3]
    # Another state is another question: nothing was collected for it.
    other = {**RECORD["fingerprints"]["before"], "state_hash": "changed"}
    assert bed.record(94, "new4", looks=[3], fingerprint=other)["verdict"]["new_starts"] == 1


def test_hosts_of_a_group_share_a_baseline(bed):
    bed.record(100, "s1", hosts=("a", "b", "c"), group="pool")
    found = bed.record(100.5, "s2", hosts=("a", "b", "c"), group="pool", accept=True)
    # They run at the same time: who was the first is not known, but none of the accepted ones may be lost.
    assert all(one["baseline"]["starts"] >= 2 for one in found)
    names = records.baseline_names(str(bed.records), "pool")
    assert {(host, measured(2, 1, "x")["id"]) for host in ("a", "b", "c")} <= set(names)
    alone = bed.record(100, "s3", hosts=("a",))
    assert alone["verdict"]["verdict"] == "first"


def test_a_limited_client_becomes_no_baseline(bed):
    found = bed.record(100, "s1", rc=2, limited=True, accept=True)
    assert "cannot become (part of) a baseline: the client, not the server, was the limit" in found["msg"]
    again = bed.record(100, "s1", limited=True)
    assert (again["verdict"]["verdict"], again["in_baseline"]) == ("first", False)
    assert not (bed.records / "gpu1" / "baseline.json").exists()


def test_the_record_is_kept_when_the_history_fails(bed):
    bed.records.mkdir()
    (bed.records / index.FILE).mkdir()  # a folder where the file should be
    found = bed.record(100, "s1")
    assert Path(found["record"]).exists()
    assert "the records are complete" in bed.said
    (bed.records / index.FILE).rmdir()
    history = index.open_index(str(bed.records))
    history.refresh()
    assert len(history.rows()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"looks": [3, 1]}, "looks: [3, 1] is no plan"),
        ({"group": "../elsewhere"}, "host name '../elsewhere' cannot be a folder"),
    ],
)
def test_impossible_arguments_change_nothing(bed, arguments, words):
    found = bed.record(100, "s1", rc=2, **arguments)
    assert words in found["msg"]
    assert not bed.records.exists()
