# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How long phases may take, how long they took the last time, and what the difference says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from . import files

#: Kept in the server's folder: the last ready start of each declaration.
FILE = "starts.json"
KEPT_STARTS = 8
#: Phase -> (seconds, seconds more per GiB of model). Weights: 100 MiB/s is a slow network file system.
LIMITS: dict[str, tuple[float, float]] = {
    "starting": (600.0, 0.0),
    "reading arguments": (600.0, 0.0),
    "starting engine": (600.0, 0.0),
    "distributed init": (300.0, 0.0),
    "loading weights": (600.0, 10.0),
    "loading model": (600.0, 10.0),
    "compiling": (1200.0, 2.0),
    "allocating KV cache": (600.0, 1.0),
    "capturing graphs": (1200.0, 2.0),
    "starting HTTP": (300.0, 0.0),
    "warming up": (1200.0, 2.0),
}
#: The whole start.
TOTAL = (600.0, 10.0)
#: A start that took longer before may take this many times as long again.
LENIENCE = 3.0
#: A difference is worth a word from this share and these seconds on.
TOLD_SHARE, TOLD_S = 0.2, 2.0
_GIB = 2.0**30


def model_bytes(path: str) -> int | None:
    """Size on disk of a model: a file, or all files of a folder (links followed). None when there is no such path."""
    path = os.path.expanduser(path)
    try:
        if not os.path.isdir(path):
            return os.stat(path).st_size
        total = 0
        for folder, _folders, names in os.walk(path):
            for name in names:
                try:
                    total += os.stat(os.path.join(folder, name)).st_size
                except OSError:
                    continue
        return total
    except OSError:
        return None


def limit_s(
    phase: str, model_gib: float | None, was_s: float | None = None, own: Mapping[str, float] | None = None
) -> float | None:
    """Seconds that a phase may take; None: as long as it likes (unknown phase, or weights that are still fetched).

    ``own``: limits of the user by phase, 0 for none. ``was_s``: how long it took the last time.
    """
    if own and phase in own:
        return float(own[phase]) or None
    if phase not in LIMITS:
        return None
    base, per_gib = LIMITS[phase]
    if per_gib and model_gib is None:
        return None
    return max(base + per_gib * (model_gib or 0.0), LENIENCE * (was_s or 0.0))


def total_s(model_gib: float | None, was_s: float | None = None) -> float:
    """Seconds that a whole start may take when nobody says."""
    base, per_gib = TOTAL
    return max(base + per_gib * (model_gib or 0.0), LENIENCE * (was_s or 0.0))


def last_start(folder: str, declaration_hash: str) -> dict[str, Any]:
    """The last ready start with this declaration: elapsed_s, phases; {} when there is none (of use)."""
    return _load(folder).get(declaration_hash, {})


def remember(folder: str, declaration_hash: str, start: dict[str, Any]) -> None:
    """Keep a ready start (elapsed_s, ready_at, phases) as the last one of its declaration. Raises OSError."""
    starts = _load(folder)
    starts[declaration_hash] = start
    newest = sorted(starts, key=lambda key: float(starts[key].get("ready_at", 0.0)))[-KEPT_STARTS:]
    files.write_json(os.path.join(folder, FILE), {key: starts[key] for key in newest})


def _load(folder: str) -> dict[str, dict[str, Any]]:
    try:
        raw = files.read_json(os.path.join(folder, FILE))
    except (OSError, ValueError):
        return {}  # it only serves comparison, and is written anew
    return {key: one for key, one in raw.items() if _is_start(one)} if isinstance(raw, dict) else {}


def _is_start(one: Any) -> bool:
    numbers = [one.get("elapsed_s", 0.0), one.get("ready_at", 0.0)] if isinstance(one, dict) else [None]
    return all(map(files.is_number, numbers)) and are_phases(one.get("phases"))


def are_phases(value: Any) -> bool:
    """Whether a value that was read from a file is a list of phases."""
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and files.is_number(one.get("at_s"))
        and all(one.get(key) is None or files.is_number(one[key]) for key in ("seconds", "was_s", "disk_bytes"))
        and isinstance(one.get("note", ""), str)
        for one in value
    )


def comparable(phases: list[dict[str, Any]], watched_from_s: float) -> list[dict[str, Any]]:
    """The phases of a start, without the length of the last one where it was over before the first look at it."""
    ended = [index for index, one in enumerate(phases) if one.get("seconds") is not None]
    return [
        {**one, "seconds": None} if ended and index == ended[-1] and one["at_s"] < watched_from_s else one
        for index, one in enumerate(phases)
    ]


def compare(phases: list[dict[str, Any]], last: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The phases with ``was_s`` (None: the last start did not have it) and ``note``, the difference in words or ""."""
    found: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for one in phases:
        name = one["name"]
        seen[name] = seen.get(name, 0) + 1
        was = _nth(last.get("phases") or [], name, seen[name])
        was_s = was.get("seconds")
        found.append({**one, "was_s": was_s, "note": _note(one, was)})
    return found


def _nth(phases: list[dict[str, Any]], name: str, nth: int) -> dict[str, Any]:
    same = [one for one in phases if isinstance(one, dict) and one.get("name") == name]
    return same[nth - 1] if len(same) >= nth else {}


def _note(one: Mapping[str, Any], was: Mapping[str, Any]) -> str:
    now_s, was_s = one.get("seconds"), was.get("seconds")
    if now_s is None or was_s is None:
        return ""
    if abs(now_s - was_s) < max(TOLD_S, TOLD_SHARE * was_s):
        return ""
    words = f"{one['name']} {now_s:.0f} s, was {was_s:.0f} s"
    read, before = one.get("disk_bytes"), was.get("disk_bytes")
    if read is None or before is None or abs(read - before) < 0.5 * max(read, before, _GIB):
        return words
    # Only then is the page cache an explanation: what one start read from the disk, the other found in memory.
    cache = "page cache cold" if read > before else "page cache warm"
    return f"{words}: {cache} ({read / _GIB:.1f} GiB read from disk, was {before / _GIB:.1f})"
