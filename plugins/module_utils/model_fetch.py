# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Get the files of a model that are not there: from a hub, by the environment's huggingface_hub, or from a peer."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import files
from .model_files import NUMBERED, WEIGHTS
from .venvs import running
from .venvs.store import Store

# The token comes by the environment: arguments can be read by everybody on the host.
_HUB = """
import sys
try:
    from huggingface_hub import snapshot_download
except ImportError as error:
    sys.exit("huggingface_hub is not in this environment: %s" % error)
repo, revision, folder, *names = sys.argv[1:]
snapshot_download(repo, revision=revision or None, local_dir=folder, allow_patterns=names or None)
"""


class FetchError(Exception):
    """What went wrong, as one message for a person."""


@dataclass(frozen=True)
class Source:
    """Where the files of a model come from: one of a repository of the hub and a folder (or file) for rsync."""

    repo: str = ""
    revision: str = ""
    rsync_from: str = ""

    def __str__(self) -> str:
        if self.rsync_from:
            return self.rsync_from
        return self.repo + (f" ({self.revision})" if self.revision else "")


def place(path: str) -> tuple[str, str]:
    """(folder that a model's files come into, pattern of their names there; "" for a model that is a folder itself).

    A model that is not there is a file when its name says so. An empty folder of such a name holds no model.
    """
    if os.path.isdir(path):
        alone = path.endswith(WEIGHTS) and not os.listdir(path)
    else:
        alone = os.path.isfile(path) or path.endswith(WEIGHTS)
    if not alone:
        return path, ""
    folder, name = os.path.split(path)
    match = NUMBERED.match(name)
    if match:  # a file that is one of several needs the others
        return folder, glob.escape(match["stem"]) + "-" + "[0-9]" * 5 + f"-of-{match['total']}{match['kind']}"
    return folder, glob.escape(name)


def commands(source: Source, path: str, env_path: str, again: str = "") -> list[list[str]]:
    """What gets the files, in this order. Raises FetchError when this host cannot run it.

    ``again``: file with names of what is there and wrong, each ended by a zero byte; "" when there is nothing.
    """
    folder, pattern = place(path)
    if source.rsync_from:
        program = shutil.which("rsync")
        if program is None:
            raise FetchError(f"{path}: rsync is not on this host: install it, here and where {source} is")
        # What is half there is kept, under no name that a server would load, and continued. The connection may stall,
        # the copy may take hours.
        head = [program, "--times", "--partial-dir=.rsync-partial", "--timeout=120", "--rsh=ssh -oBatchMode=yes"]
        ends = ["--", _folder(source.rsync_from, path, bool(pattern)), folder + "/"]
        if pattern:
            made = [[*head, "--dirs", "--copy-links", f"--include=/{pattern}", "--exclude=*", *ends]]
        else:
            # Snapshots of the hub's cache are links out of their folder: what they lead to is copied. A link that stays
            # inside stays a link: to a folder above it, it would be copied into itself.
            made = [[*head, "--recursive", "--links", "--copy-unsafe-links", *ends]]
        if again:
            # With the same size and time they would pass for the same. Only of these is the content compared.
            names = ["--from0", f"--files-from={again}", "--ignore-missing-args"]
            made.insert(0, [*head, "--checksum", "--copy-links", *names, *ends])
        return made
    python = os.path.join(env_path, "bin", "python")
    if not env_path or not os.path.exists(python):
        raise FetchError(f"{path}: {python} does not exist: name an environment that has huggingface_hub")
    return [[python, "-c", _HUB, source.repo, source.revision, folder, *([pattern] if pattern else [])]]


def _folder(there: str, path: str, alone: bool) -> str:
    """The folder of a peer as rsync wants it, also when the file in it is named. Raises FetchError for another name."""
    there = there.rstrip("/")
    if not (alone and there.endswith(WEIGHTS)):
        return there + "/"
    cut = max(there.rfind("/"), there.rfind(":")) + 1
    folder, name = there[:cut], there[cut:]
    if name != os.path.basename(path):
        raise FetchError(f"{path}: {there} has another name: name its folder, or the same name at both ends")
    return folder + "./"


