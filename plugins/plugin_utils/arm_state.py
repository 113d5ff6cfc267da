# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""In what two arms differ: as declared, and as their servers really ran; and which of the latter was not declared.

Both sides are flat: *what* -> value, where *what* is "engine version", "argument --x", "environment Y", "resolved
argument z", "package p" and so on. A difference is declared when the declarations differ in the same thing, when it
follows from one that they differ in (``covers``, a policy of the role), or when it was accepted (``allow``).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..module_utils import declaration, nccl_profiles, servers, workload
from ..module_utils.engines import ENGINES, get_engine
from ..module_utils.fingerprint import compare
from . import told_parts

Flat = dict[str, Any]
Row = dict[str, Any]

#: Differ from start to start, whatever the arm, or are told under another name.
_PASSING = {f"environment {servers.START_VARIABLE}", f"environment {servers.SERVER_VARIABLE}", "argument --port"}
#: Sentences of the engine on what it changed by itself.
_LONGEST = 48  # characters of a value in a table
_SAID = "the engine says"
_NOT_DECLARED = "not declared"
_ACCEPTED = "accepted by compare_allow"


# --- as declared -------------------------------------------------------------------------------------


def declared(variables: Mapping[str, Any], profiles: Mapping[str, Any]) -> Flat:
    """What an arm's final variables ask for. ``profiles``: the NCCL profiles that there are.

    Raises ValueError for a declaration that is none.
    """
    found: Flat = {}
    raw = variables.get("llm_server")
    profile = variables.get("nccl_profile_name")
    if profile:
        found["NCCL profile"] = profile
        own = variables.get("nccl_profiles") or {}
        chosen = nccl_profiles.resolve(profile, {**profiles, **own})
        found.update({f"environment {name}": value for name, value in chosen.variables.items()})
    if raw:
        made = declaration.complete({name: value for name, value in raw.items() if value is not None})
        engine = get_engine(made["engine"])
        path = variables.get("ml_env_path") or ""
        found["engine"], found["model path"] = made["engine"], made["model"]
        found.update(_arguments(engine.argv(made, path, made["port"])))
        environment = {**engine.environment(made), **made["env"]}
        environment.update({name: declaration.secret_hash(value) for name, value in engine.secrets(made).items()})
        found.update({f"environment {name}": value for name, value in environment.items()})
    if variables.get("baseline_workload") is not None:
        asked = workload.resolve(variables["baseline_workload"])
        found.update({f"workload {name}": value for name, value in asked.items()})
    for name, value in (variables.get("gpu_clocks") or {}).items():
        found[f"clocks {name}"] = value
    plain = {"llm_server", "nccl_profile_name", "nccl_profiles", "baseline_workload", "gpu_clocks"}
    found.update({f"variable {name}": value for name, value in variables.items() if name not in plain})
    return _lasting({what: value for what, value in found.items() if value is not None})


def _arguments(argv: Sequence[str]) -> Flat:
    return {f"argument {name}": value for name, value in compare.arguments(list(argv)).items()}


def _lasting(found: Flat) -> Flat:
    return {what: value for what, value in found.items() if what not in _PASSING}


# --- as it ran ---------------------------------------------------------------------------------------


