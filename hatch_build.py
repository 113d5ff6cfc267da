"""Put galaxy.yml beside the collection in a wheel (never in an editable install)."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    """hatchling's "sources" renames folders only, so this file needs a hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file to a standard build."""
        if version == "standard":
            build_data["force_include"]["galaxy.yml"] = "ansible_collections/groundstate/llm/galaxy.yml"
