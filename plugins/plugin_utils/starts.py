# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From records to the unit of statistics: the start, with the logs of what was measured within it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

# Rates and times that are compared at every level besides the headline. TPOT is not among them: it is 1 / decode rate.
METRICS = ("decode_tok_s", "output_tok_s", "ttft_s")

Record = dict[str, Any]


def name(record: Record) -> str:
    """What tells one start from all others."""
    return f"{record.get('host', '')}/{record['measurement']['server']['start_id']}"


def headline_logs(measurement: dict[str, Any]) -> list[float]:
    """ln of the headline's rate in each repeat; of its mean where no repeats are told."""
    headline = measurement["headline"]
    return level_logs(measurement, headline.get("concurrency"), headline.get("metric")) or [math.log(headline["value"])]


def level_logs(measurement: dict[str, Any], concurrency: int | None, metric: str | None) -> list[float]:
    """ln of a metric in each repeat of a level; [] when the level or the metric is not there."""
    for level in measurement.get("levels") or []:
        if level.get("concurrency") == concurrency:
            values = [repeat.get(metric) for repeat in level.get("repeats") or []]
            return [math.log(value) for value in values if value]
    return []


def headlines(records: Iterable[Record]) -> dict[str, list[float]]:
    """Start -> logs of the headline, all measurements of one start together."""
    found: dict[str, list[float]] = {}
    for record in records:
        found.setdefault(name(record), []).extend(headline_logs(record["measurement"]))
    return found


def metric(records: Iterable[Record], concurrency: int, which: str) -> list[list[float]]:
    """The logs of one metric at one level, a list a start; starts that did not measure it are left out."""
    found: dict[str, list[float]] = {}
    for record in records:
        logs = level_logs(record["measurement"], concurrency, which)
        if logs:
            found.setdefault(name(record), []).extend(logs)
    return list(found.values())


def others(measurement: dict[str, Any]) -> list[tuple[int, str]]:
    """(concurrency, metric) of everything that is compared besides the headline."""
    headline = measurement["headline"]
    first = (headline.get("concurrency"), headline.get("metric"))
    pairs = [(level["concurrency"], which) for level in measurement.get("levels") or [] for which in METRICS]
    return [pair for pair in pairs if pair != first]
