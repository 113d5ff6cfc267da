"""`groundstate report`, `show` and `diff` as they are typed."""

from __future__ import annotations

import json
import os
import sys

import page_data
import pytest
from ansible_collections.groundstate.llm.plugins.plugin_utils import records

from groundstate import cli


@pytest.fixture
def folder(tmp_path, monkeypatch):
    page_data.fleet(tmp_path, 2)
    monkeypatch.setenv("GROUNDSTATE_RECORDS", str(tmp_path))
    monkeypatch.delenv("GROUNDSTATE_HISTORY_URL", raising=False)
    return tmp_path


def test_the_page_of_all_hosts_lies_with_the_records(folder, capsys):
    assert cli.main(["report"]) == 0
    path = folder / "report.html"
    assert capsys.readouterr().out == f"{path}\n"
    assert "All hosts" in path.read_text()
    assert records.hosts(str(folder)) == ["gpu000", "gpu001", "pool"], "it is taken for no host"


def test_the_page_of_one_host_lies_with_its_records(folder, capsys):
    assert cli.main(["report", "--host", "gpu001"]) == 0
    page = (folder / "gpu001" / "report.html").read_text()
    assert "<h1>gpu001</h1>" in page
    assert "gpu000" not in page.split("<script")[0]
    assert len(records.identifiers(str(folder), "gpu001")) == 4


def test_the_page_of_a_comparison_lies_beside_it(folder, capsys):
    document = page_data.comparison(folder, "gpu000", {"base": 1.0, "other": 1.1})
    place = folder / "gpu000" / "comparisons" / document["id"] / "result.html"
    for words in ([document["id"]], ["latest"], ["latest", "--host", "gpu000"]):
        assert cli.main(["report", "--comparison", *words]) == 0
        assert capsys.readouterr().out == f"{place}\n"
        assert "other is faster than base" in place.read_text()
        place.unlink()
    assert cli.main(["report", "--comparison", page_data.identifier(5)]) == 1
    assert f"there are {document['id']}" in capsys.readouterr().err


def test_a_named_file_and_the_terminal(folder, capsysbinary):
    out = folder / "out" / "fleet.prom"
    assert cli.main(["report", "--format", "prometheus", "-o", str(out)]) == 0
    assert capsysbinary.readouterr().out == b""
    assert cli.main(["report", "--format", "prometheus"]) == 0
    assert capsysbinary.readouterr().out == out.read_bytes()
    assert os.listdir(out.parent) == ["fleet.prom"]
    assert cli.main(["report", "-o", "-"]) == 0
    assert capsysbinary.readouterr().out.startswith(b"<!doctype html>")


def test_open_opens_the_page(folder, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    assert cli.main(["report", "--open"]) == 0
    assert opened == [(folder / "report.html").as_uri()]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--format", "csv", "--open"], 2, "--open is for pages, not for --format csv"),
        (["--format", "csv", "--comparison", "latest"], 2, "--comparison is for pages"),
        (["--format", "mlflow", "-o", "x"], 2, "--tracking-uri says where"),
        (["--open", "-o", "-"], 2, "--open needs a file"),
        (["--host", "gone"], 1, "has no record of host 'gone'"),
        (["--host", "../x"], 1, "has no record of host '../x'"),
        (["--host", "../x", "--comparison", "latest"], 1, "cannot be a folder"),
        (["--group", "gone"], 1, "has no record of group 'gone'"),
        (["--comparison", "latest"], 1, "there is no comparison latest"),
        (["--records", "nowhere"], 1, "there is no folder of records nowhere; --records names it"),
    ],
)
def test_what_cannot_be_is_one_sentence(folder, capsys, words, code, message):
    assert cli.main(["report", *words]) == code
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.startswith("groundstate: ")
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_mlflow_that_is_not_there_is_one_sentence(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert cli.main(["report", "--format", "mlflow"]) == 1
    assert (
        capsys.readouterr().err == "groundstate: MLflow is not on the controller: pip install 'groundstate[mlflow]'\n"
    )


def test_show_finds_a_record_by_every_name(folder, capsys):
    newest = records.identifiers(str(folder), "gpu001")[-1]
    path = records.record_path(str(folder), "gpu001", newest)
    shown = set()
    for name in (newest, f"gpu001/{newest}", "gpu001/latest", "gpu001", path):
        assert cli.main(["show", name]) == 0
        shown.add(capsys.readouterr().out)
    [text] = shown
    assert text.startswith(f"gpu001: record {newest}\n\nserver    bench: sglang, mock,")
    assert f"record    {path}\n" in text
    assert cli.main(["show", "--json", newest]) == 0
    assert json.loads(capsys.readouterr().out) == records.read_record(str(folder), "gpu001", newest)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "has no record 'gone' and no host of that name"),
        ("gpu000/20261129T210000Z-ffffff", "there is no record"),
        ("gpu000/x", "is not of the form"),
        ("../gpu000/latest", "cannot be a folder"),
        ("/etc/hostname.json", "is not in the records in"),
    ],
)
def test_show_says_what_it_did_not_find(folder, capsys, name, message):
    assert cli.main(["show", name]) == 1
    assert message in capsys.readouterr().err


def test_an_id_of_two_hosts_asks_which(folder, capsys):
    records.write_record(str(folder), "other", page_data.record("other", 0))
    assert cli.main(["show", page_data.identifier(0)]) == 1
    assert f"several hosts have a record {page_data.identifier(0)}: gpu000, other" in capsys.readouterr().err


def test_diff_says_rates_words_and_what_changed(folder, capsys):
    made = page_data.record("gpu000", 999, 0.5, "slower")
    made["fingerprints"]["before"]["sections"]["server"]["argv"] += ["--mem", "0.5"]
    made["fingerprints"]["before"]["state_hash"] = "ffff" * 16
    records.write_record(str(folder), "gpu000", made)
    assert cli.main(["diff", f"gpu000/{page_data.identifier(0)}", "gpu000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"gpu000/{page_data.identifier(0)} -> gpu000/{page_data.identifier(999)}"
    rate = next(line for line in lines if line.startswith("decode, tok/s")).split()
    assert (rate[3], float(rate[4])) == ("206.6", pytest.approx(-50, abs=1.5))
    assert "verdict   first -> slower" in lines
    assert "compare   same declaration, in another state" in lines
    assert lines[lines.index("what changed, likeliest first") + 1] == "  argument --mem: not there -> 0.5"


def test_diff_of_a_record_with_itself_has_nothing_to_say(folder, capsys):
    assert cli.main(["diff", "gpu000", "gpu000"]) == 0
    told = capsys.readouterr().out
    assert "nothing that is looked at changed: state, clocks, limits and load" in told
    assert "compare   same declaration, same state" in told
    assert "+0.0 %" in told


def test_diff_of_other_declarations_says_that_there_is_no_verdict(folder, capsys):
    records.write_record(str(folder), "other", page_data.record("other", 3, key="else"))
    assert cli.main(["diff", "gpu000", "other"]) == 0
    assert "other declarations (arguments, model or workload): no verdict between these two" in capsys.readouterr().out


def test_a_terminal_is_given_no_commands(folder, capsys):
    made = page_data.record("h", 1)
    made["measurement"]["server"]["served_model_name"] = "red \x1b[31m\x1b]0;title\x07 \x9b2J"
    records.write_record(str(folder), "h", made)
    for words in (["show", "h"], ["diff", "h", "gpu000"]):
        assert cli.main(words) == 0
        assert not {"\x1b", "\x07", "\x9b"} & set(capsys.readouterr().out)
