# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Environment defaults at the start of a Python interpreter: what it loads, and the files that we put there.

Method ``pth``: a module in site-packages, which a ``.pth`` file of the same name imports and, from Python 3.15 on, a
``.start`` file names (PEP 829). Method ``sitecustomize``: a block in the sitecustomize.py that this interpreter loads;
only the first one on its path is, so Debian's own takes the place of one in a venv.
"""

from __future__ import annotations

# Pure code: there is no AnsibleModule here whose run_command it could call.
# pylint: disable=ansible-bad-function
import contextlib
import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import file_change, files, marked_block
from .file_change import Change

PTH, SITECUSTOMIZE = "pth", "sitecustomize"
METHODS = (PTH, SITECUSTOMIZE)
_START_SINCE = (3, 15)
#: How the names of our modules begin.
STEM = "_groundstate_startup_"
#: Read before any of our lines runs: by the interpreter itself, or by the dynamic loader.
_TOO_LATE = re.compile(r"PYTHON[A-Z]|LD_(PRELOAD|LIBRARY_PATH|AUDIT)\Z|LANG\Z|LC_ALL\Z")

# Asked with a clean environment; -c puts no folder on the path before site is imported.
_PROBE = """
import importlib.machinery, json, os, site, sys, sysconfig
def found(name):
    specs = [importlib.machinery.PathFinder.find_spec(name, [one]) for one in sys.path if one]
    return [one.origin for one in specs if one and one.origin and os.path.exists(one.origin)]
loaded = sys.modules.get("sitecustomize")
print("\\ngroundstate", json.dumps({
    "executable": sys.executable, "version": list(sys.version_info[:3]), "prefix": sys.prefix,
    "base_prefix": sys.base_prefix, "site": [one for one in site.getsitepackages() if one in sys.path],
    "purelib": sysconfig.get_paths()["purelib"], "user_site": bool(site.ENABLE_USER_SITE),
    "sitecustomize": found("sitecustomize"), "usercustomize": found("usercustomize"),
    "loaded": getattr(loaded, "__file__", None),
}))
"""

_COMPILE = "import sys; compile(sys.stdin.buffer.read(), 'sitecustomize.py', 'exec')"


class StartupError(Exception):
    """One sentence for the user: what, where, how to fix it."""


@dataclass(frozen=True)
class Interpreter:
    """One Python, as it told about itself."""

    executable: str
    version: tuple[int, ...]
    prefix: str
    base_prefix: str  # another one than prefix in a venv
    site_packages: str  # the folder whose .pth files it reads, and that packages are installed into
    sitecustomize: tuple[str, ...]  # all that are on its path; the first is the one that it loads
    loaded: str  # the one that it did load, "" when there is none or when it failed
    usercustomize: tuple[str, ...]
    user_site: bool  # whether it looks for usercustomize at all
    said: str  # what it wrote to stderr while starting

    @property
    def winner(self) -> str:
        """The sitecustomize that it loads; "" when there is none."""
        return self.sitecustomize[0] if self.sitecustomize else ""

    def as_dict(self) -> dict[str, object]:
        """For the module's result."""
        return {
            "executable": self.executable,
            "version": ".".join(map(str, self.version)),
            "venv": self.prefix != self.base_prefix,
            "site_packages": self.site_packages,
            "sitecustomize": [
                {"path": path, "loaded": not index, "shadowed_by": self.winner if index else ""}
                for index, path in enumerate(self.sitecustomize)
            ],
            "usercustomize": list(self.usercustomize) if self.user_site else [],
        }


def clean_environment() -> dict[str, str]:
    """What an interpreter is asked with: nothing that could change its path or already hold a value."""
    kept = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT")
    return {"LC_ALL": "C.UTF-8", **{name: os.environ[name] for name in kept if os.environ.get(name)}}


def run(argv: list[str], given: bytes = b"", timeout_s: float = 60.0) -> tuple[int | None, str, str]:
    """Run an interpreter with a clean environment: (status, stdout, stderr); None when it did not end in time.

    Nothing that it started outlives it. Raises OSError when it cannot be started.
    """
    child = subprocess.Popen(
        argv,
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    )
    out, said, status = b"", b"", None
    try:
        out, said = child.communicate(given, timeout_s)
        status = child.returncode
    except subprocess.TimeoutExpired:
        said = b"no answer within %d s" % timeout_s
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return status, out.decode("utf-8", "replace"), said.decode("utf-8", "replace")


def answer(out: str) -> Any:
    """The JSON in the line of an output that begins with ``groundstate`` (start-up code may print, too), or None."""
    found = re.search(r"^groundstate (.*)$", out, re.MULTILINE)
    try:
        return files.decode_json(found[1]) if found else None
    except ValueError:
        return None


