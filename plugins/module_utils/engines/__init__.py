# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The engines we can start. To add one: a file with an adapter class here, and its line in ``ENGINES``."""

from __future__ import annotations

from .base import Engine
from .generic import Generic
from .llama_cpp import LlamaCpp
from .sglang import SGLang
from .vllm import VLLM

#: Name in a declaration -> adapter.
ENGINES: dict[str, Engine] = {engine.name: engine for engine in (LlamaCpp(), VLLM(), SGLang(), Generic())}


def get_engine(name: str) -> Engine:
    """The adapter of an engine. Raises ValueError, naming those that exist, for an unknown one."""
    try:
        return ENGINES[name]
    except KeyError:
        raise ValueError(f"unknown engine {name!r}: use one of {', '.join(sorted(ENGINES))}") from None


def classify(cmdline: str) -> tuple[str, str] | None:
    """Which engine's process a command line or title looks like, and what part of it.

    Returns (engine name, "server" | "worker" | "helper"), or None for any other process. It is a description,
    never a reason to end a process.
    """
    for engine in ENGINES.values():
        part = engine.part(cmdline)
        if part:
            return engine.name, part
    return None
