# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run an interpreter in every way in which engines start their workers, and see which variables it has then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from . import python_startup
from .file_change import Change

_HERE = """
import json, os, sys
print("\\ngroundstate", json.dumps([os.environ.get(one) for one in json.loads(sys.argv[1])]))
"""
_CHILD = f"import json, subprocess, sys; subprocess.run([sys.executable, '-c', {_HERE!r}, sys.argv[1]], check=True)"
# os.getenv is found by its name in whatever child there is: nothing of this code has to be there.
_POOL = """
import json, multiprocessing, os, sys
with multiprocessing.get_context(sys.argv[2]).Pool(1) as pool:
    print("\\ngroundstate", json.dumps(pool.map(os.getenv, json.loads(sys.argv[1]))))
"""
# (how, options of the interpreter, code, its arguments, whether start-up code runs then)
_WAYS: tuple[tuple[str, list[str], str, list[str], bool], ...] = (
    ("plain", [], _HERE, [], True),
    ("-I", ["-I"], _HERE, [], True),
    ("-E", ["-E"], _HERE, [], True),
    ("subprocess", [], _CHILD, [], True),
    ("fork", [], _POOL, ["fork"], True),
    ("spawn", [], _POOL, ["spawn"], True),
    ("forkserver", [], _POOL, ["forkserver"], True),
    ("-S", ["-S"], _HERE, [], False),
)


@dataclass(frozen=True)
class Row:
    """One way to start. ``expected``: whether start-up code runs then at all."""

    how: str
    set: bool  # every variable has its value
    expected: bool
    values: dict[str, str | None]
    why: str  # what the interpreter said when it failed; "" when it did not

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(python: str, variables: Mapping[str, str]) -> list[Row]:
    """The table for these variables, with a clean environment. Nothing is raised: a failure is a row."""
    names = sorted(variables)
    rows = []
    for how, options, code, arguments, expected in _WAYS:
        values, why = _ask([python, *options, "-c", code, json.dumps(names), *arguments], names)
        right = bool(values) and all(values[name] == variables[name] for name in names)
        rows.append(Row(how, right, expected, values, why))
    return rows


def establish(of: python_startup.Interpreter, planned: list[Change], variables: Mapping[str, str]) -> list[Row]:
    """Do what was planned and prove it; what is not proved is undone.

    Raises StartupError that says what stands in the way, OSError for a file that cannot be written.
    """
    done: list[Change] = []
    try:
        for one in planned:
            one.do()
            done.append(one)
        rows = run(of.executable, variables) if variables else []
        wrong = failures(rows, variables)
        if wrong:
            raise python_startup.StartupError(
                f"the start of {of.executable} does not set what it should, and everything was put back: "
                f"{'; '.join(wrong)}. Look for what else sets them: {', '.join(of.sitecustomize) or 'no sitecustomize'}"
                f", *.pth in {of.site_packages}"
            )
    except BaseException:
        for one in reversed(done):
            one.undo()
        raise
    return rows


def failures(rows: list[Row], variables: Mapping[str, str]) -> list[str]:
    """Why the table is no proof, a sentence per way to start; [] when it is."""
    found = []
    for row in rows:
        if row.expected and not row.set:
            wrong = ", ".join(
                f"{name} is {row.values.get(name)!r} instead of {variables[name]!r}"
                for name in sorted(variables)
                if row.values.get(name) != variables[name]
            )
            found.append(f"{row.how}: {wrong}{f' ({row.why})' if row.why else ''}")
    return found


def table(rows: list[Row]) -> list[str]:
    """Lines for a person."""
    words = {True: "set", False: "not set"}
    return [f"{row.how:<11} {words[row.set]}{'' if row.expected else ' (no start-up code runs then)'}" for row in rows]


def _ask(argv: list[str], names: list[str]) -> tuple[dict[str, str | None], str]:
    try:
        status, out, said = python_startup.run(argv)
    except OSError as error:
        return {}, str(error)
    values = python_startup.answer(out)
    words = " ".join(said.split())[-300:]
    if not isinstance(values, list) or len(values) != len(names):
        return {}, words or f"exit status {status}"
    return dict(zip(names, values)), words
