# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL profiles: named sets of variables, one of which may extend another; and the file that a server gets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import files, gpu_topology, nccl_lint, server_env, servers

FILE_NAME = "nccl.env"
RECORD_NAME = "nccl.json"  # what was written elsewhere than there, see nccl_places
CONF_NAME = "nccl.conf"
_HEADER = "# NCCL profile: "
MULTI_NODE = "multi_node"
TOPOLOGIES = (gpu_topology.PCIE, gpu_topology.NVLINK, MULTI_NODE)
_FIELDS = ("variables", "comment", "applies_to", "extends")


@dataclass(frozen=True)
class Profile:
    """A profile with everything that it extends put together."""

    name: str
    variables: dict[str, str]
    comment: str
    applies_to: tuple[str, ...]  # of TOPOLOGIES; () for any
    chain: tuple[str, ...]  # itself first, then what it extends
    findings: tuple[nccl_lint.Finding, ...]  # warnings and inert settings


def resolve(name: str, profiles: Mapping[str, Any]) -> Profile:
    """The named profile out of declared ones, judged.

    A child's variables go over those that it inherits; null takes an inherited one away. The other fields are the
    child's own, ``applies_to`` the nearest one that is given.

    Raises ValueError with all mistakes at once: unknown name, unknown field, a circle, and what the linter refuses.
    """
    chain = _chain(name, profiles)
    problems: list[str] = []
    for one in chain:
        problems.extend(_problems(one, profiles[one]))
    if problems:
        raise ValueError("; ".join(problems))
    merged: dict[Any, Any] = {}
    for one in reversed(chain):
        merged.update(profiles[one].get("variables") or {})
    merged = {key: value for key, value in merged.items() if value is not None}
    findings = nccl_lint.lint(merged)
    refused = nccl_lint.errors(findings)
    if refused:
        of = f" ({' extends '.join(chain)})" if len(chain) > 1 else ""
        raise ValueError(f"NCCL profile {name!r}{of}: {'; '.join(refused)}")
    return Profile(
        name=name,
        variables={key: nccl_lint.value_text(merged[key]) for key in sorted(merged)},
        comment=str(profiles[name].get("comment") or ""),
        applies_to=next((tuple(profiles[one]["applies_to"]) for one in chain if profiles[one].get("applies_to")), ()),
        chain=tuple(chain),
        findings=tuple(findings),
    )


def misfit(profile: Profile, links: Mapping[str, str]) -> str:
    """What speaks against a profile where the GPUs reach each other so (see gpu_topology.links); "" when nothing does.

    One pair of a kind that the profile is for is enough. Whether a host is one of several, its GPUs do not tell.
    """
    if not links or not profile.applies_to or MULTI_NODE in profile.applies_to:
        return ""
    pair, kind = next(iter(links.items()))
    if set(links.values()) & set(profile.applies_to):
        return ""
    where = f"{pair} and all others" if len(links) > 1 else pair
    return f"it is for {' and '.join(profile.applies_to)}, but the GPUs here are linked by {kind} ({where})"


def _chain(name: str, profiles: Mapping[str, Any]) -> list[str]:
    chain: list[str] = []
    wanted: Any = name
    if not isinstance(name, str) or not name:
        raise ValueError(f"NCCL profile {name!r}: a profile's name is text (YAML reads off and 1 otherwise: quote it)")
    while wanted:
        if wanted in chain:
            raise ValueError(f"NCCL profiles extend each other in a circle: {' -> '.join([*chain, wanted])}")
        if not isinstance(wanted, str) or wanted not in profiles:
            by = f", which {chain[-1]!r} extends," if chain else ""
            have = ", ".join(sorted(map(str, profiles))) or "none"
            raise ValueError(f"NCCL profile {wanted!r}{by} is not declared; there are: {have}")
        chain.append(wanted)
        wanted = profiles[wanted].get("extends") if isinstance(profiles[wanted], Mapping) else None
    return chain


def _problems(name: str, profile: Any) -> list[str]:
    where = f"NCCL profile {name!r}"
    if not isinstance(profile, Mapping):
        return [f"{where} is no dictionary; its fields are {', '.join(_FIELDS)}"]
    found = []
    unknown = sorted(str(key) for key in profile if key not in _FIELDS)
    if unknown:
        hint = " (variables belong below 'variables')" if any(one.startswith("NCCL_") for one in unknown) else ""
        found.append(f"{where} has unknown fields {', '.join(unknown)}; use {', '.join(_FIELDS)}{hint}")
    if not isinstance(profile.get("variables") or {}, Mapping):
        found.append(f"{where}: variables is no dictionary of names and values")
    topologies = profile.get("applies_to") or []
    if not isinstance(topologies, (list, tuple)) or any(one not in TOPOLOGIES for one in topologies):
        found.append(f"{where}: applies_to {topologies!r}: use a list of {', '.join(TOPOLOGIES)}")
    return found


# --- the file ------------------------------------------------------------------------------------


def path(home: str, server: str) -> str:
    """Where the profile of a server is. Raises ValueError for a bad server name."""
    servers.check_name(server)
    return os.path.join(servers.folder(home, server), FILE_NAME)


def render(name: str, variables: Mapping[str, str]) -> str:
    """The file's text: who wrote it, then the variables as in every environment file of a server.

    The same profile gives the same bytes. Raises ValueError for a value that has not passed the linter.
    """
    nothing = "" if variables else "# Nothing is set: NCCL decides.\n"
    return f"{_HEADER}{name}\n# Written by groundstate.llm.nccl_profile; changes here are lost.\n{nothing}" + (
        server_env.render(variables)
    )


def parse(text: str) -> tuple[str, dict[str, str]]:
    """(name of the profile, variables) of such a file."""
    first = text.partition("\n")[0]
    return first[len(_HEADER) :] if first.startswith(_HEADER) else "", server_env.parse(text)


def load(home: str, server: str) -> tuple[str, dict[str, str]] | None:
    """Profile and variables that a server gets, wherever they stand; None when no profile was written for it.

    Raises ValueError for a bad server name or a damaged file, OSError for a file that cannot be read.
    """
    elsewhere = files.read_json(os.path.join(servers.folder(home, server), RECORD_NAME))
    if isinstance(elsewhere, dict) and isinstance(elsewhere.get("variables"), dict):
        return str(elsewhere.get("profile", "")), {key: str(value) for key, value in elsewhere["variables"].items()}
    try:
        with open(path(home, server), encoding="utf-8") as source:
            return parse(source.read())
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        where = path(home, server)
        raise ValueError(f"{where} is damaged ({error}); run nccl_profile again, which writes it") from error
