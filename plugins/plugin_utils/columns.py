# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The columns of the history, and which values they can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..module_utils import files

#: Column -> type. One row for each level of concurrency; ``headline`` marks the one that verdicts speak of.
COLUMNS = {
    "host": "TEXT NOT NULL",
    "id": "TEXT NOT NULL",
    "concurrency": "INTEGER NOT NULL",
    "headline": "BOOLEAN NOT NULL",
    "source": "TEXT NOT NULL",  # groundstate, or the tool that an imported result is of
    "measured_at": "TEXT",
    "server": "TEXT",
    "engine": "TEXT",
    "model": "TEXT",
    "start_id": "TEXT",
    "baseline_key": "TEXT",
    "state_hash": "TEXT",
    "workload_hash": "TEXT",
    "prompt_tokens": "INTEGER",
    "output_tokens": "INTEGER",
    "decode_tok_s": "DOUBLE PRECISION",
    "decode_low": "DOUBLE PRECISION",
    "decode_high": "DOUBLE PRECISION",
    "output_tok_s": "DOUBLE PRECISION",
    "ttft_s": "DOUBLE PRECISION",
    "tpot_s": "DOUBLE PRECISION",
    "requests": "INTEGER",
    "failed": "INTEGER",
    "verdict": "TEXT",
    "ratio": "DOUBLE PRECISION",
    "in_baseline": "BOOLEAN NOT NULL",
    "path": "TEXT NOT NULL",  # below the folder of the records
}

#: Of PostgreSQL's INTEGER.
LARGEST_INTEGER = 2**31 - 1
_PYTHON_TYPES = {"TEXT": (str,), "INTEGER": (int,), "DOUBLE": (int, float), "BOOLEAN": (bool,)}


def misfits(values: Mapping[str, Any]) -> list[str]:
    """The columns whose value neither database can hold: of another type, not finite, too large."""
    return [name for name, value in values.items() if not _fits(value, COLUMNS[name])]


def _fits(value: Any, kind: str) -> bool:
    if value is None:
        return "NOT NULL" not in kind
    wanted = _PYTHON_TYPES[kind.split()[0]]
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        return False
    if isinstance(value, str):
        return storable(value)
    if "INTEGER" in kind:
        return abs(value) <= LARGEST_INTEGER
    return bool in wanted or files.is_number(value)


def storable(text: str) -> bool:
    """Whether both databases can hold a text: no zero byte, no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text
