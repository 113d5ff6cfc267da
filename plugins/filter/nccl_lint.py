# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter nccl_lint (documented in nccl_lint.yml)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ..module_utils import nccl_lint as linter


def nccl_lint(variables: Any) -> list[dict[str, str]]:
    """What there is to say of NCCL variables, as dictionaries with level, variable and message."""
    if not isinstance(variables, Mapping):
        raise AnsibleFilterError(
            f"nccl_lint takes a dictionary of variables and values, not a {type(variables).__name__}"
        )
    return [one.as_dict() for one in linter.lint(variables)]


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"nccl_lint": nccl_lint}
