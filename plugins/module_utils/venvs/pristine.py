# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether the files of an environment are those of its wheels: edited, missing, added, and checkouts behind it.

Where we made the environment, its manifest tells as well which distributions it should have.

Files that a declared patch changed are told apart from files that somebody edited. What our own module python_startup
writes is declared as well, and is no difference.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import marked_block, python_startup
from ..file_hashes import FileHashes
from ..fingerprint import checkout, distributions, python_env
from ..fingerprint.distributions import Differences, Distribution
from . import patches
from .drift import Drift, drift
from .store import Store

PRISTINE, PATCHED, MODIFIED, UNKNOWN = "pristine", "patched", "modified", "unknown"
_SHOWN = 20  # files named in a message
_HALF_WAY = "patches are applied or taken back half-way: a run is at it, or was killed and the next one finishes that"
_CUSTOMISED = ("sitecustomize.py", "usercustomize.py")


@dataclass
class Look:
    """What was found. Paths are below ``site``; the distribution of one that none knows is ""."""

    environment: str  # its real folder
    site: str
    distributions: list[Distribution]
    differences: Differences
    patches: list[str] = field(default_factory=list)  # names of the patches in force
    patched: list[str] = field(default_factory=list)  # files that they changed
    unfinished: bool = False  # a run was killed while it changed them
    editable: list[dict[str, Any]] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)  # distributions without a RECORD
    unknown: dict[str, str] = field(default_factory=dict)
    drift: Drift = field(default_factory=Drift)  # distributions that the manifest tells otherwise
    aliases: list[str] = field(default_factory=list)  # folders of second names that we gave

    @property
    def modified(self) -> list[str]:
        """A line for patches that are half applied, each distribution and each file that is not as declared, by
        distribution; then each checkout with changes.
        """
        versions = {one.name: one.version for one in self.distributions}
        found = []
        for kind, paths in _kinds(self.differences).items():
            for path, owner in paths.items():
                found.append((owner, f"{path} {kind}" + (f" ({owner} {versions.get(owner, '')})" if owner else "")))
        made = [_HALF_WAY] * self.unfinished + self.drift.lines() + [text for _owner, text in sorted(found)]
        for one in self.editable:
            if one["dirty"]:
                changed = ", ".join(one["changed"][:5]) + (" ..." if len(one["changed"]) > 5 else "")
                made.append(f"{one['name']} is an editable install at {one['commit'][:12]} with changes: {changed}")
        return made

    @property
    def doubts(self) -> list[str]:
        """What could not be compared, one sentence each."""
        found = [f"{one} has no RECORD, so that its files cannot be compared" for one in self.unverified]
        found += [f"{path} cannot be read and compared" for path in sorted(self.differences.unreadable)]
        found += [
            f"{one['name']} is an editable install whose changes cannot be told" + (f" ({why})" if why else "")
            for one in self.editable
            if one["dirty"] is None
            for why in [self.unknown.get(f"python_env.editable.{one['name']}.commit", "")]
        ]
        return found

    @property
    def verdict(self) -> str:
        if self.modified:
            return MODIFIED
        if self.doubts:
            return UNKNOWN
        return PATCHED if self.patches else PRISTINE

    def as_dict(self) -> dict[str, Any]:
        """For a module's result."""
        return {
            "verdict": self.verdict,
            "files": self.differences.files,
            **{kind: sorted(paths) for kind, paths in _kinds(self.differences).items()},
            "owners": {path: owner for paths in _kinds(self.differences).values() for path, owner in paths.items()},
            "drift": self.drift.lines(),
            "patches": self.patches,
            "patched": self.patched,
            "editable": [
                {key: one[key] for key in ("name", "url", "commit", "dirty", "changed")} for one in self.editable
            ],
            "doubts": self.doubts,
        }


def _kinds(found: Differences) -> dict[str, dict[str, str]]:
    return {"edited": found.edited, "missing": found.missing, "added": found.added}


