# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Why a server or one of its workers has died: status in words, what the host knows, diagnosis, end of the log."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from . import (
    diagnoses,
    files,
    kernel_log,
    launcher,
    log_lines,
    nccl_ras,
    oom,
    phase_times,
    ports,
    procfs,
    readiness,
    servers,
    units,
)
from .engines import get_engine
from .procfs import Process
from .servers import ServerRecord

#: Lines of the log that are returned, and those of them that are in the message.
LOG_LINES = 40
SAID_LINES = 5
#: What is looked through for a known failure. A start draws thousands of progress bars.
SEARCHED_LINES, SEARCHED_BYTES = 20_000, 2 * 1024 * 1024
SHARED_MEMORY = "/dev/shm"
KERNEL_KILLED = "the kernel killed"


@dataclass(frozen=True)
class Story:
    """What is known of an end; ``evidence``: sentences about the host."""

    words: str
    diagnosis: dict[str, str]
    evidence: list[str]
    log_tail: list[str]
    exception: str = ""  # the last one that the log names
    left: list[dict[str, Any]] = field(default_factory=list)

    def text(self, log: str) -> str:
        """All of it for a message that has said what has died, and how."""
        host = "".join(f" {one[0].upper()}{one[1:]}." for one in self.evidence)
        if self.diagnosis:
            told = f" Cause: {self.diagnosis['cause']}. Remedy: {self.diagnosis['remedy']}."
        else:
            told = " No known failure is in the log."
        end = self.log_tail[-SAID_LINES:]
        if self.exception and not self.diagnosis and not any(self.exception in line for line in end):
            told = f"{told[:-1]}; the last exception there: {self.exception}."
        said = "\n  ".join(end) or "(it is empty)"
        left = ", ".join(f"{one['pid']} ({one['cmdline'][:40]})" for one in self.left[:4])
        rest = f" {len(self.left)} of its processes live on: {left}; the next start or reset ends them." if left else ""
        return f"{host}{told}{rest} The log ({log}) ends:\n  {said}"

    def facts(self) -> dict[str, Any]:
        return {
            "log_tail": self.log_tail,
            "diagnosis": self.diagnosis,
            "exit": self.words,
            "evidence": self.evidence,
            "left": self.left,
        }


def tell(home: str, record: ServerRecord, memory: oom.Group | None = None, worker: Process | None = None) -> Story:
    """Gather what is known now that the server (or only a worker of it) has died.

    ``memory``: its control group as it was when the server was well.
    """
    text = zombie_status(worker) if worker else _await_exit(servers.folder(home, record.name))
    known, lines = look(record)
    told = _signal_of(known["line"]) if known and known["evidence"] == "signal" else 0
    number = told or readiness.exit_signal(text)
    itself = not worker and _ended_itself(record, text, lines)
    evidence = []
    if number == int(signal.SIGBUS):
        evidence.append(shared_memory())
    elif (number == int(signal.SIGKILL) or not text) and (known is None or known["evidence"] == "signal"):
        of_kill = _of_kill(record, memory, worker.pid if worker else record.pid)
        # A status of its own making says nothing of who killed what before; only the kernel's traces do.
        sure = text and (told or not itself)
        evidence += of_kill if sure else [one for one in of_kill if KERNEL_KILLED in of_kill[0]]
    if known:
        evidence += _of_row(record, known)
    result = units.result(record.unit) if record.launcher == "systemd" and record.unit and not worker else ""
    evidence += [f"systemd says of {record.unit}: {result}"] if result else []
    if evidence and evidence[0].startswith(KERNEL_KILLED):
        known = {
            "name": "killed for want of host memory",
            "cause": "the host or the container has not enough memory",
            "remedy": "end what else uses memory, raise the container's limit, or use a smaller model",
            "line": evidence[0],
        }
    diagnosis = {key: value for key, value in known.items() if key != "evidence"} if known else {}
    words = "its exit status is not known (it was waited for)" if worker and not text else _words(text, itself)
    return Story(
        words,
        diagnosis,
        evidence,
        log_lines.relevant(lines, LOG_LINES),
        # A server that somebody killed had not failed: an exception in its log is about something else.
        log_lines.last_exception(lines) if itself or not number else "",
        [] if worker else _left(home, record),
    )


def end_words(home: str, record: ServerRecord) -> str:
    """How a server has ended, in words: its status, and whether its own launcher has sent the signal."""
    text = launcher.read_exit(servers.folder(home, record.name))
    return _words(text, _ended_itself(record, text, files.tail(record.log, SEARCHED_LINES, SEARCHED_BYTES)))


def _ended_itself(record: ServerRecord, text: str, lines: list[str]) -> bool:
    killed = readiness.exit_signal(text) == int(signal.SIGKILL)
    return killed and get_engine(record.engine).ended_itself(lines)