def inspect(python: str) -> Interpreter:
    """Run an interpreter and let it tell. Raises StartupError when it does not run, or cannot be used."""
    try:
        _status, out, said = run([python, "-c", _PROBE])
    except OSError as error:
        raise StartupError(f"{python} does not run ({error.strerror}); name another Python") from error
    raw = answer(out)
    if not isinstance(raw, dict):
        words = files.plain((said or out).strip().rpartition("\n")[2], 200)
        raise StartupError(f"{python} does not run as a Python 3 interpreter ({words}); name another one")
    folders = [one for one in raw["site"] if os.path.isdir(one)]
    if not folders:
        raise StartupError(f"{python} has none of its site-packages folders ({', '.join(raw['site'])}): make one")
    return Interpreter(
        executable=raw["executable"],
        version=tuple(raw["version"]),
        prefix=raw["prefix"],
        base_prefix=raw["base_prefix"],
        site_packages=raw["purelib"] if raw["purelib"] in folders else folders[0],
        sitecustomize=tuple(raw["sitecustomize"]),
        loaded=raw["loaded"] or "",
        usercustomize=tuple(raw["usercustomize"]),
        user_site=raw["user_site"],
        said=said.strip(),
    )


# --- what should be there ------------------------------------------------------------------------


def problems(variables: Mapping[str, str]) -> list[str]:
    """What cannot be set, or would come too late, a sentence each."""
    found = []
    for name in sorted(variables):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            found.append(f"{name!r} is no name of a variable")
        elif _TOO_LATE.match(name):
            found.append(f"{name} is read before any code of a start-up runs; set it in the server's environment")
        if "\0" in variables[name]:
            found.append(f"the value of {name} has a NUL")
    return found


def changes(of: Interpreter, name: str, variables: Mapping[str, str], method: str, force: bool = False) -> list[Change]:
    """All that has to be done so that exactly these variables are set at the start, by this method alone.

    Without variables that is: nothing of ours is left. ``name``: whose they are, letters, digits, ``-`` and ``_``.
    Raises StartupError for what cannot be done, OSError for a file that cannot be read.
    """
    wrong = problems(variables)
    if wrong:
        raise StartupError("; ".join(wrong))
    found = _pth(of, name, variables if method == PTH else {}, force)
    target = of.winner or os.path.join(of.site_packages, "sitecustomize.py")
    for path in dict.fromkeys([target, *of.sitecustomize]):
        wanted = variables if method == SITECUSTOMIZE and path == target else {}
        found.append(_block(of, path, name, wanted, force))
    return [one for one in found if one.needed]


def stem(name: str) -> str:
    """Name of the module (and of the files beside it) of method ``pth``."""
    made = STEM + name.replace("-", "_")
    # a-b and a_b are two
    return f"{made}_{hashlib.sha256(name.encode()).hexdigest()[:8]}" if "-" in name else made


def _pth(of: Interpreter, name: str, variables: Mapping[str, str], force: bool) -> list[Change]:
    base = stem(name)
    wanted = {}
    if variables:
        setting = "os.environ[name] = value" if force else "os.environ.setdefault(name, value)"
        pairs = "".join(f"    {key!a}: {variables[key]!a},\n" for key in sorted(variables))
        wanted = {
            ".py": (
                f'"""Environment at the start of Python (groundstate.llm.python_startup: {name}); '
                'changes here are lost."""\n\nimport os\n\nVARIABLES = {\n'
                f"{pairs}}}\n\n\ndef apply():\n    for name, value in VARIABLES.items():\n        {setting}\n"
            ),
            ".pth": f"import {base}; {base}.apply()\n",
        }
        if of.version >= _START_SINCE:
            wanted[".start"] = f"{base}:apply\n"
    # The module first: no interpreter that starts in between may miss it.
    order = (".py", ".pth", ".start") if variables else (".start", ".pth", ".py")
    return [
        file_change.change(
            os.path.join(of.site_packages, base + one), wanted[one].encode("ascii") if one in wanted else None, 0o644
        )
        for one in order
    ]


def _block(of: Interpreter, path: str, name: str, variables: Mapping[str, str], force: bool) -> Change:
    """Our block in a sitecustomize.py, after all that is there."""
    before, _mode = file_change.read(path)
    if not path.endswith(".py"):
        if variables:
            raise StartupError(f"{path} takes the place of a sitecustomize.py and is no source; use method pth")
        return Change(path, before, before)
    text = None if before is None else before.decode("latin-1")  # any byte stays what it is
    if not variables:
        left = marked_block.take(text, name) if text is not None else None
        return file_change.change(path, None if left is None else left.encode("latin-1"))
    if force:
        lines = [f'__import__("os").environ[{key!a}] = {variables[key]!a}\n' for key in sorted(variables)]
    else:
        lines = [f'__import__("os").environ.setdefault({key!a}, {variables[key]!a})\n' for key in sorted(variables)]
    made = file_change.change(path, marked_block.put(text, name, "".join(lines)).encode("latin-1"))
    mistake = _mistake(of, made.after or b"") if made.needed else ""
    if mistake:
        raise StartupError(f"{path} is no valid source, so that nothing in it runs ({mistake}); repair it, or use pth")
    return made


def _mistake(of: Interpreter, source: bytes) -> str:
    """Why this interpreter (the running one may be another release) would refuse a source; "" when it does not."""
    status, _out, said = run([of.executable, "-I", "-S", "-c", _COMPILE], source)
    return "" if status == 0 else said.strip().rpartition("\n")[2] or f"exit status {status}"
