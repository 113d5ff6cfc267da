# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rows of the history as a table for people, JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from .columns import COLUMNS

Row = dict[str, Any]


class ExportError(Exception):
    """The rows cannot be written in this format; the message says why."""


def as_json(rows: Sequence[Row]) -> bytes:
    """A list of objects."""
    return (json.dumps(list(rows), indent=1) + "\n").encode()


def as_csv(rows: Sequence[Row]) -> bytes:
    """A header and a line a row (RFC 4180); what is not known is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(COLUMNS), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def as_parquet(rows: Sequence[Row]) -> bytes:
    """A Parquet file; the types do not depend on what the rows hold. Raises ExportError without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ExportError("Parquet needs pyarrow on the controller: pip install 'groundstate[parquet]'") from error
    kinds = {
        "TEXT": pyarrow.string(),
        "INTEGER": pyarrow.int64(),
        "BOOLEAN": pyarrow.bool_(),
        "DOUBLE": pyarrow.float64(),
    }
    schema = pyarrow.schema([(name, kinds[kind.split()[0]]) for name, kind in COLUMNS.items()])
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), out)
    return out.getvalue()


# Heading -> (column, how it is shown, whether it stands to the right).
_SHOWN: dict[str, tuple[str, Callable[[Any], str], bool]] = {
    "measured at": ("measured_at", str, False),
    "host": ("host", str, False),
    "source": ("source", str, False),
    "server": ("server", str, False),
    "model": ("model", str, False),
    "streams": ("concurrency", str, True),
    "decode tok/s": ("decode_tok_s", "{:.1f}".format, True),
    "TTFT ms": ("ttft_s", lambda value: f"{1000 * value:.0f}", True),
    "output tok/s": ("output_tok_s", "{:.1f}".format, True),
    "verdict": ("verdict", str, False),
    "ratio": ("ratio", lambda value: f"{100 * (value - 1):+.1f} %", True),
    "baseline": ("in_baseline", lambda value: "yes" if value else "", False),
}


def as_table(rows: Sequence[Row]) -> bytes:
    """Columns for a terminal; what is not known is "-"."""
    lines = [list(_SHOWN)]
    for row in rows:
        lines.append(["-" if row[name] is None else _plain(show(row[name])) for name, show, _right in _SHOWN.values()])
    widths = [max(len(line[place]) for line in lines) for place in range(len(_SHOWN))]
    rights = [right for _name, _show, right in _SHOWN.values()]
    text = ""
    for line in lines:
        cells = [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(line, widths, rights)]
        text += "  ".join(cells).rstrip() + "\n"
    return text.encode()


def _plain(text: str) -> str:
    """What a terminal does not take for a command, at most one line."""
    return text if text.isprintable() else repr(text)


FORMATS: dict[str, Callable[[Sequence[Row]], bytes]] = {
    "table": as_table,
    "json": as_json,
    "csv": as_csv,
    "parquet": as_parquet,
}
