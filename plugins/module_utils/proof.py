# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether the declared NCCL variables are in force, worker by worker. Pure: values in, verdicts out.

``proved``: the value was seen, in NCCL's own log or in the worker's environment, and nothing speaks against it.
``contradicted``: another value was seen, NCCL did not take it, or the environment could be read completely and the
variable is not in it. ``unknown``: it could not be told, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import nccl_lint, nccl_log, nccl_variables, proof_sources
from .nccl_log import ProcessLog
from .procfs import Environment
from .proof_sources import Sources

PROVED, CONTRADICTED, UNKNOWN = "proved", "contradicted", "unknown"
LOG, ENVIRONMENT = "NCCL's log", "environment"


_NOT_READ = Environment({}, False, "none")
_NO_SOURCES = Sources()


@dataclass(frozen=True)
class Seen:
    """One process of a server and what is known of it. ``rank`` None: it is no worker, or its rank is not known."""

    rank: int | None
    pid: int
    title: str
    environment: Environment
    #: The environment at exec (see proof_sources).
    initial: Environment = _NOT_READ
    log: ProcessLog | None = None
    log_path: str = ""
    #: libnccl files that it maps; None: that could not be read.
    libraries: tuple[str, ...] | None = None
    sources: Sources = _NO_SOURCES

    @property
    def name(self) -> str:
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank} (pid {self.pid})"


@dataclass
class Proof:
    """Verdicts, whole and per worker, why the whole is not ``proved``, and what else is remarkable."""

    verdict: str
    workers: list[dict[str, Any]]
    root: dict[str, Any] | None
    why: list[str]
    flags: list[str] = field(default_factory=list)


def judge(
    declared: Mapping[str, str],
    workers: Iterable[Seen],
    root: Seen | None = None,
    expected: int = 0,
    engine_sets: Iterable[str] = (),
    given: Mapping[str, str] | None = None,
    also_declared: Iterable[str] = (),
    want_logs: bool = False,
) -> Proof:
    """Judge the workers of one server.

    ``expected``: how many workers there have to be; 0: not known, then those given are all. ``engine_sets``: names that
    the engine sets in its own process when they are unset. ``given``: what the server was started with.
    ``also_declared``: names that were declared elsewhere (``llm_server.env``). ``want_logs``: each worker has to have
    a log of NCCL's that names its variables; without it the environment alone is judged.
    """
    seen = sorted(workers, key=lambda one: (one.rank is None, one.rank or 0, one.pid))
    own, known = frozenset(engine_sets), frozenset(also_declared)
    rows = [_row(one, declared, own, known, want_logs) for one in seen]
    incomplete = _missing(rows, expected)
    if want_logs and not incomplete:
        incomplete = _ranks(seen, expected)
    why = [*incomplete, *_reasons(rows, declared, given or {}, known)]
    verdicts = {row["verdict"] for row in rows}
    if CONTRADICTED in verdicts:
        verdict = CONTRADICTED
    elif UNKNOWN in verdicts or incomplete:
        verdict = UNKNOWN
    else:
        verdict = PROVED
    first = None
    if root is not None and all(row["pid"] != root.pid for row in rows):
        first = _row(root, declared, own, known, False)
    return Proof(verdict, rows, first, why, _flags(seen, declared))


def _variable(one: Seen, name: str, declared: str, want_logs: bool) -> dict[str, Any]:
    """One variable of one worker. ``by``: what the verdict rests on; ``cause``: why it is contradicted, when known."""
    log, live = one.log, one.environment.variables.get(name)
    logged = log.variables.get(name, []) if log else []
    other = next((value for value in logged if not nccl_log.same_value(declared, value)), None)
    seen, by, cause = live, ENVIRONMENT, ""
    if other is not None:
        verdict, seen, by = CONTRADICTED, other, LOG
        cause = "NCCL reads the declared value as that: declare what NCCL understands" if live == declared else ""
    elif live is not None and live != declared:
        verdict = CONTRADICTED
    elif log and name in log.refused:
        verdict, by, cause = CONTRADICTED, LOG, f"NCCL says: {log.refused[name]}"
    elif logged:
        verdict, seen, by = PROVED, logged[-1], LOG
    elif log and log.complete and want_logs and name in nccl_log.ALWAYS_LOGGED:
        verdict, by, cause = CONTRADICTED, LOG, _not_taken(name, declared) if live is not None else ""
    elif live == declared:
        verdict = PROVED
    elif one.environment.complete:
        verdict = CONTRADICTED
    else:
        verdict, by = UNKNOWN, ""
    source = proof_sources.source_of(name, seen, one.initial, one.sources) if seen is not None else ""
    return {"declared": declared, "seen": seen, "verdict": verdict, "by": by, "source": source, "cause": cause}


