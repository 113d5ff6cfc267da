# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The reset itself: look, plan, end, wait until the memory drained, remove leftovers, and say what is left and why."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import Any

from . import drain, ending, gpu_view, leftovers, nvidia, ports, reset_plan, servers
from .gpu_view import Look
from .nvidia import MIB, Gpu
from .procfs import PortUse
from .reset_plan import Item, Plan, Policy

_ROUNDS = 3  # a parent may start a worker again before it ends itself; more than that is a supervisor at work
_UNIT_EXTRA_S = 30.0


class ResetError(Exception):
    """What prevents the clean state: one message, with everything that was done before it."""

    def __init__(self, message: str, result: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = result or {}


@dataclass(frozen=True)
class Options:
    """What a reset is asked for; see the module's documentation."""

    home: str
    gpus: tuple[str, ...] = ("all",)
    policy: str = "stale"
    keep_servers: tuple[str, ...] = ()
    protected: tuple[str, ...] = reset_plan.PROTECTED
    ports: tuple[int, ...] = ()
    grace_s: float = 30.0
    drain_timeout_s: float = 120.0
    tolerance: int = 64 * MIB
    query_timeout_s: float = nvidia.TIMEOUT_S


@dataclass
class _Work:
    """What has been done so far."""

    ended: list[dict[str, Any]] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    tried: set[tuple[int, int]] = field(default_factory=set)  # (pid, start)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Reset:
    """One reset of one host."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.work = _Work()
        self.answer = nvidia.query(options.query_timeout_s)
        if self.answer.available is None:
            raise ResetError(f"the state of the GPUs cannot be told, nothing was changed: {self.answer.why}")
        try:
            self.asked = nvidia.select(self.answer.gpus, options.gpus)
        except ValueError as error:
            raise ResetError(f"gpus: {error}") from error
        indices = frozenset(one.index for one in self.asked)
        self.policy = Policy(
            name=options.policy,
            asked=indices,
            every_gpu="all" in options.gpus or indices == {one.index for one in self.answer.gpus},
            keep=frozenset(options.keep_servers),
            protected=options.protected,
        )

    # --- steps ---

    def run(self, check: bool = False) -> dict[str, Any]:
        """Do it (``check``: only say what would be done). Raises ResetError when the clean state is not reached."""
        before = self._look()
        plan = reset_plan.make_plan(before.view, self.policy)
        result: dict[str, Any] = {"available": self.answer.available, "why": self.answer.why}
        result["before"] = self._state(self.asked, before)
        if check:
            self.work.ended = [{**item.as_dict(), "how": "planned", "gone": False} for item in plan.end]
            self.work.gone = {item.process.pid for item in plan.end}
            last, after = plan, before
        else:
            last, after = self._end(plan, before)
        files = leftovers.find(
            after.scan, set(after.view.table) - self.work.gone, self.work.gone, before.scan, time.time(), os.geteuid()
        )
        removed = [one for one in files if not one.stays] if check else leftovers.remove(files)
        self.work.warnings += [f"{one.path}: {one.stays}" for one in removed if one.stays]
        result["removed"] = [one.path for one in removed if not one.stays]
        result["left_files"] = [one.as_dict() for one in files if one.stays]
        result["ports"] = [self._port(use, last) for port in self.options.ports for use in ports.who_has(port)]
        result["left"] = [item.as_dict() for item in last.left]
        if check:
            result["after"] = self._planned_state(result["before"])
        else:
            used = self._drain(last)
            now = [self._with_memory(gpu, used) for gpu in self.asked]
            result["after"] = self._state(now, after)
        result["ended"] = self.work.ended
        result["warnings"] = self.work.warnings
        result["changed"] = bool(result["removed"]) or any(one["gone"] or check for one in self.work.ended)
        self._judge_ports(result["ports"])
        if self.work.problems:
            raise ResetError("; ".join(self.work.problems), result)
        return result

    def _look(self) -> Look:
        try:
            return gpu_view.look(self.options.home, self.answer.gpus, self.policy.asked)
        except ValueError as error:
            raise ResetError(f"nothing more was changed: {error}", {"ended": self.work.ended}) from error

    def _end(self, plan: Plan, seen: Look) -> tuple[Plan, Look]:
        """Carry out the plan, look again, and again for what appeared meanwhile; the last plan and look."""
        for _round in range(_ROUNDS):
            todo = [item for item in plan.end if (item.process.pid, item.process.start) not in self.work.tried]
            if not todo:
                break
            self._end_once(Plan(end=todo, stop=plan.stop), self._stop_units(plan))
            # The driver's list of before would call a worker that was started meanwhile a stranger.
            again = nvidia.query(self.options.query_timeout_s) if self.asked else self.answer
            self.answer = again if again.available else self.answer
            seen = self._look()
            plan = reset_plan.make_plan(seen.view, self.policy)
        for item in plan.end:
            self.work.problems.append(self._survivor(item))
        return plan, seen

    def _end_once(self, plan: Plan, stopped: dict[str, str]) -> None:
        items = {item.process.pid: item for item in plan.end}
        for done in ending.end(plan.roots, plan.members, self.options.grace_s):
            if done.how in ("was gone", "exited with its parent"):
                done.how = stopped.get(items[done.pid].server, done.how)
            self.work.ended.append({**items[done.pid].as_dict(), "how": done.how, "gone": done.gone})
            self.work.tried.add((done.pid, done.start))
            if done.gone:
                self.work.gone.add(done.pid)
        for server in plan.stop:
            record = servers.load(self.options.home, server.name)
            if record and record.start_id == server.start_id and not record.running():
                record.state = "stopped"
                servers.save(self.options.home, record)

    def _stop_units(self, plan: Plan) -> dict[str, str]:
        """Have systemd stop the servers that it would start again; server -> how, for those that it stopped."""
        stopped = {}
        for server in plan.stop:
            if not server.unit:
                continue
            command = ["systemctl", "stop", server.unit]
            try:
                status, _out, said = nvidia.run(command, self.options.grace_s + _UNIT_EXTRA_S)
            except OSError as error:
                status, said = 127, str(error)
            if status == 0:
                stopped[server.name] = f"stopped by {' '.join(command)}"
            else:
                reason = "it did not answer in time" if status is None else f"status {status}: {said.strip()}"
                self.work.problems.append(f"server {server.name}: '{' '.join(command)}' failed ({reason})")
        return stopped

    def _survivor(self, item: Item) -> str:
        """Why a process that was to be ended is still there, and what helps."""
        name = reset_plan.describe(item.process)
        if item.process.state == "D":
            return f"process {name} hangs in the kernel (state D): only a reboot of the host ends it"
        if (item.process.pid, item.process.start) in self.work.tried:
            how = next(one["how"] for one in self.work.ended if one["pid"] == item.process.pid)
            return f"process {name} could not be ended ({how})"
        remedy = f"stop its unit first: systemctl stop {item.unit}" if item.unit else "end what starts it first"
        return f"process {name} was started again after each of {_ROUNDS} attempts; {remedy}"

    # --- memory ---

    def _drain(self, plan: Plan) -> dict[str, int | None]:
        """Wait for the memory of the GPUs asked for; the last sample, uuid -> bytes."""
        idle = self._idle()
        limits: dict[str, int] = {}
        quiet: set[str] = set()  # GPUs that only protected processes hold: their level then is the idle one
        fixed: dict[str, int] = {}  # GPUs where nothing was ended and a process stays: waiting would not help
        for gpu in self.asked:
            stays = [item for item in plan.left if gpu.index in item.gpus]
            if any(item.kind == "kept" for item in stays):
                continue  # a kept server uses it, and that is what was asked for
            limit = idle.get(gpu.uuid, self._assumed_idle(gpu, stays)) + self.options.tolerance
            if all(item.kind == "protected" for item in stays):
                quiet.add(gpu.uuid)
            (limits if gpu.uuid in quiet or self._freed(gpu.index) else fixed)[gpu.uuid] = limit
        try:
            waited = self._wait(limits, self.options.drain_timeout_s)
            stuck = self._wait(fixed, 0.0)
        except OSError as error:
            self.work.problems.append(f"the memory of the GPUs cannot be read: {error}")
            return {}
        levels = {**waited.levels, **stuck.levels}
        over = {**waited.over, **stuck.over}
        seen = self._look() if over else None
        for gpu in self.asked:
            if gpu.uuid in over and seen is not None:
                used = levels[gpu.uuid] or 0
                self.work.problems.append(self._not_drained(gpu, used, over[gpu.uuid], waited.waited_s, seen))
            elif gpu.uuid in waited.unknown + stuck.unknown:
                self.work.warnings.append(f"GPU {gpu.index}: the driver does not tell how much memory is used")
        drain.record_idle(self.options.home, {uuid: levels[uuid] for uuid in quiet - over.keys()})
        return levels

    def _freed(self, index: int) -> bool:
        return any(index in one["gpus"] for one in self.work.ended)

    def _wait(self, limits: dict[str, int], timeout_s: float) -> drain.Drained:
        if not limits:
            return drain.Drained({}, {}, [], 0.0)
        return drain.drain(limits, self._memory, timeout_s, settle=bool(self.work.ended))

    def _idle(self) -> dict[str, int]:
        try:
            return drain.load_idle(self.options.home)
        except ValueError as error:
            self.work.warnings.append(f"recorded idle levels are ignored: {error}")
            return {}

    def _assumed_idle(self, gpu: Gpu, stays: list[Item]) -> int:
        """The idle level of a GPU that has none recorded.

        0, unless there is a reason for more: a protected process has memory, or the driver is of those that count
        their own memory as used (they do not tell ``reserved``), and nothing else was or is running on it.
        """
        known = {item.process.pid for item in stays if item.kind == "protected"}
        quiet = not self._freed(gpu.index) and len(known) == len(stays) and {one.pid for one in gpu.processes} <= known
        reason = gpu.memory_reserved is None or known
        if quiet and reason and gpu.memory_used is not None and gpu.memory_used <= drain.IDLE_MAX:
            return gpu.memory_used
        return 0

    def _memory(self) -> dict[str, int | None]:
        try:
            return nvidia.memory_used(self.options.query_timeout_s)
        except OSError:
            # The long way gives the reason when the driver is in trouble, and works where the short query does not.
            answer = nvidia.query(self.options.query_timeout_s)
            if not answer.available:
                raise OSError(answer.why) from None
            return {one.uuid: one.memory_used for one in answer.gpus}

    def _not_drained(self, gpu: Gpu, used: int, limit: int, waited_s: float, seen: Look) -> str:
        head = f"GPU {gpu.index}: {used // MIB} MiB still used, at most {limit // MIB} MiB expected when idle"
        plan = reset_plan.make_plan(seen.view, self.policy)
        stays = [
            f"process {reset_plan.describe(item.process)}, {item.why}"
            for item in [*plan.end, *plan.left]
            if gpu.index in item.gpus
        ]
        if stays:
            return f"{head}; held by {'; '.join(stays)}. End it yourself, or name a policy that does"
        owner = gpu_view.owners(gpu, dict(seen.view.holds), bool(seen.scan.unreadable))
        why = owner["owner_why"] or "another container or PID namespace, MPS, a CUDA IPC importer, or driver teardown"
        return (
            f"{head}, after waiting {waited_s:.0f} s; no visible owner: {why}. "
            "Restart the container that uses it, end the importer, or reboot the host"
        )

    # --- ports and result ---

    def _port(self, use: PortUse, plan: Plan) -> dict[str, Any]:
        """One port asked for; ``foreign``: taken by a process that is neither ended here nor of a kept server."""
        ours = use.pid is not None and (use.pid in plan.kept or use.pid in self.work.gone)
        kept = [servers.load(self.options.home, name) for name in self.options.keep_servers]
        hidden = use.pid is None and any(one and one.port == use.port and one.running() for one in kept)
        return {
            "port": use.port,
            "state": use.state,
            "pid": use.pid,
            "cmdline": use.cmdline,
            "foreign": not ours and not hidden,
        }

    def _judge_ports(self, found: list[dict[str, Any]]) -> None:
        for one in found:
            if one["foreign"]:
                owner = (
                    f"process {one['pid']} ({one['cmdline'][:80]})" if one["pid"] else "a process that is not visible"
                )
                self.work.problems.append(
                    f"port {one['port']} is taken by {owner}, {one['state']}: end it or use another port"
                )

    def _state(self, gpus: list[Gpu], seen: Look) -> dict[str, Any]:
        """The part of a look that is compared before and after."""
        holding = dict(seen.view.holds)
        blind = bool(seen.scan.unreadable)
        running = [one for one in seen.view.servers if one.root is not None]
        return {
            "gpus": [
                {
                    "index": one.index,
                    "uuid": one.uuid,
                    "memory_used": one.memory_used,
                    **gpu_view.owners(one, holding, blind),
                }
                for one in gpus
            ],
            "processes": [one for one in seen.processes() if self.policy.asked & {*one["gpus"], *one["doubtful_gpus"]}],
            "servers": {one.name: one.root for one in running},
        }

    def _planned_state(self, before: dict[str, Any]) -> dict[str, Any]:
        """``before`` without what is planned to end. The memory cannot be foreseen."""
        gone = self.work.gone
        gpus = []
        for one in before["gpus"]:
            pids = [pid for pid in one["pids"] if pid not in gone]
            freed = bool(one["pids"]) and not pids
            gpus.append({**one, "pids": pids, **({"owner": "none", "memory_used": None} if freed else {})})
        return {
            "gpus": gpus,
            "processes": [one for one in before["processes"] if one["pid"] not in gone],
            "servers": {name: pid for name, pid in before["servers"].items() if pid not in gone},
        }

    @staticmethod
    def _with_memory(gpu: Gpu, used: dict[str, int | None]) -> Gpu:
        # The driver's list is of before: without it, only what was seen afterwards counts.
        return replace(gpu, memory_used=used.get(gpu.uuid, gpu.memory_used), processes=())
