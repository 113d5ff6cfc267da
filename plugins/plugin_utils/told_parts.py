# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a start tells as a whole or not at all: packages, resolved arguments, the workers' environment, ...

An engine may not print its arguments, a log be gone, a process not be readable. What only one of two starts tells was
not compared, and that is a difference like any other; what neither tells is said, too.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Before the name of a part that a start does not tell.
NOT_TOLD = "not told: "
NOT_COMPARED = "not compared: "
KNOWN, NOT_KNOWN = "known", "not known"


@dataclass(frozen=True)
class Part:
    """``members``: patterns of the names that its values have in the table of differences."""

    name: str
    members: tuple[str, ...]


PARTS = (
    Part("arguments", ("argument *",)),
    Part("environment", ("environment *",)),
    Part("resolved arguments", ("resolved argument *",)),
    Part("packages", ("package *",)),
    Part("edited files", ("file *", "files that differ from the wheels")),
    Part("model files", ("model config hash*", "model files*", "model total bytes")),
    Part("GPUs", ("hardware gpus*",)),
    Part("kernel", ("kernel *",)),
    Part("workers' environment", ("worker environment *",)),
    Part("NCCL libraries", ("NCCL /*",)),
    Part("NCCL's log", ("NCCL version", "NCCL transport")),
)


def untold(record: Mapping[str, Any]) -> list[str]:
    """The names of the parts that a start does not tell."""
    sections = (record["fingerprints"].get("before") or {}).get("sections") or {}
    server, packages = sections.get("server") or {}, sections.get("python_env") or {}
    workers = (record.get("proof") or {}).get("workers") or []
    told = {
        "arguments": bool(server.get("argv")),
        "environment": server.get("environment") is not None,
        "resolved arguments": server.get("resolved") is not None,
        "packages": bool(packages.get("distributions")),
        "edited files": packages.get("edited") is not None,
        "model files": (sections.get("model") or {}).get("config_hash") is not None,
        "GPUs": (sections.get("hardware") or {}).get("gpus") is not None,
        "kernel": bool(sections.get("kernel")),
        "workers' environment": any(one.get("source") != "none" or _logged(one) for one in workers),
        "NCCL libraries": server.get("nccl_mapped") is not None,
        # One worker alone talks to nobody.
        "NCCL's log": len(workers) < 2 or any(one.get("communicators") for one in workers),
    }
    return [part.name for part in PARTS if not told[part.name]]


def _logged(worker: Mapping[str, Any]) -> bool:
    """Whether NCCL's log told of a worker."""
    return bool((worker.get("log") or {}).get("path"))


def missing(seen: Sequence[Mapping[str, Any]]) -> list[tuple[Part, list[bool]]]:
    """The parts that some side does not tell, with whether each side does."""
    found = [(part, [NOT_TOLD + part.name not in side for side in seen]) for part in PARTS]
    return [(part, told) for part, told in found if not all(told)]


def belongs(what: str, parts: Sequence[Part]) -> bool:
    """Whether a difference is within one of these parts."""
    return any(fnmatch.fnmatchcase(what, one) for part in parts for one in part.members)
