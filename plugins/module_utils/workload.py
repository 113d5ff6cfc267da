# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A declared workload: defaults and validation."""

from __future__ import annotations

from typing import Any

DEFAULTS: dict[str, Any] = {
    "prompt_tokens": 128,
    "output_tokens": 128,
    "concurrency": [1],
    "requests": 1,
    "repeats": 5,
    "warmup_requests": 3,
    "warmup_cap_s": 60.0,
    "steady_share": 0.01,
    "seed": 0,
    "temperature": 0.0,
    "api": "completions",
    "request_timeout_s": 300.0,
    "max_error_share": 0.0,
    "prefix_cache": "defeat",
    "prompts_file": "",
}
APIS = ("completions", "chat")
PREFIX_CACHES = ("defeat", "flush", "keep")
_CHOICES = {"api": APIS, "prefix_cache": PREFIX_CACHES}

#: Name -> (type, lowest, highest value).
_RANGES: dict[str, tuple[type, float, float]] = {
    "prompt_tokens": (int, 8, 10_000_000),  # fewer leave no room for the nonce
    "output_tokens": (int, 2, 10_000_000),  # a rate needs two
    "requests": (int, 1, 1_000_000),
    "repeats": (int, 1, 10_000),
    "warmup_requests": (int, 0, 100_000),
    "warmup_cap_s": (float, 0, 86_400),
    "steady_share": (float, 0, 1),
    "seed": (int, 0, 2**63 - 1),
    "temperature": (float, 0, 10),
    "request_timeout_s": (float, 0.1, 86_400),
    "max_error_share": (float, 0, 0.99),
}
MAX_CONCURRENCY = 4096


class WorkloadError(ValueError):
    """A workload that cannot be run; the message says what to change."""


def resolve(given: dict[str, Any] | None) -> dict[str, Any]:
    """The complete workload: what was given over the defaults, each value of its type and in its range.

    Raises WorkloadError that names every problem.
    """
    given = dict(given or {})
    options = ", ".join(sorted(DEFAULTS))
    problems = [f"{name}: no such option; use some of {options}" for name in sorted(set(given) - set(DEFAULTS))]
    found: dict[str, Any] = {}
    for name, default in DEFAULTS.items():
        value = given.get(name)
        value = default if value is None else value
        if name == "concurrency":
            found[name] = _concurrency(value, problems)
        elif name in _CHOICES:
            found[name] = value
            if value not in _CHOICES[name]:
                problems.append(f"{name}: {value!r} is none of {', '.join(_CHOICES[name])}")
        elif name == "prompts_file":
            found[name] = value
            if not isinstance(value, str):
                problems.append(f"{name}: {value!r} is not a path")
        else:
            found[name] = _number(name, value, problems)
    if problems:
        raise WorkloadError("workload: " + "; ".join(problems))
    return found


def _number(name: str, value: Any, problems: list[str]) -> Any:
    kind, low, high = _RANGES[name]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or (kind is int and value != int(value)):
        problems.append(f"{name}: {value!r} is not {'a whole' if kind is int else 'a'} number")
    elif not low <= value <= high:
        problems.append(f"{name}: {value} is not within {low:g} to {high:g}")
    else:
        return int(value) if kind is int else float(value)
    return value


def _concurrency(value: Any, problems: list[str]) -> list[int]:
    levels = value if isinstance(value, list) else [value]
    good = [one for one in levels if isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= MAX_CONCURRENCY]
    if not levels or len(good) != len(levels):
        problems.append(f"concurrency: {value!r} is not a list of whole numbers from 1 to {MAX_CONCURRENCY}")
    elif len(set(good)) != len(good):
        problems.append(f"concurrency: {value!r} names a level twice")
    return good


def level_requests(workload: dict[str, Any], concurrency: int) -> int:
    """How many measured requests a level makes (warm-up not counted)."""
    return int(concurrency * workload["requests"] * workload["repeats"])
