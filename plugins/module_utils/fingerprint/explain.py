# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Why two measurements may differ: the fingerprints, the conditions around them, what was seen under load."""

from __future__ import annotations

from typing import Any

from . import compare
from .compare import LIMITS, PASSING, TENANTS, UNDER_LOAD, Finding

# Smaller changes of what moves by itself are no explanation.
_CLOCK_SHARE = 0.02
_POWER_SHARE = 0.02
_REASON_SHARE = 0.05  # of the time under load
_DEGREES = 10.0
_LOAD = 1.0  # runnable processes
_CORES = 0.5


def explain(
    a: dict[str, Any],
    b: dict[str, Any],
    load_a: dict[str, Any] | None = None,
    load_b: dict[str, Any] | None = None,
) -> list[str]:
    """Sentences on what changed from fingerprint ``a`` to ``b``, ordered by how likely it moves performance.

    ``load_a`` and ``load_b``: what :func:`.under_load.summary` says of the two measurements.
    """
    found = compare.findings(a, b)
    found += _loaded(load_a or {}, load_b or {})
    found += _conditions(a, b)
    return [one.text for one in compare.ordered(found)]


# --- under load --------------------------------------------------------------------------------------


def _loaded(a: dict[str, Any], b: dict[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    for name, (label, unit) in {
        "clock_sm": ("SM clock under load", "MHz"),
        "clock_memory": ("memory clock under load", "MHz"),
        "cpu_mhz": ("CPU clock under load", "MHz"),
        "accept_length": ("accept length", "tokens"),
    }.items():
        found += _moved(label, unit, a.get(name), b.get(name), _CLOCK_SHARE)
    found += _reasons(a.get("reasons") or {}, b.get("reasons") or {})
    found += _hotter("GPU temperature under load", a.get("temperature"), b.get("temperature"), UNDER_LOAD)
    # With other clocks another power is no news.
    return found if any("clock under load" in one.text for one in found) else found + _busier(a, b)


def _busier(a: dict[str, Any], b: dict[str, Any]) -> list[Finding]:
    """At the same clocks, power tells how much of the time a GPU computes: the rest of it waits for something else.

    No cause, but where to look for one; so it stands behind all that may be one.
    """
    old, new = a.get("power"), b.get("power")
    if not old or not new or abs(new - old) <= _POWER_SHARE * old:
        return []
    busy = [side.get("utilisation") for side in (a, b)]
    told = "" if None in busy else f", utilisation {busy[0]:.0f} -> {busy[1]:.0f} %"
    what = "more" if new < old else "less"
    text = (
        f"GPU power under load {old:.0f} -> {new:.0f} W at the same clocks{told}: the GPUs waited {what} for the host"
    )
    return [Finding(LIMITS, f"{text} or each other")]


def _moved(label: str, unit: str, old: float | None, new: float | None, share: float) -> list[Finding]:
    if old is None or new is None or abs(new - old) <= share * abs(old):
        return []
    return [Finding(UNDER_LOAD, f"{label} {_number(old)} -> {_number(new)} {unit}")]


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


_REASONS = {
    "sw_power_cap": "power cap reached",
    "hw_power_brake": "power brake of the board active",
    "hw_power_brake_slowdown": "power brake of the board active",
    "sw_thermal_slowdown": "slowed down for its temperature",
    "hw_thermal_slowdown": "slowed down hard for its temperature",
    "hw_slowdown": "slowed down by the hardware",
    "sync_boost": "clocks held by sync boost",
    "applications_clocks_setting": "clocks held by application clocks",
    "display_clocks_setting": "clocks held by the display",
}


def _reasons(a: dict[str, float], b: dict[str, float]) -> list[Finding]:
    found = []
    for name in sorted(set(a) | set(b), key=lambda one: -abs(b.get(one, 0.0) - a.get(one, 0.0))):
        old, new = a.get(name, 0.0), b.get(name, 0.0)
        if abs(new - old) >= _REASON_SHARE:
            before = f" (before: {100 * old:.0f} %)" if old else ""
            words = _REASONS.get(name, f"clocks held by {name.replace('_', ' ')}")
            found.append(Finding(UNDER_LOAD, f"{words} {100 * new:.0f} % of the time{before}"))
    return found


def _hotter(label: str, old: float | None, new: float | None, rank: int) -> list[Finding]:
    if old is None or new is None or abs(new - old) < _DEGREES:
        return []
    return [Finding(rank, f"{label} {old:.0f} -> {new:.0f} °C")]


# --- conditions around the measurement ---------------------------------------------------------------


def _conditions(a: dict[str, Any], b: dict[str, Any]) -> list[Finding]:
    old, new = a.get("conditions") or {}, b.get("conditions") or {}
    found = _tenants(old.get("tenants") or {}, new.get("tenants") or {})
    found += _gpu_conditions(old.get("gpus"), new.get("gpus"))
    load = [(one.get("loadavg") or [None])[0] for one in (old, new)]
    if None not in load and abs(load[1] - load[0]) >= _LOAD:
        found.append(Finding(LIMITS, f"load of the host {load[0]:.1f} -> {load[1]:.1f}"))
    found += [
        Finding(LIMITS, one.text)
        for one in _moved("CPU clock", "MHz", _mean(old.get("cpu_mhz")), _mean(new.get("cpu_mhz")), _CLOCK_SHARE)
    ]
    temperatures = new.get("temperatures_c") or {}
    for name, degrees in sorted((old.get("temperatures_c") or {}).items()):
        found += _hotter(f"temperature {name}", degrees, temperatures.get(name), PASSING)
    before, now = old.get("memory_available_mib"), new.get("memory_available_mib")
    if before is not None and now is not None and now < 0.5 * before:
        found.append(Finding(PASSING, f"available memory {before} -> {now} MiB"))
    for key, what in (("uptime_s", "host"), ("container_uptime_s", "container")):
        found += _restarted(what, a.get("taken_at"), old.get(key), b.get("taken_at"), new.get(key))
    return found


def _mean(clocks: dict[str, float] | None) -> float | None:
    return (clocks or {}).get("mean")


def _restarted(
    what: str, at_a: float | None, up_a: float | None, at_b: float | None, up_b: float | None
) -> list[Finding]:
    if at_a is None or up_a is None or at_b is None or up_b is None:
        return []
    if abs((at_b - up_b) - (at_a - up_a)) < 60:
        return []
    return [Finding(PASSING, f"the {what} was restarted in between (up for {up_b / 3600:.1f} h)")]


def _tenants(a: dict[str, Any], b: dict[str, Any]) -> list[Finding]:
    """Processes of others that share the GPUs or take CPU time, by name: their pids differ all the time."""
    found = []
    names_a, names_b = ({_tenant(one): one for one in side.get("gpus") or []} for side in (a, b))
    for key in sorted(set(names_b) - set(names_a)):
        one = names_b[key]
        found.append(Finding(TENANTS, f"GPU {one['gpu']} is shared with {one['name']} ({one['memory_mib']} MiB)"))
    for key in sorted(set(names_a) - set(names_b)):
        found.append(Finding(TENANTS, f"GPU {key[0]} is no longer shared with {key[1]}"))
    cores_a, cores_b = ({one["name"]: one["cores"] for one in side.get("cpu") or []} for side in (a, b))
    names = sorted(set(cores_a) | set(cores_b))
    for name in sorted(names, key=lambda one: -abs(cores_b.get(one, 0.0) - cores_a.get(one, 0.0))):
        old, new = cores_a.get(name, 0.0), cores_b.get(name, 0.0)
        if abs(new - old) >= _CORES:
            found.append(Finding(LIMITS, f"{name} beside the server takes {old:.1f} -> {new:.1f} cores"))
    return found


def _tenant(one: dict[str, Any]) -> tuple[Any, str]:
    return one["gpu"], one["name"]


# Values that say nothing of the load: what they are under load comes from the samples.
_IDLE = {"clock_sm", "clock_memory", "power_draw", "memory_used", "utilisation", "performance_state"}
_IDLE |= {"event_counters", "processes"}


def _gpu_conditions(a: list[dict[str, Any]] | None, b: list[dict[str, Any]] | None) -> list[Finding]:
    if not a or not b or len(a) != len(b):
        return []  # the sections tell of that
    found: list[Finding] = []
    kept = [[_compared(one) for one in side] for side in (a, b)]
    found += compare.gpu_changes(kept[0], kept[1], PASSING)
    for was, now in zip(a, b):
        for key in ("temperature", "temperature_memory"):
            label = f"GPU {now.get('index')} {key.replace('_', ' of the ')}"
            found += _hotter(label, _degrees(was.get(key)), _degrees(now.get(key)), PASSING)
    return found


def _compared(gpu: dict[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in gpu.items() if key not in _IDLE and not key.startswith("temperature")}
    # Idle falls and rises all the time.
    found["event_reasons"] = [name for name in gpu.get("event_reasons") or [] if name != "gpu_idle"]
    return found


def _degrees(text: str | None) -> float | None:
    word = (text or "").split()[:1]
    try:
        return float(word[0]) if word else None
    except ValueError:
        return None
