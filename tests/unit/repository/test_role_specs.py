"""The argument specs of the roles are the single source of names, types and defaults: so they have to be complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = sorted(path for path in (Path(__file__).resolve().parents[3] / "roles").iterdir() if path.is_dir())


def load(path: Path) -> Any:
    """The value in a YAML file."""
    return yaml.safe_load(path.read_text())


def options(role: Path) -> dict[str, dict[str, Any]]:
    """The declared options of a role's main entry point."""
    return load(role / "meta" / "argument_specs.yml")["argument_specs"]["main"].get("options") or {}


def defaults(role: Path) -> dict[str, Any]:
    """The role's defaults."""
    path = role / "defaults" / "main.yml"
    return (load(path) or {}) if path.exists() else {}


def is_template(value: Any) -> bool:
    """Whether a default is worked out at run time, from other variables."""
    return isinstance(value, str) and "{{" in value


@pytest.fixture(params=ROLES, ids=lambda path: path.name)
def role(request: pytest.FixtureRequest) -> Path:
    """Each role of the collection."""
    return request.param


def test_a_role_has_its_parts(role):
    for part in ("README.md", "meta/main.yml", "meta/argument_specs.yml", "tasks/main.yml"):
        assert (role / part).is_file(), part


def test_every_default_is_specified_and_equal(role):
    specified = options(role)
    for name, value in defaults(role).items():
        assert name in specified, f"{name} is in defaults/main.yml and not in meta/argument_specs.yml"
        if is_template(value):
            assert is_template(specified[name].get("default", value)), f"{name}: the spec names a fixed default"
        else:
            assert specified[name].get("default") == value, name


def test_every_specified_default_is_a_default(role):
    known = defaults(role)
    for name, option in options(role).items():
        if "default" in option:
            assert name in known, f"{name} has a default in the specs and none in defaults/main.yml"
            assert not option.get("required"), name


def test_options_carry_the_name_of_their_role(role):
    for name in defaults(role):
        assert name.startswith((f"{role.name}_", "groundstate_")) or name in (role.name, f"{role.name}s"), name


def undescribed(name: str, option: dict[str, Any]) -> list[str]:
    """The names of options without a description or a type, at any depth."""
    found = [] if option.get("description") and option.get("type") else [name]
    for inner, value in (option.get("options") or {}).items():
        found += undescribed(f"{name}.{inner}", value)
    return found


def test_every_option_has_a_type_and_a_description(role):
    assert [missing for name, option in options(role).items() for missing in undescribed(name, option)] == []


def test_meta(role):
    info = load(role / "meta" / "main.yml")
    assert info["galaxy_info"]["license"] == "GPL-3.0-or-later"
    assert info["dependencies"] == []


def test_off_without_quotes_is_off_too(role):
    # YAML reads it as false, and conditions see what the inventory says, not what the specs make of it.
    texts = {path.name: path.read_text() for path in role.glob("tasks/*.yml")}
    assert [name for name, text in texts.items() if re.search(r"[!=]= '(off|on|yes|no)'", text)] == []
