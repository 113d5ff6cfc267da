# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Raw ``lxc.*`` lines of /etc/pve/lxc/ID.conf: those we want, those that passed GPUs through by hand. Pure.

They are for what PVE has no key for: the limit of locked memory and the size of /dev/shm. Devices have one (devN), and
raw lines for them break: the major of nvidia-uvm is given out anew at each load of the module, and a line that allows
the old one fails with EPERM.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from . import note
from .note import RawLine
from .properties import size_bytes

MEMLOCK = "lxc.prlimit.memlock"
MOUNT = "lxc.mount.entry"
_SHM = "dev/shm"
_RAW = re.compile(r"(lxc\.[a-z0-9_.-]+)(?::|\s*=)\s*(.*?)\s*")
_ALLOW = re.compile(r"lxc\.cgroup2?\.devices\.allow")
_DEVICE = re.compile(r"c\s+(\d+):(?:\d+|\*)\s+[rwm]+")
#: What :func:`wanted` makes.
_WRITTEN = re.compile(
    r"lxc\.prlimit\.memlock: (?:unlimited|\d+)"
    r"|lxc\.mount\.entry: tmpfs dev/shm tmpfs rw,nosuid,nodev,mode=1777,size=\d+,create=dir 0 0",
    re.ASCII,
)
NVIDIA_MAJOR = 195
# Majors that the kernel gives out itself, to nvidia-uvm and nvidia-caps among others.
_GIVEN_OUT = (*range(234, 255), *range(384, 512))


def lines_of(conf: str) -> list[RawLine]:
    """The raw lines of the container itself; not those of its snapshots, which follow under [name]."""
    # The pattern has as many groups as a RawLine has parts, which mypy cannot know.
    return [found.groups() for line in _main(conf) if (found := _RAW.fullmatch(line))]  # type: ignore[misc]


def _main(conf: str) -> list[str]:
    lines = conf.splitlines()
    return lines[: next((index for index, line in enumerate(lines) if line.startswith("[")), len(lines))]


def noted(description: str) -> list[RawLine]:
    """The raw lines that our block in a description names, as far as we could have written them.

    Whoever may edit the description may not write raw lines: a hook that it names would run as root on the node.
    """
    return [line for line in note.raw_lines(description) if _WRITTEN.fullmatch(": ".join(line))]


def wanted(memlock: str | None, shm_size: str | None, ours: Iterable[RawLine] = ()) -> list[RawLine]:
    """The lines for a limit of locked memory (``unlimited`` or a size) and a size of /dev/shm.

    "" asks for no line; None leaves what is in ``ours``, the lines that we added before. Raises ValueError.
    """
    found = [line for line in ours if (memlock if _speaks_of(line) == MEMLOCK else shm_size) is None]
    if memlock:
        found.append((MEMLOCK, memlock if memlock == "unlimited" else str(_size("memlock", memlock))))
    if shm_size:
        size = _size("shm_size", shm_size)
        found.append((MOUNT, f"tmpfs {_SHM} tmpfs rw,nosuid,nodev,mode=1777,size={size},create=dir 0 0"))
    return sorted(found)


def _size(name: str, text: str) -> int:
    try:
        return size_bytes(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _speaks_of(line: RawLine) -> str:
    """What a line sets, where there can be only one of it: its key, or the mount point of /dev/shm."""
    key, value = line
    if key == MOUNT:
        target = [*value.split(), "", ""][1].strip("/")
        return _SHM if target == _SHM else f"{key} {value}"
    return key if key == MEMLOCK else f"{key} {value}"


def by_hand(lines: Iterable[RawLine]) -> list[RawLine]:
    """The lines that pass NVIDIA's devices through as one did before devN."""
    lines = list(lines)
    mounts = [line for line in lines if line[0] == MOUNT and re.match(r"/dev/nvidia[\w-]*(/\S*)?\s", line[1])]
    found = list(mounts)
    for key, value in lines:
        device = _DEVICE.fullmatch(value) if _ALLOW.fullmatch(key) else None
        major = int(device.group(1)) if device else -1
        # Whose a major is that was given out, a line does not tell: only beside NVIDIA's own mounts it is theirs.
        if major == NVIDIA_MAJOR or (mounts and major in _GIVEN_OUT):
            found.append((key, value))
    return [line for line in lines if line in found]


def target(lines: Iterable[RawLine], ours: Iterable[RawLine], want: Iterable[RawLine], migrate: bool) -> list[RawLine]:
    """The raw lines as they should be: those of others as they are, ours as wanted.

    ``ours``: those we added before; ``migrate``: without what passed NVIDIA's devices through by hand.
    """
    lines, ours, want = list(lines), list(ours), list(want)
    gone = set(by_hand(lines)) if migrate else set()
    spoken_for = {_speaks_of(line) for line in want}
    kept = [
        line for line in lines if line in want or not (line in ours or line in gone or _speaks_of(line) in spoken_for)
    ]
    return kept + [line for line in want if line not in kept]


def write(conf: str, lines: Iterable[RawLine]) -> str:
    """The file with exactly these raw lines in its main part, after everything else there, as PVE writes it."""
    main = _main(conf)
    rest = conf.splitlines()[len(main) :]
    while main and not main[-1].strip():
        main.pop()
    body = [line for line in main if not _RAW.fullmatch(line)] + [f"{key}: {value}" for key, value in lines]
    return "\n".join(body + (["", *rest] if rest else [])) + "\n"


def pending(conf: Iterable[RawLine], running: Iterable[RawLine]) -> list[str]:
    """What of the raw lines a running container lacks or still has, by key.

    ``running``: the lines that PVE started it with, most of which PVE made itself; of those only what we could have
    written counts.
    """
    conf, running = list(conf), list(running)
    missing = {key for key, value in conf if (key, value) not in running}
    ours = [line for line in running if _speaks_of(line) in (MEMLOCK, _SHM) or re.match(r"/dev/nvidia", line[1])]
    return sorted(missing | {key for key, value in ours if (key, value) not in conf})
