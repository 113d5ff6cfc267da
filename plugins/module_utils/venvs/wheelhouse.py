# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make the bundle of a lock on a machine that reaches an index: pip fetches wheels for any Python and platform."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from .. import files
from . import bundle, installers, interpreters, requirements
from .bundle import Manifest, Target
from .installers import Sources, Step
from .requirements import Requirement

#: Second number of the oldest glibc (2.5) that wheels are made for; pip matches each tag exactly.
_OLDEST_GLIBC = 5
# Releases of a Python that stand for all of them: which one the hosts have is not known.
_PATCHES = ("0", "99")


class BundleError(Exception):
    """What went wrong, as one message for a person."""


@dataclass(frozen=True)
class Order:
    """A bundle as declared."""

    path: str  # folder that it is put into
    lock: str
    requirements: str
    python: str = ""  # version, "3.11"; "": that of the running interpreter
    platform: str = ""  # "linux-x86_64"; "": that of the running interpreter
    python_range: str = ""  # versions that the lock is for
    lock_platform: str = ""  # platform that the lock is for, or how its name begins
    glibc: str = "2.28"  # the oldest that hosts have
    installer: str = "auto"
    sources: Sources = field(default_factory=Sources)
    timeout_s: float = 3600.0


@dataclass
class Made:
    """The bundle, and whether it had to be made."""

    path: str
    changed: bool
    manifest: Manifest | None  # None in check mode, when there is none yet


def target(order: Order) -> Target:
    """Python and platform that the bundle is for. Raises ValueError."""
    return Target(f"cpython-3{_minor(order)}", _platform(order))


def _minor(order: Order) -> int:
    """Second number of the Python's version: the one asked for, the running one, or the only one of the lock."""
    fitting = [minor for minor in interpreters.MINORS if _fits(minor, order.python_range)]
    if order.python:
        match = re.fullmatch(r"3\.(\d{1,2})", order.python)
        if not match or int(match[1]) not in interpreters.MINORS:
            # 3.1 is what YAML makes of 3.10.
            raise ValueError(f"python {order.python!r}: give major and minor version in quotes, such as '3.10'")
        if int(match[1]) not in fitting:
            raise ValueError(f"python {order.python!r}: the lock needs {order.python_range} (ml_env_bundle_python)")
        return int(match[1])
    own = interpreters.running().version
    if not order.python_range or int(own.split(".")[1]) in fitting:
        return int(own.split(".")[1])
    if len(fitting) != 1:
        raise ValueError(
            f"the lock needs Python {order.python_range}, this one is {own}: name that of the hosts "
            "(ml_env_bundle_python)"
        )
    return fitting[0]


def _fits(minor: int, python_range: str) -> bool:
    return any(requirements.in_range(f"3.{minor}.{patch}", python_range) for patch in _PATCHES)


def _platform(order: Order) -> str:
    own = interpreters.running().platform
    # A lock for one platform only says which; "linux" leaves it to this machine.
    wanted = order.platform or (own if own.startswith(order.lock_platform) else order.lock_platform)
    if not re.fullmatch(r"linux-(x86_64|aarch64)", wanted):
        raise ValueError(f"platform {wanted!r}: linux-x86_64 or linux-aarch64")
    if not wanted.startswith(order.lock_platform):
        raise ValueError(f"platform {wanted!r}: the lock is for {order.lock_platform} (ml_env_bundle_platform)")
    match = re.fullmatch(r"2\.(\d{1,2})", order.glibc)
    if not match or int(match[1]) < _OLDEST_GLIBC:
        # 2.3 is what YAML makes of 2.30.
        raise ValueError(f"glibc {order.glibc!r}: give its version in quotes, such as '2.30'")
    return wanted


def ensure(order: Order, dry: bool = False) -> Made:
    """The bundle of a lock, made unless it is there and whole. Raises BundleError."""
    started = time.monotonic()
    try:
        items = requirements.parse(order.requirements)
        wanted = target(order)
        needed = _needed(items, wanted)
        path = os.path.join(order.path, bundle.file_name(order.lock, items, wanted))
        if os.path.exists(path):
            try:
                manifest = bundle.read_manifest(path)
                bundle.check(path, manifest, items, wanted)
                bundle.unpack(path, manifest, None)
                if not _lacking(needed, map(os.path.basename, manifest.files)):
                    return Made(path, False, manifest)
            except ValueError:
                pass  # damaged: made anew
        if dry:
            return Made(path, True, None)
        os.makedirs(order.path, exist_ok=True)
        with _scratch(order.path) as (scratch, handle):
            _fetch(order, needed, wanted, scratch, handle, started)
            return Made(path, True, bundle.write(path, order.lock, items, wanted, os.path.join(scratch, bundle.WHEELS)))
    except (ValueError, OSError) as error:
        hint = " " + installers.remedy(str(error)) if getattr(error, "errno", 0) == 28 else ""
        raise BundleError(f"the bundle of {order.lock}: {error}.{hint}") from error


