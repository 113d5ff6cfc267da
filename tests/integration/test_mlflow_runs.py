"""Records in a real MLflow store: each once, with what was declared and what was measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import page_data
import pytest

# MLflow takes some ten seconds to import and to make its tables.
pytestmark = pytest.mark.slow


def report(folder: Path, store: str) -> subprocess.CompletedProcess[str]:
    """`groundstate report --format mlflow` as it is typed."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "groundstate", "report", "--records", str(folder), "--format", "mlflow"),
            *("--tracking-uri", store, "--experiment", "lab"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_record_is_a_run_once(tmp_path: Path):
    import mlflow

    folder, store = tmp_path / "records", f"sqlite:///{tmp_path / 'mlflow.sqlite'}"
    page_data.fleet(folder, 2, each=2)
    first = report(folder, store)
    assert (first.returncode, first.stdout) == (0, "4 runs added to the experiment lab, 0 were there already\n"), first
    client = mlflow.MlflowClient(tracking_uri=store)
    [experiment] = [one for one in client.search_experiments() if one.name == "lab"]
    runs = {one.info.run_name: one for one in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 4
    name = f"gpu001/{page_data.identifier(301)}"
    run, measurement = runs[name], page_data.record("gpu001", 301)["measurement"]
    assert run.info.status == "FINISHED"
    assert run.info.start_time == 1000 * (page_data.BEGIN + 60 * 301)
    assert run.data.tags["groundstate.host"] == "gpu001"
    assert (run.data.tags["groundstate.verdict"], run.data.tags["groundstate.proof"]) == ("same", "proved")
    assert run.data.params["engine"] == "sglang"
    assert run.data.params["workload/output_tokens"] == "512"
    assert any(key.startswith("argument/") for key in run.data.params)
    level = measurement["levels"][0]
    assert run.data.metrics["ttft_s"] == pytest.approx(level["ttft_s"]["mean"])
    assert run.data.metrics["headline_tok_s"] == pytest.approx(measurement["headline"]["value"], rel=0.03)
    steps = client.get_metric_history(run.info.run_id, "repeat_decode_tok_s")
    assert [one.step for one in steps] == [0, 1, 2]

    # A run that was begun and never ended is made anew; the others are left alone.
    client.update_run(run.info.run_id, status="RUNNING")
    page_data.records.write_record(str(folder), "gpu001", page_data.record("gpu001", 990))
    second = report(folder, store)
    assert second.stdout == "2 runs added to the experiment lab, 3 were there already\n", second
    again = client.search_runs([experiment.experiment_id])
    assert len(again) == 5
    assert {one.info.status for one in again} == {"FINISHED"}
    assert {one.info.run_id for one in runs.values() if one is not run} <= {one.info.run_id for one in again}


def test_a_store_that_does_not_work_is_one_sentence(tmp_path: Path):
    folder = tmp_path / "records"
    page_data.fleet(folder, 1, each=1)
    done = report(folder, "nonsense://x")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("groundstate: MLflow at nonsense://x: ")
    assert "Traceback" not in done.stderr
