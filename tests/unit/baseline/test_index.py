"""The index: always what the records say, whatever happened to it."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import export, index, records

RECORD = json.loads((Path(__file__).parents[2] / "data" / "baseline" / "record.json").read_text())
MEASUREMENT = RECORD["measurement"]


def identifier(number: int) -> str:
    return f"20261129T1700{number:02d}Z-a1b2c3"


def write(folder: Path, host: str, number: int, **extra) -> str:
    parts = {"verdict": {"verdict": "same", "ratio": 1.01}, "fingerprints": {"before": {"state_hash": "s1"}}}
    records.write_record(str(folder), host, {**RECORD, "id": identifier(number), "key": "k", **parts, **extra})
    return identifier(number)


def ids(history, **where):
    return [row["id"] for row in history.rows(**where)]


def test_refresh_adds_what_is_missing_and_drops_what_is_gone(tmp_path):
    write(tmp_path, "a", 1)
    write(tmp_path, "b", 2)
    history = index.open_index(str(tmp_path))
    assert history.refresh() == []
    assert ids(history) == [identifier(1), identifier(2)]
    [row] = history.rows(host="a")
    assert row["decode_tok_s"] == pytest.approx(MEASUREMENT["headline"]["value"])
    assert (row["verdict"], row["ratio"], row["state_hash"], row["baseline_key"]) == ("same", 1.01, "s1", "k")
    assert (row["headline"], row["in_baseline"], row["source"]) == (True, False, "groundstate")
    write(tmp_path, "a", 3)
    (tmp_path / "b" / f"{identifier(2)}.json").unlink()
    assert history.refresh(["a"]) == []
    assert ids(history) == [identifier(1), identifier(2), identifier(3)], "b was not asked for"
    assert history.refresh() == []
    assert ids(history) == [identifier(1), identifier(3)]


def test_baselines_are_marked(tmp_path):
    for number in (1, 2):
        write(tmp_path, "a", number)
    history = index.open_index(str(tmp_path))
    records.add_to_baseline(str(tmp_path), "pool", "k", "label", "a", identifier(1))
    history.refresh()
    assert ids(history, in_baseline=True) == [identifier(1)]
    (tmp_path / "pool" / "baseline.json").unlink()
    records.add_to_baseline(str(tmp_path), "a", "k", "label", "a", identifier(2))
    history.refresh()
    assert ids(history, in_baseline=True) == [identifier(2)]


def test_a_damaged_record_is_told_and_the_others_are_there(tmp_path):
    write(tmp_path, "a", 1)
    (tmp_path / "a" / f"{identifier(2)}.json").write_text("{")
    write(
        tmp_path, "a", 3, measurement={**MEASUREMENT, "levels": [{**MEASUREMENT["levels"][0], "concurrency": None}, 7]}
    )
    history = index.open_index(str(tmp_path))
    [first, second] = history.refresh()
    assert identifier(2) in first
    assert identifier(3) in second
    assert ids(history) == [identifier(1)]


@pytest.mark.parametrize("content", [b"", b"no database at all, " * 100])
def test_a_file_that_is_no_database_is_replaced(tmp_path, content):
    write(tmp_path, "a", 1)
    (tmp_path / index.FILE).write_bytes(content)
    history = index.open_index(str(tmp_path))
    history.refresh()
    assert ids(history) == [identifier(1)]


def test_a_damaged_database_is_set_aside_and_made_anew(tmp_path):
    for number in range(40):
        write(tmp_path, "a", number)
    history = index.open_index(str(tmp_path))
    history.refresh()
    content = bytearray((tmp_path / index.FILE).read_bytes())
    dice = random.Random(1)
    for place in range(4096, len(content)):
        content[place] = dice.randrange(256)
    (tmp_path / index.FILE).write_bytes(content)
    history.refresh()
    assert len(ids(history)) == 40
    assert [path.name for path in tmp_path.glob("*.damaged-*")], "what was there is kept, not deleted"


def test_a_table_of_another_version_is_made_anew(tmp_path):
    write(tmp_path, "a", 1)
    history = index.open_index(str(tmp_path))
    history.refresh()
    with sqlite3.connect(tmp_path / index.FILE) as connection:
        connection.execute("UPDATE groundstate_meta SET value = '0'")
        connection.execute("ALTER TABLE groundstate_history DROP COLUMN ratio")
    history.refresh()
    assert [row["ratio"] for row in history.rows()] == [1.01]


def test_rebuild_gives_what_refresh_gave(tmp_path):
    for number in range(5):
        write(tmp_path, f"h{number % 2}", number)
    history = index.open_index(str(tmp_path))
    history.refresh()
    before = history.rows()
    assert history.rebuild() == []
    assert history.rows() == before
    (tmp_path / index.FILE).unlink()
    history.refresh()
    assert history.rows() == before


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(index.HistoryError, match="the history cannot be used"):
        index.open_index(str(tmp_path / "file" / "below")).refresh()


def test_an_unknown_column_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no column nonsense"):
        index.open_index(str(tmp_path)).rows(nonsense=1)


@pytest.mark.parametrize("url", ["nonsense", "nosuchdb://user:geheim@host/x"])
def test_a_url_that_leads_nowhere_is_one_sentence_without_the_password(tmp_path, url):
    with pytest.raises(index.HistoryError) as caught:
        index.open_index(str(tmp_path), url)
    assert "geheim" not in str(caught.value)


def test_hostile_host_names_are_data(tmp_path):
    name = "'; DROP TABLE groundstate_history; --"
    write(tmp_path, name, 1)
    history = index.open_index(str(tmp_path))
    history.refresh()
    assert ids(history, host=name) == [identifier(1)]


# --- export ------------------------------------------------------------------------------------------


@pytest.fixture
def rows(tmp_path):
    write(tmp_path, 'h,"1"', 1)
    write(tmp_path, "h2", 2, verdict={})
    history = index.open_index(str(tmp_path))
    history.refresh()
    return history.rows()


def test_json_and_csv_say_the_same(rows):
    import csv
    import io

    assert json.loads(export.as_json(rows)) == rows
    told = list(csv.DictReader(io.StringIO(export.as_csv(rows).decode())))
    assert [row["host"] for row in told] == ['h,"1"', "h2"]
    assert list(told[0]) == list(index.COLUMNS)
    assert float(told[0]["decode_tok_s"]) == rows[0]["decode_tok_s"]
    assert told[1]["verdict"] == ""


def test_parquet_keeps_types_and_unknown_values(rows):
    import io

    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(export.as_parquet(rows)))
    assert table.to_pylist() == rows
    # Whatever the rows hold, and without any: readers can rely on the columns.
    assert pyarrow.parquet.read_table(io.BytesIO(export.as_parquet([]))).schema.equals(table.schema)


def test_the_table_for_people(rows):
    lines = export.as_table(rows).decode().splitlines()
    assert lines[0].split()[:2] == ["measured", "at"]
    assert f"{rows[0]['decode_tok_s']:.1f}" in lines[1]
    assert "+1.0 %" in lines[1]
    assert len(lines) == 3