def ran(record: Mapping[str, Any]) -> Flat:
    """What the fingerprint before the measurement, and the engine, say of a start. None: it could not be told.

    What cannot be told as a whole is there as ``told_parts.NOT_TOLD`` and its name.
    """
    sections = (record["fingerprints"].get("before") or {}).get("sections") or {}
    server, packages = sections.get("server") or {}, sections.get("python_env") or {}
    found: Flat = {"engine": server.get("engine"), "engine version": server.get("version")}
    if record.get("profile"):
        found["NCCL profile"] = record["profile"]
    found.update(_arguments(server.get("argv") or []))
    found.update({f"environment {name}": value for name, value in (server.get("environment") or {}).items()})
    found.update({f"resolved argument {name}": value for name, value in (server.get("resolved") or {}).items()})
    found.update({f"NCCL {path}": value for path, value in (server.get("nccl_mapped") or {}).items()})
    found.update({f"package {name}": value for name, value in (packages.get("distributions") or {}).items()})
    for key in ("edited", "missing", "added"):
        found.update({f"file {name}": key for name in packages.get(key) or []})
    found["files that differ from the wheels"] = packages.get("difference_hash")
    for key, label in (("patched", "patch"), ("customised", "file"), ("sources", "source")):
        found.update({f"{label} {name}": value for name, value in (packages.get(key) or {}).items()})
    found.update(_flatten("model", sections.get("model") or {}))
    found.update(_flatten("Python", {key: packages.get(key) for key in ("python", "implementation")}))
    for name in ("hardware", "kernel"):
        found.update(_flatten(name, sections.get(name) or {}))
    found.update({f"workload {name}": value for name, value in record["measurement"]["workload"].items()})
    found.update(_workers((record.get("proof") or {}).get("workers") or []))
    told = record.get("comparison") or {}
    found.update({f"{one['what']}, as it runs": one["resolved"] for one in told.get("resolved_otherwise") or []})
    found.update({f"{_SAID}: {text}": "yes" for text in told.get("adjustments") or []})
    found.update({told_parts.NOT_TOLD + name: "yes" for name in told_parts.untold(record)})
    return _lasting(found)


def _workers(workers: Sequence[Mapping[str, Any]]) -> Flat:
    """What the proof saw in the workers; a value that is not the same in all of them as all of its values."""
    seen: dict[str, set[str]] = {}

    def note(what: str, value: Any) -> None:
        if value not in (None, "", {}):
            seen.setdefault(what, set()).add(str(value))

    for worker in workers:
        for name, one in (worker.get("variables") or {}).items():
            note(f"worker environment {name}", one.get("seen"))
        for key in ("undeclared", "set_by_engine"):
            for name, value in (worker.get(key) or {}).items():
                note(f"worker environment {name}", value)
        note("NCCL version", worker.get("nccl_version"))
        for communicator in worker.get("communicators") or []:
            for names in (communicator.get("transports") or {}).values():
                for name in names:
                    note("NCCL transport", name)
    return {what: ", ".join(sorted(values)) for what, values in seen.items()}


def _flatten(label: str, value: Any) -> Flat:
    """Dictionaries and lists, at any depth, as one line for each leaf."""
    if isinstance(value, Mapping):
        pairs = [(str(key).replace("_", " "), one) for key, one in value.items()]
    elif isinstance(value, list) and any(isinstance(one, (Mapping, list)) for one in value):
        pairs = [(str(index), one) for index, one in enumerate(value)]
    else:
        return {label: value}
    found: Flat = {}
    for key, one in pairs:
        found.update(_flatten(f"{label} {key}", one))
    return found


#: Of these few the document keeps the values themselves; everything else is in the records.
_KEPT = {
    "engine": re.compile(r"engine(?: version)?"),
    "arguments": re.compile(r"argument (?P<name>.*)"),
    "engine_arguments": re.compile(r"resolved argument (?P<name>.*)"),
    "environment": re.compile(r"environment (?P<name>.*)"),
}


def resolved(flat: Flat) -> dict[str, Any]:
    """What an arm's server ran with, for the document: engine, arguments, environment, what the engine made of it."""
    found: dict[str, Any] = {name: {} for name in _KEPT if name != "engine"}
    found["engine"], found["version"] = flat.get("engine"), flat.get("engine version")
    for what, value in flat.items():
        for group, pattern in _KEPT.items():
            hit = pattern.fullmatch(what)
            if hit and hit.groupdict():
                found[group][hit["name"]] = value
    return found


# --- differences -------------------------------------------------------------------------------------


def differing(base: Flat, other: Flat) -> list[str]:
    """What is not the same, or on one side only."""
    return [what for what in sorted({*base, *other}) if base.get(what) != other.get(what)]