@contextlib.contextmanager
def _scratch(folder: str) -> Iterator[tuple[str, int]]:
    """A new folder beside the bundle, where the space has to be, and a file descriptor that locks it.

    What killed runs left there is removed: a lock ends with its processes. Where no folder can be locked (NFS), it
    stays.
    """
    outer = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(outer, fcntl.LOCK_EX)  # nobody may find the new folder before it is locked
        for name in os.listdir(folder):
            if re.fullmatch(r"\.bundle-\w+", name):
                _remove_unused(os.path.join(folder, name))
        scratch = tempfile.mkdtemp(prefix=".bundle-", dir=folder)
        handle = os.open(scratch, os.O_RDONLY)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
    finally:
        os.close(outer)
    try:
        yield scratch, handle
    finally:
        os.close(handle)
        shutil.rmtree(scratch)


def _remove_unused(path: str) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # no folder, or another user's
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass  # being made, or not to be known
    finally:
        os.close(handle)


def _fetch(order: Order, items: list[Requirement], wanted: Target, scratch: str, handle: int, started: float) -> None:
    kind, program = installers.choose(order.installer)
    own = interpreters.running()
    settings = installers.pip_settings(own.executable)
    for path, text in installers.inputs(scratch, "pip", items).items():
        files.write_atomic(path, text)
    log = os.path.join(scratch, "fetch.log")
    todo = steps(order, items, wanted, scratch, kind, program, own.executable)
    try:
        installers.carry_out(todo, "pip", order.sources, settings, log, started + order.timeout_s, handle)
    except installers.StepFailed as error:
        raise BundleError(f"the bundle of {order.lock}: {error}") from error
    wheels = os.path.join(scratch, bundle.WHEELS)
    lacking = _lacking(items, os.listdir(wheels) if os.path.isdir(wheels) else [])
    if lacking:
        raise BundleError(f"the bundle of {order.lock}: pip fetched no wheel of {', '.join(lacking)}")


def _lacking(items: list[Requirement], wheels: Iterable[str]) -> list[str]:
    have = {requirements.normal(name.split("-")[0]) for name in wheels}
    return [item.name for item in items if item.name not in have]


def _needed(items: list[Requirement], wanted: Target) -> list[Requirement]:
    """The lines that hold on the hosts, without their markers: pip would ask those of the running Python."""
    made = []
    for item in items:
        words, *hashes = re.split(r"\s(?=--hash=)", item.text)
        plain, semicolon, marker = words.partition(";")
        if not semicolon or _holds(item.name, marker.strip(), wanted):
            made.append(replace(item, text=" ".join([plain.strip(), *hashes])))
    return made


def _holds(name: str, text: str, wanted: Target) -> bool:
    """Whether the marker of a distribution holds for any release of the hosts' Python. Raises ValueError."""
    try:
        from packaging.markers import InvalidMarker, Marker  # ansible-core needs it: every controller has it
    except ImportError as error:
        raise ValueError(f"{name} has a marker, which takes the package packaging to be understood") from error
    version = "3." + wanted.tag.rpartition("-3")[2]
    names = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": wanted.platform.rpartition("-")[2],
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_version": version,
        "sys_platform": "linux",
        "extra": "",
    }
    try:
        marker = Marker(text)
    except InvalidMarker as error:
        raise ValueError(f"{name}: {text!r} is no marker") from error
    full = (f"{version}.{patch}" for patch in _PATCHES)
    return any(marker.evaluate({**names, "python_full_version": one, "implementation_version": one}) for one in full)


def steps(
    order: Order, items: list[Requirement], wanted: Target, scratch: str, kind: str, program: str, python: str
) -> list[Step]:
    """The commands: pip where Python has none, then one download for each file of :func:`installers.inputs`."""
    base = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
    made = []
    if not installers.has_pip(python):
        folder = os.path.join(scratch, "pip")
        uv = [program, "venv", "--seed", "--python", python, folder]
        argv = uv if kind == "uv" else [python, "-m", "venv", folder]
        made.append(Step("make an environment with pip", argv, {**base, "UV_PYTHON_DOWNLOADS": "never"}))
        python = os.path.join(folder, "bin", "python")
    places, asked = installers.places(order.sources), installers.variables("pip", order.sources)
    for name in sorted(installers.inputs(scratch, "pip", items)):
        argv = [python, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", *places, *tags(wanted, order)]
        argv += ["-d", os.path.join(scratch, bundle.WHEELS), "-r", name]
        made.append(Step("fetch the wheels", argv, base, asked))
    return made


def tags(wanted: Target, order: Order) -> list[str]:
    """pip's options for another Python and platform than the running ones."""
    digits = wanted.tag.rpartition("-")[2]
    machine = wanted.platform.rpartition("-")[2]
    newest = int(order.glibc.split(".")[1])
    made = ["--implementation", "cp", "--python-version", f"{digits[0]}.{digits[1:]}"]
    for abi in (f"cp{digits}", "abi3", "none"):
        made += ["--abi", abi]
    for minor in range(newest, _OLDEST_GLIBC - 1, -1):
        made += ["--platform", f"manylinux_2_{minor}_{machine}"]
    for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux"):
        made += ["--platform", f"{old}_{machine}"]
    return made
