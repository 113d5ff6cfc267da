#!/usr/bin/env python3
"""Spread of the decode rate within and between starts, in percent, from their records.

usage: spread.py RECORD...
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from ansible_collections.groundstate.llm.plugins.module_utils import stats


def main(paths: list[str]) -> None:
    starts: dict[str, list[float]] = {}
    for path in paths:
        found = json.loads(Path(path).read_text())["measurement"]
        rates = [one["decode_tok_s"] for one in found["levels"][0]["repeats"] if one["decode_tok_s"]]
        starts.setdefault(found["server"]["start_id"], []).extend(rates)
        warm = [round(one, 1) for one in found["warmup"]["decode_tok_s"]]
        print(Path(path).name, "rates", [round(one, 1) for one in rates], "warm-up", warm)
    logs = [stats.log_rates(one) for one in starts.values()]
    within = [stats.sample_sd(one) ** 2 for one in logs if len(one) > 1]
    if within:
        print(f"sigma within a start {100 * math.sqrt(stats.mean(within)):.2f} %")
    if len(logs) > 1:
        print(f"sigma of the starts' means {100 * stats.sample_sd([stats.mean(one) for one in logs]):.2f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
