# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declared patches of an environment: what its files become, all of them or none, and the way back.

The wheels' RECORDs say what a file was before any patch, so the declared patches are always applied to that, whatever
was applied last time. The journal (one file in the environment) holds what the wheels had, for the way back, and the
hashes of what we made of it: any other content is somebody's own doing and is not overwritten. While files change it
says ``unfinished``, which a kill leaves there for the next run.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import file_change, files
from ..file_change import Change
from ..fingerprint.distributions import Differences, Distribution, claims, is_told, normalise
from . import patch_format
from .patch_format import FileChange, PatchError
from .requirements import same_version
from .store import MANIFEST

JOURNAL = "groundstate-patches.json"
SCHEMA = 1
#: Stands among the names of patches while nobody can say which of them is in force.
UNFINISHED = "(unfinished)"


class Edited(PatchError):
    """A file that somebody edited, so that there is nothing to apply patches to."""


class NotInstalled(PatchError):
    """Patches for what is not installed, or in another version."""

    def __init__(self, text: str, of: Sequence[Patch]) -> None:
        super().__init__(text)
        self.patches = of


@dataclass(frozen=True)
class Patch:
    """One declared patch."""

    name: str  # for people: the name of its file
    distribution: str
    version: str  # of the distribution that it was made for
    text: str
    strip: int = 1  # leading folders to leave out of the names in it

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8", "surrogateescape")).hexdigest()


def of_options(given: Iterable[Mapping[str, Any]], texts: Mapping[str, Any]) -> list[Patch]:
    """The patches of a module's options ``patches`` and ``texts``. Raises ValueError for one without a text."""
    lacking = [one["file"] for one in given if one["file"] not in texts]
    if lacking:
        raise ValueError(f"texts has no text of the patch {', '.join(lacking)}")
    return [
        Patch(os.path.basename(one["file"]), one["distribution"], one["version"], str(texts[one["file"]]), one["strip"])
        for one in given
    ]


@dataclass
class Plan:
    """What has to be done, or nothing."""

    environment: str
    changes: list[Change] = field(default_factory=list)  # of files that have to change
    journal: dict[str, Any] | None = None  # None: no patch is in force any more
    before: list[str] = field(default_factory=list)  # names of the patches that were and that will be in force
    after: list[str] = field(default_factory=list)
    record: bool = False  # whether the journal has to change
    paths: frozenset[str] = frozenset()  # files whose content is explained by the patches before or after

    @property
    def changed(self) -> bool:
        return bool(self.changes) or self.record

    def describe(self) -> list[str]:
        """What is done, for people."""
        if not self.changed:
            return []
        count = f"{len(self.changes)} file{'s' * (len(self.changes) != 1)}"
        return [f"patches: {', '.join(self.before) or 'none'} -> {', '.join(self.after) or 'none'} ({count} changed)"]


