# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The GPUs, for the section hardware (what stays) and for the conditions (what comes and goes)."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from .. import gpu_clocks, gpu_settings, gpu_topology, nvidia
from .reading import Unknown

# Our name -> where it is in the XML. The first path that gives a value counts: names moved between driver generations.
_STABLE = {
    "name": ("product_name",),
    "uuid": ("uuid",),
    "vbios": ("vbios_version",),
    "gsp_firmware": ("gsp_firmware_version",),
    "memory_total": ("fb_memory_usage/total",),
    "memory_reserved": ("fb_memory_usage/reserved",),
    "persistence_mode": ("persistence_mode",),
    "compute_mode": ("compute_mode",),
    "mig_mode": ("mig_mode/current_mig",),
    "ecc_mode": ("ecc_mode/current_ecc",),
    "power_limit": (
        "gpu_power_readings/current_power_limit",
        "power_readings/enforced_power_limit",
        "power_readings/power_limit",
    ),
    "power_limit_requested": ("gpu_power_readings/requested_power_limit",),
    "power_limit_default": ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
    "clock_sm_max": ("max_clocks/sm_clock",),
    "clock_memory_max": ("max_clocks/mem_clock",),
    "clock_graphics_boost_max": ("max_customer_boost_clocks/graphics_clock",),
    "auto_boost": ("clock_policy/auto_boost",),
    "clock_graphics_application_default": ("default_applications_clocks/graphics_clock",),
    "clock_memory_application_default": ("default_applications_clocks/mem_clock",),
    "clock_graphics_application": ("applications_clocks/graphics_clock",),
    "clock_memory_application": ("applications_clocks/mem_clock",),
    "pcie_generation_max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "pcie_width_max": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
    "pcie_generation_device_max": ("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",),
    "pcie_generation_host_max": ("pci/pci_gpu_link_info/pcie_gen/max_host_link_gen",),
    "ecc_mode_pending": ("ecc_mode/pending_ecc",),
    "remapped_rows_correctable": ("remapped_rows/remapped_row_corr",),
    "remapped_rows_uncorrectable": ("remapped_rows/remapped_row_unc",),
}
_PASSING = {
    "performance_state": ("performance_state",),
    "clock_sm": ("clocks/sm_clock",),
    "clock_memory": ("clocks/mem_clock",),
    "temperature": ("temperature/gpu_temp",),
    "temperature_memory": ("temperature/memory_temp",),
    "temperature_slowdown_margin": ("temperature/gpu_temp_tlimit",),
    "power_draw": (
        "gpu_power_readings/instant_power_draw",
        "gpu_power_readings/power_draw",
        "power_readings/power_draw",
    ),
    "memory_used": ("fb_memory_usage/used",),
    "utilisation": ("utilization/gpu_util",),
    # Idle links fall back to the first generation, so what they run at now belongs here.
    "pcie_generation": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    "pcie_width": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "pcie_replays": ("pci/replay_counter",),
}
_NOTHING = ("", "N/A", "[N/A]", "Unknown Error", "Insufficient Permissions")


def _find(node: ElementTree.Element, paths: tuple[str, ...]) -> str | None:
    for path in paths:
        content = (node.findtext(path) or "").strip()
        if content not in _NOTHING:
            return content
    return None


def _active_reasons(node: ElementTree.Element) -> list[str] | None:
    """Event ("throttle") reasons that hold the clocks down now; older drivers call them throttle reasons."""
    for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
        reasons = node.find(name)
        if reasons is not None:
            active = [one.tag for one in reasons if (one.text or "").strip() == "Active"]
            return sorted(tag.partition("_reason_")[2] or tag for tag in active)
    return None


def _counters(node: ElementTree.Element) -> dict[str, int] | None:
    """Microseconds for which each reason has held the clocks down so far; None: the driver does not count."""
    counters = node.find("clocks_event_reasons_counters")
    if counters is None:
        return None
    found = {}
    for one in counters:
        number, _space, unit = (one.text or "").strip().partition(" ")
        if number.isdigit() and unit == "us":
            found[one.tag.partition("_counters_")[2] or one.tag] = int(number)
    return found


def _processes(node: ElementTree.Element) -> list[dict[str, Any]]:
    return [
        {
            "pid": int(_find(one, ("pid",)) or 0),
            "name": _find(one, ("process_name",)) or "?",
            "memory_mib": (nvidia.quantity(one.findtext("used_memory")) or 0) // nvidia.MIB,
        }
        for one in node.iterfind("processes/process_info")
    ]


def parse(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(stable, passing) values of each GPU in the output of ``nvidia-smi -q -x``, in the driver's units.

    Raises ValueError when it is not such an output.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"nvidia-smi -q -x gave no XML: {error}") from error
    common = {"driver": _find(root, ("driver_version",)), "cuda": _find(root, ("cuda_version",))}
    stable, passing = [], []
    for index, node in enumerate(root.iterfind("gpu")):
        pci = node.get("id") or _find(node, ("pci/pci_bus_id",))
        stable.append(
            {"index": index, "pci": pci, **common, **{key: _find(node, paths) for key, paths in _STABLE.items()}}
        )
        passing.append(
            {
                "index": index,
                **{key: _find(node, paths) for key, paths in _PASSING.items()},
                "event_reasons": _active_reasons(node),
                "event_counters": _counters(node),
                "processes": _processes(node),
            }
        )
    return stable, passing


def read(unknown: Unknown, dev: str = "/dev") -> tuple[list[dict[str, Any]] | None, list[dict[str, Any]] | None]:
    """Ask the driver: (stable, passing), both [] on a host without GPUs and None when it could not be told."""
    nodes = nvidia.device_nodes(dev)
    program = nvidia.find_program()
    if program is None:
        if not nodes:
            return [], []
        unknown["hardware.gpus"] = f"{nodes[0]} exists but nvidia-smi is not installed"
        return None, None
    try:
        status, out, err = nvidia.run([program, "-q", "-x"], nvidia.TIMEOUT_S)
        if status is None:
            raise OSError(f"{program} did not answer in {nvidia.TIMEOUT_S:g} s")
        if status and not out.lstrip().startswith("<?xml"):
            raise OSError(f"{program} failed with status {status}: {' '.join((err or out).split())[:200]}")
        return parse(out)
    except (OSError, ValueError) as error:
        if not nodes:
            return [], []  # the program is there (an image made for GPUs), the devices are not
        unknown["hardware.gpus"] = str(error)
        return None, None


def add_locks(home: str, gpus: list[dict[str, Any]] | None, unknown: Unknown) -> None:
    """Clocks that we locked, into the stable values: the driver itself does not tell them. Without a lock, no key."""
    try:
        locked = gpu_clocks.locks(home) if gpus else {}
    except (OSError, ValueError) as error:
        unknown["hardware.gpus.locks"] = str(error)
        return
    for gpu in gpus or []:
        for item, (least, most) in locked.get(gpu["uuid"] or "", {}).items():
            name = {gpu_settings.SM: "clock_sm_locked", gpu_settings.MEMORY: "clock_memory_locked"}[item]
            gpu[name] = f"{most} MHz" if least == most else f"{least}-{most} MHz"


def topology(gpus: list[dict[str, Any]] | None, unknown: Unknown) -> dict[str, str] | None:
    """How the GPUs reach each other and where they sit, see :mod:`..gpu_topology`; {} for fewer than two of them."""
    program = nvidia.find_program()
    if gpus is None or program is None or len(gpus) < 2:
        return None if gpus is None else {}
    try:
        return gpu_topology.read(program)
    except gpu_topology.TopologyError as error:
        unknown["hardware.topology"] = str(error)
        return None
