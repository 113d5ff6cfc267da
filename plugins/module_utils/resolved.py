# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an engine made of its arguments, against what was declared. Pure: replies and log lines in, differences out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .argument_check import given
from .engines.base import Engine

#: An engine may say the same for each rank or step; what is more is cut.
ADJUSTMENTS = 20


def differences(
    engine: Engine, declaration: dict[str, Any], argv: list[str], info: Any, model: dict[str, Any]
) -> list[dict[str, str]]:
    """``what``, ``declared`` and ``resolved`` of each argument with which the engine does not run as declared.

    ``info``: reply of the engine's ``info_path`` (None: it has none); ``model``: our entry of its model list.
    """
    found = []
    resolved = engine.resolved(info if isinstance(info, dict) else {}, model)
    for one in given(argv):
        plain = one.name.lstrip("-").replace("-", "_")
        name = engine.same_argument.get(plain, plain)
        if name in resolved and not _same(list(one.values), resolved[name]):
            declared = " ".join(one.values) or "set"
            found.append({"what": one.name, "declared": declared, "resolved": _text(resolved[name])})
    wanted, limit = declaration["context_length"], resolved.get("longest_request")
    if wanted and isinstance(limit, (int, float)) and limit < wanted:
        found.append({"what": "context_length", "declared": str(wanted), "resolved": f"{int(limit)} tokens at most"})
    return found


def _same(declared: list[str], resolved: Any) -> bool:
    """Whether a resolved value is the declared one, in whatever type; what cannot be compared counts as the same."""
    if isinstance(resolved, list):
        return declared == [str(one) for one in resolved]
    if isinstance(resolved, bool) or not declared:
        return bool(resolved) is (not declared or declared[0].lower() in ("true", "1", "yes"))
    if isinstance(resolved, (int, float)):
        try:
            return float(declared[0]) == float(resolved)
        except ValueError:
            return True  # "8K" and such
    return resolved is None or isinstance(resolved, dict) or declared[0] in (str(resolved), "auto")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "set" if value else "not set"
    return " ".join(str(one) for one in value) if isinstance(value, list) else str(value)


def adjustments(engine: Engine, lines: Iterable[str]) -> list[str]:
    """What the engine says in its log of values that it changed by itself, each once, without stamps."""
    found: list[str] = []
    for line in lines:
        if engine.leader_pattern and not re.search(engine.leader_pattern, line):
            continue
        for pattern in engine.adjustments:
            hit = re.search(pattern, line)
            if hit:
                text = " ".join(hit.group(1).split())[:300]
                if engine.adjustment_passing:
                    text = re.sub(engine.adjustment_passing, "N", text)
                if text not in found:
                    found.append(text)
                break
    return found[:ADJUSTMENTS]
