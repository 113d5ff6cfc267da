# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which Python an environment is made for."""

from __future__ import annotations

# Pure code: there is no AnsibleModule here whose run_command it could call.
# pylint: disable=ansible-bad-function
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import asdict, dataclass, field
from typing import Any

from .requirements import in_range

AUTO = "auto"
#: Second numbers of the versions of Python 3 that there are or may be, newest first.
MINORS = range(30, 7, -1)

# Printed by the interpreter itself; its base executable, so that an environment never hangs on another one.
_PROBE = (
    "import json,os,sys,sysconfig;print(json.dumps({'executable':os.path.realpath(getattr(sys,'_base_executable',"
    "None) or sys.executable),'version':'%d.%d.%d'%sys.version_info[:3],'tag':sys.implementation.cache_tag,"
    "'platform':sysconfig.get_platform()}))"
)


@dataclass(frozen=True)
class Interpreter:
    """One Python, as it told about itself."""

    found: str  # path that the request led to
    executable: str  # the real one behind it
    version: str  # 3.11.7
    tag: str  # cpython-311: what compiled packages are made for
    platform: str  # linux-x86_64
    stamps: dict[str, list[int]] = field(default_factory=dict)  # path -> [modification time in ns, size]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _stamp(path: str) -> list[int]:
    state = os.stat(path)
    return [state.st_mtime_ns, state.st_size]


def running() -> Interpreter:
    """The base interpreter of the running process."""
    executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    version = ".".join(str(one) for one in sys.version_info[:3])
    tag = sys.implementation.cache_tag or ""
    stamps = {executable: _stamp(executable)}
    return Interpreter(executable, executable, version, tag, sysconfig.get_platform(), stamps)


def check_platform(begin: str) -> None:
    """Raises ValueError on a host of another platform than the one that a lock is for; "" is any."""
    own = sysconfig.get_platform()
    if not own.startswith(begin):
        raise ValueError(
            f"the lock is for {begin}, the host is {own}: choose another lock (ml_env_lock) or another host"
        )


def probe(path: str, timeout_s: float = 20.0) -> Interpreter:
    """Ask an interpreter what it is. Raises ValueError with its own words when it does not run."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=timeout_s, check=False, cwd="/"
        )
        said = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise ValueError(f"{path} does not run as a Python 3 interpreter ({error})") from error
    if said is None:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise ValueError(f"{path} does not run as a Python 3 interpreter ({words[-1] if words else done.returncode})")
    stamps = {one: _stamp(one) for one in (path, said["executable"])}
    return Interpreter(path, said["executable"], said["version"], said["tag"], said["platform"], stamps)


def remembered(raw: Any) -> Interpreter | None:
    """An interpreter from a manifest, when none of its files changed since: saves running it."""
    try:
        item = Interpreter(**raw)
        current = {path: _stamp(path) for path in item.stamps}
    except (OSError, TypeError):
        return None
    return item if current and current == item.stamps else None


def _minors(python_range: str) -> list[int]:
    return [minor for minor in MINORS if in_range(f"3.{minor}.99", python_range)]


def find(request: str, python_range: str = "", known: Any = None) -> Interpreter:
    """The interpreter for a request: a path, a name on PATH, or ``auto``.

    ``auto`` keeps the one of the manifest (``known``), else takes the running one, else python3 and then
    python3.N on PATH, newest first; always within the range. Raises ValueError that says what was tried.
    """
    kept = remembered(known)
    if request != AUTO:
        path = request if os.path.isabs(request) else shutil.which(request)
        if not path or not os.path.exists(path):
            raise ValueError(f"there is no {request} on this host: install it, or name another Python")
        item = kept if kept is not None and kept.found == path else probe(path)
        if not in_range(item.version, python_range):
            raise ValueError(f"{request} is Python {item.version}, the lock needs {python_range}: name another Python")
        return item
    if kept is not None and in_range(kept.version, python_range):
        return kept
    tried = []
    item = running()
    if in_range(item.version, python_range):
        return item
    tried.append(f"{item.executable} is {item.version}")
    for name in ["python3", *(f"python3.{minor}" for minor in _minors(python_range))]:
        path = shutil.which(name)
        if not path:
            continue
        try:
            item = probe(path)
        except ValueError as error:
            tried.append(re.sub(r"\s+", " ", str(error)))
            continue
        if in_range(item.version, python_range):
            return item
        tried.append(f"{path} is {item.version}")
    raise ValueError(
        f"no Python {python_range} on this host ({'; '.join(tried)}): install one, or name one by its path"
    )
