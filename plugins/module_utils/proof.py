# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether the declared NCCL variables are in force, worker by worker. Pure: values in, verdicts and a table out.

``proved``: the value was seen in the worker. ``contradicted``: another value was seen, or the environment could be read
completely and the variable is not in it. ``unknown``: it could not be told, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import nccl_variables
from .procfs import Environment

PROVED, CONTRADICTED, UNKNOWN = "proved", "contradicted", "unknown"


@dataclass(frozen=True)
class Seen:
    """One process of a server and its environment. ``rank`` None: it is no worker, or its rank is not known."""

    rank: int | None
    pid: int
    title: str
    environment: Environment

    @property
    def name(self) -> str:
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank} (pid {self.pid})"


@dataclass
class Proof:
    """Verdicts, whole and per worker, and why the whole is not ``proved``."""

    verdict: str
    workers: list[dict[str, Any]]
    root: dict[str, Any] | None
    why: list[str]
    table: list[str] = field(default_factory=list)


def judge(
    declared: Mapping[str, str],
    workers: Iterable[Seen],
    root: Seen | None = None,
    expected: int = 0,
    engine_sets: Iterable[str] = (),
    given: Mapping[str, str] | None = None,
    also_declared: Iterable[str] = (),
) -> Proof:
    """Judge the workers of one server.

    ``expected``: how many workers there have to be; 0: not known, then those given are all. ``engine_sets``: names that
    the engine sets in its own process when they are unset. ``given``: what the server was started with.
    ``also_declared``: names that were declared elsewhere (``llm_server.env``).
    """
    own, known = frozenset(engine_sets), frozenset(also_declared)
    rows = [_row(one, declared, own, known) for one in workers]
    rows.sort(key=lambda row: (row["rank"] is None, row["rank"] or 0, row["pid"]))
    why = _missing(rows, expected)
    why.extend(_reasons(rows, declared, given or {}))
    verdicts = {row["verdict"] for row in rows}
    if CONTRADICTED in verdicts:
        verdict = CONTRADICTED
    elif UNKNOWN in verdicts or _missing(rows, expected):
        verdict = UNKNOWN
    else:
        verdict = PROVED
    first = None
    if root is not None and all(row["pid"] != root.pid for row in rows):
        first = _row(root, declared, own, known)
    proof = Proof(verdict, rows, first, why)
    proof.table = table(declared, proof)
    return proof


def _row(one: Seen, declared: Mapping[str, str], own: frozenset[str], known: frozenset[str]) -> dict[str, Any]:
    found, complete = one.environment.variables, one.environment.complete
    variables = {}
    for name in sorted(declared):
        seen = found.get(name)
        if seen == declared[name]:
            verdict = PROVED
        elif seen is not None or complete:
            verdict = CONTRADICTED
        else:
            verdict = UNKNOWN
        variables[name] = {"declared": declared[name], "seen": seen, "verdict": verdict}
    # Only what NCCL reads: images set NCCL_VERSION and the like for people.
    others = {
        name: value
        for name, value in sorted(found.items())
        if name in nccl_variables.KNOWN and name not in declared and name not in known
    }
    undeclared = {name: value for name, value in others.items() if name not in own}
    verdicts = {item["verdict"] for item in variables.values()}
    if CONTRADICTED in verdicts or undeclared:
        whole = CONTRADICTED
    elif UNKNOWN in verdicts or not complete:
        # What cannot be read may also hold a variable that nobody declared.
        whole = UNKNOWN
    else:
        whole = PROVED
    return {
        "rank": one.rank,
        "pid": one.pid,
        "name": one.name,
        "title": one.title,
        "source": one.environment.source,
        "complete": complete,
        "unreadable": one.environment.why if not complete else "",
        "verdict": whole,
        "variables": variables,
        "set_by_engine": {name: value for name, value in others.items() if name in own},
        "undeclared": undeclared,
    }


def _missing(rows: list[dict[str, Any]], expected: int) -> list[str]:
    if not rows:
        return ["no worker of the server was found: it is still starting, or it is not the engine that was declared"]
    if not expected or len(rows) == expected:
        return []
    ranks = ", ".join(str(row["rank"]) for row in rows)
    return [f"{len(rows)} of {expected} workers were found (rank {ranks}): look into the server's log for the others"]


