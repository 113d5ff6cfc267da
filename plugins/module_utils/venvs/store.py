# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where environments lie: a link that is switched atomically, and the real folders beside it.

    <path>              link to the one in use
    <path>.<8 hex>      an environment; groundstate-env.json is written last, so what lacks it is not finished
    <path>.lock         held while one is built, by the builder and by the installer that it runs

An environment cannot be moved (its scripts name its path), hence real folders under final names. The one before stays,
for a server that still runs from it and for the way back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

from .. import files, procfs
from .usage import unseen, users

MANIFEST = "groundstate-env.json"
MARKER = ".groundstate-building"
SCHEMA = 1
_SLACK_S = 2.0  # between the clock of files and the one that counts since boot


class Store:
    """The environments of one path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.doubts: list[str] = []  # after prune(): why something stays of which nobody knows whether it is used
        self.parent, self.name = os.path.split(path)
        self._ours = re.compile(re.escape(self.name) + r"\.[0-9a-f]{8}")

    def folder(self, key: str) -> str:
        return f"{self.path}.{key}"

    def current(self) -> str | None:
        """The folder in use, or None."""
        if not os.path.islink(self.path):
            return None
        target = os.path.normpath(os.path.join(self.parent, os.readlink(self.path)))
        return target if target in self.folders() else None

    def folders(self) -> list[str]:
        """Our folders beside the path, finished or not, newest first."""
        try:
            found = [os.path.join(self.parent, name) for name in os.listdir(self.parent) if self._ours.fullmatch(name)]
        except OSError:
            return []
        mine = [one for one in found if os.path.isdir(one) and not os.path.islink(one) and self.state(one) != "foreign"]
        return sorted(mine, key=lambda one: os.stat(one).st_mtime_ns, reverse=True)

    @staticmethod
    def state(folder: str) -> str:
        """``absent``, ``finished``, ``unfinished`` (ours, killed half-way or being built) or ``foreign``."""
        if not os.path.lexists(folder):
            return "absent"
        if os.path.isdir(folder) and not os.path.islink(folder):
            if os.path.exists(os.path.join(folder, MARKER)) or not os.listdir(folder):
                return "unfinished"
            if os.path.exists(os.path.join(folder, MANIFEST)):
                return "finished"
        return "foreign"

    @staticmethod
    def manifest(folder: str) -> dict[str, Any] | None:
        """What a finished environment says of itself; None when it is not finished or from another version of us.

        Raises ValueError for a damaged one.
        """
        if Store.state(folder) != "finished":
            return None
        try:
            raw = files.read_json(os.path.join(folder, MANIFEST))
        except ValueError as error:
            # Without the file alone the folder would be a stranger's.
            raise ValueError(
                f"{str(error).partition(';')[0]}: remove the whole folder {folder}, and the next run makes it again"
            ) from error
        return raw if isinstance(raw, dict) and raw.get("schema") == SCHEMA else None

    def check(self) -> None:
        """Raises ValueError when something that is not ours is at the path."""
        if os.path.lexists(self.path) and self.current() is None:
            link = os.readlink(self.path) if os.path.islink(self.path) else ""
            # A link of ours whose folder somebody removed leads nowhere, and may be replaced.
            if self._ours.fullmatch(link) and not os.path.exists(self.path):
                return
            if not link and os.path.isdir(self.path) and not os.listdir(self.path):
                return
            raise ValueError(
                f"{self.path} exists and was not made by Groundstate: choose another path, or use it as it is "
                'with ml_env_lock: ""'
            )

    def begin(self, folder: str) -> None:
        """A new, marked folder; what a killed run left at its place is removed. Raises ValueError, OSError."""
        state = self.state(folder)
        if state == "foreign":
            raise ValueError(f"{folder} exists and was not made by Groundstate: move it away")
        if state != "absent":
            self.remove(folder)
        os.makedirs(folder)
        try:
            files.write_atomic(os.path.join(folder, MARKER), f"{os.getpid()}\n")
        except OSError:
            os.rmdir(folder)
            raise

    def finish(self, folder: str, manifest: dict[str, Any]) -> None:
        """Declare a folder finished."""
        self.update(folder, manifest)
        os.unlink(os.path.join(folder, MARKER))

    @staticmethod
    def update(folder: str, manifest: dict[str, Any]) -> None:
        """Write the manifest of a folder."""
        files.write_json(os.path.join(folder, MANIFEST), {**manifest, "schema": SCHEMA})

    def switch(self, folder: str) -> None:
        """Make the path lead to a folder, atomically; the link is relative."""
        if os.path.isdir(self.path) and not os.path.islink(self.path):
            os.rmdir(self.path)  # empty: see check()
        temporary = f"{self.path}.link"
        if os.path.lexists(temporary):
            os.unlink(temporary)
        os.symlink(os.path.basename(folder), temporary)
        os.replace(temporary, self.path)
        os.utime(folder)  # the order of use is the order of these times

    def prune(self, keep: int) -> list[str]:
        """Remove the oldest environments but ``keep``, unfinished ones at once; what a process uses stays."""
        current = self.current()
        others = [one for one in self.folders() if one != current]
        surplus = [one for one in others if self.state(one) == "finished"][max(0, keep - 1) :]
        surplus += [one for one in others if self.state(one) == "unfinished"]
        if not surplus:
            return []
        busy, self.doubts = self._busy(surplus)
        removed = [one for one in surplus if one not in busy]
        for one in removed:
            self.remove(one)
        return removed

    def _busy(self, folders: list[str]) -> tuple[set[str], list[str]]:
        """Which of these folders stay for a process, and the doubts why."""
        found, doubts = users([*folders, self.path], standing=True), []
        busy = {one for one in folders if found[one]}
        finished = [one for one in folders if self.state(one) == "finished"]  # no other can ever have been in use
        known = {item.pid for one in busy for item in found[one]}
        # The command line of what was started by the link names the link. It led elsewhere before the switch, to one
        # of the folders that were there then.
        switched = os.lstat(self.path).st_mtime if os.path.lexists(self.path) else 0.0
        for item in found[self.path]:
            since = procfs.started_at(item)
            if item.pid not in known and since < switched + _SLACK_S:
                busy.update(one for one in finished if self._made_at(one) <= since + _SLACK_S)
        known.update(item.pid for item in found[self.path])
        for item in unseen(known):
            # What is older than a folder was not started from it.
            mine = [one for one in finished if self._made_at(one) <= procfs.started_at(item) + _SLACK_S]
            stay = [os.path.basename(one) for one in mine if one not in busy]
            busy.update(mine)
            if stay:
                doubts.append(
                    f"{', '.join(stay)} stays: whether process {item.pid} ({item.comm}), of another user, "
                    "works from it cannot be told without being root"
                )
        return busy, doubts

    @staticmethod
    def _made_at(folder: str) -> float:
        """When an environment was finished; 0 when it does not say."""
        try:
            made = (Store.manifest(folder) or {}).get("made_at", 0.0)
        except (OSError, ValueError):
            return 0.0
        return float(made) if files.is_number(made) else 0.0

    @staticmethod
    def remove(folder: str) -> None:
        """Remove a folder of ours; the marker first, so that a kill in between leaves something known as unfinished.

        Works on a full disk, where this is what makes space. Raises OSError.
        """
        marker, manifest = os.path.join(folder, MARKER), os.path.join(folder, MANIFEST)
        if os.path.exists(manifest) and not os.path.exists(marker):
            # Another name for the manifest takes no block. Where even that fails it goes on: bin/ is removed first,
            # and without bin/python no run takes the folder for an environment.
            with contextlib.suppress(OSError):
                os.rename(manifest, marker)
        order = {"bin": 0, MANIFEST: 2, MARKER: 3}
        for name in sorted(os.listdir(folder), key=lambda one: (order.get(one, 1), one)):
            path = os.path.join(folder, name)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        os.rmdir(folder)

    def remove_all(self) -> list[str]:
        """Remove the link, all folders and the lock's file; returns what there was."""
        found = self.folders()
        if os.path.islink(self.path):
            os.unlink(self.path)
            found.insert(0, self.path)
        for one in found:
            if one != self.path:
                self.remove(one)
        for leftover in (f"{self.path}.link", f"{self.path}.lock"):
            if os.path.lexists(leftover):
                os.unlink(leftover)
        return found

    @contextlib.contextmanager
    def locked(self, timeout_s: float) -> Iterator[int]:
        """Hold the lock; gives its file descriptor, for the installer to inherit.

        So an installer that outlived a killed builder still holds it, and its folder is not touched before it ends.
        Raises TimeoutError.
        """
        os.makedirs(self.parent, exist_ok=True)
        deadline = time.monotonic() + timeout_s
        while True:
            handle = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.exists(f"{self.path}.lock") and os.path.samestat(
                    os.fstat(handle), os.stat(f"{self.path}.lock")
                ):
                    break
            except BlockingIOError:
                pass
            os.close(handle)
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"another run has been building {self.path} for {timeout_s:.0f} s (lock: {self.path}.lock)"
                )
            time.sleep(0.2)
        try:
            yield handle
        finally:
            os.close(handle)
