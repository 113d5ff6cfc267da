# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who else on this host sets NCCL variables: every place that a process may get them from, apart from our own.

Read only. A place that may not be read is named as such, not taken for empty.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from . import files, marked_block, nccl_conf, nccl_variables, procfs, python_startup, server_env

_BIG = 512 * 1024  # bytes; what is longer is no configuration
_NAME = r"NCCL_[A-Za-z0-9_]+"
_QUOTED = r"\"[^\"\n]*\"|'[^'\n]*'"
_ASSIGNED = re.compile(rf"(?<![A-Za-z0-9_$])({_NAME})=({_QUOTED}|[^\s;#&|)]*)")
_SET = re.compile(rf"\b(?:setenv|set\s+-(?=\w*x)\w+)\s+({_NAME})\s+({_QUOTED}|[^\s;#]+)")
_PAM = re.compile(rf"^\s*({_NAME})\s+(?:DEFAULT=({_QUOTED}|\S*))?\s*(?:OVERRIDE=({_QUOTED}|\S*))?")
_UNIT = re.compile(r"^[ \t]*(Environment|DefaultEnvironment|ManagerEnvironment|EnvironmentFile)=(.*)$", re.MULTILINE)
_PYTHON = re.compile(rf"[\"']({_NAME})[\"']\s*(?:\]\s*=(?!=)|[:,])\s*(?:[\"']([^\"'\n]*)[\"']|[^\s])")
_IMPORT = re.compile(r"^import[ \t]+([\w.]+)|^([\w.]+):\w+\s*$", re.MULTILINE)

_SHELL = ("etc/profile", "etc/profile.d/*", "etc/bash.bashrc", "etc/bashrc", "etc/zsh/*", "etc/fish/config.fish")
_SHELL_HOME = (".profile", ".bash_profile", ".bash_login", ".bashrc", ".zshrc", ".zshenv", ".zprofile")
_CRON = ("etc/crontab", "etc/anacrontab", "etc/cron.d/*", "var/spool/cron/crontabs/*", "var/spool/cron/*")
_UNIT_FOLDERS = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd", "lib/systemd")
_SERVICES = ("*.service", "*.service.d/*.conf", "service.d/*.conf")
_SYSTEM_PYTHON = ("usr/lib/python3*/sitecustomize.py", "etc/python3*/sitecustomize.py")


@dataclass(frozen=True)
class Source:
    """One file (or process) that sets variables of NCCL. A value of None is computed there: it cannot be told."""

    path: str
    kind: str  # nccl.conf, python, systemd, login, shell, cron, container
    variables: dict[str, str | None]
    reaches_server: bool  # whether a server that llm_server starts can get them from here
    who: str  # who gets them

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Reader:
    """Files below a root, each once; what could not be read is kept by name."""

    def __init__(self, root: str, own: str) -> None:
        self.root, self.own = root, own
        self.unread: list[str] = []
        self._seen: set[str] = set()

    def paths(self, patterns: Iterable[str], folder: str = "") -> list[str]:
        """What there is for some patterns in a folder ("": the root); a folder that may not be listed is noted."""
        base, found = folder or self.root, []
        for one in patterns:
            inside = os.path.join(base, os.path.dirname(one.partition("*")[0]))
            if os.path.isdir(inside) and not os.access(inside, os.R_OK | os.X_OK):
                self.unread.append(inside.rstrip("/"))
            found += sorted(glob.glob(os.path.join(glob.escape(base), one)))
        return found

    def text(self, path: str) -> str:
        """Its text; "" when it is not there, ours, seen already, or no configuration."""
        real = os.path.realpath(path)
        if real in self._seen or (self.own and real.startswith(os.path.join(os.path.realpath(self.own), ""))):
            return ""
        self._seen.add(real)
        try:
            if not os.path.isfile(real) or os.path.getsize(real) > _BIG:
                return ""
            return files.read_regular(real, _BIG).decode("utf-8", "surrogateescape")
        except OSError:
            self.unread.append(path)
            return ""


