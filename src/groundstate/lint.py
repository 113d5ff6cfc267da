"""The command `groundstate lint-nccl`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_commands(commands: Any) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser("lint-nccl", help="judge NCCL profiles as NCCL would read them, without a host")
    command.add_argument("file", type=Path, help="profiles by name, an inventory's variables, or an nccl.conf")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from . import nccl  # here: YAML, which the other commands need not load

    return nccl.lint(options.file)
