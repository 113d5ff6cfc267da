"""The command `groundstate calc`: what follows from numbers that somebody measured, without a server."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from typing import Any

from .content import COLLECTION, collections_root


def add_commands(commands: Any) -> None:
    """Add the command to the subparsers of the command line."""
    calc = commands.add_parser("calc", help="calculators that need no server")
    which = calc.add_subparsers(dest="calculator", required=True, metavar="CALCULATOR")
    even = which.add_parser(
        "break-even",
        help="whether speculative decoding pays",
        description="Cycle, break-even accept length, speed-up, needed acceptance and ceiling of speculative decoding, "
        "from a step without it and a rate with it. Only what is faster by more than the tolerance pays: as fast as "
        "without is not worth the memory of a draft.",
    )
    even.add_argument("--base-step-ms", type=float, required=True, help="time per token without speculation")
    even.add_argument("--rate", type=float, required=True, help="tokens per second of one stream with it")
    even.add_argument(
        "--accept-length", type=float, required=True, help="tokens per cycle, the target model's own included"
    )
    even.add_argument("--drafts", type=int, required=True, help="drafted tokens per cycle")
    even.add_argument("--verify-ms", type=float, help="what verifying is said to take")
    even.add_argument(
        "--tolerance",
        type=float,
        help="share of the rate that does not matter, as compare_tolerance of speculation.yml (default: 0.02)",
    )
    even.add_argument("--format", choices=("text", "json"), default="text")
    even.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the calculator; 0, or 2 for numbers that cannot be."""
    root = str(collections_root())
    if root not in sys.path:  # a checkout keeps its collection elsewhere
        sys.path.insert(0, root)
    speculation = importlib.import_module(f"ansible_collections.{COLLECTION}.plugins.module_utils.speculation")
    try:
        found = speculation.calculate(
            options.base_step_ms,
            options.rate,
            options.accept_length,
            options.drafts,
            options.verify_ms,
            speculation.TOLERANCE if options.tolerance is None else options.tolerance,
        )
    except ValueError as error:
        print(f"groundstate: {error}", file=sys.stderr)
        return 2
    if options.format == "json":
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(speculation.lines(found, options.drafts)))
    return 0
