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


# Our key -> (key of a GPU in a window, what of several GPUs counts: tensor parallelism waits for the slowest).
_GPU = {
    "clock_sm": ("sm_mhz", min),
    "clock_memory": ("memory_mhz", min),
    "temperature": ("temperature_c", max),
    "power": ("power_w", min),
    "utilisation": ("utilisation", min),
}
_HOST = {"cpu_mhz": "cpu_mhz", "load": "load1"}


def summary(measurement: dict[str, Any], fingerprints: dict[str, Any] | None = None) -> dict[str, Any]:
    """What :func:`.explain.explain` compares: clocks (MHz), temperature (°C), power (W), utilisation (%), load,
    accept length and ``reasons``.

    ``reasons``: reason -> share of the time that it held the clocks of some GPU down: as sampled during the level of
    the headline, or else as the driver counted between the fingerprints. What was not seen is left out.
    """
    level = (measurement.get("levels") or [{}])[0]
    machine = level.get("machine") or {}
    gpus, host = machine.get("gpus") or [], machine.get("host") or {}
    found: dict[str, Any] = {}
    for key, (name, worst) in _GPU.items():
        values = [gpu[name]["median"] for gpu in gpus if name in gpu]
        if values:
            found[key] = worst(values)
    found.update({key: host[name]["median"] for key, name in _HOST.items() if name in host})
    reasons: dict[str, float] = {}
    for gpu in gpus:
        for name, share in (gpu.get("reasons") or {}).items():
            if name != "gpu_idle":
                reasons[name] = max(reasons.get(name, 0.0), share)
    if not gpus and fingerprints:
        reasons = counted(fingerprints.get("before") or {}, fingerprints.get("after") or {})
    found["reasons"] = reasons
    accept = (level.get("server_metrics") or {}).get("accept_length")
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
