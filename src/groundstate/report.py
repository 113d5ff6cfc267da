"""The command `groundstate report`: where a fleet, a host or a comparison stands, as a page or for other programs."""

from __future__ import annotations

import argparse
import os
import sys
import time
import webbrowser
from pathlib import Path
from typing import Any

from .content import plugin
from .history import add_place, warn

FORMATS = ("html", "json", "csv", "prometheus", "mlflow")


def add_commands(commands: Any) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "report",
        help="where the hosts stand: one HTML file, or for Prometheus, MLflow and others",
        description="Show where every server of every host stands: its rate, verdict and proof, its history with the "
        "points where something changed, and how it compares with its group. The page needs no network to be read.",
    )
    add_place(command)
    chosen = command.add_mutually_exclusive_group()
    chosen.add_argument("--group", default="", help="only hosts with this baseline_group")
    chosen.add_argument("--comparison", metavar="ID", help="the page of this comparison, or of the 'latest' of --host")
    command.add_argument("--host", default="", help="only this host")
    command.add_argument("--format", choices=FORMATS, default="html")
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write to this file, - for the terminal (default: report.html in the folder of the records or the host, "
        "result.html beside a comparison; the terminal for other formats)",
    )
    command.add_argument("--open", action="store_true", help="open the page in a browser")
    command.add_argument(
        "--tracking-uri",
        default="",
        metavar="URI",
        help="of MLflow, for --format mlflow (default: what MLflow itself goes by, such as $MLFLOW_TRACKING_URI)",
    )
    command.add_argument("--experiment", default="groundstate", help="of MLflow (default: %(default)s)")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    export, index, records, html = (
        plugin(f"plugin_utils.{name}") for name in ("export", "index", "records", "pages.html")
    )
    refused = _refused(options)
    if refused:
        print(f"groundstate: {refused}", file=sys.stderr)
        return 2
    if not os.path.isdir(os.path.expanduser(options.records)):
        print(f"groundstate: there is no folder of records {options.records}; --records names it", file=sys.stderr)
        return 1
    try:
        if options.comparison:
            return _comparison(options)
        return _fleet(options)
    except (index.HistoryError, records.RecordError, export.ExportError, html.PageError) as error:
        print(f"groundstate: {error}", file=sys.stderr)
        return 1


def _refused(options: argparse.Namespace) -> str:
    """Why these options do not go together; "" when they do."""
    if options.format != "html" and (options.comparison or options.open):
        which = "--comparison" if options.comparison else "--open"
        return f"{which} is for pages, not for --format {options.format}"
    if options.format == "mlflow" and options.output:
        return "--format mlflow writes to MLflow: --tracking-uri says where, -o cannot"
    if options.open and options.output == "-":
        return "--open needs a file: name one with -o, or leave -o out"
    return ""


def _fleet(options: argparse.Namespace) -> int:
    fleet = plugin("plugin_utils.fleet").survey(options.records, options.url, options.host, options.group)
    warn(fleet.warnings)
    if options.format == "mlflow":
        return _mlflow(options, fleet)
    if options.format != "html":
        return _write(options, plugin("plugin_utils.fleet_export").FORMATS[options.format](fleet))
    title = options.host or (f"Group {options.group}" if options.group else "All hosts")
    made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    page = plugin("plugin_utils.pages.fleet_page").page(fleet, title, made_at)
    records = plugin("plugin_utils.records")
    default = records.folder(options.records, options.host) if options.host else os.path.expanduser(options.records)
    return _page(options, page, os.path.join(default, "report.html"))


def _comparison(options: argparse.Namespace) -> int:
    comparisons = plugin("plugin_utils.comparisons")
    host, identifier = _found(options, comparisons)
    page = plugin("plugin_utils.pages.comparison_page").of(options.records, host, identifier)
    return _page(options, page, os.path.join(comparisons.folder(options.records, host, identifier), comparisons.PAGE))


def _found(options: argparse.Namespace, comparisons: Any) -> tuple[str, str]:
    """Host and id of the comparison that is meant. Raises RecordError."""
    records = plugin("plugin_utils.records")
    hosts = [options.host] if options.host else records.hosts(options.records)
    known = [(identifier, host) for host in hosts for identifier in comparisons.identifiers(options.records, host)]
    if options.comparison == "latest" and known:
        identifier, host = max(known)
        return host, identifier
    for identifier, host in known:
        if identifier == options.comparison:
            return host, identifier
    whose = f" of {options.host}" if options.host else ""
    there = f"; there are {', '.join(identifier for identifier, _host in sorted(known)[-5:])}" if known else ""
    raise records.RecordError(f"there is no comparison {options.comparison}{whose} in {options.records}{there}")


def _page(options: argparse.Namespace, page: str, default: str) -> int:
    html = plugin("plugin_utils.pages.html")
    if not html.can_plot():
        warn([f"the page has tables only: {html.NO_CHARTS}"])
    if options.output == "-":
        return _write(options, page.encode("utf-8", "replace"))
    path = os.path.abspath(options.output or default)
    html.write(path, page)
    print(path)
    if options.open and not webbrowser.open(Path(path).as_uri()):
        warn(["no browser could be opened; open the file yourself"])
    return 0


def _write(options: argparse.Namespace, content: bytes) -> int:
    """To the terminal, or atomically to a file: node_exporter must never read half of one."""
    if options.output in (None, "-"):
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        plugin("module_utils.files").write_atomic(os.path.abspath(options.output), content)
    return 0


def _mlflow(options: argparse.Namespace, fleet: Any) -> int:
    records = plugin("plugin_utils.records")
    hosts = sorted({entry.row["host"] for entry in fleet.entries})
    warnings: list[str] = []

    def every() -> Any:
        for host in hosts:
            for identifier in records.identifiers(options.records, host):
                try:
                    record = records.read_record(options.records, host, identifier)
                except records.RecordError as error:
                    warnings.append(str(error))
                    continue
                if record is not None:
                    yield host, record

    new, known = plugin("plugin_utils.mlflow_runs").log(every(), options.experiment, options.tracking_uri)
    warn(sorted(set(warnings) - set(fleet.warnings)))
    print(f"{new} runs added to the experiment {options.experiment}, {known} were there already")
    return 0
