# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each source of NCCL would yield to a server, in the order in which they are asked, and which wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import file_change, nccl_conf, nccl_places, nccl_profiles


def sources(wish: nccl_places.Wish, made: nccl_places.Plan, declared: Mapping[str, str], home: str) -> list[dict]:
    """Source by source: ``source``, ``path``, ``exists``, ``variables``, as they are once the plan is done.

    ``declared``: what goes over the profile in the server's environment; ``home``: of the server's user. Raises
    OSError for a file that may not be read.
    """
    environment = {**made.environment, **declared}
    planned = {one.path: one.after for one in made.changes}
    found = []
    for source, path in nccl_conf.search_order(environment, home):
        if source == nccl_conf.ENVIRONMENT:
            found.append(_source(source, nccl_profiles.path(wish.home, wish.server), True, environment))
            for one in made.record.get("places", []):
                if one["place"] == nccl_places.PYTHON:
                    found.append(_source(nccl_places.PYTHON, one["python"], True, made.variables))
            continue
        content = planned[path] if path in planned else file_change.read(path)[0]
        text = (content or b"").decode("utf-8", "surrogateescape")
        found.append(_source(source, path, content is not None, nccl_conf.parse(text)))
    return found


def _source(source: str, path: str, exists: bool, variables: Mapping[str, str]) -> dict[str, Any]:
    shown = {name: variables[name] for name in sorted(variables) if name.startswith("NCCL_")}
    return {"source": source, "path": path, "exists": exists, "variables": shown}


def winners(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per variable ``value`` and ``source`` of the one that wins, and the ``shadowed`` ones."""
    made = {}
    for name, pairs in nccl_conf.winners([(one["source"], one["variables"]) for one in found]).items():
        (source, value), *rest = pairs
        shadowed = [{"source": other, "value": text} for other, text in rest]
        made[name] = {"value": value, "source": source, "shadowed": shadowed}
    return made


def warnings(profile: Mapping[str, str], found: list[dict[str, Any]], hidden: Mapping[str, str]) -> list[str]:
    """Sentences on a profile that does not win, and on a file that is not read because of us.

    ``hidden``: what ``~/.nccl.conf`` would yield, {} when it is read.
    """
    said = []
    for name, won in winners(found).items():
        if name in profile and won["value"] != profile[name]:
            said.append(
                f"{name} is {profile[name]} in the profile, and {won['value']!r} wins, from {won['source']}: take it "
                "away there (llm_server.env goes over the profile), or make them agree"
            )
    if hidden:
        said.append(
            f"{nccl_conf.USER_FILE} sets {', '.join(sorted(hidden))} and is not read by this server, because "
            f"{nccl_conf.CONF_VARIABLE} takes its place"
        )
    return said
