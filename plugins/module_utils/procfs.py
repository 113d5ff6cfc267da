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
import time
from dataclasses import dataclass
from typing import BinaryIO

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
    threads: int = 1

    @property
    def zombie(self) -> bool:
        """Whether it has ended. Where only its first thread has, the state says so too, but others hold its memory."""
        return self.state in ("Z", "X") and self.threads <= 1


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
    head, _bracket, rest = text.rpartition(")")
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
        threads=int(fields[17]),
    )


def wchan(pid: int, proc: str = PROC) -> str:
    """Name of the kernel function that a process sleeps in; "" when it sleeps in none or that may not be known."""
    name = (_read(f"{proc}/{pid}/wchan") or b"").decode("ascii", "replace").strip()
    return "" if name == "0" else name


def number_inside(pid: int, proc: str = PROC) -> int:
    """The number of a process in its own (innermost) PID namespace; ``pid`` where the kernel does not tell."""
    for line in (_read(f"{proc}/{pid}/status") or b"").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


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


def started_at(item: Process) -> float:
    """The start of a process as seconds since 1970, as exact as the clock was steady since then."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - item.start / os.sysconf("SC_CLK_TCK")
    return time.time() - age


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
    found: dict[str, str] = {}
    for entry in block.split(b"\0"):
        key, separator, value = entry.partition(b"=")
        if separator and key:
            # getenv() finds the first of two entries with one name.
            found.setdefault(key.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape"))
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
    """What getenv() in the process would see now: its ``environ`` array, read through /proc/PID/mem.

    Needs the right to trace the process (same user or root, subject to Yama); stops nothing. Falls back to
    :func:`initial_environment`, with the reason, where that fails.
    """
    try:
        return Environment(_memory_environment(pid, proc), True, "memory")
    except (OSError, ValueError, struct.error) as error:
        first = initial_environment(pid, proc)
        why = f"live environment not readable ({error})"
        return Environment(first.variables, first.complete, first.source, f"{why}; {first.why}" if first.why else why)


def _memory_environment(pid: int, proc: str) -> dict[str, str]:
    address = _environ_address(pid, proc)
    with open(f"{proc}/{pid}/mem", "rb", buffering=0) as memory:
        for _attempt in range(3):
            before = _pointer(memory, address)
            if not before:
                # Just after exec, before libc has started (or after clearenv): nothing is known from here.
                raise ValueError("environ is not set (yet)")
            try:
                found = _environ_array(memory, before)
            except (OSError, ValueError):
                if _pointer(memory, address) == before:
                    raise
                continue
            if _pointer(memory, address) == before:
                return found
    raise ValueError("the environment changes while it is read")


def _at(memory: BinaryIO, where: int, size: int) -> bytes:
    if where >= 1 << 63:
        raise ValueError(f"{where:#x} is no address of a process")
    memory.seek(where)
    return memory.read(size)


def _pointer(memory: BinaryIO, where: int) -> int:
    return int(struct.unpack("<Q", _at(memory, where, 8))[0])


def _environ_array(memory: BinaryIO, array: int) -> dict[str, str]:
    found: dict[str, str] = {}
    total = 0
    for index in range(65536):
        entry = _pointer(memory, array + 8 * index)
        if not entry:
            return found
        text = b""
        while b"\0" not in text:
            # Up to the end of the page: the next one may not be mapped.
            piece = _at(memory, entry + len(text), 4096 - (entry + len(text)) % 4096)
            total += len(piece)
            if not piece or total > 1 << 25:
                raise ValueError("a variable does not end")
            text += piece
        for key, value in _pairs(text.partition(b"\0")[0]).items():
            found.setdefault(key, value)
    raise ValueError("the environment does not end")


def _environ_address(pid: int, proc: str) -> int:
    """Where the process keeps the pointer ``environ``.

    The dynamic linker takes the first definition: the executable's own (a copy relocation moves the variable
    there, also in a static program), then libc's.
    """
    mapped: dict[str, tuple[int, str]] = {}  # file -> (address of its first byte, its range in maps)
    with open(f"{proc}/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            parts = line.rstrip("\n").split(None, 5)
            if len(parts) == 6 and parts[5].startswith("/") and int(parts[2], 16) == 0:
                mapped.setdefault(parts[5], (int(parts[0].split("-")[0], 16), parts[0]))
    if not mapped:
        raise ValueError("no file is mapped")
    program = os.readlink(f"{proc}/{pid}/exe")
    libraries = [name for name in mapped if re.search(r"/(libc[.-][^/]*so|ld-musl-)[^/]*$", name) and name != program]
    for name in [program, *libraries]:
        # /proc/PID/exe and map_files also reach a file that was deleted by an upgrade; root/ the one of a process
        # in another mount namespace.
        ways = [f"{proc}/{pid}/root{name}", f"{proc}/{pid}/map_files/{mapped.get(name, (0, ''))[1]}"]
        symbol = _first_symbol([f"{proc}/{pid}/exe"] if name == program else ways)
        if symbol is None:
            continue
        if not symbol.relative:
            return symbol.value
        if name in mapped:
            return mapped[name][0] + symbol.value
    raise ValueError("neither the program nor a libc shows where its environment is")


@dataclass(frozen=True)
class Symbol:
    """A symbol of an ELF file: an address in a fixed executable, or relative to where the file's start is mapped."""

    value: int
    relative: bool


