# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Samples the machine while it is measured: GPUs by one streaming nvidia-smi, else CPU clocks and load.

One process for the whole measurement, not one a sample: starting nvidia-smi costs more than what it tells. Everything
is read in a thread, outside the event loop of the client.
"""

from __future__ import annotations

# Pure code: there is no AnsibleModule here whose run_command it could call.
# pylint: disable=ansible-bad-function
import contextlib
import os
import re
import subprocess
import threading
from dataclasses import dataclass
from typing import Any

from . import nvidia, stats
from .fingerprint import conditions
from .wire import now

GPU_INTERVAL_S = 0.2
CPU_INTERVAL_S = 1.0
END_TIMEOUT_S = 2.0

#: Our name -> fields of nvidia-smi, the newest first. A driver that does not know a field fails the whole query.
FIELDS: dict[str, tuple[str, ...]] = {
    "index": ("index",),
    "sm_mhz": ("clocks.current.sm", "clocks.sm"),
    "memory_mhz": ("clocks.current.memory", "clocks.mem"),
    "power_w": ("power.draw",),
    "temperature_c": ("temperature.gpu",),
    "utilisation": ("utilization.gpu",),
    "memory_mib": ("memory.used",),
    "reasons": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
}
#: Bits of the event reasons (NVML's nvmlClocksEventReasons).
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_UNKNOWN = re.compile(r'Field "([^"]+)" is not a valid field')


@dataclass
class Row:
    """One sample of one GPU, or of the host (``index`` None)."""

    when: float  # of time.perf_counter()
    index: int | None
    values: dict[str, float]
    reasons: int | None = None


def parse_row(line: str, names: list[str], when: float) -> Row | None:
    """One line of ``--format=csv,noheader,nounits`` with the columns ``names``; None for what is none.

    What the driver does not tell ("[N/A]") is left out.
    """
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(names):
        return None
    told = dict(zip(names, cells))
    if not told.get("index", "").isdigit():
        return None
    values: dict[str, float] = {}
    for name in names:
        if name not in ("index", "reasons"):
            with contextlib.suppress(ValueError):
                values[name] = float(told[name])
    reasons = None
    with contextlib.suppress(ValueError):
        reasons = int(told.get("reasons", ""), 16)
    return Row(when, int(told["index"]), values, reasons)


def _spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": stats.percentile(values, 50) or 0.0, "max": max(values)}


def summarise(rows: list[Row], began: float, ended: float) -> dict[str, Any]:
    """Least, median and greatest value of everything between two moments, by GPU; how often each reason was active."""
    inside = [row for row in rows if began <= row.when <= ended]
    found: dict[str, Any] = {"n": len(inside), "gpus": [], "host": {}}
    for index in sorted({row.index for row in inside if row.index is not None}):
        mine = [row for row in inside if row.index == index]
        masks = [row.reasons for row in mine if row.reasons is not None]
        shares = {name: sum(1 for mask in masks if mask & bit) / len(masks) for bit, name in REASONS.items() if masks}
        found["gpus"].append(
            {"index": index, "n": len(mine), **_spreads(mine), "reasons": {k: v for k, v in shares.items() if v}}
        )
    found["host"] = _spreads([row for row in inside if row.index is None])
    return found


def _spreads(rows: list[Row]) -> dict[str, dict[str, float]]:
    names = sorted({name for row in rows for name in row.values})
    return {name: _spread([row.values[name] for row in rows if name in row.values]) for name in names}


class Sampler:
    """Samples while it is entered. ``enabled`` False samples nothing and says so (to measure what sampling costs)."""

    def __init__(self, enabled: bool = True, program: str | None = None, root: str = "") -> None:
        self.enabled, self._root = enabled, root
        self._program = (program or nvidia.find_program()) if enabled else None
        self.rows: list[Row] = []
        self.source = "off"
        self.why = "" if enabled else "switched off"
        self._child: subprocess.Popen[str] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Sampler:
        if self.enabled:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_unused: object) -> None:
        self._over.set()
        self._end_child()
        if self._thread is not None:
            self._thread.join(END_TIMEOUT_S + CPU_INTERVAL_S)

    def _end_child(self) -> None:
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # a sick driver; it is left behind rather than waited for
            child.kill()

    def _run(self) -> None:
        if self._program is not None:
            fields = {name: list(names) for name, names in FIELDS.items()}
            while not self._over.is_set() and self._stream(fields):
                pass
        if not self._over.is_set() and self.source != "nvidia-smi":
            self._watch_host()

    def _stream(self, fields: dict[str, list[str]]) -> bool:
        """Read one nvidia-smi to its end; True: a field was unknown, try again without it."""
        names = [name for name, left in fields.items() if left]
        query = ",".join(fields[name][0] for name in names)
        try:
            self._child = subprocess.Popen(
                [
                    str(self._program),
                    f"--query-gpu={query}",
                    "--format=csv,noheader,nounits",
                    "-lms",
                    str(round(GPU_INTERVAL_S * 1000)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            self.why = f"{self._program} cannot be run: {error}"
            return False
        if self._over.is_set():  # ended while it was being started
            self._end_child()
        said = ""
        with self._child as child:
            for line in child.stdout or ():
                row = parse_row(line, names, now())
                if row is not None:
                    self.source = "nvidia-smi"
                    self.rows.append(row)
                elif line.strip():
                    said = line.strip()[:200]
                    unknown = _UNKNOWN.search(line)
                    for left in fields.values():
                        if unknown and unknown.group(1) in left:
                            left.remove(unknown.group(1))
                            return bool(fields["index"])
        if not self._over.is_set():
            self.why = f"nvidia-smi ended by itself: {said or f'exit status {child.returncode}'}"
        return False

    def _watch_host(self) -> None:
        self.source = "host"
        while True:
            told = conditions.read(self._root, None)
            values: dict[str, float] = {}
            if told["loadavg"]:
                values["load1"] = told["loadavg"][0]
            if told["cpu_mhz"]:
                values["cpu_mhz"] = told["cpu_mhz"]["mean"]
            if told["temperatures_c"]:
                values["temperature_c"] = max(told["temperatures_c"].values())
            self.rows.append(Row(now(), None, values))
            if self._over.wait(CPU_INTERVAL_S):
                return

    def about(self) -> dict[str, Any]:
        """Where the samples come from."""
        interval = {"nvidia-smi": GPU_INTERVAL_S, "host": CPU_INTERVAL_S}.get(self.source)
        return {"source": self.source, "interval_s": interval, "why": self.why}
