"""How long the steps of earlier runs took on each host, and from that how long a host still needs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .content import cache_folder, plugin

KEPT = 5  # runs of a step
HOSTS = 1000  # entries of (kind of run, host); the oldest go first
_NAME = "durations.json"


class Durations:
    """{kind of run: {host: [[step, [seconds, ...]], ...]}}, in the order in which the steps ran last."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: default the user's cache. A file that is damaged or cannot be read counts as none."""
        self._path = (folder or cache_folder()) / _NAME
        self._kept = _sound(self._read())

    def _read(self) -> Any:
        try:
            return plugin("module_utils.files").read_json(str(self._path))
        except (OSError, ValueError):
            return None

    def remaining(self, kind: str, host: str, step: str, spent_s: float) -> float | None:
        """Seconds that a host still needs, ``spent_s`` into a step; None when this was not seen before."""
        steps = self._kept.get(kind, {}).get(host, [])
        names = [name for name, _seconds in steps]
        if step not in names:
            return None
        now, *later = [statistics.median(seconds) for _name, seconds in steps[names.index(step) :]]
        return float(max(0.0, now - spent_s) + sum(later))

    def add(self, kind: str, host: str, steps: Sequence[tuple[str, float]]) -> None:
        """Take in a run that was completed, its steps in their order."""
        before = dict(self._kept.get(kind, {}).pop(host, []))
        made = [[name, [*before.get(name, []), round(seconds, 2)][-KEPT:]] for name, seconds in steps]
        self._kept.setdefault(kind, {})[host] = made

    def save(self) -> None:
        """Write them. A cache that cannot be written is none."""
        entries = [(kind, host) for kind, hosts in self._kept.items() for host in hosts]
        for kind, host in entries[:-HOSTS]:
            del self._kept[kind][host]
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Not sorted: the order of the hosts is that of their last runs.
            plugin("module_utils.files").write_atomic(str(self._path), json.dumps(self._kept) + "\n", 0o600)
        except OSError:
            pass


def _sound(found: Any) -> dict[str, dict[str, list[Any]]]:
    """What of a file is as we write it."""
    if not isinstance(found, dict):
        return {}
    return {
        kind: {host: steps for host, steps in hosts.items() if isinstance(steps, list) and all(map(_step, steps))}
        for kind, hosts in found.items()
        if isinstance(hosts, dict)
    }


def _step(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        return False
    seconds = value[1]
    return isinstance(seconds, list) and bool(seconds) and all(map(plugin("module_utils.files").is_number, seconds))
