# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A start whose arm declares speculation, and whose server drafted nothing: it was measured without speculation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTE = "speculation is declared, and nothing was drafted"


def notes(declaration: Mapping[str, Any], arm: str, measurement: Mapping[str, Any]) -> list[str]:
    """The note of a start of an arm; [] where something was drafted, or where the engine does not tell.

    ``declaration``: of the comparison, with the final variables of each arm.
    """
    variables = next((one["variables"] for one in declaration["arms"] if one["name"] == arm), {})
    declared = (variables.get("llm_server") or {}).get("speculation")
    told = [(level.get("speculation") or {}).get("drafts") for level in measurement.get("levels") or []]
    # One level that does not tell may have drafted.
    return [NOTE] if declared and told and all(one == 0 for one in told) else []
