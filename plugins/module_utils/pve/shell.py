# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Commands on a node, here or through ssh, and what is read and written with them."""

from __future__ import annotations

import hashlib
import os
import shlex
from dataclasses import dataclass, field

from .. import nvidia

CONF = "/etc/pve/lxc/{vmid}.conf"
RUNNING = "/var/lib/lxc/{vmid}/config"  # what PVE made of it at the last start
# Under the lock that PVE takes for every change of this file, and only if it still is what was read. The name of the
# temporary file is like those of PVE's own, which the cluster file system keeps to itself.
_REPLACE = """
mkdir -p "${4%/*}" && exec 9>>"$4" || exit 74
flock -w 10 9 || { echo "another job holds its lock $4" >&2; exit 75; }
[ "$(sha256sum < "$1" | cut -d' ' -f1)" = "$2" ] || { echo "it was changed meanwhile: run this again" >&2; exit 76; }
printf %s "$3" > "$1.tmp.$$" && mv -f "$1.tmp.$$" "$1"
"""
_LOCK = "/run/lock/lxc/pve-config-{vmid}.lock"


class ShellError(Exception):
    """A command on the node could not be run or failed; the text says which and why."""


@dataclass(frozen=True)
class Shell:
    """Runs commands on a node. ``prefix``: the ssh command in front of them, () where we are on the node."""

    prefix: tuple[str, ...] = ()
    where: str = "this node"
    sudo: bool = False
    root: str = ""  # in front of every path; tests have a folder of theirs for the node's files

    def run(self, argv: list[str], timeout_s: float = 60.0) -> tuple[int, str, str]:
        """(status, stdout, stderr) of a command. Raises ShellError when it cannot be run or hangs."""
        command = [*(["sudo", "-n"] if self.sudo else []), *argv]
        whole = [*self.prefix, shlex.join(command)] if self.prefix else command
        try:
            status, out, err = nvidia.run(whole, timeout_s)
        except OSError as error:
            raise ShellError(f"{whole[0]} cannot be run on {self.where}: {error.strerror or error}") from error
        if status is None:
            raise ShellError(f"{argv[0]} on {self.where} did not end within {timeout_s:g} s")
        if self.prefix and status == 255:
            raise ShellError(f"ssh to {self.where} failed: {' '.join(err.split()) or 'no reason given'}")
        return status, out, err

    def check(self, argv: list[str], timeout_s: float = 60.0) -> str:
        """The output of a command that has to succeed. Raises ShellError."""
        status, out, err = self.run(argv, timeout_s)
        if status != 0:
            said = " ".join((err or out).split())[:300]
            raise ShellError(f"{argv[0]} on {self.where} failed with status {status}: {said}")
        return out

    def read(self, path: str) -> str | None:
        """The text of a file on the node; None when there is none."""
        status, out, _error = self.run(["cat", "--", self.root + path])
        return out if status == 0 else None

    def modes(self, paths: list[str]) -> dict[str, int | None]:
        """path -> st_mode, of what a link leads to; None for what is not there."""
        found: dict[str, int | None] = dict.fromkeys(paths)
        if paths:
            _status, out, _error = self.run(["stat", "-L", "-c", "%f %n", "--", *(self.root + path for path in paths)])
            for line in out.splitlines():
                mode, _space, path = line.partition(" ")
                found[path[len(self.root) :]] = int(mode, 16)
        return found

    def character_devices(self, folder: str) -> list[str]:
        """The character devices in a folder of the node; [] when there is none."""
        _status, out, _error = self.run(["find", self.root + folder, "-maxdepth", "1", "-type", "c"])
        return sorted(line[len(self.root) :] for line in out.splitlines())

    def replace_conf(self, vmid: int, old: str, new: str) -> None:
        """Write a container's configuration file, if it still is ``old``. Raises ShellError."""
        digest = hashlib.sha256(old.encode("utf-8")).hexdigest()
        path, lock = (self.root + name.format(vmid=vmid) for name in (CONF, _LOCK))
        status, _out, err = self.run(["sh", "-c", _REPLACE, "sh", path, digest, new, lock])
        if status != 0:
            raise ShellError(f"{path} on {self.where} could not be written: {' '.join(err.split())}")


@dataclass(frozen=True)
class SshOptions:
    """How to reach a node with the ssh program; it is not asked for passwords."""

    host: str
    user: str = "root"
    port: int = 22
    options: list[str] = field(default_factory=list)

    def shell(self) -> Shell:
        """A shell there, with sudo where the user is not root."""
        words = ("ssh", "-n", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-p", str(self.port), *self.options)
        target = f"{self.user}@{self.host}"
        return Shell((*words, target, "--"), target, self.user != "root")


def here() -> Shell:
    """A shell on this node. Raises ShellError when we are not root on it."""
    if os.geteuid() != 0:
        raise ShellError("transport local needs root on the node: run the task with become: true")
    return Shell()
