"""The command line `groundstate`: its commands, and what they share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from . import __version__, calc, history, inventory, lint, playbooks, records, report
from .interruption import INTERRUPTED

# Each adds its commands with ``add_commands(subparsers)`` and names with ``set_defaults(run=...)`` the function that
# runs one: it takes the parsed options and returns the exit code. What takes long to import is imported in there.
READER_GONE = 141  # as of a program that SIGPIPE ended
COMMANDS = (playbooks, calc, history, report, records, inventory, lint)


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="groundstate",
        description="Bring GPU machines to a known state, serve an LLM, measure what can be trusted.",
    )
    top.add_argument("--version", action="version", version=f"groundstate {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_commands(commands)
    return top


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; ``passed`` is what follows ``--``. Ends the program when it is none of ours."""
    own, passed = list(words), []
    if "--" in own:
        where = own.index("--")
        own, passed = own[:where], own[where + 1 :]
    grammar = parser()
    options = grammar.parse_args(own)
    options.passed = passed
    if passed and options.command not in playbooks.PLAYBOOKS:
        grammar.error(f"{options.command} runs no playbook: nothing can follow --")
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code."""
    options = parse(sys.argv[1:] if words is None else words)
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted. Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except (OSError, UnicodeError) as error:
        print(f"groundstate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
