# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Services of systemd that would start again what a reset ends: which ones to stop first, and stopping them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from . import nvidia, procfs
from .reset_plan import Item

_SHOW_S = 10.0


def systemctl(container: str = "") -> list[str]:
    """The command before systemctl's arguments: this host's, or that of a container of this Proxmox (or LXC) node."""
    if not container:
        return ["systemctl"]
    if shutil.which("pct"):
        return ["pct", "exec", container, "--", "systemctl"]
    return ["lxc-attach", "-n", container, "--", "systemctl"]


def stop(unit: str, timeout_s: float, container: str = "") -> str:
    """Stop a service; "" when that worked, else why not."""
    try:
        status, _out, said = nvidia.run([*systemctl(container), "stop", unit], timeout_s)
    except OSError as error:
        return str(error)
    if status is None:
        return "it did not answer in time"
    return "" if status == 0 else f"status {status}: {' '.join(said.split())[:200]}"


def main_process(unit: str, container: str = "") -> int | None:
    """Number of a service's main process, as its systemd counts; None when it has none or that cannot be told."""
    try:
        status, out, _said = nvidia.run([*systemctl(container), "show", "--property=MainPID", unit], _SHOW_S)
    except OSError:
        return None
    name, _equals, value = out.strip().partition("=")
    return int(value) if status == 0 and name == "MainPID" and value.isdigit() and value != "0" else None


def result(unit: str) -> str:
    """How a service ended, in systemd's word (oom-kill, signal, exit-code, ...); "" when it does not tell."""
    try:
        status, out, _said = nvidia.run([*systemctl(), "show", "--property=Result", unit], _SHOW_S)
    except OSError:
        return ""
    name, _equals, value = out.strip().partition("=")
    return value if status == 0 and name == "Result" and value != "success" else ""


class Watch:
    """Which services to stop, in the course of one reset.

    Stopping a service ends all of its processes, so being in its control group is no reason: what a cron job or a
    login started is in the group of cron or of sshd. It is stopped when its own main process is to be ended, or when
    systemd has given it another one since the reset ended a process of it.
    """

    def __init__(self, container: str = "", proc: str = procfs.PROC) -> None:
        self.container = container
        self._proc = proc
        self._mains: dict[str, int | None] = {}  # service -> its main process when it was first looked at

    def to_stop(self, items: Iterable[Item], untouchable: Iterable[str]) -> list[str]:
        """The services to stop before these processes are signalled; ``untouchable``: services never to stop."""
        never = set(untouchable)
        numbers: dict[str, set[int]] = {}
        for item in items:
            if item.unit and not item.server and item.unit not in never:
                pid = item.process.pid
                inside = procfs.number_inside(pid, self._proc) if self.container else pid
                numbers.setdefault(item.unit, set()).add(inside)
        found = []
        for unit, planned in sorted(numbers.items()):
            main = main_process(unit, self.container)
            first = self._mains.setdefault(unit, main)
            if main is not None and (main in planned or main != first):
                found.append(unit)
        return found
