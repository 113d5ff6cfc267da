# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Get the files of a model that are not there: from a hub, by the environment's huggingface_hub, or from a peer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from . import files
from .venvs import running
from .venvs.store import Store

# The token comes by the environment: arguments can be read by everybody on the host.
_HUB = """
import sys
try:
    from huggingface_hub import snapshot_download
except ImportError as error:
    sys.exit("huggingface_hub is not in this environment: %s" % error)
repo, revision, folder = sys.argv[1:]
snapshot_download(repo, revision=revision or None, local_dir=folder)
"""


class FetchError(Exception):
    """What went wrong, as one message for a person."""


@dataclass(frozen=True)
class Source:
    """Where the files of a model come from: one of a repository of the hub and a folder for rsync."""

    repo: str = ""
    revision: str = ""
    rsync_from: str = ""

    def __str__(self) -> str:
        if self.rsync_from:
            return self.rsync_from
        return self.repo + (f" ({self.revision})" if self.revision else "")


def command(source: Source, path: str, env_path: str) -> list[str]:
    """What gets the files. Raises FetchError when this host cannot run it."""
    if source.rsync_from:
        program = shutil.which("rsync")
        if program is None:
            raise FetchError(f"{path}: rsync is not on this host: install it, here and where {source} is")
        # What is half there is kept and continued; the connection may stall, the copy may take hours.
        head = [program, "--recursive", "--links", "--times", "--partial", "--timeout=120", "--rsh=ssh -oBatchMode=yes"]
        return [*head, "--", source.rsync_from.rstrip("/") + "/", path + "/"]
    python = os.path.join(env_path, "bin", "python")
    if not env_path or not os.path.exists(python):
        raise FetchError(f"{path}: {python} does not exist: name an environment that has huggingface_hub")
    return [python, "-c", _HUB, source.repo, source.revision, path]


def fetch(
    source: Source, path: str, home: str, env_path: str, token: str, timeout_s: float, broken: Iterable[str] = ()
) -> None:
    """Get the files that are not there, or not the same. Raises FetchError, OSError, TimeoutError.

    ``broken``: names of files that are there and have to be fetched again.
    """
    argv = command(source, path, env_path)
    os.makedirs(path, exist_ok=True)
    environment = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_COLOR": "1"}
    given = running.clean_environment(environment)
    if token:
        given["HF_TOKEN"] = token
    for name in broken:
        # The hub's client believes its note of a file for a while, whatever became of the file.
        note = os.path.join(path, ".cache", "huggingface", "download", f"{name}.metadata")
        if os.path.exists(note):
            os.unlink(note)
    log = os.path.join(home, "cache", "fetch.log")
    try:
        with Store(os.path.join(home, "cache", "fetch")).locked(timeout_s) as lock:
            files.write_atomic(log, "", 0o600)
            running.run(argv, given, log, timeout_s, lock)
    except running.Failed as error:
        said = error.output.replace(token, "***") if token else error.output
        raise FetchError(
            f"{path} could not be fetched from {source} ({error}).\n{said}\n{_remedy(said, source)}"
        ) from error
    finally:
        if os.path.exists(log):
            os.unlink(log)


def _remedy(said: str, source: Source) -> str:
    if "huggingface_hub is not in this environment" in said:
        return "Use an environment that has it (those of vllm and sglang do), or fetch from a peer (rsync_from)."
    if any(word in said for word in ("401", "403", "GatedRepo", "RepositoryNotFound")):
        return "The hub does not give it to this token (or there is none of this name): see ml_env_hub_token."
    if source.rsync_from:
        return "The host logs in to the peer by ssh without a question: check the login, and the path there."
    return "This host cannot get it from the hub: set HTTPS_PROXY or HF_ENDPOINT, or fetch from a peer (rsync_from)."
