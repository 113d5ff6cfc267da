"""The history as a user meets it, and under kill -9: nothing lost, nothing damaged."""

from __future__ import annotations

import getpass
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import index, records

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
RECORD = DATA / "baseline" / "record.json"

# What baseline_record does with each record, again and again, as fast as it can.
WRITER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.groundstate.llm.plugins.plugin_utils import index, records
folder, record, begin = sys.argv[2], json.load(open(sys.argv[3])), int(sys.argv[4])
history = index.open_index(folder)
print("ready", flush=True)
for number in range(begin, begin + 100000):
    record["id"] = f"20261129T{number // 3600 % 24:02d}{number // 60 % 60:02d}{number % 60:02d}Z-{number:06x}"
    records.write_record(folder, "h", record)
    records.add_to_baseline(folder, "h", "k", "label", "h", record["id"])
    history.refresh(["h"])
    print(record["id"], flush=True)
"""


def test_killed_at_random_points_nothing_is_lost_and_nothing_damaged(tmp_path):
    dice = random.Random(7)
    done: list[str] = []
    for round_ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, ROOT / "playbooks" / "collections", tmp_path, RECORD, str(10000 * round_)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        if round_ % 2:  # on a busy machine it might get to nothing in the time below
            done.append(writer.stdout.readline().rstrip("\n"))
        time.sleep(dice.uniform(0.02, 0.25))
        writer.kill()
        told = writer.communicate()[0].splitlines()
        done += [line for line in told if len(line) == len("20261129T170000Z-a1b2c3")]
        # Whatever was reported as done is there and readable; the index was never left damaged.
        with sqlite3.connect(tmp_path / index.FILE) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert len(done) >= 4, "the writer got to write"
    there = records.identifiers(str(tmp_path), "h")
    assert set(done) <= set(there)
    for identifier in there:
        assert records.read_record(str(tmp_path), "h", identifier)["id"] == identifier
    accepted = {identifier for _host, identifier in records.baseline_names(str(tmp_path), "h")}
    assert set(done) <= accepted
    history = index.open_index(str(tmp_path))
    assert history.refresh() == []
    found = history.rows()
    assert {row["id"] for row in found} == set(there)
    assert {row["id"] for row in found if row["in_baseline"]} == accepted
    assert history.rebuild() == []
    assert history.rows() == found


def test_two_writers_at_once_wait_for_each_other(tmp_path):
    code = (
        WRITER.replace("100000", "12")
        .replace('"h"', "sys.argv[5]")
        .replace('folder, sys.argv[5], "k"', 'folder, "pool", "k"')
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, ROOT / "playbooks" / "collections", tmp_path, RECORD, str(100 * number), host],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, host in enumerate(("a", "b", "c"))
    ]
    for writer in writers:
        _out, errors = writer.communicate(timeout=300)
        assert writer.returncode == 0, errors
    assert len(records.baseline_names(str(tmp_path), "pool")) == 36, "no host lost another's line"
    history = index.open_index(str(tmp_path))
    history.refresh()
    assert len(history.rows(in_baseline=True)) == 36


# --- the command line --------------------------------------------------------------------------------


def groundstate(*arguments, rc: int = 0, **environment) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "groundstate", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path):
    """Records of one host, as deploy_baseline left them."""
    record = json.loads(RECORD.read_text())
    records.write_record(str(tmp_path), "gpu1", record)
    records.add_to_baseline(str(tmp_path), "gpu1", record["key"], "label", "gpu1", record["id"])
    return tmp_path


def test_an_existing_history_is_imported_once_and_shown_with_ours(folder):
    files = sorted((DATA / "foreign").iterdir())
    output = groundstate("import", "--records", folder, "--host", "gpu1", *files)
    assert output.count("added as") == len(files)
    again = groundstate("import", "--host", "gpu1", *files, GROUNDSTATE_RECORDS=str(folder))
    assert again.count("is already there") == len(files)
    table = groundstate("history", "--records", folder).splitlines()
    assert len(table) == 1 + 1 + len(files)
    for source in ("groundstate", "vllm bench serve", "sglang.bench_serving", "aiperf", "guidellm"):
        assert sum(source in line for line in table) == 1
    rows = json.loads(groundstate("history", "--records", folder, "--format", "json", "--model", "mock"))
    assert len(rows) == len(files)
    assert not any(row["in_baseline"] for row in rows), "what others measured is never a baseline"


def test_export_to_files(folder):
    out = folder / "history.csv"
    groundstate("history", "--records", folder, "--format", "csv", "-o", out, "--rebuild")
    assert len(out.read_text().splitlines()) == 2
    out = folder / "history.parquet"
    groundstate("history", "--records", folder, "--format", "parquet", "-o", out)
    assert out.read_bytes()[:4] == b"PAR1"


def test_a_wrong_file_among_good_ones_changes_nothing(folder, tmp_path):
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"some": "thing"}')
    output = groundstate(
        "import", "--records", folder, "--host", "gpu1", DATA / "foreign" / "aiperf.0.13.0.json", wrong, rc=1
    )
    assert "wrong.json is no result of" in output
    assert "Traceback" not in output
    assert not (folder / "gpu1" / "foreign").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["history", "--records", "/nowhere"], "no folder of records /nowhere"),
        (["history", "--records", ".", "--url", "nosuchdb://user:geheim@host/x"], "URL cannot be used"),
        (["import", "--records", "/nowhere", "--host", "../x", "FILE"], "host name '../x'"),
        (["import", "--records", "/nowhere", "--host", "x", "/nowhere/r.json"], "/nowhere/r.json"),
    ],
)
def test_errors_are_one_sentence(arguments, words):
    arguments = [str(DATA / "foreign" / "aiperf.0.13.0.json") if one == "FILE" else one for one in arguments]
    output = groundstate(*arguments, rc=1)
    assert words in output
    assert "Traceback" not in output
    assert "geheim" not in output


# --- PostgreSQL --------------------------------------------------------------------------------------


def postgresql_programs() -> Path | None:
    """Folder of initdb and postgres; distributions keep them out of the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [
        path for folder in os.get_exec_path() if (path := Path(folder, "initdb")).exists()
    ]
    return found[-1].parent if found else None


