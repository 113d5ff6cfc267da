# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Charts: a specification of Vega-Lite in ``specifications/<name>.json``, and the rows that it draws.

A specification names its datasets and holds no value of a record, so nothing that a host wrote can become a part of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_FOLDER = Path(__file__).parent / "specifications"


@dataclass(frozen=True)
class Look:
    """How the marks of one thing look. ``colour``: a variable of the style sheet, which knows light, dark and paper."""

    label: str
    colour: str
    symbol: str = "circle"

    @property
    def row(self) -> Row:
        """What a row says of its own look."""
        return {"colour": self.colour, "symbol": self.symbol}

    @property
    def sign(self) -> str:
        """The symbol as a character."""
        return _SIGNS[self.symbol]


_SIGNS = {"circle": "●", "square": "■", "triangle-up": "▲", "diamond": "◆", "cross": "✚", "triangle-down": "▼"}
_COLOURS = 6  # --c1 and so on


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A look for each of several things, in this order; from the seventh on they begin anew."""
    signs = list(_SIGNS)
    return {
        label: Look(label, f"var(--c{place % _COLOURS + 1})", signs[place % len(signs)])
        for place, label in enumerate(labels)
    }


@dataclass(frozen=True)
class Chart:
    """One chart of a page: ``name`` of its specification, what stands above it, what it is for those who cannot see
    it, its rows by dataset, its legend, and its height in pixels where its rows decide it."""

    name: str
    title: str
    description: str
    datasets: dict[str, list[Row]]
    legend: Sequence[Look] = ()
    height: int | None = None


def chart(
    name: str,
    title: str,
    description: str,
    *,
    legend: Iterable[Look] = (),
    height: int | None = None,
    **datasets: Sequence[Row],
) -> Chart:
    """A chart; numbers that JSON cannot hold are left out of their rows."""
    kept = {key: [_finite(row) for row in rows] for key, rows in datasets.items()}
    return Chart(name, title, description, kept, tuple(legend), height)


def specifications(drawn: Iterable[Chart]) -> dict[str, Any]:
    """The specifications that these charts use, by name, and ``config``, which all of them share."""
    return {name: specification(name) for name in sorted({one.name for one in drawn} | {"config"})}


def specification(name: str) -> Any:
    """One specification."""
    return json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def _finite(row: Row) -> Row:
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
