# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which processes work from an environment, and of which nobody but root can tell."""

from __future__ import annotations

import contextlib
import os
import re
import shutil

from .. import procfs


def used(folders: list[str], proc: str = procfs.PROC) -> set[str]:
    """Which of these folders a visible process works from: in its command line, or files of it mapped."""
    return {folder for folder, found in users(folders, proc).items() if found}


def users(folders: list[str], proc: str = procfs.PROC, standing: bool = False) -> dict[str, list[procfs.Process]]:
    """The visible processes that work from each of these folders; this one and those that run it are left out.

    ``standing``: so do those whose current folder is there.
    """
    found: dict[str, list[procfs.Process]] = {folder: [] for folder in folders}
    for item in others(proc):
        text = item.cmdline
        for name in ("exe", "cwd") if standing else ("exe",):
            with contextlib.suppress(OSError):
                text += "\n" + os.readlink(f"{proc}/{item.pid}/{name}") + "/"
        with contextlib.suppress(OSError):
            text += _maps(item, proc)
        for folder in folders:
            if folder + "/" in text:
                found[folder].append(item)
    return found


def unseen(known: set[int], proc: str = procfs.PROC) -> list[procfs.Process]:
    """The processes but ``known`` ones that may be a Python, and whose files only another user may see."""
    found = []
    for item in others(proc):
        if item.pid not in known and not another_program(item):
            try:
                _maps(item, proc)
            except PermissionError:
                found.append(item)
            except OSError:
                pass
    return found


def _maps(item: procfs.Process, proc: str) -> str:
    with open(f"{proc}/{item.pid}/maps", encoding="utf-8", errors="replace") as maps:
        return maps.read()


def others(proc: str) -> list[procfs.Process]:
    """All visible processes but this one and those that run it."""
    table = procfs.processes(proc)
    own, pid = set(), os.getpid()
    while pid in table and pid not in own:
        own.add(pid)
        pid = table[pid].ppid
    return [item for number, item in table.items() if number not in own]


def another_program(item: procfs.Process) -> bool:
    """Whether the names of a process, which are all that others see, say that it runs no Python of an environment.

    One that was started by its path names that path. Others name a program that is found on the search path, or, as
    services do, themselves ("sshd: ...", "(sd-pam)"). The titles that engines give to their workers are neither.
    """
    word = item.cmdline.partition(" ")[0]
    if word.startswith("/"):
        return True
    name = re.sub(r"^[-@(]|[:)]$", "", word)
    if not name or name.startswith("python") or item.comm.strip("()") != name[:15]:
        return False
    return name != word or shutil.which(name) is not None
