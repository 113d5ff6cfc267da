# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a draft model is of the kind that the declared method takes; found before a start, on the host."""

from __future__ import annotations

import os
from typing import Any

from . import files
from .engines.base import is_local_path

_LARGEST = 4 << 20  # bytes of a config.json


def mismatch(declaration: dict[str, Any]) -> str:
    """Why the draft model cannot be the declared method's, as a sentence; "" where nothing speaks against it.

    Engines take an EAGLE-3 draft for EAGLE without a word, and then accept nothing of it.
    """
    declared = declaration["speculation"]
    algorithm, path = str(declared.get("algorithm", "")), declared.get("draft_model") or ""
    if algorithm.upper() not in ("EAGLE", "EAGLE3") or not is_local_path(path):
        return ""
    names = architectures(os.path.expanduser(path))
    third = [name for name in names if "eagle3" in name.lower()]
    if third and algorithm.upper() == "EAGLE":
        return (
            f"speculation.algorithm: {path} is an EAGLE-3 draft ({third[0]}), and {algorithm} would accept nothing of "
            "it; declare EAGLE3"
        )
    second = [name for name in names if "eagle" in name.lower()]
    if second and not third and algorithm.upper() == "EAGLE3":
        return f"speculation.algorithm: {path} is an EAGLE draft ({second[0]}), and no EAGLE-3 one; declare EAGLE"
    return ""


def architectures(folder: str) -> list[str]:
    """The architectures that a model's config.json names; [] where it names none or cannot be read."""
    try:
        with open(os.path.join(folder, "config.json"), "rb") as source:
            told = files.decode_json(source.read(_LARGEST))["architectures"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [one for one in told if isinstance(one, str)] if isinstance(told, list) else []
