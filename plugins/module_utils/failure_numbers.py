# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The number to change, where a log has what it takes to compute it. Pure: a match and a context in, a sentence out.

Each function returns the remedy with its number, or "" when the log does not have enough for one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

_UNITS = {"B": 1.0 / 2**30, "KiB": 1.0 / 2**20, "MiB": 1.0 / 2**10, "GiB": 1.0, "TiB": 1024.0}
#: Share of a GPU that weights can have at most: the rest is for KV cache, activations and graphs.
_WEIGHTS_SHARE = 0.85
#: What is added to a fraction that only just works.
_HEADROOM = 0.05
#: What nvcc, torch and flashinfer read of their environment.
_COMPILER_VARIABLES = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "TORCH_CUDA_ARCH_LIST", "FLASHINFER_CUDA_ARCH_LIST")
#: Less memory than this is the driver's and CUDA's own, not another program's.
_OTHERS_GIB = 1.0


@dataclass(frozen=True)
class Context:
    """What a remedy can be computed from. ``phase``: the last one that the log tells; model_gib: 0 when not known."""

    lines: list[str] = field(default_factory=list)
    declaration: dict[str, Any] = field(default_factory=dict)
    phase: str = ""
    model_gib: float = 0.0

    @property
    def fraction(self) -> float:
        return float(self.declaration.get("memory_fraction") or 0.0)

    @property
    def tensor_parallel(self) -> int:
        return int(self.declaration.get("tensor_parallel") or 1)


def gib(text: str | None) -> float | None:
    """ "2.50 GiB" -> 2.5; None for what is no quantity."""
    found = re.fullmatch(r"([\d.]+) ?([KMGT]?i?B)", text or "")
    try:
        return float(found.group(1)) * _UNITS[found.group(2)] if found else None
    except (KeyError, ValueError):
        return None


def compiler_variable(match: re.Match[str], context: Context) -> str:
    """The declared variables that tell the compiler what to compile for: before the toolkit, they are looked at."""
    declared = context.declaration.get("env") or {}
    said = [f"llm_server.env.{name} ({declared[name]})" for name in _COMPILER_VARIABLES if name in declared]
    return f"correct or remove {', '.join(said)}: the compiler is told so there" if said else ""


def down(value: float) -> float:
    """To two digits, downwards: a limit that is rounded up is no limit."""
    return math.floor(value * 100 + 1e-6) / 100


def up(value: float) -> float:
    """To two digits, upwards."""
    return math.ceil(value * 100 - 1e-6) / 100


def cuda_memory(found: re.Match[str], context: Context) -> dict[str, float] | None:
    """Of torch's message, in GiB: asked, total, free, others (what other processes hold); None when it tells less."""
    text = found.group(0)
    asked = re.search(r"Tried to allocate ([\d.]+ \w+)", text)
    gpu = re.search(r"total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free", text)
    mine = re.search(r"this process has ([\d.]+ \w+) memory in use", text)
    if not (asked and gpu):
        return None
    values = {"asked": gib(asked.group(1)), "total": gib(gpu.group(1)), "free": gib(gpu.group(2))}
    if None in values.values():
        return None
    known = {name: value for name, value in values.items() if value is not None}
    own = gib(mine.group(1)) if mine else None
    known["others"] = max(0.0, known["total"] - known["free"] - own) if own is not None else 0.0
    return known


def cuda_weights(found: re.Match[str], context: Context) -> str:
    """The weights do not fit: end others, or spread the model over more GPUs."""
    memory = cuda_memory(found, context)
    if memory is None:
        return ""
    if memory["others"] > _OTHERS_GIB:
        return _end_others(memory)
    if not context.model_gib:
        return ""
    share = memory["total"] * _WEIGHTS_SHARE
    needed = math.ceil(context.model_gib / share)
    if needed <= context.tensor_parallel:
        return ""
    each = context.model_gib / context.tensor_parallel
    # Engines split attention heads: a power of two nearly always divides them, other numbers seldom do.
    gpus = 2 ** math.ceil(math.log2(needed))
    return (
        f"the model's files are {context.model_gib:.1f} GiB, {each:.1f} GiB for each of {context.tensor_parallel} GPUs "
        f"of {memory['total']:.1f} GiB: set llm_server.tensor_parallel to {gpus}, or take a smaller quantisation"
    )


def cuda_later(found: re.Match[str], context: Context) -> str:
    """Too little was left for graphs and activations: a smaller static part."""
    memory = cuda_memory(found, context)
    if memory is None:
        return ""
    if memory["others"] > _OTHERS_GIB:
        return _end_others(memory)
    if not context.fraction:
        return ""
    lacking = max(0.0, memory["asked"] - memory["free"])
    fraction = down(context.fraction - lacking / memory["total"] - 0.01)
    if fraction <= 0:
        return ""
    return (
        f"{lacking:.2f} GiB are lacking of {memory['total']:.1f}: set llm_server.memory_fraction to {fraction:.2f} "
        f"(now {context.fraction:g})"
    )


def _end_others(memory: dict[str, float]) -> str:
    return (
        f"other processes hold {memory['others']:.1f} GiB of this GPU's {memory['total']:.1f}: see who (gpu_info), and "
        "clean the GPU (playbooks/reset_gpus.yml)"
    )


def sglang_kv(found: re.Match[str], context: Context) -> str:
    """SGLang leaves ``before * (1 - fraction)`` free; the fraction must be above ``1 - after / before``."""
    before = _first(context.lines, r"Load weight begin\. avail mem=([\d.]+) GB")
    after = _first(list(reversed(context.lines)), r"Load weight end\..*avail mem=([\d.]+) GB")
    if not before or after is None or after >= before:
        return ""
    return _raise_fraction(1.0 - after / before, context)


def sglang_kv_told(found: re.Match[str], context: Context) -> str:
    """Newer versions say the smallest fraction themselves."""
    return _raise_fraction(float(found.group(1)), context)


def _raise_fraction(least: float, context: Context) -> str:
    if least >= 0.95:
        return (
            f"the weights alone need a fraction of {least:.2f}: use more GPUs (llm_server.tensor_parallel) or a "
            "smaller quantisation"
        )
    now = f" (now {context.fraction:g})" if context.fraction else ""
    return (
        f"the weights alone need a fraction of {least:.2f}: set llm_server.memory_fraction to "
        f"{up(least + _HEADROOM):.2f} or more{now}"
    )


def vllm_context(found: re.Match[str], context: Context) -> str:
    """vLLM says what it needs and has, and mostly the longest context that fits."""
    asked, needed, there, longest = found.groups()
    lacking = float(needed) - float(there)
    if longest:
        return (
            f"set llm_server.context_length to {longest} or less (now {asked}), or free {lacking:.2f} GiB more for it"
        )
    return f"{lacking:.2f} GiB are lacking for one request of {asked} tokens: lower llm_server.context_length"


def vllm_startup(found: re.Match[str], context: Context) -> str:
    """More is asked for than is free."""
    free, total = float(found.group(2)), float(found.group(3))
    if total <= 0:
        return ""
    return (
        f"{free:g} of {total:g} GiB are free: end what holds the rest (gpu_info, playbooks/reset_gpus.yml), or set "
        f"llm_server.memory_fraction to {down(free / total):.2f} or less (now {found.group(4)})"
    )


def longest_context(found: re.Match[str], context: Context) -> str:
    """The model's own limit."""
    return f"set llm_server.context_length to {found.group(2)} or less (now {found.group(1)})"


def _first(lines: list[str], pattern: str) -> float | None:
    for line in lines:
        found = re.search(pattern, line)
        if found:
            return float(found.group(1))
    return None