def planned(arm: str, base: Flat, other: Flat) -> list[Row]:
    """The differences that two declarations make by themselves."""
    return [_row(arm, what, base, other, "declared", True) for what in differing(base, other)]


def differences(
    arm: str,
    asked: tuple[Flat, Flat],
    seen: tuple[Flat, Flat],
    covers: Iterable[Mapping[str, Any]],
    allow: Sequence[str],
) -> list[Row]:
    """Every difference of an arm from the reference, declared or not, as the document keeps it.

    ``asked`` and ``seen``: (reference, arm) of :func:`declared` and :func:`ran`. ``covers``: ``{declared, covers,
    except, only_declared_names}``, see :func:`_follows`. ``allow``: patterns that were accepted.
    """
    rows = planned(arm, *asked)
    for row in rows:
        if _without_effect(row["what"], *seen) and not any(fnmatch.fnmatchcase(row["what"], one) for one in allow):
            row.update(declared=False, why=f"declared, and both ran with {text_of(seen[1].get(row['what']))}")
    by_what = {row["what"] for row in rows}
    follows = list(_following(by_what, covers))
    names = {what for side in asked for what in side}
    engine = ENGINES.get(str(seen[1].get("engine")))
    flags = {_argument(engine, what) for what in by_what if what.startswith("argument --")}
    said = [set(_sentences(one)) for one in seen]

    def judged(what: str) -> tuple[str, bool]:
        return _why(what, by_what, names, follows, flags, allow)

    missing = told_parts.missing(seen)
    rows += _missing(arm, missing, judged)
    parts = [part for part, _told_by in missing]
    for what in differing(*seen):
        if what in by_what or what.startswith((_SAID, told_parts.NOT_TOLD)) or not _told(what, *seen):
            continue
        if told_parts.belongs(what, parts):
            continue
        why, known = judged(what)
        row = _row(arm, what, seen[0], seen[1], why, known)
        told = [text for text in sorted(said[0] ^ said[1]) if _speaks_of(text, what)]
        if told:
            row["why"] += f"; {_SAID}: {told[0]}"
            said[0] -= set(told)
            said[1] -= set(told)
        rows.append(row)
    for text in sorted(said[0] ^ said[1]):
        why, known = judged(f"{_SAID}: {text}")
        rows.append({**_row(arm, f"{_SAID}: {text}", seen[0], seen[1], why, known)})
    return rows


def _missing(
    arm: str, missing: Iterable[tuple[told_parts.Part, list[bool]]], judged: Callable[[str], tuple[str, bool]]
) -> list[Row]:
    """A row for each part that one side does not tell, and one for all those that neither does.

    ``judged``: why a difference is there, and whether it may be. A part may be missing where what it holds may differ,
    or where its own name was accepted.
    """
    rows, neither = [], []
    for part, told in missing:
        if not any(told):
            neither.append(part.name)
            continue
        judgements = [judged(one) for one in part.members]
        # Rules speak of the members; only compare_allow knows the name of the part.
        named = judged(part.name)
        if named[0].startswith(_ACCEPTED):
            judgements.append(named)
        why, known = next((one for one in judgements if one[1]), (_NOT_DECLARED, False))
        values = [told_parts.KNOWN if one else told_parts.NOT_KNOWN for one in told]
        rows.append(_row(arm, part.name, {part.name: values[0]}, {part.name: values[1]}, why, known))
    if neither:
        what = told_parts.NOT_COMPARED + ", ".join(neither)
        unknown = {what: told_parts.NOT_KNOWN}
        rows.append(_row(arm, what, unknown, unknown, "neither start tells it", True))
    return rows


#: Told by the log of NCCL or by none: a server of one worker has none, and differs in that from one of several.
_OF_SEVERAL_WORKERS = ("NCCL version", "NCCL transport")


def _told(what: str, base: Flat, other: Flat) -> bool:
    """Whether both sides tell this thing: one that is unknown on a side is no difference."""
    if what in _OF_SEVERAL_WORKERS:
        return what in base and what in other
    return not any(what in side and side[what] is None for side in (base, other))


