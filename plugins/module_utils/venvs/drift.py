# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is installed in an environment of ours, held against what its manifest says was installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .requirements import normal, same_version

#: What "python -m venv" itself puts there: nobody asked for it, so that it is no difference.
TOOLS = ("pip", "setuptools", "wheel")


@dataclass
class Drift:
    """How the distributions differ; names are normal ones. It is true when they do."""

    missing: dict[str, str] = field(default_factory=dict)  # name -> version that was installed
    other: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> (version then, version now)
    extra: dict[str, str] = field(default_factory=dict)  # name -> version now

    def __bool__(self) -> bool:
        return bool(self.missing or self.other or self.extra)

    def lines(self) -> list[str]:
        """One clause for each difference."""
        found = [f"{name} {version} is missing" for name, version in sorted(self.missing.items())]
        found += [f"{name} is {now}, installed was {then}" for name, (then, now) in sorted(self.other.items())]
        return found + [f"{name} {version} was added" for name, version in sorted(self.extra.items())]


def drift(site: str, manifest: Mapping[str, Any] | None) -> Drift:
    """What differs in site-packages from the manifest's ``distributions``; nothing does where there is no manifest.

    Only names of folders are read. Second names of ours and what the tools of the environment are do not count.
    """
    made = Drift()
    known = (manifest or {}).get("distributions")
    if not isinstance(known, Mapping):
        return made
    aliases = ((manifest or {}).get("extras") or {}).get("aliases") or []
    then = {normal(name): str(version) for name, version in known.items()}
    now = versions(site, aliases)
    for name, version in then.items():
        others = [one for one in now.get(name, []) if not same_version(version, one)]
        if name not in now:
            made.missing[name] = version
        elif others:
            made.other[name] = (version, " and ".join(now[name]))
    made.extra = {name: " and ".join(found) for name, found in now.items() if name not in then and name not in TOOLS}
    return made


def versions(site: str, without: list[str] | tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Normal name -> versions of what is installed, mostly one, read from the folders' names but ``without`` these."""
    found: dict[str, list[str]] = {}
    for entry in sorted(os.listdir(site)) if os.path.isdir(site) else []:
        stem, dot, kind = entry.rpartition(".")
        name, dash, version = stem.partition("-")
        # pip renames to ~ame what it is about to remove; a kill leaves that.
        if dot and dash and kind == "dist-info" and not name.startswith("~") and entry not in without:
            found.setdefault(normal(name), []).append(version)
    return found
