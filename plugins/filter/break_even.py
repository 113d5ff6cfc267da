# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter break_even (documented in break_even.yml)."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError

from ..module_utils import speculation


def _number(name: str, value: Any) -> float:
    """A number, also one written as text, as templates give it; a bool is none, though Python counts it as 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{name}: {value!r} is not a number")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{name}: {value!r} is not a number") from None


def _whole(name: str, value: Any) -> int:
    number = _number(name, value)
    if not number.is_integer():
        raise ValueError(f"{name}: {value!r} is not a whole number")
    return int(number)


def break_even(
    base_step_ms: Any,
    rate: Any,
    accept_length: Any,
    drafts: Any,
    verify_ms: Any = None,
    tolerance: Any = speculation.TOLERANCE,
) -> dict[str, Any]:
    """What follows from a step, a rate and an accept length: see :func:`..module_utils.speculation.calculate`."""
    try:
        verify = None if verify_ms is None else _number("verify_ms", verify_ms)
        return speculation.calculate(
            _number("base_step_ms", base_step_ms),
            _number("rate", rate),
            _number("accept_length", accept_length),
            _whole("drafts", drafts),
            verify,
            _number("tolerance", tolerance),
        )
    except ValueError as error:
        # Ansible shows the message of a cause as well, and this one has it already.
        raise AnsibleFilterError(f"break_even: {error}") from None


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"break_even": break_even}