def site_of(environment: str) -> str:
    """The folder of an environment's packages. Raises ValueError when it has none, or several."""
    if not os.path.isfile(os.path.join(environment, "bin", "python")):
        raise ValueError(f"{environment} is no Python environment: it has no bin/python")
    sites = python_env.site_folders(environment)
    if len(sites) > 1:  # of a Python that it had before
        version = python_env.interpreter(environment)[0]
        part = os.sep + "python" + ".".join(version.split(".")[:2]) + os.sep
        sites = [one for one in sites if part in one]
    if len(sites) != 1:
        what = "several folders" if sites else "no folder"
        raise ValueError(f"{environment} has {what} of packages (lib/python3*/site-packages)")
    return os.path.realpath(sites[0])


def look(path: str, cache: str | None) -> Look:
    """Compare all files of an environment with what was installed. ``cache``: folder of the hash cache, None for none.

    Raises ValueError for what is no environment, OSError.
    """
    environment = os.path.realpath(path)
    site = site_of(environment)
    found = distributions.installed(site)
    hashes = FileHashes(site, cache)
    differences = distributions.compare(site, found, hashes)
    hashes.save()
    known = patches.journal(environment)
    made = Look(environment, site, found, differences, [one["name"] for one in known.get("patches", [])])
    made.unfinished = bool(known.get("unfinished"))
    made.patched = patches.explained(known, differences)
    _drop_startup(site, found, differences)
    made.unverified = sorted({one.name for one in found if one.record is None})
    manifest = Store.manifest(environment)
    made.aliases = list(((manifest or {}).get("extras") or {}).get("aliases") or [])
    made.drift = drift(site, manifest)
    for one in found:
        if is_editable(one):  # in no lock, and told by its checkout
            made.drift.extra.pop(one.name, None)
    made.editable = [
        checkout.read(one.name, one.direct_url["url"], cache, made.unknown) for one in found if is_editable(one)
    ]
    return made


def is_editable(one: Distribution) -> bool:
    return bool((one.direct_url.get("dir_info") or {}).get("editable") and one.direct_url.get("url"))


def _drop_startup(site: str, found: list[Distribution], differences: Differences) -> None:
    """Leave out what python_startup wrote, which is declared elsewhere: whole modules, and blocks in sitecustomize."""
    for path in [one for one in differences.added if one.startswith(python_startup.STEM)]:
        del differences.added[path]
    recorded = distributions.claims(found)
    for path in _CUSTOMISED:
        kind = differences.edited if path in differences.edited else differences.added
        if path not in kind:
            continue
        rest = _without_blocks(os.path.join(site, path))
        same = rest is not None and distributions.is_told(rest, recorded.get(path, {}).values())
        if same or (rest is None and kind is differences.added):
            del kind[path]


def _without_blocks(path: str) -> bytes | None:
    """Content of a file without our blocks; None when there is nothing else in it."""
    with open(path, encoding="latin-1", newline="") as source:
        text: str | None = source.read()
    for name in marked_block.names(text or ""):
        text = marked_block.take(text, name) if text is not None else None
    return None if text is None else text.encode("latin-1")


def message(found: Look) -> str:
    """Why an environment is not accepted, and what to do; "" when it is."""
    said, doubts = found.modified, found.doubts
    if not said and not doubts:
        return ""
    shown = [f"  {one}" for one in (said + doubts)[:_SHOWN]]
    more = [f"  ... and {len(said) + len(doubts) - _SHOWN} more"] if len(said) + len(doubts) > _SHOWN else []
    what = "is not what was installed" if said else "cannot be told to be what was installed"
    fix = (
        "Declare what is wanted of it as a patch (ml_env_patches), or let it be put back (ml_env_pristine: repair "
        "keeps the edits as patches)"
        if said
        else "Install these again from wheels, or accept them with ml_env_pristine: warn"
    )
    return "\n".join([f"{found.environment} {what}:", *shown, *more, fix])


def owners(paths: Mapping[str, str]) -> list[str]:
    """The distributions of some paths."""
    return sorted({owner for owner in paths.values() if owner})
