# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The differences of arms (see arm_state) for people: the table, what was not compared, why a comparison stops."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from . import arm_state, told_parts

_SHOWN = 6  # rows of one kind (packages, files, ...) of one arm


def table(rows: Sequence[arm_state.Row], reference: str) -> list[str]:
    """The differences as lines: undeclared ones first; many of one kind are counted."""
    lines: list[str] = []
    kinds: dict[tuple[str, str, bool], int] = {}
    for row in sorted(rows, key=lambda one: one["declared"]):
        kind = (row["arm"], row["what"].split(" ")[0], row["declared"])
        kinds[kind] = kinds.get(kind, 0) + 1
        if kinds[kind] <= _SHOWN or not row["declared"]:
            lines.append(_line(row, reference))
    for (arm, kind, known), number in kinds.items():
        if known and number > _SHOWN:
            lines.append(f"... and {number - _SHOWN} more differences of {arm} in {kind}s")
    return list(dict.fromkeys(lines))


def _line(row: arm_state.Row, reference: str) -> str:
    if row["what"].startswith(told_parts.NOT_COMPARED):
        return f"{row['what']} ({row['why']})"
    values = f"{arm_state.text_of(row['reference'])} in {reference}, {arm_state.text_of(row['value'])} in {row['arm']}"
    return f"{'' if row['declared'] else 'NOT DECLARED  '}{row['what']}: {values} ({row['why']})"


def not_compared(rows: Iterable[arm_state.Row]) -> list[str]:
    """What no start tells, as lines."""
    return list(
        dict.fromkeys(
            f"{one['what']} ({one['why']})" for one in rows if one["what"].startswith(told_parts.NOT_COMPARED)
        )
    )


def refusal(rows: Sequence[arm_state.Row], reference: str) -> str:
    """Why a comparison stops, with the table and what can be done."""
    stops = arm_state.undeclared(rows)
    accept = json.dumps([row["what"] for row in stops[:3]], ensure_ascii=False)  # what is JSON is YAML, too
    return "\n".join(
        [
            f"the arms differ in {len(stops)} {'things' if len(stops) > 1 else 'thing'} that nobody declared, so that "
            "the result would not be about what was declared:",
            *table(rows, reference),
            "Make them equal in all arms or declare the difference in the arm's vars. If it was repaired on the host: "
            "-e compare_anew=true, because the starts that are done stay as they ran. Or accept it, and the "
            f"comparison goes on with what is measured already: compare_allow: {accept}",
        ]
    )