#: What a declaration promises and a start shows, besides variables. Locked clocks are read back by the one who locks.
_SHOWN_BY_A_START = ("argument ", "workload ", "engine")


def _without_effect(what: str, base: Flat, other: Flat) -> bool:
    """Whether a declared difference is not there in what ran: then the arms are one, and nothing is compared."""
    if what.startswith("environment "):
        # A profile may put it where the fingerprint does not see it, and the proof sets some of NCCL by itself.
        seen = what in base and what in other and not what.startswith("environment NCCL_")
        return seen and bool(base[what] == other[what])
    if not what.startswith(_SHOWN_BY_A_START) or not any(one.startswith("argument ") for one in {*base, *other}):
        return False
    return bool(base.get(what) == other.get(what))


def _row(arm: str, what: str, base: Flat, other: Flat, why: str, known: bool) -> Row:
    return {
        "arm": arm,
        "what": what,
        "reference": base.get(what),
        "value": other.get(what),
        "declared": known,
        "why": why,
    }


def _following(
    declared_rows: Iterable[str], covers: Iterable[Mapping[str, Any]]
) -> Iterable[tuple[Mapping[str, Any], str]]:
    """The rules that apply, each with the declared difference that it applies for."""
    for rule in covers:
        cause = next((what for what in sorted(declared_rows) if fnmatch.fnmatchcase(what, rule["declared"])), None)
        if cause is not None:
            yield rule, cause


def _follows(what: str, rule: Mapping[str, Any], names: set[str]) -> bool:
    """Whether a rule covers a difference: one of its patterns ``covers`` does, and none of ``except``.

    ``only_declared_names``: and an arm declares it, if only with the same value as the others. ``names``: all that the
    arms declare.
    """
    if rule.get("only_declared_names") and what.removeprefix("worker ") not in names:
        return False
    within, without = (any(fnmatch.fnmatchcase(what, one) for one in rule.get(key, ())) for key in ("covers", "except"))
    return within and not without


def _argument(engine: Any, what: str) -> str:
    """ "argument --tensor-parallel-size" as the engine's own name of it, with underscores."""
    name = what.partition("--")[2].replace("-", "_")
    return str(engine.same_argument.get(name, name)) if engine is not None else name


def _why(
    what: str,
    rows: set[str],
    names: set[str],
    follows: Iterable[tuple[Mapping[str, Any], str]],
    flags: set[str],
    allow: Sequence[str],
) -> tuple[str, bool]:
    for rule, cause in follows:
        if _follows(what, rule, names):
            return f"follows from {cause}", True
    if what.startswith("resolved argument ") and what.removeprefix("resolved argument ") in flags:
        return "declared as an argument", True
    if what.startswith("worker ") and what.removeprefix("worker ") in rows:
        return "declared as a variable", True
    for pattern in allow:
        if what == pattern or fnmatch.fnmatchcase(what, pattern):
            return f"{_ACCEPTED}: {pattern}", True
    return _NOT_DECLARED, False


def _sentences(flat: Flat) -> list[str]:
    return [what.partition(": ")[2] for what in flat if what.startswith(_SAID)]


def _speaks_of(text: str, what: str) -> bool:
    """Whether a sentence of the engine names an argument, such as "Max running requests is reset to 48"."""
    name = re.sub(r"^(resolved )?argument -*", "", what.removesuffix(", as it runs")).replace("-", "_")
    plain = re.sub(r"[\W_]+", " ", text.lower())
    return len(name) > 3 and re.sub(r"[\W_]+", " ", name.lower()).strip() in plain


def undeclared(rows: Iterable[Row]) -> list[Row]:
    """The differences that stand in the way."""
    return [row for row in rows if not row["declared"]]


def text_of(value: Any) -> str:
    """A value for a table, cut where it is long."""
    text = "not set" if value is None else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
