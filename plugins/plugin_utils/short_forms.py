# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Short forms of a comparison (``compare_patched_vs_pristine=true`` and the like) whose arms would all be the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..module_utils.engines import ENGINES

PATCHES, ALL_REDUCE = "compare_patched_vs_pristine", "compare_custom_all_reduce"


def check(ways: Mapping[str, Any], value: Callable[[str], Any]) -> None:
    """Raises ValueError, in words of what was asked for, where the host has nothing to compare in that way.

    ``ways``: variable -> its arms, empty where it was not given. ``value``: the value of a variable of the host, None
    where it has none.
    """
    if ways.get(PATCHES) and not value("ml_env_patches"):
        raise ValueError(
            f"{PATCHES}: no patches are declared (ml_env_patches), so that both arms would be the same environment; "
            "declare them in the inventory"
        )
    if ways.get(ALL_REDUCE):
        server = value("llm_server")
        engine = server.get("engine") if isinstance(server, Mapping) else None
        having = {name: one.title for name, one in ENGINES.items() if one.own_all_reduce}
        if engine not in having:
            raise ValueError(
                f"{ALL_REDUCE}: engine {engine} has no all-reduce of its own that a flag turns off; "
                f"{' and '.join(having.values())} have (llm_server.engine: {' or '.join(having)})"
            )