def fetch(
    source: Source, path: str, home: str, env_path: str, token: str, timeout_s: float, broken: Iterable[str] = ()
) -> bool:
    """Get the files that are not there, or not the same: whether any came. Raises FetchError, OSError, TimeoutError.

    ``broken``: names of files that are there and have to be fetched again.
    """
    path = os.path.abspath(path)  # nothing runs in our folder
    broken = list(broken)
    names = os.path.abspath(os.path.join(home, "cache", "fetch.names"))
    todo = commands(source, path, env_path, names if broken else "")
    folder, pattern = place(path)
    if pattern and os.path.isdir(path):
        os.rmdir(path)  # empty, in the place of the file
    if not pattern and os.path.lexists(path) and not os.path.isdir(path):
        raise FetchError(f"{path} is no folder and in the way of one: remove it, or choose another path")
    os.makedirs(folder, exist_ok=True)
    before = _stamps(folder, pattern)
    environment = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_COLOR": "1"}
    given = running.clean_environment(environment)
    if token:
        given["HF_TOKEN"] = token
    for name in broken:
        # The hub's client believes its note of a file for a while, whatever became of the file.
        note = os.path.join(folder, ".cache", "huggingface", "download", f"{name}.metadata")
        if os.path.exists(note):
            os.unlink(note)
    log = os.path.join(home, "cache", "fetch.log")
    try:
        with Store(os.path.join(home, "cache", "fetch")).locked(timeout_s) as lock, _removed(log, names):
            files.write_atomic(log, "", 0o600)
            files.write_atomic(names, "".join(f"{name}\0" for name in broken), 0o600)
            deadline = time.monotonic() + timeout_s
            for argv in todo:
                running.run(argv, given, log, max(1.0, deadline - time.monotonic()), lock)
    except running.Failed as error:
        said = error.output.replace(token, "***") if token else error.output
        helps = _remedy(f"{error}: {said}", source, folder)
        raise FetchError(f"{path} could not be fetched from {source} ({error}).\n{said}\n{helps}") from error
    return _stamps(folder, pattern) != before


@contextlib.contextmanager
def _removed(*paths: str) -> Iterator[None]:
    try:
        yield
    finally:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _stamps(folder: str, pattern: str) -> dict[str, tuple[int, int, int]]:
    """What tells whether a file of a model was written: of all below its folder, or of those that the pattern names."""
    found = {}
    for here, names, content in os.walk(folder):
        names[:] = [] if pattern else [name for name in names if not name.startswith(".")]
        for name in fnmatch.filter(content, pattern or "*"):
            path = os.path.join(here, name)
            with contextlib.suppress(FileNotFoundError):  # others may be at work in the folder
                status = os.lstat(path)
                found[path] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found


_BROKE_OFF = "It took too long, or the connection broke off: what came is kept, the next run goes on with it."
# What rsync (or ssh below it) says -> what helps; the first that is found counts.
_RSYNC = (
    (r"rsync: (command )?not found|rsync: No such file|remote command not found", "rsync is not on the peer."),
    (r"closed \([1-9]", _BROKE_OFF),  # after some bytes: whoever could not log in got none
    (
        r"Permission denied \((?!13)|Host key|resolve hostname|onnection (refused|timed out|reset)|No route|status 255",
        "The host logs in to the peer by ssh without a question: check the login.",
    ),
    (r"has no referent", "What is there is not complete itself: a link there leads nowhere."),
    (r"\[sender\].*(No such file|Not a directory)", "It is not there: check the path on the peer."),
    (r"\[sender\].*Permission denied", "It may not be read there: check the rights of the login on the peer."),
    (r"Permission denied|Read-only file system", "This user may not write to {folder}."),
    (r"not done after|timeout in data|unexpectedly closed|Broken pipe|exit status (12|30|35):", _BROKE_OFF),
)


def _remedy(said: str, source: Source, folder: str) -> str:
    if "No space left on device" in said or "quota exceeded" in said:
        return f"There is no room for it at {folder}: make some, or choose another path."
    if source.rsync_from:
        helps = next((text for pattern, text in _RSYNC if re.search(pattern, said)), "rsync itself says why, above.")
        return helps.format(folder=folder)
    if "huggingface_hub is not in this environment" in said:
        return "Use an environment that has it (those of vllm and sglang do), or fetch from a peer (rsync_from)."
    if any(word in said for word in ("401", "403", "GatedRepo", "RepositoryNotFound")):
        return "The hub does not give it to this token (or there is none of this name): see ml_env_hub_token."
    return "This host cannot get it from the hub: set HTTPS_PROXY or HF_ENDPOINT, or fetch from a peer (rsync_from)."
