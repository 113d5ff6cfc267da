# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter break_even (documented in break_even.yml)."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError

from ..module_utils import speculation


def break_even(base_step_ms: Any, rate: Any, accept_length: Any, drafts: Any, verify_ms: Any = None) -> dict[str, Any]:
    """What follows from a step, a rate and an accept length: see :func:`..module_utils.speculation.calculate`."""
    try:
        verify = None if verify_ms is None else float(verify_ms)
        return speculation.calculate(float(base_step_ms), float(rate), float(accept_length), int(drafts), verify)
    except (TypeError, ValueError, OverflowError) as error:
        raise AnsibleFilterError(f"break_even: {error}") from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"break_even": break_even}
