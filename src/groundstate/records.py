"""The commands `groundstate show` and `groundstate diff`: one record in words, and what differs between two."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .content import plugin
from .history import add_place, warn

NAMES = "an id, host/id, host/latest, a host alone (its latest), or the path of a record's file"


def add_commands(commands: Any) -> None:
    """Add both commands to the subparsers of the command line."""
    show = commands.add_parser(
        "show",
        help="one record, in words",
        description=f"Show a record: server, workload, rates, proof, verdict and what explains it. RECORD is {NAMES}.",
    )
    diff = commands.add_parser(
        "diff",
        help="what differs between two records",
        description="Show what differs between two records: rates, and everything in the state that can explain them, "
        f"likeliest first. RECORD is {NAMES}.",
    )
    for command in (show, diff):
        add_place(command)
    show.add_argument("record", metavar="RECORD")
    show.add_argument("--json", action="store_true", help="the whole record as it is")
    diff.add_argument("old", metavar="RECORD")
    diff.add_argument("new", metavar="RECORD")
    show.set_defaults(run=_show)
    diff.set_defaults(run=_diff)


def _show(options: argparse.Namespace) -> int:
    lookup, records, text = (plugin(f"plugin_utils.{name}") for name in ("lookup", "records", "record_text"))
    try:
        record, path = lookup.find(options.records, options.record)
        if options.json:
            with open(path, encoding="utf-8") as source:
                sys.stdout.write(source.read())
            return 0
        shown, warnings = lookup.with_standing(options.records, record)
        with records.read_as_it_is(f"record {path}"):
            lines = text.show(shown, path)
    except records.RecordError as error:
        print(f"groundstate: {error}", file=sys.stderr)
        return 1
    warn(warnings)
    _print(lines)
    return 0


def _diff(options: argparse.Namespace) -> int:
    lookup, records, text = (plugin(f"plugin_utils.{name}") for name in ("lookup", "records", "record_text"))
    try:
        (old, before), (new, after) = (lookup.find(options.records, name) for name in (options.old, options.new))
        with records.read_as_it_is(f"record {before} or {after}"):
            lines = text.diff(old, new)
    except records.RecordError as error:
        print(f"groundstate: {error}", file=sys.stderr)
        return 1
    _print(lines)
    return 0


def _print(lines: list[str]) -> None:
    plain = plugin("module_utils.files").plain
    for line in lines:
        print(plain(line))
