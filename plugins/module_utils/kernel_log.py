# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the kernel's log tells of a server: Xid lines of the NVIDIA driver, and kills for want of memory."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from . import nvidia

KMSG = "/dev/kmsg"
LINES = 5
_RECORDS = 200_000  # more than the largest kernel buffer holds: a reader that is overtaken stops all the same
_TIMEOUT_S = 5.0
_XID = re.compile(r"NVRM: (Xid|GPU at .* has fallen off the bus)")
_KILLED = re.compile(r"[Oo]ut of memory: Killed process (\d+) \((.*?)\)")
_DMESG = re.compile(r"^\[\s*(\d+\.\d+)\]")


@dataclass(frozen=True)
class Killed:
    """A process that the kernel killed for want of memory. In a container the pid is the host's: the name is not."""

    pid: int
    comm: str
    line: str


def xid_lines(path: str = KMSG, limit: int = LINES) -> list[str] | None:
    """The last Xid lines, oldest first; [] when there are none, None when the log may not be read."""
    records = _all(path)
    return None if records is None else [text for _when, text in records if _XID.search(text)][-limit:]


def killed(since_s: float, path: str = KMSG) -> list[Killed] | None:
    """Whom the kernel has killed for want of memory since then (seconds of uptime); None: the log may not be read."""
    records = _all(path)
    if records is None:
        return None
    found = [(_KILLED.search(text), text) for when, text in records if when is None or when >= since_s]
    return [Killed(int(one.group(1)), one.group(2), text) for one, text in found if one]


def _all(path: str) -> list[tuple[float | None, str]] | None:
    """All messages with their time (seconds of uptime; None where it is not told)."""
    records = _records(path)
    return _dmesg() if records is None else records


def _records(path: str) -> list[tuple[float | None, str]] | None:
    """All messages that the kernel still has; each read of /dev/kmsg is one."""
    try:
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found: list[tuple[float | None, str]] = []
    try:
        for _record in range(_RECORDS):
            try:
                raw = os.read(source, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # overwritten before it was read: the next read goes on behind it
                if error.errno == errno.EAGAIN:
                    break
                return None
            if not raw:
                break
            # "priority,number,microseconds,flags;text", then lines with details.
            when: float | None = None
            for line in raw.decode("utf-8", "replace").splitlines():
                head, _semicolon, text = line.partition(";")
                fields = head.split(",")
                if text and len(fields) >= 3 and fields[2].isdigit():
                    when = int(fields[2]) / 1e6
                found.append((when, text or line))
    finally:
        os.close(source)
    return found


def _dmesg() -> list[tuple[float | None, str]] | None:
    program = nvidia.find_program("dmesg")
    try:
        status, out, _said = nvidia.run([program or "dmesg"], _TIMEOUT_S)
    except OSError:
        return None
    if status != 0:
        return None
    stamped = ((_DMESG.match(line), line) for line in out.splitlines())
    return [(float(one.group(1)) if one else None, line) for one, line in stamped]


def told(lines: list[str] | None) -> str:
    """The lines as a message has them: "", or text that begins with "; "."""
    if lines is None:
        return "; the kernel log cannot be read here: look for Xid lines in dmesg of the host"
    return f"; kernel log: {' | '.join(lines)}" if lines else "; the kernel log has no Xid lines"
