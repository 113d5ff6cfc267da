"""Comparisons with planted figures: documents and records of the form that real ones have."""

from __future__ import annotations

import copy
import json
import math
import random
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import workload
from ansible_collections.groundstate.llm.plugins.plugin_utils import comparisons

DATA = Path(__file__).parents[2] / "data" / "baseline"


@pytest.fixture(scope="session")
def real_record() -> dict:
    return json.loads((DATA / "record.json").read_text())


@pytest.fixture
def window():
    """Make the ``speculation`` of a level in which every cycle drafted; keywords replace its values."""
    return counted


@pytest.fixture
def compared(real_record):
    """Make (document, records): ``arms`` is name -> {rate, length, speculation, level, workload}, the first the base.

    ``spread`` is the deviation of ln(rate) from start to start, ``drift`` the change of ln(rate) from one to the next.
    """

    def make(arms: dict[str, dict], blocks=3, spread=0.0, drift=0.0, seed=1, tolerance=0.02, engine="vllm"):
        dice = random.Random(seed)
        declared = [
            {"name": name, "declared": {"llm_server": {"speculation": one.get("speculation", {})}}}
            for name, one in arms.items()
        ]
        document = comparisons.new("h", "speculation", "t", declared, {}, tolerance, comparisons.LOOKS)
        records = {}
        for place in comparisons.planned(document)[: blocks * len(arms)]:
            told = arms[place["arm"]]
            rate = told["rate"] * math.exp(dice.gauss(0.0, spread) + drift * place["number"])
            record = copy.deepcopy(real_record)
            record["id"] = f"20261129T2300{place['number']:02d}Z-00000a"
            record["comparison"] = {**place, "id": document["id"], "seconds": 1.0}
            measured = record["measurement"]
            measured["server"] = {**measured["server"], "engine": engine}
            measured["headline"]["value"] = rate
            measured["workload"] = {**workload.DEFAULTS, "output_tokens": 512, **told.get("workload", {})}
            level = {**measured["levels"][0], "concurrency": 1, "ok": 5, "cached_tokens": 0, "tokens_per_chunk": 1.5}
            level["repeats"] = [{**measured["levels"][0]["repeats"][0], "decode_tok_s": rate}]
            level["repetition"] = {"prompts": 0.0, "answers": 0.01}
            level["server_metrics"] = None
            level["speculation"] = counted(told.get("length"))
            measured["levels"] = [{**level, **told.get("level", {})}]
            records[record["id"]] = record
            comparisons.add(document, comparisons.start_of(record))
        return document, records

    return make


def counted(length: float | None, **more) -> dict | None:
    """The ``speculation`` of a level in which every cycle drafted."""
    if length is None:
        return None
    cycles = 1000
    accepted = round((length - 1.0) * cycles)
    found = {"source": "counters", "note": "told", "accept_length": length, "tokens": cycles + accepted}
    found.update({"cycles": cycles, "drafts": cycles, "draft_tokens": 2 * cycles, "accepted": accepted})
    return {**found, "acceptance_per_position": [0.7, 0.5], **more}
