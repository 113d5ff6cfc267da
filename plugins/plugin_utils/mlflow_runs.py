# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Records as runs of MLflow (the extra ``mlflow`` of the package): once each, however often they are sent."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable
from typing import Any

from ..module_utils.fingerprint import compare
from .export import ExportError

RECORD_TAG = "groundstate.record"
_LONGEST = 500  # characters of a parameter: what every version of MLflow takes
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\-. /]")
_WORKLOAD = ("prompt_tokens", "output_tokens", "requests", "repeats", "temperature", "api", "prefix_cache")
_LEVEL = ("decode_tok_s", "output_tok_s", "ttft_s", "tpot_s", "e2e_s")


def log(records: Iterable[tuple[str, dict[str, Any]]], experiment: str, tracking_uri: str) -> tuple[int, int]:
    """Send (host, record) pairs to an experiment, which is made when missing; (how many were new, how many were there).

    A run that was begun and not ended, because somebody ended us, is made anew. Raises ExportError.
    """
    try:
        import mlflow
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise ExportError("MLflow is not on the controller: pip install 'groundstate[mlflow]'") from error
    new = known = 0
    try:
        client = mlflow.MlflowClient(tracking_uri=tracking_uri or None)
        there = client.get_experiment_by_name(experiment)
        identifier = there.experiment_id if there else client.create_experiment(experiment)
        for host, record in records:
            name = f"{host}/{record['id']}"
            earlier = client.search_runs([identifier], f"tags.`{RECORD_TAG}` = '{name}'") if "'" not in name else []
            if any(run.info.status == "FINISHED" for run in earlier):
                known += 1
                continue
            for run in earlier:
                client.delete_run(run.info.run_id)
            begin, end = times(record)
            run = client.create_run(identifier, start_time=begin, tags=tags(host, record), run_name=name)
            client.log_batch(
                run.info.run_id,
                metrics=[Metric(key, value, end, step) for key, value, step in metrics(record)],
                params=[Param(key, value) for key, value in parameters(record).items()],
            )
            client.set_terminated(run.info.run_id, end_time=end)
            new += 1
    except (MlflowException, ImportError, OSError) as error:
        raise ExportError(f"MLflow at {tracking_uri or 'its default place'}: {str(error).splitlines()[0]}") from error
    return new, known


def times(record: dict[str, Any]) -> tuple[int, int]:
    """When a measurement began and ended, in milliseconds since 1970."""
    began = calendar.timegm(time.strptime(record["measurement"]["started_at"], "%Y-%m-%dT%H:%M:%SZ"))
    return 1000 * began, round(1000 * (began + (record["measurement"].get("duration_s") or 0.0)))


def tags(host: str, record: dict[str, Any]) -> dict[str, str]:
    """What runs are searched by."""
    told = {
        RECORD_TAG: f"{host}/{record['id']}",
        "groundstate.host": host,
        "groundstate.group": record.get("group") or host,
        "groundstate.verdict": record["verdict"].get("verdict"),
        "groundstate.proof": record["proof"].get("verdict") or "off",
        "groundstate.state": (record["fingerprints"].get("before") or {}).get("state_hash"),
        "groundstate.baseline_key": record.get("key"),
        "groundstate.comparison": (record.get("comparison") or {}).get("id"),
        "groundstate.arm": (record.get("comparison") or {}).get("arm"),
    }
    return {name: str(value) for name, value in told.items() if value}


def parameters(record: dict[str, Any]) -> dict[str, str]:
    """What was declared: server, workload, and the engine's arguments by their flags."""
    measurement = record["measurement"]
    server, workload = measurement["server"], measurement["workload"]
    section = ((record["fingerprints"].get("before") or {}).get("sections") or {}).get("server") or {}
    told = {
        **{name: server.get(name) for name in ("name", "engine", "served_model_name")},
        "profile": record.get("profile"),
        "engine_version": section.get("version"),
        **{f"workload/{name}": workload.get(name) for name in _WORKLOAD},
        **{
            f"argument/{flag.lstrip('-')}": value
            for flag, value in compare.arguments(section.get("argv") or []).items()
            if flag.startswith("-")
        },
    }
    return {
        _NOT_IN_NAMES.sub("_", name): str(value)[:_LONGEST]
        for name, value in told.items()
        if value is not None and value != ""
    }


def metrics(record: dict[str, Any]) -> list[tuple[str, float, int]]:
    """(name, value, step): the step is the level's concurrency, for single repeats their number."""
    found: list[tuple[str, float, int]] = []
    measurement, told = record["measurement"], record["verdict"]
    for level in measurement["levels"]:
        for name in _LEVEL:
            for bound in ("mean", "low", "high"):
                value = (level.get(name) or {}).get(bound)
                if value is not None:
                    found.append((name if bound == "mean" else f"{name}_{bound}", float(value), level["concurrency"]))
    for number, repeat in enumerate(measurement["levels"][0].get("repeats") or []):
        if repeat.get("decode_tok_s"):
            found.append(("repeat_decode_tok_s", float(repeat["decode_tok_s"]), number))
    headline = {"headline_tok_s": measurement["headline"]["value"], "ready_s": record["ready"].get("elapsed_s")}
    verdict = {f"verdict_{name}": told.get(name) for name in ("ratio", "ratio_low", "ratio_high", "mde")}
    found += [(name, float(value), 0) for name, value in {**headline, **verdict}.items() if value is not None]
    return found
