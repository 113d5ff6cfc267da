"""The commands `groundstate history` and `groundstate import`: records of all hosts, searched, exported, added to."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from .content import plugin, text_of

LARGEST_RESULT = 256 << 20  # bytes: with every token's time, thousands of requests come to some ten MiB


def add_commands(commands: Any) -> None:
    """Add both commands to the subparsers of the command line."""
    history = commands.add_parser(
        "history",
        help="what was measured, as a table, JSON, CSV or Parquet",
        description="Show or export what the records hold, one line a level of concurrency, oldest first.",
    )
    add_place(history)
    history.add_argument("--host", help="only this host")
    history.add_argument("--server", help="only this server")
    history.add_argument("--model", help="only this model, by the name it is served under")
    history.add_argument("--format", choices=("table", "json", "csv", "parquet"), default="table")
    history.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to this file instead of the terminal")
    history.add_argument("--rebuild", action="store_true", help="make the index anew from the records first")
    importing = commands.add_parser(
        "import",
        help="add results of other tools to the history",
        description="Add results of vllm bench serve, sglang.bench_serving, aiperf (profile_export_aiperf.json) or "
        "guidellm to the history of a host. They are never a baseline. The same result is added once.",
    )
    add_place(importing)
    importing.add_argument("--host", required=True, help="the host that was measured")
    importing.add_argument("files", nargs="+", type=Path, metavar="FILE")
    for command in (history, importing):
        command.set_defaults(run=run)


def add_place(command: argparse.ArgumentParser) -> None:
    """Add the options that say where the records and their index are."""
    command.add_argument(
        "--records",
        default=os.environ.get("GROUNDSTATE_RECORDS", "records"),
        metavar="DIR",
        help="groundstate_records_dir (default: $GROUNDSTATE_RECORDS or records)",
    )
    command.add_argument(
        "--url",
        default=os.environ.get("GROUNDSTATE_HISTORY_URL", ""),
        help="a PostgreSQL database instead of history.sqlite beside the records (default: $GROUNDSTATE_HISTORY_URL, "
        "which does not show a password in the list of processes)",
    )


def run(options: argparse.Namespace) -> int:
    """Run one of the two commands; its exit code."""
    export, foreign, index, records = (
        plugin(f"plugin_utils.{name}") for name in ("export", "foreign", "index", "records")
    )
    try:
        if options.command == "import":
            return _import(options, foreign, index, records)
        return _history(options, export, index)
    except (index.HistoryError, records.RecordError, foreign.ForeignError, export.ExportError) as error:
        print(f"groundstate: {error}", file=sys.stderr)
        return 1


def _history(options: argparse.Namespace, export: Any, index: Any) -> int:
    if not os.path.isdir(os.path.expanduser(options.records)):
        print(f"groundstate: there is no folder of records {options.records}; --records names it", file=sys.stderr)
        return 1
    history = index.open_index(options.records, options.url)
    warn(history.rebuild() if options.rebuild else history.refresh())
    where = {name: value for name in ("host", "server", "model") if (value := getattr(options, name))}
    content = export.FORMATS[options.format](history.rows(**where))
    if options.output:
        options.output.write_bytes(content)
    elif options.format == "parquet" and sys.stdout.isatty():
        print("groundstate: Parquet is not for a terminal; name a file with -o", file=sys.stderr)
        return 2
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    return 0


def _import(options: argparse.Namespace, foreign: Any, index: Any, records: Any) -> int:
    # All of them are read before one is written: a wrong file among them changes nothing.
    found = [
        (path, one)
        for path in options.files
        for one in foreign.parse(text_of(path, LARGEST_RESULT, "replace"), str(path), path.stat().st_mtime)
    ]
    for path, result in found:
        where, added = records.write_foreign(options.records, options.host, {**result, "file": path.name})
        level = result["levels"][0]
        rate = (
            f"{level['decode_tok_s']:.1f} tok/s"
            if level["decode_tok_s"]
            else f"{level['output_tok_s']:.1f} tok/s in all"
        )
        print(f"{path}: {result['source']}, {rate}: {'added as' if added else 'is already there as'} {where}")
    warn(index.open_index(options.records, options.url).refresh([options.host]))
    return 0


def warn(warnings: list[str]) -> None:
    """Print what went wrong without being in the way."""
    for line in warnings:
        print(f"groundstate: {line}", file=sys.stderr)
