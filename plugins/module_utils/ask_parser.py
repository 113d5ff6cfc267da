# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run by an environment's own Python: start an engine's program up to the moment in which it parses its arguments, and
print what its parser knows instead of going on. Only what every engine's Python has is used.

    python -c "$text" sglang -m sglang.launch_server
    python -c "$text" vllm /envs/vllm/bin/vllm serve

The first word is the distribution whose version is the engine's.

It asks the program for ``--help``: where it parses in another way than argparse, help is all that happens.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import runpy
import sys
from types import FrameType
from typing import Any

#: Begins the line that holds the answer; programs print other things while they are imported.
MARK = "groundstate-parser: "
#: Other parsers may run before that of the server; this one of our own flags tells it.
SIGN = "--port"

_version = ""
_callers: set[str] = set()
_parse = argparse.ArgumentParser.parse_known_args
_add = argparse._ActionsContainer.add_argument


def _remember_caller(self: Any, *names: Any, **options: Any) -> Any:
    # An edited engine is asked anew: these are the files its flags come from, below wrappers of the parser.
    frame: FrameType | None = sys._getframe(1)
    for _level in range(3):
        if frame is not None:
            _callers.add(frame.f_code.co_filename)
            frame = frame.f_back
    return _add(self, *names, **options)


def _answer(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
    words = sys.argv[1:] if args is None else list(args)
    parser = _chosen(self, words)
    if SIGN not in parser._option_string_actions:
        return _parse(self, args, namespace)
    sys.stdout.write("\n" + MARK + json.dumps({**describe(parser), "version": _version}) + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing that the program has begun so far needs an orderly end


def _chosen(parser: argparse.ArgumentParser, words: list[str]) -> argparse.ArgumentParser:
    """The parser of the subcommand that the words name, or the parser itself."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word in words:
                if word in action.choices:
                    return _chosen(action.choices[word], words)
    return parser


def describe(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Flags and files of a parser, in JSON's types."""
    flags = []
    for action in parser._actions:
        if not action.option_strings:
            continue
        kind = getattr(action.type, "__name__", "")
        flags.append(
            {
                "names": list(action.option_strings),
                "dest": action.dest,
                "nargs": action.nargs if isinstance(action.nargs, (int, str)) else None,
                "type": kind if kind in ("int", "float") else "",
                "choices": [str(one) for one in action.choices] if action.choices else None,
                "help": " ".join(str(action.help or "").split())[:200],
            }
        )
    return {
        "flags": flags,
        # vLLM's parser takes _ for -, and --config.key for a part of a dictionary.
        "flexible": type(parser).__name__ == "FlexibleArgumentParser",
        "files": sorted(path for path in _callers if os.path.isfile(path)),
    }


def main() -> None:
    # The engine's own parser is what is asked, at the moment at which it would parse: nothing else sees all of it.
    argparse._ActionsContainer.add_argument = _remember_caller  # type: ignore[method-assign]  # ours in its place
    argparse.ArgumentParser.parse_known_args = _answer  # type: ignore[method-assign]  # ours in its place
    global _version
    words = sys.argv[2:]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a checkout on PYTHONPATH has none
        _version = importlib.metadata.version(sys.argv[1])
    del sys.path[0]  # the folder that we happen to run in is no part of the environment
    if words[0] == "-m":
        sys.argv = [words[1], *words[2:], "--help"]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*words, "--help"]
        sys.path.insert(0, os.path.dirname(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
