"""Write what NCCL writes into NCCL_DEBUG_FILE, from a captured log: for engines of the tests, which have no NCCL.

As NCCL does: it takes variables from the environment, then from the file in NCCL_CONF_FILE; a variable that is set is
named with its value, one with a word that it does not know is passed over in silence, and where nothing is set only the
rest of the lines comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

CAPTURED = Path(__file__).resolve().parents[1] / "data" / "nccl" / "rank0.base.log"
P2P_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")


def write(environment: Mapping[str, str], pid: int, rank: int, host: str = "gpuhost") -> None:
    """The log of one rank of two, if this environment asks for one."""
    pattern = environment.get("NCCL_DEBUG_FILE", "")
    if not pattern or environment.get("NCCL_DEBUG") != "INFO":
        return
    if environment.get("NCCL_CONF_FILE"):
        lines = Path(environment["NCCL_CONF_FILE"]).read_text().splitlines()
        environment = {**dict(line.split("=", 1) for line in lines if "=" in line), **environment}
    lines = []
    for line in CAPTURED.read_text().splitlines():
        if "Bytes -> Algo" in line and "TUNING" not in environment.get("NCCL_DEBUG_SUBSYS", ""):
            continue
        named = re.search(r"(NCCL_\w+) set by environment to (\S+?)(\.?)$", line)
        if named:
            value = environment.get(named[1])
            if value is None or (named[1] == "NCCL_P2P_LEVEL" and value not in P2P_LEVELS):
                continue
            line = f"{line[: named.start(2)]}{value}{named[3]}"
        lines.append(line.replace(":732:", f":{pid}:").replace("rank 0 nranks", f"rank {rank} nranks"))
    path = Path(pattern.replace("%h", host).replace("%p", str(pid)))
    path.write_text("\n".join(lines) + "\n")
