"""`show`, `diff` and `report` of records that a disk or a person damaged: one sentence that names the file."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import page_data
import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import records

from groundstate import cli

ROOT = Path(__file__).resolve().parents[3]
LEVEL = ("measurement", "levels", 0)
BEFORE = ("fingerprints", "before")
# Where, and what no longer is of its kind there.
DAMAGE = [
    ((*LEVEL, "repeats"), [None]),
    ((*LEVEL, "repeats", 0), 5),
    ((*LEVEL, "repeats", 0, "decode_tok_s"), "fast"),
    ((*LEVEL, "decode_tok_s", "mean"), 10**400),
    ((*LEVEL, "tpot_s", "mean"), {}),
    ((*LEVEL, "ttft_s", "high"), []),
    ((*LEVEL, "prompt_tokens"), {"max": 3}),
    (("measurement", "headline", "value"), float("nan")),
    (("measurement", "headline", "value"), 0),
    (("measurement", "workload"), {}),
    (("verdict", "mde"), [None]),
    (("verdict", "ratio_low"), {}),
    (("verdict",), {}),
    (("ready", "phases"), "x"),
    (("ready", "elapsed_s"), 10**400),
    (("schema",), 2),
    (("id",), "../../etc/passwd"),
    ((*BEFORE, "conditions", "loadavg"), "x"),
    ((*BEFORE, "conditions", "container_uptime_s"), {}),
    ((*BEFORE, "conditions", "tenants"), 5),
    ((*BEFORE, "state_hash"), 5),
    ((*BEFORE, "sections"), [None]),
    (BEFORE, 5),
]


@pytest.fixture
def site(tmp_path):
    """Two hosts with two records each: the folder, and the path and content of the first host's newest."""
    host = page_data.fleet(tmp_path, 2, each=2)[0]
    names = records.identifiers(str(tmp_path), host)
    path = Path(records.record_path(str(tmp_path), host, names[-1]))
    return tmp_path, [f"{host}/{one}" for one in names], path, json.loads(path.read_text())


def damage(path: Path, record: dict, place: tuple, value: object) -> None:
    made = copy.deepcopy(record)
    within = made
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = value
    path.write_text(json.dumps(made))


def test_damaged_records_are_named_or_shown_and_left_as_they_are(site, capsys):
    folder, names, path, record = site
    refused = 0
    for place, value in DAMAGE:
        damage(path, record, place, value)
        before = path.read_bytes()
        for words in (["show", names[1]], ["diff", *names], ["diff", *names[::-1]]):
            code = cli.main([words[0], "--records", str(folder), *words[1:]])
            said = capsys.readouterr()
            if code:
                assert code == 1
                assert said.err.startswith("groundstate: record "), (place, words)
                assert said.err.count("\n") == 1
                assert path.stem in said.err, "it says which file it is"
                refused += 1
            else:
                assert said.out
        assert path.read_bytes() == before
    assert refused > 30


@pytest.mark.parametrize(("place", "value"), [DAMAGE[0], DAMAGE[3], DAMAGE[14], DAMAGE[22]], ids=range(4))
@pytest.mark.parametrize("kind", ["prometheus", "json"])
def test_a_damaged_record_takes_no_other_host_out_of_the_report(site, capsys, place, value, kind):
    folder, _names, path, record = site
    damage(path, record, place, value)
    assert cli.main(["report", "--records", str(folder), "--format", kind]) == 0
    said = capsys.readouterr()
    assert path.name in said.err
    assert "gpu001" in said.out


def test_a_reader_that_goes_away_is_no_error(site):
    folder = site[0]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "groundstate", "history", "--records", str(folder), "--format", "json"],
            stdout=writing,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            text=True,
            check=False,
            timeout=300,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (cli.READER_GONE, "")


def test_a_name_that_is_no_text_is_one_sentence(site, capsys):
    assert cli.main(["history", "--records", str(site[0]), "--host", "\udcff"]) == 1
    assert capsys.readouterr().err.startswith("groundstate: ")
