# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Wait for a launched server, in slices that can be continued: what is known is kept in ready.json between them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from . import (
    control,
    death,
    ending,
    files,
    log_lines,
    oom,
    phase_times,
    procfs,
    readiness,
    server_env,
    servers,
    stall,
    traces,
)
from .engines import get_engine
from .nvidia import device_nodes
from .probe import Background
from .ready_file import Kept
from .servers import ServerRecord

#: Local looks (process, log) cost little; requests are spaced so that they do not disturb the start.
TICK_S = 0.05
HTTP_GAP_S = 0.1
COMPLETION_GAP_S = 0.5
#: A look at all processes of the host; never more than a fifth of the time.
TREE_GAP_S = 0.25
#: A slice ends early for a phase that lasts so long, and not for the short ones of a fast start: the next slice has to
#: start first, and what happens meanwhile is noticed later.
NEWS_AFTER_S = 4.0
#: How long a server may take to follow a dead worker before the worker's death is told as the news.
ROOT_FOLLOWS_S = 1.0
STALL_S = 180.0
#: The phase in which the ranks find each other, and may wait for each other for ever.
RENDEZVOUS = "distributed init"
_RENDEZVOUS_ADVICE = {
    "name": "ranks do not find each other",
    "cause": "the ranks hang while NCCL connects them",
    "remedy": "try llm_server.env.NCCL_P2P_DISABLE: 1 once: if it then starts, peer-to-peer over PCIe is broken "
    "(switch ACS off, set iommu=pt on the host); with env.NCCL_DEBUG: INFO the log names what is missing",
    "line": "",
}


