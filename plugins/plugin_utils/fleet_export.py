# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A fleet for other programs: JSON, CSV, and the text format of Prometheus for node_exporter's textfile collector."""

from __future__ import annotations

import calendar
import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from ..module_utils import files
from .fleet import SCHEMA, Entry, Fleet

VERDICTS = ("first", "same", "faster", "slower", "inconclusive", "incomparable")
PROOFS = ("proved", "contradicted", "unknown", "off")


def as_json(fleet: Fleet) -> bytes:
    """All that is known of each server, and of the groups."""
    servers = [
        {
            **one.row,
            "reasons": one.record["verdict"].get("reasons") or [],
            "explanations": one.record["verdict"].get("explanations") or [],
            "attention": one.attention,
            "differs_from_group": one.outlier,
            "changes": [asdict(change) for change in one.changes],
        }
        for one in fleet.entries
    ]
    groups = [
        {
            "name": one.name,
            "median_tok_s": one.median,
            "servers": [{"host": entry.row["host"], "server": entry.row["server"]} for entry in one.entries],
        }
        for one in fleet.groups
    ]
    found = {"schema": SCHEMA, "servers": servers, "groups": groups, "warnings": fleet.warnings}
    return (json.dumps(found, indent=1, sort_keys=True) + "\n").encode()


def as_csv(fleet: Fleet) -> bytes:
    """A header and a line a server (RFC 4180); what is not known is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(fleet.entries[0].row), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(one.row for one in fleet.entries)
    return out.getvalue().encode("utf-8", "replace")


# Name -> (help, column of a row). All are gauges: each is of the newest measurement.
_NUMBERS = {
    "decode_tokens_per_second": ("Decode rate of one stream in the newest measurement.", "decode_tok_s"),
    "output_tokens_per_second": ("Output tokens of all streams in the newest measurement.", "output_tok_s"),
    "time_to_first_token_seconds": ("Mean time until the first token.", "ttft_s"),
    "time_per_output_token_seconds": ("Mean time per output token after the first.", "tpot_s"),
    "ready_seconds": ("How long the start took until the server served.", "ready_s"),
    "requests": ("Requests of the newest measurement.", "requests"),
    "requests_failed": ("Those of them that failed.", "failed"),
    "baseline_ratio": ("Decode rate divided by that of the baseline.", "ratio"),
    "baseline_starts": ("Starts in the baseline; provisional below three.", "baseline_starts"),
    "outlier": ("Whether the rate is apart from the host's group.", "outlier"),
}
# The same with two samples each: bounds of the interval.
_BOUNDS = {
    "decode_tokens_per_second_bound": ("Interval of the decode rate within one start.", ("decode_low", "decode_high")),
    "baseline_ratio_bound": ("Interval of the ratio between starts.", ("ratio_low", "ratio_high")),
}
# The same with a sample for each word that there is: 1 for the one that holds.
_WORDS = {
    "verdict": ("The verdict on the newest measurement.", "verdict", VERDICTS),
    "proof": ("Whether the NCCL profile is in force.", "proof", PROOFS),
}


def as_prometheus(fleet: Fleet) -> bytes:
    """Metrics of every server, without time stamps, which the textfile collector refuses."""
    lines: list[str] = []
    for name, about, samples in _families(fleet):
        told = [
            f"groundstate_{name}{{{_labels(labels)}}} {_number(value)}"
            for labels, value in samples
            if files.is_number(value) or isinstance(value, bool)
        ]
        if told:
            lines += [f"# HELP groundstate_{name} {about}", f"# TYPE groundstate_{name} gauge", *told]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


Sample = tuple[dict[str, str], Any]


def _families(fleet: Fleet) -> Iterator[tuple[str, str, list[Sample]]]:
    every = fleet.entries
    for name, (about, column) in _NUMBERS.items():
        yield name, about, [(_who(one), one.row[column]) for one in every]
    for name, (about, columns) in _BOUNDS.items():
        bounds = tuple(zip(("low", "high"), columns))
        yield name, about, [({**_who(one), "bound": bound}, one.row[key]) for one in every for bound, key in bounds]
    for name, (about, column, known) in _WORDS.items():
        yield (
            name,
            about,
            [({**_who(one), name: word}, float(one.row[column] == word)) for one in every for word in known],
        )
    yield "measured_timestamp_seconds", "When the newest measurement began.", [(_who(one), _time(one)) for one in every]
    details = ("engine", "model", "profile", "group", "record", "state_hash")
    yield (
        "server_info",
        "What was measured; always 1.",
        [({**_who(one), **{name: str(one.row[name] or "") for name in details}}, 1.0) for one in every],
    )


def _who(entry: Entry) -> dict[str, str]:
    return {"host": entry.row["host"], "server": entry.row["server"]}


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return repr(float(value))


def _time(entry: Entry) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(entry.row["measured_at"], "%Y-%m-%dT%H:%M:%SZ")))
    except (TypeError, ValueError):
        return None


FORMATS: dict[str, Callable[[Fleet], bytes]] = {"json": as_json, "csv": as_csv, "prometheus": as_prometheus}
