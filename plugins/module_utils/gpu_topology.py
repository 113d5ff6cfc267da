# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How the GPUs of a host reach each other and where they sit: ``nvidia-smi topo -m``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from . import nvidia

NVLINK, PCIE = "nvlink", "pcie"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # the header is underlined, terminal or not
_PAIR = re.compile(r"GPU\d+-GPU\d+")


class TopologyError(Exception):
    """Why nothing is known of it."""


def read(program: str) -> dict[str, str]:
    """What :func:`parse` makes of the answer. Raises TopologyError."""
    try:
        status, out, err = nvidia.run([program, "topo", "-m"], nvidia.TIMEOUT_S)
    except OSError as error:
        status, out, err = 1, "", str(error)
    if status != 0:
        raise TopologyError(f"{program} topo -m: {' '.join((err or out).split())[:200] or 'no answer'}")
    found = parse(out)
    if not found:
        raise TopologyError(f"{program} topo -m printed no matrix")
    return found


def links(found: Mapping[str, str]) -> dict[str, str]:
    """Of each pair of GPUs, NVLINK or PCIE."""
    return {name: NVLINK if value.startswith("NV") else PCIE for name, value in found.items() if _PAIR.fullmatch(name)}


def parse(text: str) -> dict[str, str]:
    """ "GPU0-GPU1" -> NV18, PIX, PXB, PHB, NODE or SYS; "GPU0 NUMA Affinity" and "GPU0 CPU Affinity" as printed."""
    lines = [_ESCAPES.sub("", line) for line in text.splitlines()]
    header: list[str] = []
    found: dict[str, str] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        if not header and "GPU0" in cells:
            header = cells
        elif header and cells[0] in header:
            for name, value in zip(header[1:], cells[1:]):
                if not name or value in ("X", "N/A", ""):
                    continue
                if "Affinity" in name:
                    found[f"{cells[0]} {name}"] = value
                elif f"{name}-{cells[0]}" not in found:
                    found[f"{cells[0]}-{name}"] = value
        elif header and not line.strip():
            break
    return found
