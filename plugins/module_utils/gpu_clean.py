# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The reset itself: look, plan, end, wait until the memory drained, remove leftovers, and say what is left and why."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from . import (
    ending,
    gpu_clocks,
    gpu_view,
    kernel_log,
    leftovers,
    memory_wait,
    nvidia,
    ports,
    procfs,
    reset_plan,
    servers,
    units,
)
from .gpu_view import Look
from .memory_wait import Outcome
from .nvidia import MIB
from .reset_plan import Item, Plan, Policy

_ROUNDS = 3  # a parent may start a worker again before it ends itself; more than that is a supervisor at work
_UNIT_EXTRA_S = 30.0
_LOOK_EVERY_S = 2.0  # while the memory is waited for: somebody may have started something


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
    only: tuple[str, ...] = ()
    container: str = ""
    keep_servers: tuple[str, ...] = ()
    protected: tuple[str, ...] = reset_plan.PROTECTED
    ports: tuple[int, ...] = ()
    grace_s: float = 30.0
    drain_timeout_s: float = 120.0
    tolerance: int = 64 * MIB
    query_timeout_s: float = nvidia.TIMEOUT_S
    keep_clocks: bool = False


@dataclass
class _Work:
    """What has been done so far."""

    ended: list[dict[str, Any]] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    tried: set[tuple[int, int]] = field(default_factory=set)  # (pid, start)
    rounds: int = 0
    next_look: float = 0.0
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Reset:
    """One reset of one host."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.work = _Work()
        self.answer = nvidia.query(options.query_timeout_s)
        if self.answer.available is None:
            told = kernel_log.told(kernel_log.xid_lines())
            raise ResetError(f"the state of the GPUs cannot be told, nothing was changed: {self.answer.why}{told}")
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
            only=options.only,
            container=options.container,
        )
        self.watch = units.Watch(options.container)
        self.memory = memory_wait.MemoryWait(
            options.home,
            self.asked,
            self.work.ended,
            options.tolerance,
            options.drain_timeout_s,
            options.query_timeout_s,
        )

    # --- steps ---

    def run(self, check: bool = False) -> dict[str, Any]:
        """Do it (``check``: only say what would be done). Raises ResetError when the clean state is not reached."""
        before = self._look()
        plan = reset_plan.make_plan(before.view, self.policy)
        result: dict[str, Any] = {"available": self.answer.available, "why": self.answer.why}
        result["before"] = gpu_view.state(self.asked, before)
        if check:
            last, after = plan, before
            self._foresee(plan, before)
        else:
            last, after, used = self._settle(plan, before)
        # The files of a container are not those that can be seen here.
        files = [] if self.options.container else self._leftovers(before, after)
        removed = [one for one in files if not one.stays] if check else leftovers.remove(files)
        self.work.warnings += [f"{one.path}: {one.stays}" for one in removed if one.stays]
        result["removed"] = [one.path for one in removed if not one.stays]
        result["left_files"] = [one.as_dict() for one in files if one.stays]
        result["ports"] = [self._port(use, last) for port in self.options.ports for use in ports.tell(port)]
        result["left"] = [item.as_dict() for item in last.left]
        if check:
            result["after"] = gpu_view.planned_state(result["before"], self.work.gone)
        else:
            levels = {**{one.uuid: one.memory_used for one in self.answer.gpus}, **used}
            result["after"] = gpu_view.state([gpu_view.later(gpu, levels) for gpu in self.asked], after)
        result["ended"] = self.work.ended
        result["clocks"] = self._clocks(check)
        result["warnings"] = self.work.warnings
        ended = any(one["gone"] or check for one in self.work.ended)
        result["changed"] = bool(result["removed"] or result["clocks"]) or ended
        self._judge_ports(result["ports"])
        if self.work.problems:
            raise ResetError("; ".join(self.work.problems), result)
        return result

    def _clocks(self, check: bool) -> list[str]:
        """What was put back of clocks that an earlier run of ours set and left."""
        if self.options.keep_clocks or self.options.container:
            return []
        try:
            done = gpu_clocks.put_back(self.options.home, check, self.options.query_timeout_s)
        except gpu_clocks.ClocksError as error:
            self.work.problems.append(f"the clocks that an earlier run set could not be put back: {error}")
            return []
        self.work.warnings += done.notes
        return done.actions

    def _look(self) -> Look:
        try:
            return gpu_view.look(
                self.options.home, self.answer.gpus, self.policy.asked, ours=not self.options.container
            )
        except ValueError as error:
            raise ResetError(f"nothing more was changed: {error}", {"ended": self.work.ended}) from error

    def _look_again(self) -> tuple[Plan, Look]:
        # The driver's list of before would call a worker that was started meanwhile a stranger.
        again = nvidia.query(self.options.query_timeout_s) if self.asked else self.answer
        self.answer = again if again.available else self.answer
        seen = self._look()
        return reset_plan.make_plan(seen.view, self.policy), seen

    def _settle(self, plan: Plan, seen: Look) -> tuple[Plan, Look, dict[str, int | None]]:
        """End, wait for the memory, and again for what was started meanwhile; the last plan, look and levels."""
        while True:
            plan, seen = self._end(plan, seen)
            wait = self._drain(plan)
            if not self.work.ended:
                break  # nothing happened since the look
            plan, seen = self._look_again()
            if not self._todo(plan) or self.work.rounds >= _ROUNDS:
                break
        self.work.problems += [self._survivor(item) for item in plan.end]
        return plan, seen, self._judge(wait, plan, seen)

    def _todo(self, plan: Plan) -> list[Item]:
        return [item for item in plan.end if (item.process.pid, item.process.start) not in self.work.tried]

    def _end(self, plan: Plan, seen: Look) -> tuple[Plan, Look]:
        """Carry out the plan, look again, and again for what appeared meanwhile; the last plan and look."""
        while self._todo(plan) and self.work.rounds < _ROUNDS:
            self.work.rounds += 1
            stopped = self._stop_units(plan, seen)
            self._end_once(Plan(end=self._todo(plan), stop=plan.stop), stopped)
            plan, seen = self._look_again()
        return plan, seen

    def _end_once(self, plan: Plan, stopped: dict[int, str]) -> None:
        items = {item.process.pid: item for item in plan.end}
        for done in ending.end(plan.roots, plan.members, self.options.grace_s):
            if done.gone and done.how != "killed":
                done.how = stopped.get(done.pid, done.how)
            more = {"how": done.how, "gone": done.gone, "zombie_of": done.zombie_of}
            self.work.ended.append({**items[done.pid].as_dict(), **more})
            self.work.tried.add((done.pid, done.start))
            if done.gone:
                self.work.gone.add(done.pid)
        for server in plan.stop:
            record = servers.load(self.options.home, server.name)
            if record and record.start_id == server.start_id and not record.running():
                record.state = "stopped"
                servers.save(self.options.home, record)

    def _stop_units(self, plan: Plan, seen: Look) -> dict[int, str]:
        """Have systemd stop the servers and services that it would start again; pid -> how, for those it stopped."""
        stopped: dict[int, str] = {}
        timeout_s = self.options.grace_s + _UNIT_EXTRA_S
        for server in plan.stop:
            if not server.unit:
                continue
            reason = units.stop(server.unit, timeout_s)
            if reason:
                self.work.problems.append(f"server {server.name}: 'systemctl stop {server.unit}' failed ({reason})")
            else:
                how = f"stopped by systemctl stop {server.unit}"
                stopped.update({item.process.pid: how for item in plan.end if item.server == server.name})
        for unit in self.watch.to_stop(self._todo(plan), self._untouchable_units(plan, seen)):
            reason = units.stop(unit, timeout_s, self.options.container)
            if reason:
                self.work.warnings.append(f"'systemctl stop {unit}' failed ({reason}); its processes were signalled")
            else:
                how = f"stopped by systemctl stop {unit}"
                stopped.update({item.process.pid: how for item in plan.end if item.unit == unit})
        return stopped

    @staticmethod
    def _untouchable_units(plan: Plan, seen: Look) -> set[str]:
        """Services that have a process that is left alone: stopping them would end it."""
        pids = {item.process.pid for item in plan.left}
        pids.update(plan.kept, reset_plan.lineage(seen.view.me, seen.view.table))
        return {seen.view.traits[pid].unit for pid in pids if pid in seen.view.traits}

    def _foresee(self, plan: Plan, seen: Look) -> None:
        """What would be ended, and how, as far as that can be told before."""
        never = self._untouchable_units(plan, seen)
        foreign = set(self.watch.to_stop(plan.end, never))
        ours = {server.name: server.unit for server in plan.stop if server.unit}
        for item in plan.end:
            unit = ours.get(item.server, item.unit if item.unit in foreign and not item.server else "")
            how = f"planned: systemctl stop {unit}" if unit else "planned"
            self.work.ended.append({**item.as_dict(), "how": how, "gone": False, "zombie_of": None})
            self.work.gone.add(item.process.pid)

    def _leftovers(self, before: Look, after: Look) -> list[leftovers.Leftover]:
        gone = self.work.gone
        return leftovers.find(after.scan, set(after.view.table) - gone, gone, before.scan, time.time(), os.geteuid())

    def _survivor(self, item: Item) -> str:
        """Why a process that was to be ended is still there, and what helps."""
        name = reset_plan.describe(item.process)
        now = procfs.process(item.process.pid)
        if now and now.state == "D":
            where = procfs.wchan(item.process.pid)
            told = kernel_log.told(kernel_log.xid_lines())
            hangs = f"process {name} hangs in the kernel (state D{', in ' + where if where else ''})"
            return f"{hangs}: only a reboot of the host ends it{told}"
        if (item.process.pid, item.process.start) in self.work.tried:
            how = next(one["how"] for one in self.work.ended if one["pid"] == item.process.pid)
            return f"process {name} could not be ended ({how})"
        remedy = f"stop its unit first: systemctl stop {item.unit}" if item.unit else "end what starts it first"
        return f"process {name} was started again after each of {_ROUNDS} attempts; {remedy}"

    # --- memory ---

    def _drain(self, plan: Plan) -> Outcome:
        """Wait for the memory of the GPUs asked for, or until something new to end has appeared."""
        self.work.next_look = time.monotonic() + _LOOK_EVERY_S
        outcome = self.memory.run(plan, self.answer.gpus, self._newcomers)
        self.work.warnings += outcome.warnings
        return outcome

    def _newcomers(self) -> bool:
        """Whether something that falls under the policy was started while the memory is waited for."""
        if not self.work.ended or time.monotonic() < self.work.next_look:
            return False
        self.work.next_look = time.monotonic() + _LOOK_EVERY_S
        return bool(self._todo(self._look_again()[0]))

    def _judge(self, wait: Outcome, plan: Plan, seen: Look) -> dict[str, int | None]:
        """Say what did not drain, record the idle level of what did; the levels, uuid -> bytes."""
        if wait.failed:
            self.work.problems.append(wait.failed)
            return {}
        if wait.over and not self.work.ended:
            plan, seen = self._look_again()
        for gpu in self.asked:
            if gpu.uuid in wait.over:
                used, limit = wait.levels[gpu.uuid] or 0, wait.over[gpu.uuid]
                self.work.problems.append(memory_wait.not_drained(gpu, used, limit, wait.waited_s, plan, seen))
            elif gpu.uuid in wait.unknown:
                self.work.warnings.append(f"GPU {gpu.index}: the driver does not tell how much memory is used")
            elif any(gpu.index in item.gpus and item.kind == "scope" for item in plan.left):
                self.work.warnings.append(
                    f"GPU {gpu.index} is used from outside of container {self.options.container}, too: "
                    "that its memory drained cannot be proved"
                )
        self.memory.record_idle(wait)
        return wait.levels

    # --- ports ---

    def _port(self, use: dict[str, Any], plan: Plan) -> dict[str, Any]:
        """One port asked for; ``foreign``: taken by a process that is neither ended here nor of a kept server."""
        pid = use["pid"]
        ours = pid is not None and (pid in plan.kept or pid in self.work.gone)
        kept = [servers.load(self.options.home, name) for name in self.options.keep_servers]
        hidden = pid is None and any(one and one.port == use["port"] and one.running() for one in kept)
        return {**use, "foreign": use["state"] != "time_wait" and not ours and not hidden}

    def _judge_ports(self, found: list[dict[str, Any]]) -> None:
        for one in found:
            if one["foreign"]:
                owner = (
                    f"process {one['pid']} ({one['cmdline'][:80]})" if one["pid"] else "a process that is not visible"
                )
                self.work.problems.append(
                    f"port {one['port']} is taken by {owner}, {one['state']}: end it or use another port"
                )