@pytest.fixture
def postgresql():
    """A real PostgreSQL of our own, on a socket only; its URL."""
    programs = postgresql_programs()
    assert programs, "PostgreSQL's programs are not installed: apt-get install postgresql"
    user, prefix = getpass.getuser(), []
    # Not below pytest's folder: nobody but its owner may enter that, and PostgreSQL refuses to run as root.
    place = Path(tempfile.mkdtemp(prefix="gs-pg-"))
    if os.geteuid() == 0:
        user = "postgres"
        shutil.chown(place, user, user)
        prefix = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"]
    options = ["-k", str(place), "-c", "listen_addresses=", "-c", "fsync=off"]
    server = None
    try:
        initdb = [*prefix, programs / "initdb", "-D", place / "data", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(initdb, check=True, cwd=place)
        server = subprocess.Popen([*prefix, programs / "postgres", "-D", place / "data", *options], cwd=place)
        deadline = time.monotonic() + 60
        while subprocess.run([programs / "pg_isready", "-q", "-h", place], check=False).returncode:
            assert time.monotonic() < deadline, "PostgreSQL did not come up"
            assert server.poll() is None
            time.sleep(0.1)
        yield f"postgresql://{user}@/postgres?host={place}"
    finally:
        if server is not None:
            server.send_signal(signal.SIGQUIT)
            server.wait(60)
        shutil.rmtree(place)


@pytest.mark.slow  # initdb alone takes seconds, and PostgreSQL is needed
def test_postgresql_holds_the_same_history(folder, postgresql):
    files = sorted((DATA / "foreign").iterdir())
    groundstate("import", "--records", folder, "--host", "gpu1", *files, GROUNDSTATE_HISTORY_URL=postgresql)
    groundstate("history", "--records", folder, "--url", postgresql)
    groundstate("history", "--records", folder)
    there, here = index.open_index(str(folder), postgresql), index.open_index(str(folder))
    assert there.rows() == here.rows()
    assert len(there.rows()) == 1 + len(files)
    assert len(there.rows(headlines=True, in_baseline=True)) == 1
    (folder / "gpu1" / "baseline.json").unlink()
    assert there.rebuild() == []
    assert there.rows(in_baseline=True) == []
    next((folder / "gpu1" / "foreign").iterdir()).unlink()
    assert there.refresh() == []
    assert len(there.rows()) == len(files)


@pytest.mark.slow
def test_a_database_that_is_not_there_is_one_sentence(folder, tmp_path):
    url = f"postgresql://user:geheim@/db?host={tmp_path}"
    output = groundstate("history", "--records", folder, rc=1, GROUNDSTATE_HISTORY_URL=url)
    assert "the history cannot be used" in output
    assert "geheim" not in output
    assert "Traceback" not in output