def _words(text: str, itself: bool) -> str:
    words = readiness.exit_words(text)
    if itself:
        return f"{words.partition(':')[0]} by its own launcher, because one of its processes had failed"
    return words


def zombie_status(item: Process, proc: str = procfs.PROC) -> str:
    """Exit status of a process that has ended and was not waited for, as shells write it (137: SIGKILL), or ""."""
    try:
        with open(f"{proc}/{item.pid}/stat", encoding="utf-8", errors="replace") as source:
            fields = source.read().rpartition(")")[2].split()
        status = int(fields[49])
    except (OSError, ValueError, IndexError):
        return ""
    if int(fields[19]) != item.start or fields[0] not in ("Z", "X"):
        return ""
    return str(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def look(record: ServerRecord) -> tuple[dict[str, Any] | None, list[str]]:
    """(known failure in the log or None, the lines that were looked through)."""
    lines = files.tail(record.log, SEARCHED_LINES, SEARCHED_BYTES)
    size = phase_times.model_bytes(record.model) if record.model else None
    known = diagnoses.diagnose(lines, record.declaration, get_engine(record.engine), (size or 0) / 2**30)
    return known, lines


def _await_exit(folder: str) -> str:
    deadline = time.monotonic() + 0.5
    while not launcher.read_exit(folder) and time.monotonic() < deadline:
        time.sleep(0.01)  # the supervisor writes it just after the end
    return launcher.read_exit(folder)


def _signal_of(line: str) -> int:
    """The signal in "exit code: -9" of an engine's own message."""
    found = re.search(r"exit code:? -(\d+)", line)
    return int(found.group(1)) if found else 0


def _of_kill(record: ServerRecord, memory: oom.Group | None, pid: int) -> list[str]:
    """Who has sent the SIGKILL: the kernel leaves traces, others do not."""
    limit = [memory.words()] if memory and memory.words() else []
    lines = kernel_log.killed(record.pid_start / os.sysconf("SC_CLK_TCK") - 1.0)
    engine = get_engine(record.engine)
    program = os.path.basename(record.argv[0])[:15] if record.argv else ""
    for one in reversed(lines or []):
        if one.pid == pid or one.comm == program or engine.part(one.comm):
            return [f"{KERNEL_KILLED} it for want of memory: {one.line}", *limit]
    now = oom.read(memory.folder) if memory else None
    if memory and now and (now.kills or 0) > (memory.kills or 0):
        return [f"{KERNEL_KILLED} a process of its control group for want of memory since the start", *limit]
    if lines is None:
        return ["the kernel's log may not be read here; dmesg of the host tells whether it was for want of memory"]
    return ["the kernel's log has no kill for want of memory since the launch: somebody sent the signal"]


def shared_memory(path: str = SHARED_MEMORY) -> str:
    """Size and free space of /dev/shm, in words."""
    try:
        about = os.statvfs(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    size, free = about.f_blocks * about.f_frsize / 2**20, about.f_bavail * about.f_frsize / 2**20
    return f"{path} has {size:.0f} MiB, {free:.0f} MiB of them free"


def _of_row(record: ServerRecord, known: dict[str, Any]) -> list[str]:
    if known["evidence"] == "shm":
        return [shared_memory()]
    if known["evidence"] == "port":
        found = re.search(r"port: (\d+)", known["line"])
        return port_owner(int(found.group(1)) if found else record.port, record)
    if known["evidence"] == "nccl":
        return [kernel_log.told(kernel_log.xid_lines())[2:]]
    return []


def port_owner(port: int, record: ServerRecord) -> list[str]:
    """Who has the port now that the server has not."""
    uses = [use for use in ports.who_has(port) if use.pid != record.pid]
    if not uses:
        return [f"port {port} is free by now"]
    return [
        f"port {port} belongs to process {use.pid} ({use.cmdline[:200]}), {use.state}"
        if use.pid
        else f"port {port} belongs to a process that is not visible to this user"
        for use in uses
    ]


def _left(home: str, record: ServerRecord) -> list[dict[str, Any]]:
    """Processes of the server that outlive it (vLLM's engine core does)."""
    tree = servers.started_by_us(home, record.name, procfs.processes())
    return [{"pid": item.pid, "cmdline": item.cmdline} for item in tree if item.pid != record.pid]


def missing_ranks(record: ServerRecord) -> list[str]:
    """What NCCL's own health service says of the ranks of a server that hangs; [] when it says nothing."""
    found = nccl_ras.parse(nccl_ras.ask(nccl_ras.address(record.environment)))
    return [f"NCCL RAS: {one.words()}" for one in found[:4]]