def _not_taken(name: str, value: str) -> str:
    refused = nccl_lint.errors(nccl_lint.lint({name: value}))
    return (
        "the worker has it, but NCCL made its communicators without taking it"
        f" ({refused[0] if refused else 'it passes over what it does not know, and says nothing'})"
    )


def _row(
    one: Seen, declared: Mapping[str, str], own: frozenset[str], known: frozenset[str], want_logs: bool
) -> dict[str, Any]:
    variables = {name: _variable(one, name, declared[name], want_logs) for name in sorted(declared)}
    logged = {name: values[-1] for name, values in one.log.variables.items()} if one.log else {}
    # Only what NCCL reads: images set NCCL_VERSION and the like for people.
    others = {
        name: value
        for name, value in sorted({**one.environment.variables, **logged}.items())
        if name in nccl_variables.KNOWN and name not in declared and name not in known
    }
    undeclared = {name: value for name, value in others.items() if name not in own}
    # A log that tells of every variable says as much as a complete environment.
    complete = one.environment.complete or (want_logs and one.log is not None and one.log.complete)
    lacks = _lacking_log(one) if want_logs else ""
    verdicts = {item["verdict"] for item in variables.values()}
    if CONTRADICTED in verdicts or undeclared:
        whole = CONTRADICTED
    elif UNKNOWN in verdicts or not complete or lacks:
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
        "unreadable": one.environment.why if not one.environment.complete else "",
        "verdict": whole,
        "variables": variables,
        "set_by_engine": {name: value for name, value in others.items() if name in own},
        "undeclared": undeclared,
        "sources": {
            name: proof_sources.source_of(name, value, one.initial, one.sources) for name, value in undeclared.items()
        },
        "log": {"path": one.log_path if one.log else "", "lacking": lacks},
        "libraries": list(one.libraries) if one.libraries is not None else None,
        "nccl_version": one.log.version if one.log else "",
        "communicators": [item.as_dict() for item in one.log.communicators] if one.log else [],
        "nccl_warnings": list(one.log.warnings) if one.log else [],
    }


def _lacking_log(one: Seen) -> str:
    """What is missing of a worker's log for it to be evidence, with what to do; "" when nothing is."""
    if one.log is None:
        # Without the numbers, so that the same cause in several workers is one sentence.
        where = one.log_path.replace(str(one.pid), "PID")
        return (
            f"NCCL wrote no log of this start ({where}): it has made no communicator yet, or could not write there; "
            "wait until the server serves, and restart it if it was started without the log"
        )
    if one.log.complete:
        return ""
    begun = next((item for item in one.log.communicators if not item.complete), None)
    if begun is None:
        return f"NCCL's log ({one.log_path}) tells of no communicator of several ranks"
    return (
        f"NCCL began a communicator of {begun.ranks} ranks and has not finished it (last line: {one.log.last}): "
        "wait, or see whether a collective works at all on these GPUs (module nccl_preflight)"
    )


def _missing(rows: list[dict[str, Any]], expected: int) -> list[str]:
    if not rows:
        return ["no worker of the server was found: it is still starting, or it is not the engine that was declared"]
    if not expected or len(rows) == expected:
        return []
    ranks = ", ".join(str(row["rank"]) for row in rows)
    return [f"{len(rows)} of {expected} workers were found (rank {ranks}): look into the server's log for the others"]


def _ranks(seen: list[Seen], expected: int) -> list[str]:
    """Whether the logs tell of one communicator that joins all workers, each with a rank of its own."""
    if any(one.log is None or not one.log.complete for one in seen):
        return []  # said of each worker
    tables = [{item.identity: item.rank for item in one.log.communicators} for one in seen if one.log]
    for identity in set.intersection(*(set(table) for table in tables)):
        ranks = [table[identity] for table in tables]
        if len(set(ranks)) == len(ranks) == (expected or len(ranks)):
            return []
    return [f"NCCL's logs tell of no communicator that joins all {len(seen)} workers: they may be of different starts"]


