# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter lock_data (documented in lock_data.yml)."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils import locks


def lock_data(name: str) -> dict[str, Any]:
    """What a lock says: see :func:`..plugin_utils.locks.read`."""
    try:
        return locks.read(name)
    except locks.LockError as error:
        raise AnsibleFilterError(f"ml_env_lock: {error}") from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"lock_data": lock_data}
