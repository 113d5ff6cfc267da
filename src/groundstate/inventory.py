"""The command `groundstate inventory`: where the packaged inventories lie."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .content import inventories


def add_commands(commands: Any) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser("inventory", help="print where a packaged inventory lies, or which there are")
    command.add_argument("name", nargs="?")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    known = inventories()
    if options.name is None:
        print(*known, sep="\n")
    elif options.name in known:
        print(known[options.name])
    else:
        print(f"groundstate: there is no inventory {options.name!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    return 0
