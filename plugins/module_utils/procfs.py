# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Processes as /proc tells them: identity, tree, environment, sockets.

Every reader takes the folder (``proc``), so that tests can hand it a made one. A value that could not
be read is None ("could not tell"); an empty value means that there is none.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass

PROC = "/proc"


@dataclass(frozen=True)
class Process:
    """One process, identified by pid **and** start time (a pid alone is reused)."""

    pid: int
    start: int  # clock ticks since boot: field 22 of /proc/PID/stat
    ppid: int
    session: int
    state: str  # R, S, D, Z, T, ...
    comm: str
    uid: int | None
    cmdline: str  # arguments joined by spaces; the title once a program has set one

    @property
    def zombie(self) -> bool:
        return self.state in ("Z", "X")


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as source:
            return source.read()
    except OSError:
        return None


def boot_id(proc: str = PROC) -> str | None:
    """The kernel's random identifier of this boot; start times are comparable only within one."""
    raw = _read(f"{proc}/sys/kernel/random/boot_id")
    return raw.decode().strip() if raw else None


def pids(proc: str = PROC) -> list[int]:
    """Numbers of all processes that are visible here, ascending."""
    return sorted(int(name) for name in os.listdir(proc) if name.isdigit())


def process(pid: int, proc: str = PROC) -> Process | None:
    """One process, or None when there is none (any more)."""
    raw = _read(f"{proc}/{pid}/stat")
    if not raw:
        return None
    # The name is in parentheses and may itself hold spaces and parentheses: cut at the last one.
    text = raw.decode("utf-8", "replace")
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if len(fields) < 20 or "(" not in head:
        return None
    command = _read(f"{proc}/{pid}/cmdline") or b""
    try:
        uid: int | None = os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        uid = None
    return Process(
        pid=pid,
        start=int(fields[19]),
        ppid=int(fields[1]),
        session=int(fields[3]),
        state=fields[0],
        comm=head.partition("(")[2],
        uid=uid,
        cmdline=command.replace(b"\0", b" ").decode("utf-8", "replace").strip(),
    )


def processes(proc: str = PROC) -> dict[int, Process]:
    """All visible processes by pid."""
    found = (process(pid, proc) for pid in pids(proc))
    return {item.pid: item for item in found if item is not None}


def same(item: Process | None, pid: int, start: int) -> bool:
    """Whether this is still the process that had this start time, and not a zombie."""
    return item is not None and item.pid == pid and item.start == start and not item.zombie


def alive(pid: int, start: int, proc: str = PROC) -> bool:
    """Whether the process with this pid and start time still runs (a zombie does not)."""
    return same(process(pid, proc), pid, start)


def descendants(root: int, table: dict[int, Process]) -> list[Process]:
    """Children, grandchildren, ... of a pid, parents before children; the root itself is not in it."""
    children: dict[int, list[Process]] = {}
    for item in table.values():
        children.setdefault(item.ppid, []).append(item)
    found: list[Process] = []
    queue = [root]
    seen = {root}
    while queue:
        for child in sorted(children.get(queue.pop(0), []), key=lambda one: one.pid):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
                queue.append(child.pid)
    return found


# --- environment ---------------------------------------------------------------------------------


