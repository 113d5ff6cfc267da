# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Numbers as a person reads them on a page; what is not known is a dash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import shares

UNKNOWN = "\u2013"  # an en dash
MINUS = "\u2212"
SPACE = "\u00a0"  # a number and its unit stay on one line


def number(value: float | None, unit: str = "") -> str:
    """Three significant digits or more: 0.124, 2.75, 12.1, 413.2, 41200."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 1 or size == 0 else 3
    return f"{value:.{digits}f}{SPACE + unit if unit else ''}"


def interval(low: float | None, high: float | None, unit: str = "") -> str:
    """``411.7 to 414.6``; "" when it is not known."""
    if low is None or high is None:
        return ""
    return f"{number(low)} to {number(high)}{SPACE + unit if unit else ''}"


def change(ratio: float | None) -> str:
    """A ratio as a change: 1.02 is ``+2.0 %``."""
    return UNKNOWN if ratio is None else _percent(ratio - 1, signed=True)


def change_interval(low: float | None, high: float | None) -> str:
    """Bounds of a ratio as changes; "" when they are not known."""
    return "" if low is None or high is None else f"{change(low)} to {change(high)}"


def percent(share: float | None) -> str:
    """A share: 0.02 is ``2.0 %``."""
    return UNKNOWN if share is None else _percent(share)


def signed_percent(share: float | None) -> str:
    """A share with its sign: 0.02 is ``+2.0 %``."""
    return UNKNOWN if share is None else _percent(share, digits=2, signed=True)


def _percent(share: float, digits: int = 1, signed: bool = False) -> str:
    return f"{shares.percent(share, digits, signed)}{SPACE}%".replace("-", MINUS)


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds."""
    return UNKNOWN if seconds is None else number(1000 * seconds, "ms")


def moment(text: str | None) -> str:
    """A time of a record (``2026-11-29T21:36:05Z``), without what nobody reads."""
    return UNKNOWN if not text else text.replace("T", " ", 1).replace("Z", " UTC", 1)


def count(amount: int, noun: str) -> str:
    """``1 start``, ``3 starts``."""
    return f"{amount} {noun}{'' if amount == 1 else 's'}"


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "interval": interval,
    "change": change,
    "change_interval": change_interval,
    "percent": percent,
    "signed_percent": signed_percent,
    "milliseconds": milliseconds,
    "moment": moment,
    "count": count,
}