def others(
    owner: str,
    home: str,
    own: str = "",
    conf: Iterable[str] = (),
    interpreter: python_startup.Interpreter | None = None,
    root: str = "/",
    proc: str = procfs.PROC,
) -> tuple[list[Source], list[str]]:
    """(sources, files that may not be read). Our block of ``owner`` in a file of others does not count.

    ``home``: of the server's user; ``own``: a folder of ours, below which nothing counts; ``conf``: the nccl.conf files
    that this server's NCCL reads; ``interpreter``: the Python that the server runs with.
    """
    reader = _Reader(root, own)
    homes = [one for one in (home, *reader.paths(["root", "home/*"])) if one]
    found = [
        *_conf_files(reader, owner, list(dict.fromkeys(conf)), homes),
        *_python(reader, owner, interpreter),
        *_systemd(reader, owner, homes),
        *_login(reader, homes),
        *_files(reader, "shell", "shells of people; servers do not get it", _assigned, _SHELL, _SHELL_HOME, homes),
        *_files(reader, "cron", "jobs of cron", _assigned, _CRON),
    ]
    first = procfs.initial_environment(1, proc)
    inherited: dict[str, str | None] = {k: v for k, v in first.variables.items() if k.startswith("NCCL_")}
    if inherited:
        who = "what process 1 of this container starts; servers get a clean environment"
        found.append(Source(f"{proc}/1/environ", "container", inherited, False, who))
    elif not first.complete:
        reader.unread.append(f"{proc}/1/environ")
    return found, list(dict.fromkeys(reader.unread))


def contradictions(profile: Mapping[str, str], found: Iterable[Source]) -> list[str]:
    """Sentences on sources that say otherwise than the profile: another value, or a variable that it lacks.

    A variable that the profile lacks contradicts it only where a server can get it from, and NCCL reads it. Whether
    such a source wins is for :mod:`.nccl_order` to tell.
    """
    said = []
    for one in found:
        wrong = []
        for name, value in sorted(one.variables.items()):
            shown = f"{name}={value}" if value is not None else f"{name} (computed)"
            if name in profile and value != profile[name]:
                wrong.append(f"{shown} (the profile: {profile[name]})")
            elif name not in profile and one.reaches_server and name in nccl_variables.KNOWN:
                wrong.append(f"{shown} (not in the profile)")
        if wrong:
            said.append(f"{one.path} sets {', '.join(wrong)}, for {one.who}")
    return said


# --- kinds of places -----------------------------------------------------------------------------


def _files(
    reader: _Reader,
    kind: str,
    who: str,
    parse: Callable[[str], dict[str, str | None]],
    patterns: Iterable[str],
    home_patterns: Iterable[str] = (),
    homes: Iterable[str] = (),
) -> Iterator[Source]:
    paths = [*reader.paths(patterns), *(path for home in homes for path in reader.paths(home_patterns, home))]
    for path in paths:
        variables = parse(reader.text(path))
        if variables:
            yield Source(path, kind, variables, False, who)


def _conf_files(reader: _Reader, owner: str, read: list[str], homes: list[str]) -> Iterator[Source]:
    system = os.path.join(reader.root, "etc/nccl.conf")
    users = [path for home in homes for path in reader.paths([".nccl.conf"], home)]
    for path in dict.fromkeys([*read, *users, system]):
        text = marked_block.take(reader.text(path), owner) or ""
        variables: dict[str, str | None] = {k: v for k, v in nccl_conf.parse(text).items() if k.startswith("NCCL_")}
        if variables:
            reaches = path in read or path == system
            who = "processes of its user that use NCCL" if path in users else "this server, through NCCL_CONF_FILE"
            who = "every process that uses NCCL" if path == system else who
            yield Source(path, "nccl.conf", variables, reaches, who)


def _python(reader: _Reader, owner: str, of: python_startup.Interpreter | None) -> Iterator[Source]:
    mine: list[str] = []
    if of:
        mine = [*of.sitecustomize[:1], *(of.usercustomize[:1] if of.user_site else ())]
        for path in reader.paths(["*.pth", "*.start"], of.site_packages):
            text = reader.text(path)
            yield from _python_source(path, text, True)
            for match in _IMPORT.finditer(text):
                base = os.path.join(of.site_packages, *(match[1] or match[2]).split("."))
                if os.path.basename(base) != python_startup.stem(owner):
                    for one in (f"{base}.py", os.path.join(base, "__init__.py")):
                        yield from _python_source(one, reader.text(one), True)
    for path in [*mine, *reader.paths(_SYSTEM_PYTHON)]:
        text = marked_block.take(reader.text(path), owner) or ""
        yield from _python_source(path, text, path in mine)


