# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the machine was like while it was measured: from the samples of the measurement and the driver's counters."""

from __future__ import annotations

from typing import Any

# Reasons with which a GPU protects itself: a number taken then is the cooling's, not the software's.
_SELF_PROTECTION = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_TOLERATED = 0.05  # share of the time
# The driver's counters abbreviate what its event reasons spell out.
_NAMES = {
    "sw_therm_slowdown": "sw_thermal_slowdown",
    "hw_therm_slowdown": "hw_thermal_slowdown",
    "hw_power_brake": "hw_power_brake_slowdown",
}


def counted(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """Reason -> share of the time between two fingerprints that it held the clocks down, of the GPU where it was most.

    {} where the driver does not count.
    """
    seconds = (after.get("taken_at") or 0.0) - (before.get("taken_at") or 0.0)
    gpus = [(one.get("conditions") or {}).get("gpus") or [] for one in (before, after)]
    found: dict[str, float] = {}
    if seconds <= 0 or len(gpus[0]) != len(gpus[1]):
        return found
    for was, now in zip(*gpus):
        old, new = was.get("event_counters") or {}, now.get("event_counters") or {}
        for name in set(old) & set(new):
            # A counter that went back was reset with the driver.
            share = min(1.0, max(0.0, (new[name] - old[name]) / 1e6 / seconds))
            name = _NAMES.get(name, name)
            found[name] = max(found.get(name, 0.0), share)
    return found


def windows(measurement: dict[str, Any]) -> list[dict[str, Any]]:
    """The windows of samples (see ``sampling.summarise``) that belong to the headline's level, or else to all of it."""
    first = (measurement.get("levels") or [{}])[0]
    return _windows(first.get("samples")) or _windows(measurement.get("samples"))


def _windows(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, dict):
        if "gpus" in node and "host" in node:
            return [node]
        return [one for value in node.values() for one in _windows(value)]
    if isinstance(node, list):
        return [one for value in node for one in _windows(value)]
    return []


# Our key -> (key of a GPU in a window, what of several GPUs counts: tensor parallelism waits for the slowest).
_GPU = {"clock_sm": ("sm_mhz", min), "clock_memory": ("memory_mhz", min), "temperature": ("temperature_c", max)}
_HOST = {"cpu_mhz": "cpu_mhz", "load": "load1"}


def summary(measurement: dict[str, Any], fingerprints: dict[str, Any] | None = None) -> dict[str, Any]:
    """What :func:`.explain.explain` compares: clocks (MHz), temperature (°C), load, accept length and ``reasons``.

    ``reasons``: reason -> share of the time that it held the clocks of some GPU down: as sampled, or else as the driver
    counted between the fingerprints ``before`` and ``after``. What was not seen is left out.
    """
    seen = windows(measurement)
    found: dict[str, Any] = {}
    for key, (name, worst) in _GPU.items():
        values = [gpu[name]["median"] for window in seen for gpu in window["gpus"] if name in gpu]
        if values:
            found[key] = worst(values)
    for key, name in _HOST.items():
        values = [window["host"][name]["median"] for window in seen if name in window["host"]]
        if values:
            found[key] = max(values) if key == "load" else min(values)
    reasons: dict[str, float] = {}
    for window in seen:
        for gpu in window["gpus"]:
            for name, share in (gpu.get("reasons") or {}).items():
                if name != "gpu_idle":
                    reasons[name] = max(reasons.get(name, 0.0), share)
    if not any(window["gpus"] for window in seen) and fingerprints:
        reasons = counted(fingerprints.get("before") or {}, fingerprints.get("after") or {})
    found["reasons"] = reasons
    accept = ((measurement.get("levels") or [{}])[0].get("server") or {}).get("accept_length")
    if accept is not None:
        found["accept_length"] = accept
    return found


def throttled(measurement: dict[str, Any], fingerprints: dict[str, Any] | None = None) -> list[str]:
    """Why a measurement is not the software's: a GPU protected itself for more than 5 % of the time."""
    reasons = summary(measurement, fingerprints)["reasons"]
    return [
        f"the GPUs slowed down to protect themselves {100 * share:.0f} % of the time ({name.replace('_', ' ')})"
        for name, share in sorted(reasons.items())
        if name in _SELF_PROTECTION and share > _TOLERATED
    ]
