# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The proof as lines for a person: rank x variable, then what NCCL said of itself. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .proof import PROVED, UNKNOWN, Proof


def table(declared: Mapping[str, str], proof: Proof) -> list[str]:
    """All lines: one per process with one column per variable (without NCCL_), the declared values on top; one per
    worker with what NCCL said; and sentences."""
    names = sorted(declared)
    head = [["", "", "declared", ""] + [declared[name] for name in names]] if names else []
    titles = ["rank", "pid", "process", "read from"] + [name[len("NCCL_") :] for name in names]
    rows = [*proof.workers, *([proof.root] if proof.root else [])]
    body = [_cells(row, names, row is proof.root) for row in rows]
    lines = columns([titles if names else [*titles, "NCCL variables"], *head, *body])
    lines += _nccl_lines(proof.workers)
    lines += _shared(proof.workers, _origins)
    lines += _shared(
        proof.workers,
        lambda row: ["set by the engine: " + _pairs(row["set_by_engine"])] if row["set_by_engine"] else [],
    )
    for row in proof.workers:
        lines += [f"{row['name']}: {text}" for text in _choices(row)]
    return lines + [f"note: {text}" for text in proof.flags]


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _shared(rows: list[dict[str, Any]], say: Callable[[dict[str, Any]], Iterable[str]]) -> list[str]:
    """What is said of workers, once for all that it is said of."""
    names: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for text in say(row):
            names.setdefault(text, []).append(row)
    everyone = len(rows) > 1
    return [
        f"{'all workers' if everyone and len(those) == len(rows) else ', '.join(row['name'] for row in those)}: {text}"
        for text, those in names.items()
    ]


def _origins(row: dict[str, Any]) -> Iterable[str]:
    """From which place the variables came, and by what they were proved."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, item in row["variables"].items():
        if item["source"]:
            found.setdefault((item["source"], item["by"]), []).append(name[len("NCCL_") :])
    for (source, by), names in found.items():
        yield f"{', '.join(names)} from: {source}; seen in: {by}"


def _nccl_lines(rows: list[dict[str, Any]]) -> list[str]:
    """What NCCL is in each worker, when there is anything of it."""
    if not any(row["communicators"] or row["libraries"] for row in rows):
        return []
    titles = ["rank", "NCCL", "library", "communicators", "channels", "transport"]
    return ["", *columns([titles, *(_nccl_cells(row) for row in rows)])]


def _nccl_cells(row: dict[str, Any]) -> list[str]:
    if row["libraries"] is None:
        library = "not readable"
    else:
        # From site-packages on; else the whole path.
        library = ", ".join(path.rpartition("-packages/")[2] or path for path in row["libraries"]) or "none mapped"
    made = row["communicators"]
    sizes: dict[int, int] = {}
    ways: dict[str, int] = {}
    for one in made:
        sizes[one["ranks"]] = sizes.get(one["ranks"], 0) + 1
        for names in one["transports"].values():
            for name, count in names.items():
                ways[name] = ways.get(name, 0) + count
    channels = sorted({one["channels"] for one in made if one["channels"] is not None})
    return [
        "-" if row["rank"] is None else str(row["rank"]),
        row["nccl_version"] or "?",
        library,
        ", ".join(f"{count} of {ranks} ranks" for ranks, count in sizes.items()) or "no log",
        ", ".join(str(one) for one in channels) or "?",
        ", ".join(f"{name} x {count}" for name, count in sorted(ways.items())) or "?",
    ]


def _choices(row: dict[str, Any]) -> Iterable[str]:
    """What NCCL may choose and did choose (only rank 0 says that, and only with TUNING)."""
    may: dict[str, list[str]] = {}
    did: dict[tuple[str, str, str], list[int]] = {}
    for one in row["communicators"]:
        for function, names in one["enabled"].items():
            text = f"{' '.join(names['algorithms']) or 'nothing'} with {' '.join(names['protocols']) or 'nothing'}"
            if function not in may.setdefault(text, []):
                may[text].append(function)
        for item in one["chosen"]:
            key = (item["function"], item["algorithm"], item["protocol"])
            low, high = did.get(key, [item["min_bytes"], item["max_bytes"]])
            did[key] = [min(low, item["min_bytes"]), max(high, item["max_bytes"])]
    for text, functions in may.items():
        yield f"NCCL may use {text} ({', '.join(functions)})"
    for (function, algorithm, protocol), (low, high) in sorted(did.items()):
        size = f"{low} bytes" if low == high else f"{low} to {high} bytes"
        yield f"NCCL used {algorithm} {protocol} for {function} of {size}"


def _cells(row: dict[str, Any], names: list[str], is_root: bool) -> list[str]:
    title = _short(row["title"])
    rank = "-" if is_root or row["rank"] is None else str(row["rank"])
    cells = [rank, str(row["pid"]), title, row["source"]]
    if names:
        of = row["variables"]
        return cells + [_held(of[name]) if is_root else of[name]["verdict"] for name in names]
    if row["undeclared"]:
        return [*cells, ", ".join(f"{name}={value}" for name, value in row["undeclared"].items())]
    return [*cells, "none" if row["complete"] else "unknown"]


def _held(item: Mapping[str, Any]) -> str:
    """What the process that was started has of a variable: it is no worker, so that this is no verdict."""
    if item["verdict"] == UNKNOWN:
        return "?"
    return "has it" if item["verdict"] == PROVED else "not set" if item["seen"] is None else "differs"


def _short(title: str) -> str:
    """A title, or a command line from its script on, without folders, in a column's width."""
    words = [word.rpartition("/")[2] or word for word in title.split()]
    if len(words) > 1 and words[0].startswith("python") and not words[1].startswith("-"):
        words = words[1:]
    text = " ".join(words)
    return text if len(text) <= 28 else text[:25] + "..."


def columns(rows: list[list[str]]) -> list[str]:
    """Rows of cells as lines whose columns stand below each other."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
