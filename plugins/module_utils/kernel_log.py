# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the NVIDIA driver told the kernel's log: its Xid lines, which say why a GPU or a process on it hangs."""

from __future__ import annotations

import errno
import os
import re

from . import nvidia

KMSG = "/dev/kmsg"
LINES = 5
_RECORDS = 200_000  # more than the largest kernel buffer holds: a reader that is overtaken stops all the same
_TIMEOUT_S = 5.0
_XID = re.compile(r"NVRM: (Xid|GPU at .* has fallen off the bus)")


def xid_lines(path: str = KMSG, limit: int = LINES) -> list[str] | None:
    """The last Xid lines, oldest first; [] when there are none, None when the log may not be read."""
    texts = _records(path)
    if texts is None:
        texts = _dmesg()
    return None if texts is None else [text for text in texts if _XID.search(text)][-limit:]


def _records(path: str) -> list[str] | None:
    """All messages that the kernel still has; each read of /dev/kmsg is one."""
    try:
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found = []
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
            for line in raw.decode("utf-8", "replace").splitlines():
                found.append(line.partition(";")[2] or line)
    finally:
        os.close(source)
    return found


def _dmesg() -> list[str] | None:
    program = nvidia.find_program("dmesg")
    try:
        status, out, _said = nvidia.run([program or "dmesg"], _TIMEOUT_S)
    except OSError:
        return None
    return out.splitlines() if status == 0 else None


def told(lines: list[str] | None) -> str:
    """The lines as a message has them: "", or text that begins with "; "."""
    if lines is None:
        return "; the kernel log cannot be read here: look for Xid lines in dmesg of the host"
    return f"; kernel log: {' | '.join(lines)}" if lines else "; the kernel log has no Xid lines"
