"""`import`, `history` and `lint-nccl` with whatever file somebody names: one sentence, and nothing is kept of it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from groundstate import cli

VLLM = {
    "mean_ttft_ms": 10.0,
    "mean_tpot_ms": 5.0,
    "output_throughput": 100.0,
    "model_id": "m",
    "completed": 10,
    "failed": 0,
    "total_input_tokens": 100,
    "total_output_tokens": 100,
    "max_concurrency": 1,
    "date": "20261129-101010",
}


def guidellm(start_time) -> dict:
    metrics = {"request_totals": {"successful": 1}, "output_tokens_per_second": {"successful": {"mean": 1.0}}}
    return {"metadata": {}, "benchmarks": [{"start_time": start_time, "metrics": metrics}]}


@pytest.fixture
def bring(tmp_path, capsys):
    """Import files; (exit code, last line on stderr)."""
    folder = tmp_path / "records"
    folder.mkdir()

    def run(*contents, host="h"):
        paths = []
        for number, content in enumerate(contents):
            paths.append(tmp_path / f"result{number}.json")
            text = content if isinstance(content, (str, bytes)) else json.dumps(content)
            paths[-1].write_bytes(text if isinstance(text, bytes) else text.encode())
        code = cli.main(["import", "--records", str(folder), "--host", host, *map(str, paths)])
        said = capsys.readouterr()
        return code, said.err.strip().rpartition("\n")[2]

    run.folder = folder
    return run


def history(folder: Path, capsys) -> list[dict]:
    assert cli.main(["history", "--records", str(folder), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


HOSTILE = {
    "infinite streams": {**VLLM, "max_concurrency": float("inf")},
    "no number": {**VLLM, "mean_tpot_ms": float("nan")},
    "infinite rate": {**VLLM, "output_throughput": float("inf")},
    "rate that overflows": {**VLLM, "mean_tpot_ms": 1e-320},
    "model is an object": {**VLLM, "model_id": {"a": 1}},
    "model is half a character": {**VLLM, "model_id": "\ud800"},
    "model with a zero byte": {**VLLM, "model_id": "a\0b"},
    "count beyond any database": {**VLLM, "completed": 10**30},
    "streams beyond any database": {**VLLM, "max_concurrency": 2**70},
    "negative count": {**VLLM, "completed": -5},
    "time beyond the clock": guidellm(1e300),
    "time before 1970": guidellm(-1e12),
    "time that is none": guidellm(float("nan")),
    "brackets": "[" * 100_000,
    "brackets in objects": '{"a":' * 100_000,
    "digits": '{"a":' + "9" * 10_000 + "}",
    "bytes": b"\x80\x00\xff",
    "nothing": "",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_result_is_refused_in_one_sentence_and_leaves_nothing(bring, capsys, what):
    assert bring(VLLM)[0] == 0
    before = sorted(bring.folder.rglob("*.json"))
    # A good one before it changes nothing either: all are read before one is kept.
    code, said = bring({**VLLM, "completed": 11}, HOSTILE[what])
    assert code == 1
    assert said.startswith("groundstate: ")
    assert "result1.json" in said
    assert sorted(bring.folder.rglob("*.json")) == before
    assert len(history(bring.folder, capsys)) == 1


@pytest.mark.parametrize("host", ["../h", "a/b", "", ".", ".hidden", "a\nb", "a\0b", "\udcff", "x" * 300])
def test_a_host_that_is_no_folder_is_refused(bring, host):
    code, said = bring(VLLM, host=host)
    assert (code, said[:13]) == (1, "groundstate: ")
    assert list(bring.folder.iterdir()) == []


def test_a_byte_order_mark_is_no_obstacle(bring):
    assert bring(b"\xef\xbb\xbf" + json.dumps(VLLM).encode())[0] == 0


def test_a_device_that_never_ends_is_no_result(bring, capsys):
    assert cli.main(["import", "--records", str(bring.folder), "--host", "h", "/dev/zero"]) == 1
    assert "larger than 256 MiB: '/dev/zero'" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [{"model": {"a": 1}}, {"measured_at": 5}, {"source": None}])
def test_an_imported_file_that_was_damaged_later_is_named_and_the_others_are_shown(bring, capsys, damage):
    bring(VLLM, {**VLLM, "completed": 11})
    [bad, _good] = sorted(bring.folder.rglob("foreign/*.json"))
    bad.write_text(json.dumps({**json.loads(bad.read_text()), **damage}))
    (bring.folder / "history.sqlite").unlink()
    assert cli.main(["history", "--records", str(bring.folder), "--format", "json"]) == 0
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == 1
    assert f"{bad} is damaged ({next(iter(damage))})" in said.err
    assert not list(bring.folder.glob("*.damaged-*")), "the index is not to blame"


def test_a_database_that_is_in_use_or_asked_wrongly_is_not_set_aside(bring, capsys):
    bring(VLLM)
    with sqlite3.connect(bring.folder / "history.sqlite") as other:
        other.execute("DROP TABLE groundstate_history")
        other.execute("CREATE TABLE groundstate_history (host TEXT)")
    assert cli.main(["history", "--records", str(bring.folder)]) == 1
    assert capsys.readouterr().err.startswith("groundstate: the history cannot be used: ")
    assert not list(bring.folder.glob("*.damaged-*"))


def test_a_folder_of_records_with_strange_names_is_shown(bring, capsys):
    bring(VLLM)
    (bring.folder / "a\nb").mkdir()
    (bring.folder / "\udcff").mkdir()
    (bring.folder / "h" / "baseline.json").write_text(
        json.dumps({"schema": 1, "baselines": {"k": {"label": "x", "records": ["\ud800/\ud800"]}}})
    )
    assert len(history(bring.folder, capsys)) == 1


def test_a_model_does_not_write_to_the_terminal(bring, capsys):
    path = bring.folder.parent / "one.json"
    path.write_text(json.dumps({**VLLM, "model_id": "\x1b[31mred\nline"}))
    assert cli.main(["import", "--records", str(bring.folder), "--host", "h", str(path)]) == 0
    assert cli.main(["history", "--records", str(bring.folder)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "'\\x1b[31mred\\nline'" in shown


# --- lint-nccl -----------------------------------------------------------------------------------


@pytest.fixture
def lint(tmp_path, capsys):
    def run(text, name="profiles.yml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        code = cli.main(["lint-nccl", str(path)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.parametrize(
    "text",
    [
        "p: {variables: {NCCL_ALGO: 2020-99-99}}\n",
        "p: {variables: {NCCL_NTHREADS: " + "9" * 6000 + "}}\n",
        "[" * 5000,
        "{a: " * 3000,
        "- a\n- b\n",
        "5\n",
        "just words\n",
        "? [a]\n: b\n",
        'p: !!python/object/apply:os.system ["exit"]\n',
    ],
)
def test_what_holds_no_profiles_is_told_in_one_sentence(lint, text):
    code, out, err = lint(text)
    assert (code, out) == (2, "")
    assert err.startswith("groundstate: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["", "# nothing is set\n"])
def test_a_file_that_sets_nothing_is_accepted(lint, text):
    assert lint(text, "nccl.conf")[0] == 0
    assert lint(text)[0] == 0


@pytest.mark.parametrize("name", ["off", "0", "7", '""', "null"])
def test_a_name_that_yaml_reads_otherwise_is_told(lint, name):
    code, out, _err = lint(f"{name}: {{variables: {{}}}}\n")
    assert code == 1
    assert "a profile's name is text" in out


def test_a_device_that_never_ends_is_no_profile(capsys):
    assert cli.main(["lint-nccl", "/dev/zero"]) == 2
    assert "larger than 4 MiB" in capsys.readouterr().err


def test_names_and_values_do_not_write_to_the_terminal(lint):
    _code, out, _err = lint('"a\\e[31m": {variables: {NCCL_MAX_NCHANNELS: 4, NCCL_DEBUG_FILE: "x\\e[0m"}}\n')
    assert "\x1b" not in out
    _code, out, _err = lint('"a\\e[31m": {variables: {NCCL_MAX_NCHANNELS: 4}}\n')
    assert "'a\\x1b[31m'" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("url", ["postgresql://u:s3cret@h:p@ss/db", "postgresql://u:a:s3cret/x@h/db", "s3cret"])
def test_a_url_that_is_none_is_told_without_its_password(bring, capsys, url):
    pytest.importorskip("sqlalchemy")
    assert cli.main(["history", "--records", str(bring.folder), "--url", url]) == 1
    said = capsys.readouterr().err
    assert said.startswith("groundstate: the history")
    assert "s3cret" not in said