def _pairs(block: bytes) -> dict[str, str]:
    found = {}
    for entry in block.split(b"\0"):
        key, separator, value = entry.partition(b"=")
        if separator and key:
            found[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
    return found


@dataclass(frozen=True)
class Environment:
    """The environment of a process and how far it can be trusted.

    ``complete`` is False when a process title overwrote (part of) /proc/PID/environ: a variable that is
    missing then is *unknown*, not absent.
    """

    variables: dict[str, str]
    complete: bool
    source: str  # "environ", "memory" or "none"
    why: str = ""


def initial_environment(pid: int, proc: str = PROC) -> Environment:
    """/proc/PID/environ: the environment at exec, unless a process title overwrote it."""
    raw = _read(f"{proc}/{pid}/environ")
    if raw is None:
        return Environment({}, False, "none", f"{proc}/{pid}/environ cannot be read")
    # A title writes NULs (or text) over this memory. An intact block has no empty entry but the last.
    body = raw[:-1] if raw.endswith(b"\0") else raw
    if not raw:
        return Environment({}, False, "environ", "the environment is empty: a process title may have overwritten it")
    if b"\0\0" in raw or body.startswith(b"\0") or any(b"=" not in entry for entry in body.split(b"\0")):
        return Environment(_pairs(raw), False, "environ", "a process title overwrote /proc/PID/environ")
    return Environment(_pairs(raw), True, "environ")


def live_environment(pid: int, proc: str = PROC) -> Environment:
    """What getenv() in the process would see now: libc's ``environ`` array, read through /proc/PID/mem.

    Needs the right to trace the process (same user or root, subject to Yama). Falls back to
    :func:`initial_environment`, with the reason, where that fails.
    """
    try:
        return Environment(_memory_environment(pid, proc), True, "memory")
    except (OSError, ValueError, struct.error) as error:
        first = initial_environment(pid, proc)
        why = f"live environment not readable ({error})"
        return Environment(first.variables, first.complete, first.source, f"{why}; {first.why}" if first.why else why)


def _memory_environment(pid: int, proc: str) -> dict[str, str]:
    if struct.calcsize("P") != 8:
        raise ValueError("only 64-bit processes are supported")
    libc = base = None
    with open(f"{proc}/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            parts = line.split(None, 5)
            if len(parts) == 6 and re.search(r"/(libc[.-][^/]*so|ld-musl-)[^/]*$", parts[5].strip()) and parts[2] == "00000000":
                libc, base = parts[5].strip(), int(parts[0].split("-")[0], 16)
                break
    if libc is None or base is None:
        raise ValueError("no libc is mapped")
    # The process may live in another mount namespace: take the file through its own root.
    path = f"{proc}/{pid}/root{libc}"
    address = base + elf_symbol(path if os.path.exists(path) else libc, (b"environ", b"__environ"))
    with open(f"{proc}/{pid}/mem", "rb", buffering=0) as memory:

        def at(where: int, size: int) -> bytes:
            memory.seek(where)
            return memory.read(size)

        pointer = struct.unpack("<Q", at(address, 8))[0]
        found: dict[str, str] = {}
        for index in range(65536):
            entry = struct.unpack("<Q", at(pointer + 8 * index, 8))[0] if pointer else 0
            if not entry:
                return found
            text = b""
            while b"\0" not in text:
                # Up to the end of the page: the next one may not be mapped.
                piece = at(entry + len(text), 4096 - (entry + len(text)) % 4096)
                if not piece or len(text) > 1 << 20:
                    raise ValueError("a variable does not end")
                text += piece
            for key, value in _pairs(text.partition(b"\0")[0]).items():
                found.setdefault(key, value)  # getenv() finds the first
        raise ValueError("the environment does not end")


def elf_symbol(path: str, names: tuple[bytes, ...]) -> int:
    """Address (relative to the load base) of a dynamic symbol of a 64-bit little-endian ELF file.

    Raises ValueError when the file is no such ELF or lacks the symbols, OSError when it cannot be read.
    """
    with open(path, "rb") as source:
        data = source.read()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
    offset = struct.unpack_from("<Q", data, 40)[0]
    size, count = struct.unpack_from("<HH", data, 58)
    for index in range(count):
        kind, where, length, link = _section(data, offset + index * size)
        if kind != 11:  # SHT_DYNSYM
            continue
        _kind, names_at, names_length, _link = _section(data, offset + link * size)
        strings = data[names_at : names_at + names_length]
        for entry in range(where, where + length, 24):
            name_at, _info, _other, section, value, _size = struct.unpack_from("<IBBHQQ", data, entry)
            if section and strings[name_at : strings.find(b"\0", name_at)] in names:
                return int(value)
    raise ValueError(f"{path} has no symbol {names[0].decode()}")


def _section(data: bytes, where: int) -> tuple[int, int, int, int]:
    _name, kind, _flags, _address, offset, length, link = struct.unpack_from("<IIQQQQI", data, where)
    return kind, offset, length, link


# --- sockets -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PortUse:
    """Who has a TCP port: a listening socket, or one that is bound but does not listen (yet)."""

    port: int
    state: str  # "listening", "bound"
    pid: int | None  # None: the owner is not visible (another user or namespace)
    cmdline: str


def socket_owners(proc: str = PROC) -> dict[int, int]:
    """Socket inode -> pid, for the processes whose open files may be read."""
    found: dict[int, int] = {}
    for pid in pids(proc):
        try:
            names = os.listdir(f"{proc}/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink(f"{proc}/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found.setdefault(int(target[8:-1]), pid)
    return found


def listeners(port: int, proc: str = PROC) -> list[PortUse]:
    """Who listens on a TCP port (IPv4 or IPv6). A bound socket that does not listen is not in /proc/net/tcp."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        raw = _read(f"{proc}/net/{table}") or b""
        for line in raw.decode().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(int(fields[9]))
    if not inodes:
        return []
    owners = socket_owners(proc)
    found = []
    for inode in sorted(inodes):
        owner = owners.get(inode)
        item = process(owner, proc) if owner else None
        found.append(PortUse(port, "listening", owner, item.cmdline if item else ""))
    return found
