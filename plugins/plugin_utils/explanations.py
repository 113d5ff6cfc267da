# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What differs between two records, in words."""

from __future__ import annotations

from typing import Any

from ..module_utils.fingerprint import under_load
from ..module_utils.fingerprint.explain import explain
from . import records


def between(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Sentences on what changed from one record to another, likeliest to move a rate first.

    Raises RecordError naming both when one of them is damaged.
    """
    names = [f"{one.get('host')}/{one['id']}" for one in (old, new)]
    with records.read_as_it_is(f"record {' or '.join(names)}"):
        loads = [under_load.summary(one["measurement"], one["fingerprints"]) for one in (old, new)]
        before = [one["fingerprints"].get("before") or {} for one in (old, new)]
        return explain(before[0], before[1], loads[0], loads[1])
