# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the installed engine's own parser knows: asked with the environment's Python, without a GPU, and kept."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from typing import Any

from . import ask_parser, files, nvidia
from .argument_check import Parser
from .engines import get_engine
from .engines.base import Engine, python_of
from .fingerprint import seen_folders
from .fingerprint.python_env import site_folders
from .venvs.build import distributions

#: An engine imports torch and more before it parses; on a cold disk that takes its time.
TIMEOUT_S = 180.0


def installed(env_path: str) -> dict[str, str]:
    """Normal name -> version of every distribution that an environment has or sees; {} when there is none."""
    found: dict[str, str] = {}
    sites = site_folders(env_path)
    # Its own come last, and so over those that it sees elsewhere (a container's own engine).
    for site in [*reversed(seen_folders.find(env_path, sites)), *sites]:
        found.update(distributions(site))
    return found


def parser_of(
    home: str,
    declaration: dict[str, Any],
    env_path: str,
    environment: Mapping[str, str],
    timeout_s: float = TIMEOUT_S,
    keep: bool = True,
) -> Parser:
    """The parser of the declared engine in this environment; its ``why`` says so where it could not be asked.

    ``environment`` is that of the launch, without secrets: none is needed. The answer is kept below ``home`` (unless
    ``keep`` is False) while the same distributions are installed and the files that the flags come from are the same.
    """
    engine = get_engine(declaration["engine"])
    there = installed(env_path)
    version = there.get(engine.distribution, "")
    words = engine.parser_words(env_path)
    if not words:
        return Parser(version=version, why=f"{engine.title} has no parser that could be asked")
    if declaration["command"]:
        return Parser(version=version, why="llm_server.command is run in place of the engine's own program")
    python = python_of(env_path)
    if not os.path.exists(python):
        return Parser(version=version, why=f"{python} does not exist")
    # Where packages come from beside the environment: what is there decides too.
    search = {name: environment.get(name, "") for name in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    key = files.digest([engine.name, env_path, there, words, search])[:20]
    path = os.path.join(home, "cache", f"parser-{key}.json")
    kept = _kept(path)
    if kept is None:
        kept, why = _ask([python, engine.distribution, *words], environment, timeout_s)
        if kept is None:
            return Parser(version=version, why=why)
        kept["files"] = {name: _stamp(name) for name in kept["files"]}
        if keep:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            files.write_json(path, kept)
    return Parser(flags=kept["flags"], flexible=bool(kept["flexible"]), version=str(kept["version"]) or version)


def _kept(path: str) -> dict[str, Any] | None:
    """An earlier answer that still holds; a damaged one counts as none."""
    try:
        kept = files.read_json(path)
    except ValueError:
        return None
    if not isinstance(kept, dict) or not {"flags", "flexible", "files", "version"} <= set(kept):
        return None
    same = all(_stamp(name) == stamp for name, stamp in kept["files"].items())
    return kept if same else None


def _stamp(path: str) -> list[int]:
    """Size and time (ns) of a file; [] when it is gone."""
    try:
        about = os.stat(path)
    except OSError:
        return []
    return [about.st_size, about.st_mtime_ns]


def _ask(words: list[str], environment: Mapping[str, str], timeout_s: float) -> tuple[dict[str, Any] | None, str]:
    """(answer, "") or (None, why not). ``words``: the interpreter, then what ask_parser takes."""
    text = inspect.getsource(ask_parser)
    # No GPU is needed to parse, and none may be touched: a running server holds them.
    asked = {**environment, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    try:
        status, out, err = nvidia.run([words[0], "-c", text, *words[1:]], timeout_s, asked)
    except OSError as error:
        return None, f"{words[0]} cannot be run: {error.strerror}"
    if status is None:
        return None, f"it did not say within {timeout_s:g} s what it knows"
    for line in out.splitlines():
        if line.startswith(ask_parser.MARK):
            try:
                return json.loads(line[len(ask_parser.MARK) :]), ""
            except ValueError:
                break
    said = [line.strip() for line in err.splitlines() if line.strip()]
    return None, f"its program ended with status {status} before it parsed: {said[-1][:200] if said else 'no message'}"


def flags_of(engine: Engine, argv: list[str]) -> list[str]:
    """A command line of the engine's own program without the program."""
    words = engine.parser_words("")
    return argv[len(words) + (words[:1] == ["-m"]) :]
