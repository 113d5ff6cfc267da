"""The survey in docs/controllers.md asks for variables that the roles have, with values that they take."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]


def options() -> dict[str, dict[str, Any]]:
    """Every option of every role."""
    found: dict[str, dict[str, Any]] = {}
    for path in ROOT.glob("roles/*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            found.update(entry.get("options", {}))
    return found


def test_the_survey_fits_the_roles():
    page = (ROOT / "docs" / "controllers.md").read_text(encoding="utf-8")
    survey = json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL).group(1))
    known = options()
    kinds = {"bool": "multiplechoice", "float": "float", "str": ("text", "multiplechoice")}
    for question in survey["spec"]:
        option = known[question["variable"]]
        assert question["type"] in kinds[option["type"]], question
        if option["type"] == "bool":
            assert question["choices"] == ["false", "true"]
        if "choices" in option:
            assert set(question["choices"]) <= set(option["choices"])
        if option["type"] != "bool":
            assert question["default"] == option["default"]
        else:
            assert question["default"] == str(option["default"]).lower()
