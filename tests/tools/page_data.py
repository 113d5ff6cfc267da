"""Records and comparisons for pages: the real records of two H200, again with other rates, hosts and declarations."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.groundstate.llm.plugins.module_utils import files
from ansible_collections.groundstate.llm.plugins.plugin_utils import (
    comparison_verdict,
    comparisons,
    records,
)

DATA = Path(__file__).resolve().parents[1] / "data"
REAL = json.loads((DATA / "baseline" / "sglang.two-gpus.records.json").read_text(encoding="utf-8"))
BEGIN = 1795986000  # seconds since 1970: after the real records


def identifier(number: int) -> str:
    """The id of the record that was measured ``number`` minutes after the first."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(BEGIN + 60 * number)) + f"-{number:06x}"


def record(host: str, number: int, factor: float = 1.0, verdict: str = "same", **changes: Any) -> dict[str, Any]:
    """A record like the first real one, ``factor`` times as fast, ``number`` minutes after the first."""
    made = copy.deepcopy(REAL[0])
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BEGIN + 60 * number))
    made.update(host=host, group=host, id=identifier(number), created_at=moment)
    measurement = made["measurement"]
    measurement.update(id=made["id"], started_at=moment)
    measurement["server"]["start_id"] = f"{number:032x}"
    for key in ("value", "low", "high"):
        measurement["headline"][key] *= factor
    for level in measurement["levels"]:
        for key in ("mean", "low", "high"):
            level["decode_tok_s"][key] *= factor
        for repeat in level["repeats"]:
            repeat["decode_tok_s"] *= factor
    made["verdict"].update(verdict=verdict, ratio=factor, ratio_low=0.99 * factor, ratio_high=1.01 * factor)
    made.update(changes)
    return made


def fleet(folder: Path, hosts: int, each: int = 4, seed: int = 7) -> list[str]:
    """Hosts with ``each`` records, the first three of them the baseline; their names.

    From five hosts on, the last is 12 % slower with half of its PCIe lanes, and the last but one has a proof that
    contradicts.
    """
    dice = random.Random(seed)
    names = [f"gpu{number:03}" for number in range(hosts)]
    named: list[str] = []
    for place, host in enumerate(names):
        slow = hosts >= 5 and place == hosts - 1
        for number in range(each):
            factor = (0.88 if slow else 1.0) * (1 + dice.gauss(0, 0.004))
            made = record(host, 300 * number + place, factor, "first" if number == 0 else "same", group="pool")
            before = made["fingerprints"]["before"]
            if slow:
                for gpu in before["sections"]["hardware"]["gpus"]:
                    gpu["pcie_width_max"] = "8x"
                before["state_hash"] = "8" * 64
            if hosts >= 5 and place == hosts - 2 and number == each - 1:
                made["proof"]["verdict"] = "contradicted"
            records.write_record(str(folder), host, made)
            named += [f"{host}/{made['id']}"] * (number < 3)
    baselines = {made["key"]: {"label": "bench", "records": named}}
    files.write_json(str(folder / "pool" / records.BASELINE_FILE), {"schema": records.SCHEMA, "baselines": baselines})
    return names


def comparison(
    folder: Path,
    host: str,
    factors: dict[str, float],
    blocks: int = 3,
    looks: Sequence[int] = (3,),
    kind: str = "compare",
    stop: int | None = None,
    spread: float = 0.004,
    accept_length: dict[str, float] | None = None,
) -> dict[str, Any]:
    """A comparison, started and judged as the role does it: arm -> how fast it is. ``stop``: after so many starts."""
    dice = random.Random(3)
    arms = [{"name": name, "declared": {"llm_server": {"extra_args": {"arm": name}}}} for name in factors]
    declared = [{"name": name, "variables": {}} for name in factors]
    declaration = {"arms": declared, "tolerance": 0.02, "looks": list(looks)}
    document = comparisons.new(host, kind, "Base against others", arms, declaration, 0.02, looks)
    document.update(id=identifier(900), created_at="2026-11-29T21:00:00Z")
    document["differences"] = [
        {"arm": name, "what": "argument --arm", "reference": None, "value": name, "declared": True, "why": "extra_args"}
        for name in list(factors)[1:]
    ]
    for one in comparisons.planned(document)[: stop if stop is not None else blocks * len(factors)]:
        made = record(host, 901 + one["number"], factors[one["arm"]] * (1 + dice.gauss(0, spread)))
        made["comparison"] = {**one, "id": document["id"], "seconds": 61.5}
        made["fingerprints"]["before"]["sections"]["server"]["argv"] += ["--arm", one["arm"]]
        made["fingerprints"]["before"]["state_hash"] = one["arm"]
        if accept_length:
            made["measurement"]["levels"][0].setdefault("server_metrics", {})["accept_length"] = accept_length[
                one["arm"]
            ]
        records.write_record(str(folder), host, made)
        comparisons.add(document, comparisons.start_of(made))
        comparison_verdict.look(document)
    comparisons.write(str(folder), document)
    return document


def speculation(folder: Path, host: str) -> dict[str, Any]:
    """The story's numbers as a comparison of the base with EAGLE-3: accept length 2.0, break-even 2.75."""
    lengths = {"base": 1.0, "eagle3": 2.0}
    document = comparison(folder, host, {"base": 1.0, "eagle3": 0.727}, kind="speculation", accept_length=lengths)
    document["speculation"] = {
        "base": "base",
        "base_step_s": 0.0121,
        "base_step_interval_s": [0.0120, 0.0122],
        "confidence": 0.95,
        "configurations": [
            {
                "arm": "eagle3",
                "drafts": 2,
                "accept_length": {"value": 2.0, "low": 1.96, "high": 2.04},
                "tokens_per_chunk": 1.75,
                "tokens_per_chunk_interval": [1.72, 1.78],
                "acceptance_per_position": [0.64, 0.56],
                "acceptance_per_position_intervals": [[0.62, 0.66], [0.53, 0.59]],
                "cycle_s": {"value": 0.03333, "low": 0.0329, "high": 0.0338},
                "break_even": {"value": 2.75, "low": 2.7, "high": 2.8},
                "speedup": {"value": 0.727, "low": 0.71, "high": 0.74},
                "acceptance": 0.618,
                "acceptance_interval": [0.601, 0.635],
                "needed_acceptance": 0.914,
                "needed_acceptance_interval": [0.895, 0.932],
                "ceiling": 1.09,
                "ceiling_interval": [1.07, 1.11],
                "verdict": "does not pay",
                "would_pay_if": ["a cheaper cycle: 24.2 ms instead of 33.3 ms at this accept length (27 % less)"],
                "traps": [{"name": "other max_running_requests", "text": "48 instead of 2048"}],
            }
        ],
    }
    comparisons.write(str(folder), document)
    return document
