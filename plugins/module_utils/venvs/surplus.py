# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Distributions that nobody declared: which they are, and their removal without what others have of them.

An installer removes all that a RECORD lists. Here files stay that another distribution has as well.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from .. import file_change
from ..fingerprint.distributions import Distribution
from . import patches
from .drift import Drift
from .requirements import normal, same_version


def find(found: Iterable[Distribution], drifted: Drift, without: Iterable[str] = ()) -> list[Distribution]:
    """The added ones, and other versions of those that were installed. ``without``: folders that do not count."""
    made = []
    for one in found:
        name, _dash, version = one.folder.rpartition(".")[0].partition("-")  # as drift reads it
        name = normal(name)
        other = name in drifted.other and not same_version(drifted.other[name][0], version)
        if one.folder.endswith(".dist-info") and one.folder not in without and (name in drifted.extra or other):
            made.append(one)
    return made


def shared(found: Iterable[Distribution], gone: list[Distribution]) -> list[Distribution]:
    """Those that stay and have a file in common with one that goes, so that it can hold the other one's content."""
    paths = {path for one in gone for path in one.record or {}}
    return [one for one in found if one not in gone and not paths.isdisjoint(one.record or {})]


def remove(environment: str, site: str, found: Iterable[Distribution], gone: list[Distribution]) -> None:
    """Remove distributions; the metadata last, so that a kill in between leaves something known as not declared."""
    stay = {path for one in found if one not in gone for path in one.record or {}}
    for one in gone:
        for path in one.record or {}:
            full = os.path.normpath(os.path.join(site, path))
            inside = os.path.realpath(os.path.dirname(full)) + os.sep
            # A RECORD may name any path, and links in the environment may lead out of it.
            if path in stay or path.startswith(one.folder + "/") or not inside.startswith(environment + os.sep):
                continue
            if os.path.islink(full):
                os.unlink(full)
            elif os.path.isfile(full):
                file_change.Change(full, None, None).do()
            if full.startswith(site + os.sep):
                patches.drop_empty(os.path.dirname(full))
        shutil.rmtree(os.path.join(site, one.folder))
