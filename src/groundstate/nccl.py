"""Judge NCCL profiles in a file, without a host: the linter of the collection for editors, hooks and CI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from .content import collections_root, plugin, text_of

_LARGEST = 4 << 20  # bytes; what is longer was not written by hand


class _Loader(yaml.SafeLoader):
    """Takes inventories with tags such as !vault for what they are to the linter: something else."""


_Loader.add_multi_constructor("!", lambda _loader, _suffix, _node: None)


def _shipped() -> dict[str, Any]:
    role = collections_root() / "ansible_collections" / "groundstate" / "llm" / "roles" / "nccl_profile"
    return dict(yaml.safe_load((role / "vars" / "main.yml").read_text(encoding="utf-8"))["nccl_profile_shipped"])


def _variables(path: Path, text: str) -> dict[str, Any] | None:
    """Variables that stand in a file by themselves, as YAML or as lines of an nccl.conf; None: it has profiles.

    Raises ValueError for what is none of these.
    """
    value = None if path.suffix == ".conf" else yaml.load(text, _Loader)
    if isinstance(value, dict):
        return value if value and all(str(name).startswith("NCCL_") for name in value) else None
    found = dict(plugin("module_utils.nccl_conf").parse(text))
    if value is not None and not found:
        raise ValueError("it holds neither profiles nor variables")
    return found


def lint(path: Path) -> int:
    """Print what there is to say of the profiles (or variables) in a file; 0, 1 with errors, 2 when it is no such file.

    A file of profiles by name, one that sets ``nccl_profiles`` (an inventory's variables), variables alone, or an
    nccl.conf.
    """
    try:
        text = text_of(path, _LARGEST)
        variables = _variables(path, text)
        value = yaml.load(text, _Loader) if variables is None else {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        print(f"groundstate: {path} cannot be read: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    judge, profiles = plugin("module_utils.nccl_lint"), plugin("module_utils.nccl_profiles")
    errors = 0
    if variables is not None:
        findings = judge.lint(variables)
        errors = len(judge.errors(findings))
        _show(str(path), findings)
    else:
        own = value.get("nccl_profiles", value)
        if not isinstance(own, dict) or not own:
            print(f"groundstate: {path} has no profiles: nccl_profiles is a dictionary by name", file=sys.stderr)
            return 2
        for name in own:
            try:
                found = profiles.resolve(name, {**_shipped(), **own}).findings
                _show(name if name.isprintable() else repr(name), found)
            except ValueError as error:
                errors += 1
                print(f"error    {error}")
    print(f"{path}: {'refused' if errors else 'accepted'}")
    return 1 if errors else 0


def _show(whose: str, findings: Any) -> None:
    for one in findings:
        print(f"{one.level:<8} {whose}: {one.text}")
