# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Environment files of a server: KEY=VALUE lines as systemd's EnvironmentFile= reads them."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping

from . import servers
from .engines import get_engine

#: What a process gets from us without being declared. It is no part of the declaration's hash: another shell or
#: another way to become the user must not restart a server.
BASE_NAMES = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "LD_LIBRARY_PATH"})

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
#: Where the CUDA toolkit is installed; its packages put no link to nvcc elsewhere.
CUDA = "/usr/local/cuda/bin"

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./|-]*")


def search_path(env_path: str, program: str = "", cuda: str = CUDA) -> str:
    """The PATH of a server: its environment, the folder of its program, the system, CUDA's compiler.

    Engines call ninja, which lies beside their Python, and nvcc by name when they compile kernels. ``program``: what
    replaces the engine's own (it may be that of another environment).
    """
    folders = [os.path.join(env_path, "bin")] if env_path else []
    beside = os.path.dirname(program)
    if os.path.isabs(beside) and beside not in SYSTEM_PATH:
        folders.append(beside)
    folders += SYSTEM_PATH
    if os.path.isdir(cuda):
        folders.append(cuda)
    return ":".join(dict.fromkeys(folders))


def account(uid: int, inherited: Mapping[str, str]) -> tuple[str, str]:
    """(name, home folder) of a user. One without an entry, as containers have, is called by its number."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return str(uid), inherited.get("HOME") or "/"
    return user.pw_name, user.pw_dir


def base_environment(env_path: str, inherited: Mapping[str, str], program: str = "") -> dict[str, str]:
    """The least that programs expect. Nothing else of ours leaks into the server: no proxy, no Ansible, no shell."""
    name, home = account(os.geteuid(), inherited)
    found = {
        "PATH": search_path(env_path, program),
        "HOME": home,
        "USER": name,
        "LOGNAME": name,
        "LANG": "C.UTF-8",
    }
    # Where CUDA and temporary files lie is a matter of the host, not of the declaration.
    found.update({name: inherited[name] for name in ("TMPDIR", "LD_LIBRARY_PATH") if inherited.get(name)})
    return found


def render(variables: Mapping[str, str]) -> str:
    """The text of an environment file, sorted. Raises ValueError for a value that cannot be in one."""
    lines = []
    for name in sorted(variables):
        value = variables[name]
        if "\n" in value or "\0" in value:
            raise ValueError(f"the value of {name} has a line break or a NUL, which no environment file can hold")
        if not _PLAIN.fullmatch(value):
            value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        lines.append(f"{name}={value}\n")
    return "".join(lines)


def parse(text: str) -> dict[str, str]:
    """The variables of an environment file; comments (``#``, ``;``) and lines without ``=`` are left out."""
    found = {}
    for line in text.split("\n"):
        name, separator, value = (part.strip() for part in line.partition("="))
        if not separator or not name or name[0] in "#;":
            continue
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = re.sub(r"\\([\\\"])", r"\1", value[1:-1])
        elif len(value) >= 2 and value[0] == value[-1] == "'":
            value = value[1:-1]
        found[name] = value
    return found


def read(path: str) -> dict[str, str]:
    """The variables of an environment file; {} when there is none.

    Raises OSError when it cannot be read, ValueError naming it when it is no text.
    """
    try:
        with open(path, encoding="utf-8", newline="") as source:  # a carriage return is part of a value
            return parse(source.read())
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); remove the file and run the deployment again") from error


def api_key(home: str, record: servers.ServerRecord) -> str:
    """The API key of a launched server, from its environment file (0600); "" when it has none.

    Raises OSError when the file is not ours to read.
    """
    variable = get_engine(record.engine).api_key_variable
    if not variable:
        return ""
    return read(os.path.join(servers.folder(home, record.name), "environment")).get(variable, "")
