# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""uv and pip: their command lines, their settings, and what their errors mean."""

from __future__ import annotations

# Pure code: there is no AnsibleModule here whose run_command it could call.
# pylint: disable=ansible-bad-function
import ast
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from . import running
from .requirements import Requirement, render

NO_INDEX = "none"  # as the main index: only find_links are looked at


@dataclass(frozen=True)
class Sources:
    """Where distributions come from; what is empty is left to the host's settings of pip or uv."""

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    torch_index: str = ""  # one more index, for builds of torch that the main one does not have
    no_index: bool = False  # only find_links: nothing is fetched

    @property
    def extras(self) -> list[str]:
        return [*self.extra_index_urls, *([self.torch_index] if self.torch_index else [])]


def secrets(params: Mapping[str, Any]) -> list[str]:
    """What must not be shown of the URLs in the options of the doc fragment C(wheels)."""
    urls = [params["index_url"], *params["extra_index_urls"], *params["find_links"], params["torch_index"]]
    return [secret for url in urls for secret in url_secrets(url or "")]


def url_secrets(url: str) -> list[str]:
    """The password of a URL, or its user where that stands alone (a token): as written, and as it is meant."""
    try:
        split = urlsplit(url)
        user, _colon, password = split.netloc.rpartition("@")[0].partition(":")
        _port = split.port
    except ValueError:  # "user:pa/ss@host": a password that should have been quoted
        user, _colon, password = url.partition("://")[2].rpartition("@")[0].partition(":")
    secret = password or user
    return sorted({secret, unquote(secret)}) if secret else []


def sources(params: dict) -> Sources:
    """The options of the doc fragment C(wheels). Raises ValueError where they contradict each other."""
    index, extras = params["index_url"], tuple(params["extra_index_urls"])
    links, torch = tuple(params["find_links"]), params["torch_index"]
    if index != NO_INDEX:
        return Sources(index, extras, links, torch)
    if extras or torch:
        raise ValueError(f"index_url is {NO_INDEX}, yet extra_index_urls or torch_index name one: take either away")
    if not links and not params.get("bundle"):
        raise ValueError(f"index_url is {NO_INDEX}: then find_links has to name a folder with the wheels")
    return Sources(find_links=links, no_index=True)


@dataclass(frozen=True)
class Step:
    """One command of an installation."""

    what: str
    argv: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # variables of the declared places: before the host's settings


def find_uv() -> str | None:
    """A uv that runs: beside the running interpreter, beside its base, or on PATH (a shim may lead nowhere)."""
    beside = [os.path.join(os.path.dirname(path), "uv") for path in (sys.executable, os.path.realpath(sys.executable))]
    for path in [*beside, shutil.which("uv")]:
        if path and os.access(path, os.X_OK):
            try:
                done = subprocess.run([path, "--version"], capture_output=True, timeout=20, check=False, cwd="/")
            except (OSError, subprocess.TimeoutExpired):
                continue
            if done.returncode == 0:
                return path
    return None


def has_pip(python: str) -> bool:
    """Whether this Python can run pip (Debian's comes without)."""
    try:
        done = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, timeout=60, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def choose(installer: str) -> tuple[str, str]:
    """(kind, program) for ``auto``, ``uv``, ``pip`` or the path of a uv. Raises ValueError."""
    if installer == "pip":
        return "pip", ""
    if installer not in ("auto", "uv"):
        if not os.access(installer, os.X_OK):
            raise ValueError(f"installer {installer}: no such program on this host; use auto, uv, pip or a path of uv")
        return "uv", installer
    found = find_uv()
    if found is None and installer == "uv":
        raise ValueError("uv is not on this host: install it, or set the installer to auto or pip")
    return ("uv", found) if found else ("pip", "")