def _reasons(
    rows: list[dict[str, Any]], declared: Mapping[str, str], given: Mapping[str, str], known: frozenset[str]
) -> list[str]:
    """One sentence for all that has the same cause in the same workers: eight workers fail in the same way."""
    workers_of: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        for what, cause in _facts(row, declared, given, known):
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


def _facts(
    row: dict[str, Any], declared: Mapping[str, str], given: Mapping[str, str], known: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """(what is wrong, why and how to fix it) of one worker."""
    for name, item in row["variables"].items():
        if item["verdict"] == CONTRADICTED:
            seen = "is not set" if item["seen"] is None else f"is {item['seen']!r}"
            what = f"{name} {seen} (declared: {declared[name]!r})"
            if item["seen"] == declared[name]:
                what = f"{name}={item['seen']} was not taken by NCCL"
            yield (
                what,
                item["cause"] or _from_file(item["source"]) or _given(given.get(name), declared[name], name in known),
            )
    for name, value in row["undeclared"].items():
        yield (
            f"{name} is {value!r} and not declared",
            "the server was started with another profile: write the declared one and restart it"
            if given.get(name) == value
            else _from_file(row["sources"][name])
            or "declare it in the profile or in llm_server.env, or take it away where it comes from",
        )
    if row["log"]["lacking"]:
        yield "unknown: what NCCL took", row["log"]["lacking"]
    unknown = [name for name, item in row["variables"].items() if item["verdict"] == UNKNOWN]
    if unknown or not row["complete"]:
        what = ", ".join(unknown) if unknown else "whether anything undeclared is set"
        # Without the number, so that the same cause in several workers is one sentence.
        cause = row["unreadable"].replace(f"/{row['pid']}/", "/PID/")
        yield (
            f"unknown: {what}",
            f"{cause}: run as root or as the server's user; a server that llm_server starts keeps its titles off",
        )


def _given(value: str | None, declared: str, elsewhere: bool) -> str:
    if value is not None and value != declared and elsewhere:
        return f"llm_server.env sets it to {value!r} and goes over the profile: correct one of the two"
    if value == declared:
        return "the server was started with it: something inside changes it (engine, wrapper, sitecustomize)"
    return "the server was started without this profile: restart it"


def _from_file(source: str) -> str:
    return f"it is from {source}: correct it there, and restart the server" if source.startswith("/") else ""


def _flags(seen: list[Seen], declared: Mapping[str, str]) -> list[str]:
    """What is no verdict on the profile and should still be known."""
    found: list[str] = []
    for one in seen:
        found.extend(f"{one.name}: {text}" for text in (network_within_host(one.log) if one.log else []))
        found.extend(f"{one.name}: NCCL warns: {text}" for text in (one.log.warnings if one.log else []))
        found.extend(f"{one.name}: {text}" for text in proof_sources.conflicts(sorted(declared), one.sources))
        if len(one.libraries or ()) > 1:
            found.append(f"{one.name} maps several libraries of NCCL: {', '.join(one.libraries or ())}")
    for what, values in (
        ("libraries of NCCL", {one.name: ", ".join(one.libraries) for one in seen if one.libraries}),
        ("versions of NCCL", {one.name: one.log.version for one in seen if one.log and one.log.version}),
        ("transports", {one.name: ", ".join(transports(one.log)) for one in seen if one.log and transports(one.log)}),
    ):
        if len(set(values.values())) > 1:
            found.append(f"workers have different {what}: " + "; ".join(f"{key}: {one}" for key, one in values.items()))
    return list(dict.fromkeys(found))


def network_within_host(log: ProcessLog) -> list[str]:
    """Sentences on communicators of one host that go over the network."""
    found = []
    for item in log.communicators:
        over = [f"{pair} via {way}" for pair, ways in item.transports.items() for way in ways if way.startswith("NET")]
        if over and item.nodes == 1:
            found.append(
                f"NCCL talks over the network within one host ({', '.join(over)}): neither P2P nor shared memory "
                "could be used (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, size of /dev/shm, IOMMU/ACS)"
            )
    return found


def transports(log: ProcessLog) -> list[str]:
    return sorted({name for item in log.communicators for names in item.transports.values() for name in names})
