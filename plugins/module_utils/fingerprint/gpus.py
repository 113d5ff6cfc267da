# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The GPUs, for the section hardware (what stays) and for the conditions (what comes and goes)."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from .. import nvidia
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
    "power_limit_default": ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
    "clock_sm_max": ("max_clocks/sm_clock",),
    "clock_memory_max": ("max_clocks/mem_clock",),
    "clock_graphics_application": ("applications_clocks/graphics_clock",),
    "clock_memory_application": ("applications_clocks/mem_clock",),
    "pcie_generation_max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "pcie_width_max": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
    "remapped_rows_uncorrectable": ("remapped_rows/remapped_row_unc",),
}
_PASSING = {
    "performance_state": ("performance_state",),
    "clock_sm": ("clocks/sm_clock",),
    "clock_memory": ("clocks/mem_clock",),
    "temperature": ("temperature/gpu_temp",),
    "temperature_memory": ("temperature/memory_temp",),
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