class Waiter:
    """One slice of waiting for one start. ``write`` False (check mode) leaves ready.json as it is.

    ``stall_s``: seconds without any sign of work that are a stall (0: never). ``limits``: the user's own limits by
    phase, in seconds (0: none).
    """

    def __init__(
        self,
        home: str,
        record: ServerRecord,
        write: bool = True,
        stall_s: float = STALL_S,
        limits: Mapping[str, float] | None = None,
    ) -> None:
        self.home = home
        self.record = record
        self.write = write
        self.limits = dict(limits or {})
        self.ready_s: float | None = None
        self.engine = get_engine(record.engine)
        self.folder = servers.folder(home, record.name)
        self.kept = Kept.load(self.folder, record.start_id)
        self.was_ready = self.kept.ready
        self.timeline = readiness.Timeline()
        if self.kept.phases:
            self.timeline.phases = [
                {key: value for key, value in one.items() if value is not None} for one in self.kept.phases
            ]
        self.offset = self.kept.log_offset
        self.rest = ""
        self.probes = readiness.Probes(self.engine, record.declaration, dict(self.kept.probes))
        # A node that only computes answers no requests: its workers are all there is to wait for.
        self.probes.done = not self.engine.serves(record.declaration)
        #: All workers that were seen, by pid; they are watched from then on.
        self.workers = {pid: (rank, start) for rank, pid, start in self.kept.workers}
        self.expected = self.engine.expected_workers(record.declaration)
        #: When we first looked: a server may have been ready before, and its last phase is then too long by that.
        self.watched_from_s = round(self.elapsed(), 3) if self.kept.watched_from_s is None else self.kept.watched_from_s
        self.memory = self.kept.memory or oom.group(record.pid)
        size = phase_times.model_bytes(record.model) if record.model else None
        self.model_gib = None if size is None else size / 2**30
        self.last = phase_times.last_start(self.folder, record.declaration_hash)
        active_s = self.elapsed() if self.kept.active_s is None else self.kept.active_s
        self.watch = stall.Watch(stall_s, active_s, stall.gpu_memory if device_nodes() else None)
        self.disk_bytes = self.kept.disk_bytes
        self.timeout_s = 0.0
        self._tree_due = 0.0

    def elapsed(self) -> float:
        """Seconds since the launch, until it was ready."""
        return max(0.0, time.time() - self.record.launched_at) if self.ready_s is None else self.ready_s

    def run(self, timeout_s: float, slice_s: float) -> dict[str, Any]:
        """Wait until ready, or until the slice (0: there are none) or the time (0: by the size of the model) is over.

        Raises control.ControlError when the server or a worker dies, when it stalls, or when the time is over.
        """
        begin = time.monotonic()
        self.timeout_s = timeout_s or phase_times.total_s(self.model_gib, self.last.get("elapsed_s"))
        first_phase = self.timeline.current
        web = Background(self.record.base_url, server_env.api_key(self.home, self.record))
        http_due = 0.0
        while True:
            self.read_log()
            self.check_alive()
            self.look_at_tree()
            now = time.monotonic()
            if web.busy:
                reply = web.result()
                if reply is not None:
                    self.probes.take(reply.status, reply.json, reply.error, self.elapsed())
                    http_due = now + self.gap_s()
            if self.probes.done and self.workers_complete():
                return self.ready()
            if not web.busy and not self.probes.done and now >= http_due:
                web.start(self.probes.next_request())
            spent = now - begin
            if spent >= self.timeout_s:
                self.save(False)
                raise self.late()
            self.check_patience()
            # A completion on its way is waited for: the next slice would ask again and leave this one behind.
            may_end = slice_s and not (web.busy and self.probes.step == "completion")
            news = self.timeline.current != first_phase and self.settled()
            if may_end and (news or spent >= slice_s):
                self.save(False)
                return self.result(False)
            if web.busy:
                web.wait(TICK_S)
            else:
                time.sleep(TICK_S)

    def gap_s(self) -> float:
        """How long the next request waits after the last reply."""
        last = self.probes.last
        if last.endswith((": ok", "connection refused")):
            return 0.0  # nobody listens yet: asking costs nothing, and there is a tick in between
        return COMPLETION_GAP_S if last.startswith("completion") else HTTP_GAP_S

    def settled(self) -> bool:
        """Whether the phase has lasted long enough to be news, and is not the last: it does not answer yet."""
        lasted_s = self.elapsed() - self.timeline.phases[-1]["at_s"]
        return lasted_s >= NEWS_AFTER_S and not self.probes.first_s.keys() & {"health", "models"}

    # --- looks -----------------------------------------------------------------------------------

    def read_log(self) -> None:
        """Take what was added to the log since the last look."""
        if self.was_ready:
            return  # what a server logs while it serves is no phase of its start, and may be a lot
        try:
            with open(self.record.log, "rb") as source:
                size = os.fstat(source.fileno()).st_size
                if size < self.offset:
                    self.offset = 0
                if size == self.offset:
                    return
                source.seek(self.offset)
                raw = source.read(8 * 1024 * 1024)
        except OSError:
            return
        self.offset += len(raw)
        lines, self.rest = readiness.split_lines(raw.decode("utf-8", "replace"), self.rest)
        before = len(self.timeline.phases)
        for line in lines:
            self.timeline.feed(self.engine, line, self.elapsed(), self.record.launched_at)
        if len(self.timeline.phases) > before:
            self.note_reads(self.timeline.phases[before - 1])

    def note_reads(self, phase: dict[str, Any]) -> None:
        """What the phase that was the current one until now has read from disks."""
        total = stall.measure(self.tree()).disk_bytes
        if total is not None and self.disk_bytes is not None:
            phase["disk_bytes"] = max(0, total - self.disk_bytes)
        self.disk_bytes = total

    def tree(self) -> list[procfs.Process]:
        """The server's processes, the first one first."""
        table = procfs.processes()
        root = table.get(self.record.pid)
        return ([root] if root else []) + procfs.descendants(self.record.pid, table)

    def check_alive(self) -> None:
        if not self.record.running():
            self.server_died()
        self.probes.first_s.setdefault("process", round(self.elapsed(), 3))
        watched = [(f"worker of rank {rank}", pid, start) for pid, (rank, start) in self.workers.items()]
        for what, pid, start in watched + [(part[0], part[1], part[2]) for part in self.kept.parts]:
            if not procfs.alive(pid, start):
                # A server that dies takes its workers along, in no certain order, and knows more of why.
                if not ending.wait_gone([_process(self.record.pid, self.record.pid_start)], ROOT_FOLLOWS_S):
                    self.server_died()
                self.part_died(what, _process(pid, start))

    def died_when(self) -> str:
        return "after it was ready" if self.was_ready else f"in phase {self.timeline.current!r}"

    def server_died(self) -> NoReturn:
        """Raises ControlError with how the server process ended."""
        self.read_log()
        self.save(False)
        raise control.death(self.home, self.record, f"process {self.record.pid} died {self.died_when()}", self.memory)

    def part_died(self, what: str, item: procfs.Process) -> NoReturn:
        """Raises ControlError with what is known of the end of a worker, or of another process that it needs."""
        self.read_log()
        self.save(False)
        story = death.tell(self.home, self.record, self.memory, item)
        raise control.ControlError(
            f"server {self.record.name!r}: {what} (process {item.pid}) has died {self.died_when()}, "
            f"{story.words}; the server process {self.record.pid} still runs.{story.text(self.record.log)}",
            **story.facts(),
        )

    def look_at_tree(self) -> None:
        """Find the workers until they are complete, and see whether the tree still does anything."""
        now = time.monotonic()
        seeking = bool(self.expected) and len(self.workers) < self.expected and now >= self._tree_due
        watching = not self.was_ready and self.watch.due(self.elapsed())
        if not seeking and not watching:
            return
        tree = self.tree()
        if seeking:
            found = self.engine.find_workers(tree, self.record.declaration)
            # By pid: a worker may be seen before its title has its rank.
            self.workers.update({item.pid: (rank, item.start) for rank, item in found.items()})
            self._tree_due = time.monotonic() + max(TREE_GAP_S, 5.0 * (time.monotonic() - now))
            if self.workers_complete():
                self.probes.first_s.setdefault("workers", round(self.elapsed(), 3))
        if watching:
            activity = stall.measure(tree)
            self.disk_bytes = activity.disk_bytes if self.disk_bytes is None else self.disk_bytes
            self.watch.look(self.elapsed(), activity, self.offset)

    def workers_complete(self) -> bool:
        return len(self.workers) >= self.expected

    def check_patience(self) -> None:
        """Raises ControlError when the server does nothing any more, or a phase takes longer than it may."""
        if self.was_ready:
            return
        name = self.timeline.current
        spent = self.elapsed() - self.timeline.phases[-1]["at_s"]
        quiet = self.watch.quiet_s(self.elapsed())
        if self.watch.stalled(self.elapsed()):
            why = f"it has stalled in phase {name!r}: for {quiet:.0f} s no log line, no disk reads, no processor time"
            raise self.stuck(f"{why} (llm_server_stall_s)")
        limit = phase_times.limit_s(name, self.model_gib, self.compared()[-1]["was_s"], self.limits)
        if limit is not None and spent > limit:
            raise self.stuck(
                f"phase {name!r} has lasted {spent:.0f} s, which is too long for a model of "
                f"{self.model_gib or 0.0:.1f} GiB ({limit:.0f} s; llm_server_phase_timeouts changes it)"
            )

    # --- results ---------------------------------------------------------------------------------

    def compared(self) -> list[dict[str, Any]]:
        """The phases, with those of the last start."""
        if self.was_ready:
            return self.kept.phases
        phases = self.timeline.report()
        told = phase_times.compare(phase_times.comparable(phases, self.watched_from_s), self.last)
        return [{**one, "seconds": phase["seconds"]} for one, phase in zip(told, phases)]

    def ready(self) -> dict[str, Any]:
        if not self.was_ready:
            self.ready_s = self.elapsed()
            self.timeline.finish(self.ready_s)
            self.note_reads(self.timeline.phases[-2])
            self.save(True)
            if self.write:
                start = {"elapsed_s": round(self.ready_s, 3), "ready_at": time.time()}
                phases = phase_times.comparable(self.timeline.report(), self.watched_from_s)
                phase_times.remember(self.folder, self.record.declaration_hash, {**start, "phases": phases})
        return self.result(True)

    def result(self, ready: bool) -> dict[str, Any]:
        return {
            "ready": ready,
            "already_ready": self.was_ready,
            "elapsed_s": self.kept.elapsed_s if self.was_ready else round(self.elapsed(), 3),
            "was_s": self.kept.was_s if self.was_ready else self.last.get("elapsed_s"),
            "watched_from_s": self.watched_from_s,
            "timeout_s": self.timeout_s,
            "phase": self.timeline.current,
            "progress": self.timeline.progress,
            "phases": self.compared(),
            "probes": self.probes.first_s,
            "waiting_for": "" if ready else self.waiting_for(),
            "log_tail": [] if ready else self.log_tail(3),
        }

    def log_tail(self, count: int) -> list[str]:
        return log_lines.relevant(files.tail(self.record.log, 400), count)

    def waiting_for(self) -> str:
        process = procfs.process(self.record.pid)
        if process and process.state in ("T", "t"):
            return f"process {self.record.pid} to go on: it was stopped (by SIGSTOP, or by a debugger)"
        if not self.workers_complete():
            return f"{self.expected} workers"
        return self.probes.last

    def save(self, ready: bool) -> None:
        if not self.write or self.was_ready:
            return
        self.note_traces(ready)
        Kept(
            ready=ready,
            elapsed_s=round(self.elapsed(), 3),
            was_s=self.last.get("elapsed_s"),
            watched_from_s=self.watched_from_s,
            phases=self.compared(),
            probes=self.probes.first_s,
            # An unfinished line is read again.
            log_offset=self.offset - len(self.rest.encode("utf-8", "replace")),
            workers=[[rank, pid, start] for pid, (rank, start) in self.workers.items()],
            active_s=round(self.watch.active_s, 3),
            disk_bytes=self.disk_bytes,
            memory=self.memory,
            parts=self.kept.parts,
            pids=self.kept.pids,
            shared_memory=self.kept.shared_memory,
        ).save(self.folder, self.record.start_id)

    def note_traces(self, ready: bool) -> None:
        """Keep in mind, for the time after its death, what the server consists of and what it has in shared memory."""
        tree = [item for item in self.tree() if not item.zombie]
        if not tree:
            return  # it is dead: what was noted before is all there is
        self.kept.pids = sorted({*self.kept.pids, *(item.pid for item in tree)})
        noted = dict(self.kept.shared_memory)
        noted.update((path, inode) for path, inode in traces.shared_memory(item.pid for item in tree))
        self.kept.shared_memory = [[path, inode] for path, inode in sorted(noted.items())]
        if ready:
            helpers = [item for item in tree if self.engine.part(item.cmdline) == "helper"]
            self.kept.parts = [[item.cmdline[:80], item.pid, item.start] for item in helpers]

    def stuck(self, why: str) -> control.ControlError:
        """The error for a server that lives and does not get on. It is left as it is, to be looked into."""
        self.save(False)
        tree = self.tree()
        known, _lines = death.look(self.record)
        evidence = stall.sleepers(tree)[:4]
        if self.expected > 1:
            evidence += death.missing_ranks(self.record)
        diagnosis = known or (_RENDEZVOUS_ADVICE if self.expected > 1 and self.timeline.current == RENDEZVOUS else {})
        diagnosis = {key: value for key, value in diagnosis.items() if key != "evidence"}
        story = death.Story("", diagnosis, evidence, self.log_tail(death.LOG_LINES))
        return control.ControlError(
            f"server {self.record.name!r}: {why}. It waits for {self.waiting_for()}, and is left running to be looked "
            f"into; stopping or launching it again ends it.{story.text(self.record.log)}",
            phase=self.timeline.current,
            phases=self.compared(),
            log_tail=story.log_tail,
            diagnosis=diagnosis,
            evidence=evidence,
        )

    def late(self) -> control.ControlError:
        what = "was ready and no longer is" if self.was_ready else "is not ready"
        return self.stuck(
            f"it {what} {self.elapsed():.0f} s after its launch: it is in phase {self.timeline.current!r} "
            "(llm_server_ready_timeout_s gives it more time)"
        )


def _process(pid: int, start: int) -> procfs.Process:
    """A process as it was recorded; it may be gone."""
    return procfs.Process(pid, start, 0, 0, "?", "", None, "")