def _hash(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


# --- the journal -------------------------------------------------------------------------------------


def journal(environment: str) -> dict[str, Any]:
    """What is in force: ``patches`` and ``files``; {} without any. Raises ValueError when it cannot be understood."""
    path = os.path.join(environment, JOURNAL)
    raw = files.read_json(path)
    if raw is None:
        return {}
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise ValueError(f"{path} was written by another version of Groundstate: make the environment anew")
    if not _is_sound(raw):
        raise ValueError(
            f"{path} is damaged: remove it and let ml_env_pristine: repair put back what patches changed, or make the "
            "environment anew"
        )
    return raw


def _is_sound(raw: Mapping[str, Any]) -> bool:
    """Whether a journal has the form that we write."""
    names, entries = raw.get("patches"), raw.get("files")
    if (
        not isinstance(names, list)
        or not isinstance(entries, dict)
        or not isinstance(raw.get("unfinished", False), bool)
    ):
        return False
    return all(_is_patch(one) for one in names) and all(_is_entry(one) for one in entries.values())


def _is_int(raw: Any) -> bool:
    return isinstance(raw, int) and not isinstance(raw, bool)


def _is_patch(raw: Any) -> bool:
    if not isinstance(raw, dict) or set(raw) != set(Patch.__dataclass_fields__):
        return False
    return _is_int(raw["strip"]) and all(isinstance(value, str) for key, value in raw.items() if key != "strip")


def _is_entry(raw: Any) -> bool:
    if not isinstance(raw, dict) or set(raw) != {"before", "mode", "ours"} or not _is_int(raw["mode"]):
        return False
    try:
        base64.b64decode(raw["before"] or "", validate=True)
    except (TypeError, ValueError):
        return False
    return isinstance(raw["ours"], list) and all(one is None or isinstance(one, str) for one in raw["ours"])


def declared(environment: str) -> list[Patch]:
    """The patches in force, as they were declared; after a kill those that were to be."""
    return _patches(journal(environment))


def _patches(known: Mapping[str, Any]) -> list[Patch]:
    return [Patch(**one) for one in known.get("patches", [])]


def in_force(environment: str) -> dict[str, str]:
    """Name -> SHA-256 of the patches in force, and UNFINISHED after a kill."""
    known = journal(environment)
    found = {one.name: one.sha256 for one in _patches(known)}
    return {**found, UNFINISHED: files.digest(known)} if known.get("unfinished") else found


def identity(path: str) -> str:
    """What has to be the same for a server to run the same code; "" for an environment of which nothing is declared.

    ``path``: the environment, or the link to it.
    """
    hashed = str((files.read_json(os.path.join(path, MANIFEST)) or {}).get("hash", ""))
    patched = list(in_force(path).values())
    return files.digest([hashed, patched]) if patched else hashed


def explained(known: Mapping[str, Any], found: Differences) -> list[str]:
    """Take what patches in force did out of the differences; returns the paths of these files.

    Half a patch is none: nothing is taken out after a kill.
    """
    if known.get("unfinished"):
        return []
    taken = []
    for path, entry in known.get("files", {}).items():
        for kind in (found.edited, found.added, found.missing):
            if path in kind and (None if kind is found.missing else found.hashes.get(path)) in entry["ours"]:
                del kind[path]
                found.hashes.pop(path, None)
                taken.append(path)
    return sorted(taken)


# --- planning ----------------------------------------------------------------------------------------


class _Site:
    """The packages of an environment: what wheels put there, and what is there."""

    def __init__(self, site: str, found: Iterable[Distribution], known: Mapping[str, Any]) -> None:
        self.folder = os.path.realpath(site)
        self.distributions = {one.name: one for one in found}
        self.known = known
        self.claims = claims(self.distributions.values())

    def disk(self, path: str) -> tuple[bytes | None, int]:
        """Content and mode. Raises PatchError for a file that is not in the folder itself."""
        full = os.path.join(self.folder, path)
        if os.path.realpath(full) != full:
            # Behind it could be the installer's cache, and with it every environment made later.
            raise PatchError(f"{path} is, or lies behind, a link out of its folder ({os.path.realpath(full)})")
        return file_change.read(full)

    def base(self, path: str, wanted: list[FileChange]) -> bytes | None:
        """What the wheel has at a path, None for nothing. Raises PatchError when nobody can tell any more.

        ``wanted``: the declared changes of the file; it may have been edited by hand in just that way.
        """
        recorded = self.claims.get(path)
        if not recorded:
            return None
        now = self.disk(path)[0]
        entry = self.known.get("files", {}).get(path, {})
        kept = base64.b64decode(entry["before"]) if entry.get("before") is not None else None
        with contextlib.suppress(PatchError):
            undone = now
            for change in reversed(wanted):
                undone = patch_format.apply(undone, change.reversed())
            if undone is not None and is_told(undone, recorded.values()):
                return undone
        for content in (now, kept):
            if content is not None and is_told(content, recorded.values()):
                return content
        state = "is missing" if now is None else "was edited"
        whose = " and ".join(f"{name} {self.distributions[name].version}" for name in recorded)
        raise Edited(
            f"{path} of {whose} {state} since it was installed, so that there is nothing to apply "
            "patches to: ml_env_pristine: repair puts it back first, and keeps an edit as a patch"
        )

    def check(self, change: FileChange, patch: Patch, made: set[str]) -> None:
        """Raises PatchError unless a patch of this distribution may change this file. ``made``: by patches."""
        path, whose = change.path, self.claims.get(change.path, {})
        one = self.distributions[normalise(patch.distribution)]
        first = path.partition("/")[0]
        if path.endswith(".pyc") or "__pycache__" in path.split("/") or first.endswith((".dist-info", ".egg-info")):
            raise PatchError(f"{path} is the installer's, and no code")
        if whose and one.name not in whose:
            raise PatchError(f"{path} belongs to {' and '.join(whose)}, and the patch is declared for {one.name}")
        if not whose and path not in made:
            if not change.makes:
                raise PatchError(
                    f"{path} is no file of {one.name} {one.version}: leave it out of the patch, or set how many "
                    f"folders of its names to leave out (strip, now {patch.strip})"
                )
            if "/" not in path or not any(name.startswith(first + "/") for name in one.record or {}):
                raise PatchError(f"{path} would be outside of the packages of {one.name}")


def _installed(one: Patch, site: _Site) -> str:
    """Why a patch is not for what is installed; "" when it is."""
    there = site.distributions.get(normalise(one.distribution))
    if there is None:
        return f"{one.name} is for {one.distribution}, which is not installed"
    if (there.direct_url.get("dir_info") or {}).get("editable"):
        return f"{one.name} is for {one.distribution}, which is an editable install: patch its checkout"
    if there.record is None:
        return f"{one.name} is for {one.distribution}, which has no RECORD: nobody can tell what its files were"
    if not same_version(one.version, there.version):
        return f"{one.name} is for {one.distribution} {one.version}, installed is {there.version}"
    return ""


def plan(environment: str, site: str, found: Iterable[Distribution], wanted: list[Patch]) -> Plan:
    """Find out what the files have to become; changes nothing.

    Raises PatchError: a patch for another version, one that does not apply (with the hunk), a file that somebody
    edited. ValueError for a damaged journal, OSError.
    """
    known = journal(environment)
    here = _Site(site, found, known)
    names = [one.name for one in wanted]
    twice = [f"the patch {name} is declared twice" for name in sorted({one for one in names if names.count(one) > 1})]
    problems = [(one, text) for one in wanted for text in [_installed(one, here)] if text]
    said = "; ".join(twice + [text for _one, text in problems])
    if twice:
        raise PatchError(said)
    if problems:
        raise NotInstalled(said, [one for one, _text in problems])
    target, base = _target(here, wanted)
    for path in known.get("files", {}):
        if path not in target:
            base[path] = target[path] = here.base(path, [])
    there = [one["name"] for one in known.get("patches", [])] + [UNFINISHED] * bool(known.get("unfinished"))
    made = Plan(environment, before=there, after=names)
    entries = {}
    for path, content in sorted(target.items()):
        entry = known.get("files", {}).get(path, {})
        now, mode = here.disk(path)
        if _hash(now) not in {_hash(base[path]), _hash(content), *entry.get("ours", [])}:
            raise Edited(
                f"{path} was edited since it was patched: ml_env_pristine: repair puts it back, and keeps the edit"
            )
        if now != content:
            made.changes.append(Change(os.path.join(here.folder, path), now, content, mode, entry.get("mode", mode)))
        wheels = base[path]
        if content != wheels:
            before = None if wheels is None else base64.b64encode(wheels).decode("ascii")
            entries[path] = {"before": before, "mode": entry.get("mode", mode), "ours": [_hash(content)]}
    made.journal = {"schema": SCHEMA, "patches": [asdict(one) for one in wanted], "files": entries} if wanted else None
    made.paths = frozenset(target)
    made.record = (made.journal or {}) != known
    return made


def _target(here: _Site, wanted: list[Patch]) -> tuple[dict[str, bytes | None], dict[str, bytes | None]]:
    """(content after all patches, content in the wheels) of each file that a patch names."""
    changes = []
    for one in wanted:
        try:
            changes += [(one, change) for change in patch_format.parse(one.text, one.strip)]
        except PatchError as error:
            raise PatchError(f"{one.name}: {error}") from error
    by_path: dict[str, list[FileChange]] = {}
    for _one, change in changes:
        by_path.setdefault(change.path, []).append(change)
    target: dict[str, bytes | None] = {}
    base: dict[str, bytes | None] = {}
    made: set[str] = set()
    for one, change in changes:
        path = change.path
        try:
            here.check(change, one, made)
            if path not in base:
                base[path] = target[path] = here.base(path, by_path[path])
            target[path] = patch_format.apply(target[path], change)
        except PatchError as error:
            raise type(error)(f"{one.name} cannot be applied to {one.distribution} {one.version}: {error}") from error
        if base[path] is None:
            made.add(path)
    return target, base


# --- doing -------------------------------------------------------------------------------------------


def carry_out(todo: Plan) -> None:
    """Change all files, or none. A kill in between is recovered by the next plan. Raises OSError."""
    if not todo.changed:
        return
    path = os.path.join(todo.environment, JOURNAL)
    old = journal(todo.environment)
    if todo.changes:
        files.write_json(path, _between(old, todo))
    done: list[Change] = []
    try:
        for change in todo.changes:
            done.append(change)
            change.do()
            if change.after is None:
                drop_empty(os.path.dirname(change.path))
        _write(path, todo.journal)
    except BaseException:
        for change in reversed(done):
            with contextlib.suppress(OSError):
                change.undo()
        _write(path, old or None)
        raise


def _between(old: Mapping[str, Any], todo: Plan) -> dict[str, Any]:
    """The journal while files change: what is there before and after is ours, and what the wheels had is kept."""
    new = todo.journal or {"schema": SCHEMA, "patches": []}
    merged: dict[str, Any] = {}
    for source in (old.get("files", {}), new.get("files", {})):
        for path, entry in source.items():
            ours = merged.get(path, {}).get("ours", []) + entry["ours"]
            merged[path] = {**entry, "ours": ours}
    return {**new, "files": merged, "unfinished": True}


def drop_empty(folder: str) -> None:
    """Remove folders that were made for files which are gone: an empty one can still be imported."""
    with contextlib.suppress(OSError):
        while not folder.endswith("-packages"):
            os.rmdir(folder)
            folder = os.path.dirname(folder)


def _write(path: str, content: Mapping[str, Any] | None) -> None:
    if content is not None:
        files.write_json(path, content)
    elif os.path.lexists(path):
        os.unlink(path)
