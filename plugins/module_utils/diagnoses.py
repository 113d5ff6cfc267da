# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Recognise a known failure in a log: the rows are in known_failures.py, to add one is a row there and its test."""

from __future__ import annotations

import re
from typing import Any

from . import log_lines
from .engines.base import Engine
from .failure_numbers import Context
from .known_failures import TABLE


def diagnose(
    lines: list[str], declaration: dict[str, Any] | None = None, engine: Engine | None = None, model_gib: float = 0.0
) -> dict[str, Any] | None:
    """The first known failure that a log shows; None when none is known.

    Returns name, cause, remedy, the line, and ``evidence``: what of the host should be looked at besides (see
    death.py). The declaration, the engine (it tells the phase) and the size of the model on disk in GiB make numbers in
    the remedy possible.
    """
    lines = log_lines.relevant(lines)
    text = "\n".join(lines)
    context = Context(lines, declaration or {}, _phase(engine, lines), model_gib)
    for row in TABLE:
        if row.phases and context.phase not in row.phases:
            continue
        found = re.search(row.pattern, text)
        if found:
            groups = [one.strip() if one else "" for one in found.groups()]
            number = row.number(found, context) if row.number else ""
            return {
                "name": row.name,
                "cause": re.sub(r" \(\)|: $", "", row.cause.format(*groups)),
                "remedy": number or row.remedy,
                "line": _line(lines, found.group(0)),
                "evidence": row.evidence,
            }
    return None


def _phase(engine: Engine | None, lines: list[str]) -> str:
    """The last phase that the log tells; "" when it tells none."""
    names = (engine.phase_of(line) for line in reversed(lines)) if engine else iter(())
    return next((name for name in names if name), "")


def _line(lines: list[str], matched: str) -> str:
    first = matched.split("\n")[0]
    return next((one for one in lines if first in one), first).strip()[:500]