# Not the default, hard links (to which "clone", too, falls back): a file that somebody edits in place would change in
# uv's cache, and with it in every environment made later.
_UV = {"UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "copy", "UV_NO_PROGRESS": "1"}
# Every line is pinned (and nearly all are hashed), so any index may serve it.
_UV["UV_INDEX_STRATEGY"] = "unsafe-best-match"
_PIP = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
# A host whose pip is set to install elsewhere means other installations. Empty variables would not take that back.
_HERE = ["--no-user", "--target="]


def steps(kind: str, program: str, python: str, folder: str, items: list[Requirement], sources: Sources) -> list[Step]:
    """The commands that make an environment in ``folder`` and fill it; the files are named in :func:`inputs`.

    Wheels only (nothing is compiled on a host) and no resolver (the lock is complete).
    """
    inside = os.path.join(folder, "bin", "python")
    common = ["--no-deps", "--only-binary", ":all:", *places(sources)]
    asked = variables(kind, sources)
    names = sorted(inputs(folder, kind, items))
    if kind == "uv":
        argv = [program, "venv", "--allow-existing", "--python", python, folder]
        made = [Step("make the environment", argv, _UV)]
        for name in names:
            argv = [program, "pip", "install", "--python", inside, *common, "-r", name]
            made.append(Step("install the lock", argv, _UV, asked))
        return made
    made = [Step("make the environment", [python, "-m", "venv", folder], _PIP)]
    for name in names:
        argv = [inside, "-m", "pip", "install", *_HERE, *common, "-r", name]
        made.append(Step("install the lock", argv, _PIP, asked))
    return made


def again(kind: str, program: str, inside: str, folder: str, items: list[Requirement], sources: Sources) -> list[Step]:
    """The commands that install distributions again into the environment of the interpreter ``inside``.

    ``folder`` holds the files of :func:`inputs`. Raises ValueError when there is no pip to do it with.
    """
    common = ["--no-deps", "--only-binary", ":all:", *places(sources)]
    names = sorted(inputs(folder, kind, items))
    if kind == "uv":
        # Its cache may hold the very file that was edited, where something else than we filled it with hard links.
        head = [program, "pip", "install", "--python", inside, "--reinstall", "--no-cache"]
    else:
        # Environments that uv made have no pip; the Python behind them may.
        owner = next((one for one in (inside, os.path.realpath(inside), sys.executable) if has_pip(one)), None)
        if owner is None:
            raise ValueError("neither the environment nor the Python that it was made from has pip: put uv on the host")
        head = [owner, "-m", "pip", *([] if owner == inside else ["--python", inside]), "install", *_HERE]
        head.append("--force-reinstall")
    base, asked = _UV if kind == "uv" else _PIP, variables(kind, sources)
    return [Step("install the wheels again", [*head, *common, "-r", name], base, asked) for name in names]


def places(sources: Sources) -> list[str]:
    """The options of pip and uv that say where to look; what may hold a password is in :func:`variables`."""
    made = ["--no-index"] if sources.no_index else []
    for place in () if _confidential(sources) else sources.find_links:
        made += ["--find-links", place]
    return made


def variables(kind: str, sources: Sources) -> dict[str, str]:
    """The indexes (and places of wheels that have a password): command lines are seen by every user of the host."""
    uv = kind == "uv"
    made = {"UV_DEFAULT_INDEX" if uv else "PIP_INDEX_URL": sources.index_url.replace(" ", "%20")}
    made["UV_INDEX" if uv else "PIP_EXTRA_INDEX_URL"] = " ".join(url.replace(" ", "%20") for url in sources.extras)
    if _confidential(sources):
        # uv separates them by commas, pip by spaces: as URLs they have neither.
        links = [one if "://" in one else "file://" + quote(os.path.abspath(one)) for one in sources.find_links]
        links = [one.replace(" ", "%20").replace(",", "%2C") for one in links]
        made["UV_FIND_LINKS" if uv else "PIP_FIND_LINKS"] = ("," if uv else " ").join(links)
    return {name: value for name, value in made.items() if value}


def _confidential(sources: Sources) -> bool:
    return any(url_secrets(place) for place in sources.find_links)


def inputs(folder: str, kind: str, items: list[Requirement]) -> dict[str, str]:
    """Path -> text of the requirements files. pip wants hashes for all lines of a run or for none, hence two."""
    if kind == "uv":
        groups = {"lock.txt": items}
    else:
        groups = {
            "lock-hashed.txt": [item for item in items if item.hashed],
            "lock-plain.txt": [item for item in items if not item.hashed],
        }
    return {os.path.join(folder, name): render(group) for name, group in groups.items() if group}


# --- settings ------------------------------------------------------------------------------------

# pip's setting -> the variable(s) of uv that mean the same. uv does not read pip's configuration.
_SAME = {
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
    "no-index": ("UV_NO_INDEX",),
    "cert": ("SSL_CERT_FILE",),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "proxy": ("ALL_PROXY", "HTTPS_PROXY", "https_proxy", "all_proxy"),
}


def parse_pip_config(text: str) -> dict[str, str]:
    """The settings that ``pip config list`` prints: the environment's over [install] over [global]."""
    ranks = {"global": 0, "install": 1, ":env:": 2}
    found: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        section, _dot, rest = line.partition(".")
        key, separator, value = rest.partition("=")
        if not separator or section not in ranks:
            continue
        try:
            plain = str(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            continue
        if key not in found or ranks[section] >= found[key][0]:
            found[key] = (ranks[section], " ".join(plain.split()))
    return {key: value for key, (_rank, value) in found.items()}


def pip_settings(python: str) -> dict[str, str]:
    """pip's settings on this host as the interpreter's pip tells them; only the environment's when it has no pip."""
    try:
        done = subprocess.run(
            [python, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=30, check=False, cwd="/"
        )
        if done.returncode == 0:
            return parse_pip_config(done.stdout)
    except (OSError, subprocess.TimeoutExpired):
        pass
    return {key[4:].lower().replace("_", "-"): value for key, value in os.environ.items() if key.startswith("PIP_")}


def uv_environment(settings: dict[str, str], present: dict[str, str]) -> dict[str, str]:
    """Variables for uv that say what pip's settings say, where the host says nothing of its own to uv."""
    made = {}
    for key, names in _SAME.items():
        value = settings.get(key, "").strip()
        if not value or any(present.get(name) for name in names):
            continue
        if key == "find-links":
            value = ",".join(value.split())  # uv separates them by commas, since a path may hold a space
        made[names[0]] = value
    return made


def environment(kind: str, step: Step, settings: dict[str, str]) -> dict[str, str]:
    """The whole environment of a step: the host's own variables, its settings of pip, and before them the places."""
    told = uv_environment(settings, dict(os.environ)) if kind == "uv" else {}
    made = running.clean_environment({**step.environment, **told})
    # These are lists; pip's variable takes the place of what its configuration says.
    more = {
        "UV_INDEX": made.get("UV_INDEX", ""),
        "PIP_EXTRA_INDEX_URL": settings.get("extra-index-url", ""),
        "PIP_FIND_LINKS": settings.get("find-links", ""),
    }
    return {**made, **{name: f"{value} {more.get(name, '')}".strip() for name, value in step.places.items()}}


class StepFailed(Exception):
    """A step that ended badly or took too long: one message with its output, what was asked, and what helps."""


def carry_out(
    steps: Iterable[Step],
    kind: str,
    sources: Sources,
    settings: dict[str, str],
    log: str,
    deadline: float,
    lock: int,
    how: str = "",
) -> None:
    """Run steps one after the other, with their output in ``log``, until ``deadline`` (of the monotonic clock).

    ``lock``: file descriptor that they hold as well. ``how``: for the message. Raises StepFailed, OSError.
    """
    for step in steps:
        left = max(1.0, deadline - time.monotonic())
        try:
            running.run(step.argv, environment(kind, step, settings), log, left, lock)
        except running.Failed as error:
            output = without_passwords(error.output)
            raise StepFailed(
                f"could not {step.what}{how} ({error}).\n{output}\n"
                f"Asked: {describe(sources, settings)}. {remedy(output)}"
            ) from error


# --- errors --------------------------------------------------------------------------------------

without_passwords = running.without_passwords

_NETWORK = re.compile(
    r"dns error|name resolution|Name or service not known|Connection refused|Could not connect|NewConnectionError"
    r"|ConnectTimeout|timed out|network is unreachable|error sending request|Failed to fetch|ProxyError|SSLError"
    r"|certificate",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"No matching distribution|No solution found|was not found in the (package registry|provided package locations)"
    r"|no version of|has no (usable )?wheels|no wheels with a matching|has no publicly",
    re.IGNORECASE,
)


def remedy(output: str) -> str:
    """What to do about a failed installation, from the installer's output; a full sentence."""
    flat = " ".join(output.split())
    if "No space left on device" in flat:
        return "The disk is full: free some space there (and in the installer's cache), or put ml_env_path elsewhere."
    if re.search(r"ensurepip|python3?[\w.]*-venv", flat):
        return (
            "This Python cannot make environments: install its venv package (python3-venv on Debian and Ubuntu) or uv."
        )
    if re.search(r"hash mismatch|do not match the hashes", flat, re.IGNORECASE):
        return "An index served another file than the one locked: do not use that index before you know why."
    if _NETWORK.search(flat):
        # Before the next ones: pip ends with "no matching distribution" also when no index answered.
        return (
            "This host cannot reach its package index: set HTTPS_PROXY, ml_env_index_url (or PIP_INDEX_URL on the "
            "host), or ml_env_find_links to a folder with the wheels."
        )
    if re.search(r"torch\S*\+cpu|torch==", flat) and _MISSING.search(flat):
        return (
            "The CPU build of torch is on no index that this host uses: set ml_env_torch_index to PyTorch's index of "
            "CPU wheels, or ml_env_find_links to a folder with the wheel."
        )
    if _MISSING.search(flat):
        return (
            "No index that this host uses has it for this Python and platform: set ml_env_index_url, "
            "ml_env_extra_index_urls or ml_env_find_links."
        )
    return "See the installer's words above."


def describe(sources: Sources, settings: dict[str, str]) -> str:
    """The places that were asked, for an error message."""
    main = sources.index_url or settings.get("index-url") or os.environ.get("UV_DEFAULT_INDEX") or "the default index"
    more = [*sources.extras, *settings.get("extra-index-url", "").split()]
    if sources.no_index:
        main, more = "no index", []
    links = [*sources.find_links, *settings.get("find-links", "").split()]
    said = main + (f", and {', '.join(more)}" if more else "") + (f"; files in {', '.join(links)}" if links else "")
    return without_passwords(said)