def _python_source(path: str, text: str, reaches: bool) -> Iterator[Source]:
    variables: dict[str, str | None] = {}
    for line in text.split("\n"):
        if not line.lstrip().startswith("#"):
            variables.update((match[1], match[2]) for match in _PYTHON.finditer(line))
    if variables:
        who = "every process of this Python" if reaches else "processes of another Python"
        yield Source(path, "python", variables, reaches, who)


def _systemd(reader: _Reader, owner: str, homes: list[str]) -> Iterator[Source]:
    managers = [f"{one}/system.conf" for one in _UNIT_FOLDERS] + [
        f"{one}/system.conf.d/*.conf" for one in _UNIT_FOLDERS
    ]
    for path in reader.paths(managers):
        yield from _unit(reader, path, True, "every service of systemd, a server started as one included")
    users = [f"{one}/user.conf" for one in _UNIT_FOLDERS] + [f"{one}/user.conf.d/*.conf" for one in _UNIT_FOLDERS]
    users += [f"{one}/user/{what}" for one in _UNIT_FOLDERS for what in _SERVICES]
    for home in homes:
        for path in reader.paths([".config/systemd/user/*.service", ".config/systemd/user/*.service.d/*.conf"], home):
            yield from _unit(reader, path, False, "services of a user")
    for path in reader.paths(users):
        yield from _unit(reader, path, False, "services of users")
    units = [f"{one}/system/{what}" for one in _UNIT_FOLDERS for what in _SERVICES]
    for path in reader.paths(units):
        name = path.rpartition("/system/")[2].partition("/")[0]
        name = name[:-2] if name.endswith(".d") else name
        if name == "service":
            yield from _unit(reader, path, True, "every service of systemd, a server started as one included")
        else:
            yield from _unit(reader, path, name == f"groundstate-{owner}.service", f"the service {name}")
    yield from _files(
        reader,
        "login",
        "sessions of users (environment.d)",
        _assigned,
        ["etc/environment.d/*.conf", "usr/lib/environment.d/*.conf"],
        [".config/environment.d/*.conf"],
        homes,
    )


def _unit(reader: _Reader, path: str, reaches: bool, who: str) -> Iterator[Source]:
    text = reader.text(path).replace("\\\n", " ")
    variables: dict[str, str | None] = {}
    for key, value in _UNIT.findall(text):
        if key == "EnvironmentFile":
            file = value.strip().lstrip("-")
            for one in reader.paths([file.lstrip("/")]) if file.startswith("/") else []:
                inside = {k: v for k, v in server_env.parse(reader.text(one)).items() if k.startswith("NCCL_")}
                if inside:
                    yield Source(one, "systemd", dict(inside), reaches, f"{who} (EnvironmentFile of {path})")
            continue
        try:
            words = shlex.split(value)
        except ValueError:
            words = value.split()
        variables.update(_assigned_words(words))
    if variables:
        yield Source(path, "systemd", variables, reaches, who)


def _login(reader: _Reader, homes: list[str]) -> Iterator[Source]:
    who = "logins and what PAM starts (ssh, su, cron); servers do not get it"
    yield from _files(reader, "login", who, _assigned, ["etc/environment", "etc/default/*", "etc/sysconfig/*"])
    yield from _files(reader, "login", who, _pam, ["etc/security/pam_env.conf"], [".pam_environment"], homes)


# --- kinds of text -------------------------------------------------------------------------------


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _assigned_words(words: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    for word in words:
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(_NAME, name):
            yield name, value


def _assigned(text: str) -> dict[str, str | None]:
    """What a shell's text sets, as far as its lines tell; the last one counts."""
    found: dict[str, str | None] = {}
    for line in text.split("\n"):
        if line.lstrip().startswith("#"):
            continue
        line = re.sub(r"\s#.*", "", line)
        for name, value in [*_ASSIGNED.findall(line), *_SET.findall(line)]:
            plain = _unquoted(value)
            found[name] = None if re.search(r"[$`]", value) and not value.startswith("'") else plain
    return found


def _pam(text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = dict(_assigned(text)) if "DEFAULT=" not in text else {}
    for line in text.split("\n"):
        match = _PAM.match(line)
        if match and (match[2] or match[3]):
            found[match[1]] = _unquoted(match[3] or match[2])
    return found
