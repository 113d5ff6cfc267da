# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What comes and goes: load, clocks, temperatures. Recorded beside the sections, never hashed."""

from __future__ import annotations

import glob
import os
import re
from typing import Any

from . import reading


def read(root: str, gpus: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Conditions now; None for each that this host does not tell."""
    content = reading.text(f"{root}/proc/meminfo") or ""
    available = re.search(r"MemAvailable:\s*(\d+) kB", content)
    uptime = (reading.text(f"{root}/proc/uptime") or "").split()
    load = (reading.text(f"{root}/proc/loadavg") or "").split()
    return {
        "uptime_s": float(uptime[0]) if uptime else None,
        "container_uptime_s": _container_uptime(root, float(uptime[0]) if uptime else None),
        "loadavg": [float(word) for word in load[:3]] if len(load) >= 3 else None,
        "memory_available_mib": int(available.group(1)) // 1024 if available else None,
        "cpu_mhz": _clocks(root),
        "temperatures_c": _temperatures(root),
        "gpus": gpus,
    }


def _container_uptime(root: str, uptime: float | None) -> float | None:
    """How long the first process that we can see has been running: on a host nearly its uptime."""
    fields = (reading.text(f"{root}/proc/1/stat") or "").rpartition(")")[2].split()
    if uptime is None or len(fields) <= 19 or not fields[19].isdigit():
        return None
    return round(uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"), 1)


def _clocks(root: str) -> dict[str, float] | None:
    found = [
        float(word)
        for word in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", reading.text(f"{root}/proc/cpuinfo") or "", re.MULTILINE)
    ]
    if not found:
        return None
    return {"min": min(found), "mean": round(sum(found) / len(found), 1), "max": max(found)}


def _temperatures(root: str) -> dict[str, float] | None:
    """Sensor -> degrees Celsius, of thermal zones and hwmon chips."""
    found: dict[str, float] = {}
    for folder in sorted(glob.glob(f"{root}/sys/class/thermal/thermal_zone*")):
        milli = reading.number(f"{folder}/temp")
        if milli is not None:
            found[f"{reading.text(folder + '/type') or 'zone'}/{os.path.basename(folder)[12:]}"] = milli / 1000
    for path in sorted(glob.glob(f"{root}/sys/class/hwmon/hwmon*/temp*_input")):
        folder, name = os.path.split(path)
        milli = reading.number(path)
        if milli is not None:
            label = reading.text(path.replace("_input", "_label")) or name[: -len("_input")]
            found[f"{reading.text(folder + '/name') or os.path.basename(folder)}/{label}"] = milli / 1000
    return found or None