_ENVIRON = (b"environ", b"__environ", b"_environ")
# libc is the same file in most processes of a host: (device, inode, size, time of change) -> symbol.
_symbols: dict[tuple[int, int, int, int], Symbol | None] = {}


def _first_symbol(paths: list[str]) -> Symbol | None:
    for path in paths:
        try:
            about = os.stat(path)
            key = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
            if key not in _symbols:
                _symbols[key] = elf_symbol(path, _ENVIRON)
            return _symbols[key]
        except OSError:
            continue
    return None


def elf_symbol(path: str, names: tuple[bytes, ...]) -> Symbol | None:
    """The first defined symbol with one of these names in a 64-bit little-endian ELF file, or None.

    Raises ValueError when the file is no such ELF, OSError when it cannot be read.
    """
    try:
        return _elf_symbol(path, names)
    except struct.error as error:
        raise ValueError(f"{path} is a damaged ELF file ({error})") from error


def _elf_symbol(path: str, names: tuple[bytes, ...]) -> Symbol | None:
    with open(path, "rb") as source:
        end = os.fstat(source.fileno()).st_size

        def part(offset: int, length: int) -> bytes:
            # Numbers from the file: they may be anything.
            source.seek(min(offset, end))
            return source.read(min(length, end))

        head = part(0, 64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        kind = struct.unpack_from("<H", head, 16)[0]
        programs, sections = struct.unpack_from("<QQ", head, 32)
        program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", head, 54)
        # The address that the file's first byte has: 0 in nearly all shared objects.
        start = 0
        for index in range(program_count):
            type_, _flags, offset, address = struct.unpack_from("<IIQQ", part(programs + index * program_size, 56))
            if type_ == 1 and offset == 0:  # PT_LOAD
                start = address
                break
        table = [
            struct.unpack_from("<IIQQQQI", part(sections + index * section_size, 64)) for index in range(section_count)
        ]
        # A dynamic program is bound by its dynamic symbols (11, SHT_DYNSYM); a static one has only 2, SHT_SYMTAB.
        wanted = 11 if any(row[1] == 11 for row in table) else 2
        for _name, type_, _flags, _address, offset, length, link in table:
            if type_ != wanted or link >= len(table):
                continue
            strings = part(table[link][4], table[link][5])
            # Linkers share tails: "environ" may be the end of "__environ". So: every place where a name starts.
            places = {at.start(1) for name in names for at in re.finditer(b"(?=(%s\0))" % re.escape(name), strings)}
            symbols = part(offset, length - length % 24)
            for name_at, info, _other, section, value, _size in struct.iter_unpack("<IBBHQQ", symbols):
                if section and info >> 4 and name_at in places:  # defined, and not local to one source file
                    relative = kind == 3  # ET_DYN: a library or a position-independent program
                    return Symbol(int(value) - start if relative else int(value), relative)
    return None


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