def _reasons(rows: list[dict[str, Any]], declared: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    """One sentence for all that has the same cause in the same workers: eight workers fail in the same way."""
    workers_of: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        for what, cause in _facts(row, declared, given):
            workers_of.setdefault((what, cause), []).append(row)
    facts_of: dict[tuple[str, str], list[str]] = {}
    for (what, cause), those in workers_of.items():
        facts_of.setdefault((_names(those), cause), []).append(what)
    return [f"{names}: {', '.join(facts)}; {cause}" for (names, cause), facts in facts_of.items()]


def _names(rows: list[dict[str, Any]]) -> str:
    if len(rows) == 1:
        return str(rows[0]["name"])
    ranked = all(row["rank"] is not None for row in rows)
    return ("ranks " if ranked else "pids ") + ", ".join(str(row["rank" if ranked else "pid"]) for row in rows)


def _facts(row: dict[str, Any], declared: Mapping[str, str], given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(what is wrong, why and how to fix it) of one worker."""
    for name, item in row["variables"].items():
        if item["verdict"] == CONTRADICTED:
            seen = "is not set" if item["seen"] is None else f"is {item['seen']!r}"
            yield (
                f"{name} {seen} (declared: {declared[name]!r})",
                "the server was started without this profile: restart it"
                if given.get(name) != declared[name]
                else "the server was started with it: something inside changes it (engine, wrapper, sitecustomize)",
            )
    for name, value in row["undeclared"].items():
        yield (
            f"{name} is {value!r} and not declared",
            "the server was started with another profile: write the declared one and restart it"
            if given.get(name) == value
            else "declare it in the profile or in llm_server.env, or take it away where it comes from",
        )
    if not row["complete"]:
        unknown = [name for name, item in row["variables"].items() if item["verdict"] == UNKNOWN]
        what = ", ".join(unknown) if unknown else "whether anything undeclared is set"
        # Without the number, so that the same cause in several workers is one sentence.
        cause = row["unreadable"].replace(f"/{row['pid']}/", "/PID/")
        yield (
            f"unknown: {what}",
            f"{cause}: run as root or as the server's user; a server that llm_server starts keeps its titles off",
        )


# --- table ---------------------------------------------------------------------------------------


def table(declared: Mapping[str, str], proof: Proof) -> list[str]:
    """Lines for a person: one per process, one column per variable (without NCCL_), the declared values on top."""
    names = sorted(declared)
    head = [["", "", "declared", ""] + [declared[name] for name in names]] if names else []
    titles = ["rank", "pid", "process", "read from"] + [name[len("NCCL_") :] for name in names]
    rows = [*proof.workers, *([proof.root] if proof.root else [])]
    body = [_cells(row, names, row is proof.root) for row in rows]
    lines = _columns([titles if names else [*titles, "NCCL variables"], *head, *body])
    for row in proof.workers:
        if row["set_by_engine"]:
            pairs = ", ".join(f"{name}={value}" for name, value in row["set_by_engine"].items())
            lines.append(f"{row['name']}: set by the engine: {pairs}")
    return lines


def _cells(row: dict[str, Any], names: list[str], is_root: bool) -> list[str]:
    title = _short(row["title"])
    rank = "-" if is_root or row["rank"] is None else str(row["rank"])
    cells = [rank, str(row["pid"]), title, row["source"]]
    if names:
        return cells + [row["variables"][name]["verdict"] for name in names]
    if row["undeclared"]:
        return [*cells, ", ".join(f"{name}={value}" for name, value in row["undeclared"].items())]
    return [*cells, "none" if row["complete"] else "unknown"]


def _short(title: str) -> str:
    """A title, or a command line from its script on, without folders, in a column's width."""
    words = [word.rpartition("/")[2] or word for word in title.split()]
    if len(words) > 1 and words[0].startswith("python") and not words[1].startswith("-"):
        words = words[1:]
    text = " ".join(words)
    return text if len(text) <= 28 else text[:25] + "..."


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
