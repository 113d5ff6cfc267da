# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Shares in percent, for text and pages. Few starts give ends of intervals that are no numbers to a person: not shown.

Two blocks that differ leave a rate somewhere between nothing and a thousand times as much.
"""

from __future__ import annotations

#: Shares beyond these are told as being beyond: eleven times a rate, a hundredth of it.
MOST, LEAST = 10.0, -0.99


def percent(share: float, digits: int = 1, signed: bool = False) -> str:
    """A share in percent, without the sign of percent: 0.02 is ``2.0``, or ``+2.0``; 5402.4 is ``above 1000``."""
    sign = "+" if signed else ""
    if share > MOST:
        return f"above {100 * MOST:{sign}.0f}"
    if share < LEAST:
        return f"below {100 * LEAST:{sign}.0f}"
    return f"{100 * share:{sign}.{digits}f}"
