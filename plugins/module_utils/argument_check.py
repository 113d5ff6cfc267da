# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Arguments held against what an engine's parser knows: unknown, renamed, without effect, of the wrong kind. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .engines.base import Engine

_NUMBERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float}
_NUMBER_NAMES = {"int": "a whole number", "float": "a number"}
_OUTDATED = re.compile(r"deprecat|has no effect", re.IGNORECASE)


@dataclass(frozen=True)
class Parser:
    """What a parser knows. ``why`` tells why it could not be asked ("" when it was), ``version`` is the engine's."""

    flags: list[dict[str, Any]] = field(default_factory=list)
    flexible: bool = False
    version: str = ""
    why: str = ""

    def find(self, name: str) -> dict[str, Any] | None:
        """The flag of this name (with its dashes), or None. Abbreviations are not guessed."""
        for one in self.flags:
            if name in one["names"]:
                return one
        if self.flexible:
            plain = name.partition(".")[0].replace("_", "-")
            if plain != name:
                return self.find(plain)
        return None

    def names(self) -> list[str]:
        return sorted(name for one in self.flags for name in one["names"])


@dataclass(frozen=True)
class Given:
    """One flag of a command line with its values."""

    name: str
    values: tuple[str, ...]


def given(words: list[str]) -> list[Given]:
    """The flags of a command line; words before the first flag are left out. ``-1`` and ``-0.5`` are values."""
    found: list[Given] = []
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, separator, value = word.partition("=")
            found.append(Given(name, (value,) if separator else ()))
        elif found:
            found[-1] = Given(found[-1].name, (*found[-1].values, word))
    return found


def check(engine: Engine, declaration: dict[str, Any], words: list[str], parser: Parser) -> tuple[list[str], list[str]]:
    """(problems, warnings) of a command line, as sentences that name the field of the declaration.

    Where the parser could not be asked, only what the engine's tables know of this version is told, as warnings.
    """
    named = f"{engine.title} {parser.version}".strip()
    problems: list[str] = []
    warnings: list[str] = []
    extra = {_dashed(str(name)) for name in declaration["extra_args"]}
    made: dict[str, str] = {}
    for one in given(words):
        where = f"extra_args.{one.name.lstrip('-')}" if one.name in extra else f"{one.name} (made from llm_server)"
        instead = _instead(engine, one.name)
        if parser.why:
            if instead and _at_least(parser.version, instead[1]):
                warnings.append(f"{where}: {named} no longer has it; {instead[0]}")
            continue
        known = parser.find(one.name)
        if known is None:
            remedy = instead[0] if instead else _nearest(one.name, parser)
            problems.append(f"{where}: {named} has no argument {one.name}; {remedy}")
            continue
        if known["dest"] in made and one.name in extra and made[known["dest"]] not in extra:
            problems.append(
                f"{where}: it is another name of {made[known['dest']]}, which is made from another field of the "
                "declaration; set it there"
            )
        made.setdefault(known["dest"], one.name)
        wrong = _wrong_values(one, known)
        if wrong:
            problems.append(f"{where}: {named} {wrong}")
        elif _OUTDATED.search(known["help"]) and _speaks_of_itself(one.name, known["help"]):
            warnings.append(f"{where}: {named} says of it: {known['help']}")
    return problems, warnings


def _dashed(name: str) -> str:
    return name if name.startswith("-") else ("-" if len(name) == 1 else "--") + name


def _instead(engine: Engine, name: str) -> tuple[str, str] | None:
    """(what to do, version from which on the flag is gone) where the engine's table knows the old name."""
    plain = name.lstrip("-").replace("_", "-")
    for row in engine.gone:
        if row.old == plain:
            told = f"use {row.new}" if row.new else row.why
            return told + (f" ({row.why})" if row.new and row.why else ""), row.since
    return None


def _nearest(name: str, parser: Parser) -> str:
    names = [one for one in parser.names() if one.startswith("--")]
    known = parser.find("-" + name.lstrip("-"))  # vLLM has -tp, and an extra_args.tp becomes --tp
    if known:
        return f"did you mean {', '.join(known['names'])}?"
    whole = [one for one in names if one.startswith(name)]
    found = whole[:1] if len(whole) == 1 else difflib.get_close_matches(name.replace("_", "-"), names, 1, 0.6)
    if found:
        return f"did you mean {found[0]}?"
    return "remove it from extra_args, or see the engine's --help"


def _wrong_values(one: Given, known: dict[str, Any]) -> str:
    """What is wrong with a flag's values, in words that follow the engine's name; "" when nothing is."""
    nargs, count = known["nargs"], len(one.values)
    least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(str(nargs), (1, 1))
    if isinstance(nargs, int):
        least = most = nargs
    if nargs == "...":
        return ""
    if count < least or (most is not None and count > most):
        wants = "no value" if most == 0 else "one value" if least == most == 1 else f"{least} or more values"
        return f"takes {wants} for {one.name}, not {' '.join(one.values) or 'none'}"
    for value in one.values:
        if known["choices"] is not None and value not in known["choices"]:
            near = difflib.get_close_matches(value, known["choices"], 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else f" (one of {', '.join(known['choices'][:12])})"
            return f"does not know {value!r} for {one.name}{hint}"
        convert = _NUMBERS.get(known["type"])
        if convert:
            try:
                convert(value)
            except ValueError:
                return f"takes {_NUMBER_NAMES[known['type']]} for {one.name}, not {value!r}"
    return ""


def _speaks_of_itself(name: str, text: str) -> bool:
    """Whether a help text that has the word "deprecated" says it of the flag, and not of something else."""
    start = text.lstrip("( ").lower()
    return start.startswith(("deprecated", name.lower())) or "has been replaced by" in start


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", version.partition("+")[0])[:3])


def _at_least(version: str, since: str) -> bool:
    return bool(version and since) and _numbers(version) >= _numbers(since)
