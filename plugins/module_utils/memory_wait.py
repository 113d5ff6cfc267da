# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The wait of a reset for the memory of its GPUs: what each may have, until when, and what holds the rest.

The wait itself and the recorded idle levels are in drain.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from . import drain, gpu_view, nvidia, reset_plan
from .gpu_view import Look
from .nvidia import MIB, Gpu
from .reset_plan import Item, Plan


@dataclass
class Outcome:
    """How the wait went; GPUs by their UUID, memory in bytes."""

    levels: dict[str, int | None] = field(default_factory=dict)  # the last sample
    over: dict[str, int] = field(default_factory=dict)  # the limit of a GPU that stayed above it
    unknown: list[str] = field(default_factory=list)  # the driver does not tell
    quiet: set[str] = field(default_factory=set)  # only protected processes hold it: its level is the idle one
    told: dict[str, int] = field(default_factory=dict)  # what protected processes have, which is no part of that level
    waited_s: float = 0.0
    failed: str = ""
    warnings: list[str] = field(default_factory=list)


class MemoryWait:
    """The wait for the GPUs that a reset is asked for.

    ``home``: where idle levels are recorded. ``asked``: the GPUs as they were before anything was ended. ``ended``:
    what was ended so far, as the reset reports it (``gpus``: indices); it grows. ``tolerance``: bytes above the idle
    level.
    """

    def __init__(
        self,
        home: str,
        asked: Sequence[Gpu],
        ended: Sequence[Mapping[str, Any]],
        tolerance: int,
        timeout_s: float,
        query_timeout_s: float,
    ) -> None:
        self.home = home
        self.asked = asked
        self.ended = ended
        self.tolerance = tolerance
        self.timeout_s = timeout_s
        self.query_timeout_s = query_timeout_s

    def run(self, plan: Plan, seen: Sequence[Gpu], newcomers: Callable[[], bool]) -> Outcome:
        """Wait, or stop waiting when ``newcomers`` says that there is something new to end.

        ``plan`` is the last one, ``seen`` the GPUs that it was made with. That the driver cannot be asked is told in
        ``failed``.
        """
        outcome = Outcome()
        idle = self._idle(outcome)
        limits: dict[str, int] = {}
        fixed: dict[str, int] = {}  # GPUs where nothing was ended or a process stays: waiting would not help
        for gpu in self.asked:
            stays = [item for item in plan.left if gpu.index in item.gpus]
            if any(item.kind in ("kept", "scope") for item in stays):
                continue  # a kept server or another container uses it, and that is what was asked for
            outcome.told[gpu.uuid] = told = protected_memory(gpu, stays)
            freed = any(gpu.index in one["gpus"] for one in self.ended)
            base = idle[gpu.uuid] if gpu.uuid in idle else assumed_idle(gpu, stays, told, freed)
            limit = base + told + self.tolerance
            if all(item.kind == "protected" for item in stays):
                outcome.quiet.add(gpu.uuid)
            survives = any(gpu.index in item.gpus for item in plan.end)
            # What the driver does not tell of a protected process is not given back while one waits.
            waits = (gpu.uuid in outcome.quiet and (not stays or told)) or freed
            (limits if waits and not survives else fixed)[gpu.uuid] = limit
        # Where nothing was ended, the levels that the look came with are as good as a sample taken now.
        first = None if self.ended else {one.uuid: one.memory_used for one in seen}
        try:
            parts = [
                self._wait(limits, self.timeout_s, first, newcomers),
                self._wait(fixed, 0.0, first, newcomers),
            ]
        except OSError as error:
            outcome.failed = f"the memory of the GPUs cannot be read: {error}"
            return outcome
        for part in parts:
            outcome.levels.update(part.levels)
            outcome.over.update(part.over)
            outcome.unknown += part.unknown
        outcome.waited_s = parts[0].waited_s
        return outcome

    def record_idle(self, outcome: Outcome) -> None:
        """Record the level of what only protected processes hold as the idle one. Raises OSError."""
        used = {uuid: outcome.levels[uuid] for uuid in outcome.quiet - outcome.over.keys()}
        told = outcome.told
        drain.record_idle(
            self.home, {uuid: None if one is None else max(0, one - told.get(uuid, 0)) for uuid, one in used.items()}
        )

    def _idle(self, outcome: Outcome) -> dict[str, int]:
        try:
            return drain.load_idle(self.home)
        except ValueError as error:
            outcome.warnings.append(f"recorded idle levels are ignored: {error}")
            return {}

    def _wait(
        self, limits: Mapping[str, int], timeout_s: float, first: drain.Memory | None, newcomers: Callable[[], bool]
    ) -> drain.Drained:
        if not limits:
            return drain.Drained({}, {}, [], 0.0)
        samples = [first] if first is not None else []
        return drain.drain(
            limits,
            lambda: samples.pop() if samples else self._read(),
            timeout_s,
            settle=bool(self.ended),
            give_up=newcomers,
        )

    def _read(self) -> drain.Memory:
        try:
            return nvidia.memory_used(self.query_timeout_s)
        except OSError:
            # The long way gives the reason when the driver is in trouble, and works where the short query does not.
            answer = nvidia.query(self.query_timeout_s)
            if not answer.available:
                raise OSError(answer.why) from None
            return {one.uuid: one.memory_used for one in answer.gpus}


def protected_memory(gpu: Gpu, stays: Sequence[Item]) -> int:
    """Bytes that protected processes have on a GPU, as far as the driver tells."""
    known = {item.process.pid for item in stays if item.kind == "protected"}
    return sum(one.memory or 0 for one in gpu.processes if one.pid in known)


def assumed_idle(gpu: Gpu, stays: Sequence[Item], told: int, freed: bool) -> int:
    """The idle level of a GPU that has none recorded, without ``told``, what protected processes are known to have.

    0, unless there is a reason for more: a protected process has memory of which the driver does not tell, or the
    driver is of those that count their own memory as used (they do not tell ``reserved``), and nothing else was
    (``freed``) or is running on it.
    """
    known = {item.process.pid for item in stays if item.kind == "protected"}
    quiet = not freed and len(known) == len(stays) and {one.pid for one in gpu.processes} <= known
    reason = gpu.memory_reserved is None or (known and not told)
    if quiet and reason and gpu.memory_used is not None and gpu.memory_used <= drain.IDLE_MAX:
        return max(0, gpu.memory_used - told)
    return 0


def not_drained(gpu: Gpu, used: int, limit: int, waited_s: float, plan: Plan, seen: Look) -> str:
    """Why a GPU has more than its limit (bytes), and what helps."""
    head = f"GPU {gpu.index}: {used // MIB} MiB still used, at most {limit // MIB} MiB expected when idle"
    stays = [
        f"process {reset_plan.describe(item.process)}, {item.why}"
        for item in [*plan.end, *plan.left]
        if gpu.index in item.gpus
    ]
    if stays:
        guarded = all(item.kind == "protected" for item in plan.left if gpu.index in item.gpus) and not plan.end
        way = "take it out of gpu_state_protected" if guarded else "name a policy that does"
        return f"{head}; held by {'; '.join(stays)}. End it yourself, or {way}"
    owner = gpu_view.owners(gpu, dict(seen.view.holds), bool(seen.scan.unreadable))
    why = owner["owner_why"] or "another container or PID namespace, MPS, a CUDA IPC importer, or driver teardown"
    return (
        f"{head}, after waiting {waited_s:.0f} s; no visible owner: {why}. "
        "Restart the container that uses it, end the importer, or reboot the host"
    )
