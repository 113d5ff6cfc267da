# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Wait for a launched server, in slices that can be continued: what is known is kept in ready.json between them."""

from __future__ import annotations

import os
import time
from typing import Any, NoReturn

from . import control, ending, files, procfs, readiness, server_env, servers
from .engines import get_engine
from .probe import Background
from .servers import ServerRecord

#: Local looks (process, log) cost little; requests are spaced so that they do not disturb the start.
TICK_S = 0.05
HTTP_GAP_S = 0.1
COMPLETION_GAP_S = 0.5
#: A look at all processes of the host; never more than a fifth of the time.
TREE_GAP_S = 0.25
#: A slice ends early when there is news, but not for every line of a fast start.
NEWS_AFTER_S = 2.0
#: How long a server may take to follow a dead worker before the worker's death is told as the news.
ROOT_FOLLOWS_S = 0.7
#: ready.json: field -> types. A file that does not have them was not written by us.
KEPT: dict[str, Any] = {
    "ready": bool,
    "elapsed_s": (int, float),
    "watched_from_s": (int, float),
    "phases": list,
    "probes": dict,
    "log_offset": int,
}


class Waiter:
    """One slice of waiting for one start. ``write`` False (check mode) leaves ready.json as it is."""

    def __init__(self, home: str, record: ServerRecord, write: bool = True) -> None:
        self.home = home
        self.record = record
        self.write = write
        self.engine = get_engine(record.engine)
        self.folder = servers.folder(home, record.name)
        self.path = os.path.join(self.folder, "ready.json")
        kept = self._kept()
        self.was_ready = bool(kept.get("ready"))
        self.kept = kept
        self.timeline = readiness.Timeline()
        if kept.get("phases"):
            self.timeline.phases = [
                {key: value for key, value in one.items() if value is not None} for one in kept["phases"]
            ]
        self.offset = int(kept.get("log_offset", 0))
        self.rest = ""
        self.probes = readiness.Probes(self.engine, record.declaration, dict(kept.get("probes", {})))
        # A node that only computes answers no requests: its workers are all there is to wait for.
        self.probes.done = not self.engine.serves(record.declaration)
        self.workers: dict[int, procfs.Process] = {}
        self.expected = self.engine.expected_workers(record.declaration)
        #: When we first looked: a server may have been ready before, and its last phase is then too long by that.
        self.watched_from_s = float(kept.get("watched_from_s", round(self.elapsed(), 3)))
        self._tree_due = 0.0

    def _kept(self) -> dict[str, Any]:
        """What an earlier slice wrote down of this start; {} when there is nothing of use: the wait begins anew."""
        try:
            kept = files.read_json(self.path)
        except ValueError:
            return {}
        if not isinstance(kept, dict) or kept.get("start_id") != self.record.start_id:
            return {}
        if not all(isinstance(kept.get(name), kinds) for name, kinds in KEPT.items()):
            return {}
        phases_fit = all(isinstance(one, dict) and {"name", "at_s"} <= set(one) for one in kept["phases"])
        return kept if phases_fit else {}

    def elapsed(self) -> float:
        """Seconds since the launch."""
        return max(0.0, time.time() - self.record.launched_at)

    def run(self, timeout_s: float, slice_s: float) -> dict[str, Any]:
        """Wait until ready, or until the slice (0: there are none) or the time is over.

        Raises control.ControlError when the server or a worker dies, or when the time is over.
        """
        begin = time.monotonic()
        first_phase = self.timeline.current
        web = Background(self.record.base_url, server_env.api_key(self.home, self.record))
        http_due = 0.0
        while True:
            self.read_log()
            self.check_alive()
            self.look_for_workers()
            now = time.monotonic()
            if web.busy:
                reply = web.result()
                if reply is not None:
                    self.probes.take(reply.status, reply.json, reply.error, self.elapsed())
                    failed = not self.probes.last.endswith(": ok")
                    http_due = now + (HTTP_GAP_S if failed else 0.0)
                    if failed and self.probes.last.startswith("completion"):
                        http_due = now + COMPLETION_GAP_S
            if self.probes.done and self.workers_complete():
                return self.ready()
            if not web.busy and not self.probes.done and now >= http_due:
                web.start(self.probes.next_request())
            spent = now - begin
            if spent >= timeout_s:
                self.save(False)
                raise self.late()
            # A completion on its way is waited for: the next slice would ask again and leave this one behind.
            if not (web.busy and self.probes.step == "completion"):
                news = self.timeline.current != first_phase and spent >= NEWS_AFTER_S
                if slice_s and (news or spent >= slice_s):
                    self.save(False)
                    return self.result(False)
            if web.busy:
                web.wait(TICK_S)
            else:
                time.sleep(TICK_S)

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
        for line in lines:
            self.timeline.feed(self.engine, line, self.elapsed(), self.record.launched_at)

    def check_alive(self) -> None:
        if not self.record.running():
            self.server_died()
        self.probes.first_s.setdefault("process", round(self.elapsed(), 3))
        for rank, item in self.workers.items():
            if not procfs.alive(item.pid, item.start):
                # A server that dies takes its workers along, in no certain order, and knows more of why.
                if not ending.wait_gone([self.root()], ROOT_FOLLOWS_S):
                    self.server_died()
                self.save(False)
                lines = files.tail(self.record.log, control.LOG_LINES)
                raise control.ControlError(
                    f"server {self.record.name!r}: worker of rank {rank} (process {item.pid}) has died in phase "
                    f"{self.timeline.current!r}, the server process {self.record.pid} still runs; "
                    f"log: {self.record.log}",
                    log_tail=lines,
                )

    def root(self) -> procfs.Process:
        """The server process as it was recorded; it may be gone."""
        pid, start = self.record.pid, self.record.pid_start
        return procfs.Process(pid, start, 0, 0, "?", "", None, "")

    def server_died(self) -> NoReturn:
        """Raises ControlError with how the server process ended."""
        self.read_log()
        self.save(False)
        at = "after it was ready" if self.was_ready else f"in phase {self.timeline.current!r}"
        raise control.death(self.home, self.record, f"process {self.record.pid} died {at}")

    def look_for_workers(self) -> None:
        """Find the workers until they are complete; from then on each of them is watched."""
        now = time.monotonic()
        if not self.expected or self.workers or now < self._tree_due:
            return
        table = procfs.processes()
        root = table.get(self.record.pid)
        tree = ([root] if root else []) + procfs.descendants(self.record.pid, table)
        found = self.engine.find_workers(tree, self.record.declaration)
        self._tree_due = time.monotonic() + max(TREE_GAP_S, 5.0 * (time.monotonic() - now))
        if len(found) >= self.expected:
            self.workers = found
            self.probes.first_s.setdefault("workers", round(self.elapsed(), 3))

    def workers_complete(self) -> bool:
        return not self.expected or bool(self.workers)

    # --- results ---------------------------------------------------------------------------------

    def ready(self) -> dict[str, Any]:
        if not self.was_ready:
            self.timeline.finish(self.elapsed())
            self.save(True)
        return self.result(True)

    def result(self, ready: bool) -> dict[str, Any]:
        since_launch = self.kept["elapsed_s"] if self.was_ready else round(self.elapsed(), 3)
        return {
            "ready": ready,
            "already_ready": self.was_ready,
            "elapsed_s": since_launch,
            "watched_from_s": self.watched_from_s,
            "phase": self.timeline.current,
            "progress": self.timeline.progress,
            "phases": self.timeline.report(),
            "probes": self.probes.first_s,
            "waiting_for": "" if ready else self.waiting_for(),
            "log_tail": [] if ready else files.tail(self.record.log, 3),
        }

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
        value = {
            "start_id": self.record.start_id,
            "ready": ready,
            "elapsed_s": round(self.elapsed(), 3),
            "watched_from_s": self.watched_from_s,
            "phases": self.timeline.report(),
            "probes": self.probes.first_s,
            # An unfinished line is read again.
            "log_offset": self.offset - len(self.rest.encode("utf-8", "replace")),
        }
        if ready:
            value["ready_at"] = time.time()
        files.write_json(self.path, value)

    def late(self) -> control.ControlError:
        lines = files.tail(self.record.log, control.LOG_LINES)
        said = "\n  ".join(lines[-5:]) or "(it is empty)"
        what = "was ready and no longer is" if self.was_ready else "is not ready"
        return control.ControlError(
            f"server {self.record.name!r} {what} {self.elapsed():.0f} s after its launch: it is in phase "
            f"{self.timeline.current!r} and waits for {self.waiting_for()}; give it more time "
            f"(llm_server_ready_timeout_s) or read its log. The log ({self.record.log}) ends:\n  {said}",
            log_tail=lines,
            phase=self.timeline.current,
            phases=self.timeline.report(),
        )
