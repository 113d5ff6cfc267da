# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an environment has beside its distributions: scripts, links to models, names of distributions.

They are applied in place and in full each time: a changed launcher does not need a new environment.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from dataclasses import dataclass, field
from typing import Any

from .. import files

INSTALLER = "groundstate"


@dataclass(frozen=True)
class Alias:
    """A second name under which a distribution's version can be asked for.

    For packages that were renamed by who built them but still ask for their metadata by the old name.
    """

    name: str
    distribution: str
    local_version: str = ""


@dataclass(frozen=True)
class Extras:
    """The declared extras of an environment."""

    scripts: dict[str, str] = field(default_factory=dict)  # name in bin/ -> text
    links: dict[str, str] = field(default_factory=dict)  # name in models/ -> path in site-packages
    aliases: tuple[Alias, ...] = ()

    def check(self) -> None:
        """Raises ValueError for names and paths that lead out of the environment, or to its interpreter."""
        for name in [*self.scripts, *self.links]:
            if not name or name in (".", "..") or "/" in name or "\0" in name:
                raise ValueError(f"{name!r} is not a file name")
        for name in self.scripts:
            if re.fullmatch(r"python[\d.]*", name):
                raise ValueError(
                    f"the script {name} would replace the environment's own interpreter: name it differently"
                )
        for name, target in self.links.items():
            if os.path.isabs(target) or ".." in target.split("/") or not target:
                raise ValueError(f"link {name}: {target!r} is not a path below site-packages")

    def as_dict(self) -> dict[str, Any]:
        """What the hash of the environment is taken of."""
        return {
            "scripts": self.scripts,
            "links": self.links,
            "aliases": [[one.name, one.distribution, one.local_version] for one in self.aliases],
        }


def script_text(text: str, python: str) -> str:
    """A script as it is written: with the environment's interpreter, instead of its own first line if it has one.

    Raises ValueError for an interpreter whose path no first line can hold.
    """
    body = text.partition("\n")[2] if text.startswith("#!") else text
    if len(python) < 120 and " " not in python:
        return f"#!{python}\n{body}"
    if set(python) & set('"$`\\\n'):
        raise ValueError(f"{python!r}: a path with a quote, $, a backslash or a line break cannot begin a script")
    # The kernel cuts long lines and splits at spaces: a shell runs the first string as a command, to Python it is the
    # docstring, or the beginning of the script's own: nothing else may stand before an import from __future__.
    lines = body.splitlines(keepends=True)
    comments = next((at for at, line in enumerate(lines) if line.strip() and line[0] != "#"), len(lines))
    head, rest = "".join(lines[:comments]), "".join(lines[comments:])
    joint = " \\\n" if re.match(r"[rRuU]?[\"']", rest) else "\n"
    return f"#!/bin/sh\n{head}'''exec' \"{python}\" \"$0\" \"$@\"\n' '''{joint}{rest}"


def _record(path: str, raw: bytes) -> str:
    value = base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()
    return f"{path},sha256={value},{len(raw)}\n"


def _wanted_aliases(extras: Extras, versions: dict[str, str]) -> dict[str, dict[str, str]]:
    wanted = {}
    for alias in extras.aliases:
        version = versions.get(alias.distribution)
        if version is None:
            raise ValueError(f"alias {alias.name}: the lock has no distribution {alias.distribution}")
        if alias.local_version and "+" not in version:
            version += "+" + alias.local_version
        folder = f"{alias.name.replace('-', '_')}-{version}.dist-info"
        content = {
            "METADATA": f"Metadata-Version: 2.1\nName: {alias.name}\nVersion: {version}\n"
            f"Summary: Another name of {alias.distribution}\n",
            "INSTALLER": INSTALLER + "\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: groundstate\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        lines = [_record(f"{folder}/{name}", text.encode()) for name, text in sorted(content.items())]
        content["RECORD"] = "".join(lines) + f"{folder}/RECORD,,\n"
        wanted[folder] = content
    return wanted


def apply(
    extras: Extras, folder: str, site: str, versions: dict[str, str], before: dict[str, Any], dry: bool = False
) -> list[str]:
    """Bring the extras of an environment to what is declared; returns what was (or, ``dry``, would be) changed.

    ``before`` names what we put there last time: what is not declared any more is removed. Raises ValueError when
    a link's target or an alias' distribution is missing, OSError.
    """
    changed = []
    python = os.path.join(folder, "bin", "python")
    for name, text in sorted(extras.scripts.items()):
        path = os.path.join(folder, "bin", name)
        whole = script_text(text, python)
        if _differs(path, whole, 0o755):
            changed.append(f"script bin/{name}")
            if not dry:
                files.write_atomic(path, whole, 0o755)
    for name, target in sorted(extras.links.items()):
        if not dry and not os.path.exists(os.path.join(site, target)):
            raise ValueError(f"link {name}: there is no {target} in {site}; the lock's distributions do not have it")
        path = os.path.join(folder, "models", name)
        value = os.path.relpath(os.path.join(site, target), os.path.dirname(path))
        if not os.path.islink(path) or os.readlink(path) != value:
            changed.append(f"link models/{name}")
            if not dry:
                _link(path, value)
    aliases = _wanted_aliases(extras, versions)
    for name, content in aliases.items():
        stale = {part: text for part, text in content.items() if _differs(os.path.join(site, name, part), text, 0o644)}
        if stale:
            changed.append(f"metadata {name}")
        for part, text in stale.items():
            if not dry:
                files.write_atomic(os.path.join(site, name, part), text)
    gone = {
        "bin": set(before.get("scripts", [])) - set(extras.scripts),
        "models": set(before.get("links", [])) - set(extras.links),
        os.path.relpath(site, folder): set(before.get("aliases", [])) - set(aliases),
    }
    for parent, names in gone.items():
        for name in sorted(names):
            path = os.path.join(folder, parent, name)
            if os.path.lexists(path):
                changed.append(f"{parent}/{name} removed")
                if not dry:
                    _remove(path)
    return changed


def names(extras: Extras, versions: dict[str, str]) -> dict[str, list[str]]:
    """What :func:`apply` puts there, for its next ``before``."""
    aliases = sorted(_wanted_aliases(extras, versions))
    return {"scripts": sorted(extras.scripts), "links": sorted(extras.links), "aliases": aliases}


def _differs(path: str, text: str, mode: int) -> bool:
    try:
        with open(path, encoding="utf-8") as source:
            return source.read() != text or os.fstat(source.fileno()).st_mode & 0o777 != mode
    except (OSError, ValueError):
        return True


def _link(path: str, value: str) -> None:
    """A symbolic link, replaced atomically."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.new"
    if os.path.lexists(temporary):
        os.unlink(temporary)
    os.symlink(value, temporary)
    os.replace(temporary, path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
