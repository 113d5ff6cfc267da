# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put an environment back to what its wheels hold, without losing what somebody did to it.

<home>/patches-kept/<time>-<environment>/
    <distribution>.patch    the edits as a unified diff, which can be declared as a patch again
    files/                  what is no text, or cannot be told by a diff
    kept.json               which environment, distributions and files, and what was uninstalled
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from .. import file_change, files
from ..fingerprint import distributions
from ..fingerprint.distributions import Distribution, normalise
from . import bundle, installers, patch_format, patches, pristine, requirements, surplus
from .extras import INSTALLER as OUR_INSTALLER
from .installers import Sources
from .patch_format import PatchError
from .pristine import Look
from .requirements import Requirement
from .store import Store
from .usage import users

FOLDER = "patches-kept"
_LARGEST_TEXT = 2 << 20  # beyond that a file is data, and a diff takes minutes
_NO_TEXT = ("\0", "\ufffd")


class RepairError(Exception):
    """What went wrong, as one message for a person."""


@dataclass(frozen=True)
class Order:
    """What is wanted."""

    path: str  # the environment, or the link to it
    home: str
    sources: Sources = field(default_factory=Sources)
    installer: str = "auto"
    bundle: str = ""  # path of a bundle with the wheels, used when it is there
    in_use: bool = False  # also while a process works from the environment
    timeout_s: float = 1800.0


@dataclass
class Todo:
    """What is to be done about what was found."""

    install: list[Requirement] = field(default_factory=list)
    remove: list[Distribution] = field(default_factory=list)  # that nobody declared, or in other versions
    take_out: list[str] = field(default_factory=list)  # added files, paths below site-packages
    left: list[str] = field(default_factory=list)  # what cannot be repaired, one sentence each

    @property
    def changed(self) -> bool:
        return bool(self.install or self.remove or self.take_out)

    def describe(self, look: Look) -> list[str]:
        """What is done, for people."""
        made = []
        for item in self.install:
            counts = ["it was missing"] * (item.name in look.drift.missing)
            counts += [f"it was {now}" for name, (_then, now) in look.drift.other.items() if name == item.name]
            for kind, paths in (("edited", look.differences.edited), ("missing", look.differences.missing)):
                number = sum(owner == item.name for owner in paths.values())
                counts += [f"{number} {kind}"] * bool(number)
            counts = counts or ["it shares files with what is uninstalled"]
            made.append(f"{item.name} {item.version} installed again ({', '.join(counts)})")
        made += [f"{one.name} {one.version} uninstalled" for one in self.remove if one.name in look.drift.extra]
        return made + [f"{path} taken out" for path in self.take_out]


# --- planning ----------------------------------------------------------------------------------------


def plan(look: Look) -> Todo:
    """What a repair does: exactly the distributions with edited or missing files, at the same versions.

    And those that the manifest has otherwise, as it has them; what it does not have is uninstalled.
    """
    todo = Todo(take_out=sorted(look.differences.added))
    todo.remove = surplus.find(look.distributions, look.drift, look.aliases)
    locked = _locked(look.environment)
    known = {one.name: one for one in look.distributions}
    todo.left += [
        f"{one.name} {one.version} {why}" for one in todo.remove for why in [_hindrance(one, look.drift.other)] if why
    ]
    drifted = {**look.drift.missing, **{name: then for name, (then, _now) in look.drift.other.items()}}
    for name, version in sorted(drifted.items()):
        line = locked.get(name)
        same = line is not None and requirements.same_version(line.version, version)
        todo.install.append(line if line and same else Requirement(name, version, False, f"{name}=={version}"))
    others = pristine.owners({**look.differences.edited, **look.differences.missing})
    others = sorted({*others, *(one.name for one in surplus.shared(look.distributions, todo.remove))})
    for name in others:
        if name in drifted or name in look.drift.extra:
            continue
        one = known[name]
        why = _obstacle(look.site, one)
        if why:
            todo.left.append(f"{name} {one.version} {why}")
            continue
        line = locked.get(name)
        if line is None or not requirements.same_version(line.version, one.version):
            line = _line(one)
        todo.install.append(line)
    todo.left += [
        f"{one['name']} is an editable install with changes: commit or discard them in {one['url']}"
        for one in look.editable
        if one["dirty"]
    ]
    return todo


def _locked(environment: str) -> dict[str, Requirement]:
    """The lines of the lock that the environment was made from, with their hashes; {} when it is not ours."""
    found: dict[str, Requirement] = {}
    for name in ("lock.txt", "lock-hashed.txt", "lock-plain.txt"):
        with contextlib.suppress(OSError), open(os.path.join(environment, name), encoding="utf-8") as source:
            found.update((item.name, item) for item in requirements.parse(source.read()))
    return found


def _line(one: Distribution) -> Requirement:
    url = str(one.direct_url.get("url") or "")
    text = f"{one.name} @ {url}" if url else f"{one.name}=={one.version}"
    return Requirement(one.name, one.version, False, text)


def _obstacle(site: str, one: Distribution) -> str:
    """Why a distribution cannot be installed again from a wheel; "" when it can."""
    if pristine.is_editable(one):
        return f"is an editable install of {one.direct_url['url']}: install it again by hand"
    url = str(one.direct_url.get("url") or "")
    if url and not url.partition("#")[0].endswith(".whl"):
        return f"was built from {installers.without_passwords(url)}: install it again by hand"
    for entry in os.listdir(site):
        stem, _dot, kind = entry.rpartition(".")
        if kind == "dist-info" and normalise(stem.partition("-")[0]) == one.name:
            with contextlib.suppress(OSError), open(os.path.join(site, entry, "INSTALLER"), encoding="utf-8") as source:
                if source.read().strip() == OUR_INSTALLER:
                    return "is a second name that the lock gives: the role ml_env writes it again"
    return ""


def _hindrance(one: Distribution, replaced: Container[str]) -> str:
    """Why a distribution that nobody declared cannot be removed; "" when it can."""
    if pristine.is_editable(one):
        return f"is an editable install of {one.direct_url['url']}: uninstall it by hand"
    if one.record is None and one.name not in replaced:
        return "was added and has no RECORD: uninstall it by hand"
    return ""


# --- doing -------------------------------------------------------------------------------------------


@dataclass
class Kept:
    """What was put aside before a repair."""

    folder: str
    site: str
    paths: dict[str, str] = field(default_factory=dict)  # path below site-packages -> its copy below the folder
    owners: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)  # distributions, as lines that install them again


def repair(order: Order, look: Look, todo: Todo) -> Kept:
    """Put aside what was edited and added, then install again and take out; :func:`settle` has to follow.

    Raises RepairError, with the environment as it was unless it says otherwise.
    """
    kept = _put_aside(order, look, todo)
    try:
        if todo.install:
            _install(order, look, todo)
    except (RepairError, OSError, ValueError) as error:
        now = pristine.look(order.path, None)
        if _state(now) == _state(look):
            shutil.rmtree(kept.folder)
            where = "Nothing was changed"
        else:
            where = f"The edited files are in {kept.folder}"
        raise RepairError(f"{look.environment}: {error}. {where}") from error
    present = distributions.installed(look.site)
    surplus.remove(look.environment, look.site, present, surplus.find(present, look.drift, look.aliases))
    recorded = distributions.claims(distributions.installed(look.site))
    for path in todo.take_out:
        full = os.path.join(look.site, path)
        if path in recorded:
            continue  # of a distribution that was missing but for its files
        if os.path.islink(full):
            os.unlink(full)  # the link, not what it leads to
        else:
            file_change.Change(full, None, None).do()
        patches.drop_empty(os.path.dirname(full))
    _check_result(order, todo, kept)
    return kept


def _state(look: Look) -> tuple[Any, ...]:
    return look.differences.edited, look.differences.missing, look.drift


def check_unused(order: Order, look: Look) -> None:
    """Raises RepairError that names the processes which work from the environment, unless that is allowed."""
    if order.in_use:
        return
    folders = sorted({look.environment, os.path.abspath(order.path)})
    busy = {one.pid: one for found in users(folders).values() for one in found}
    if busy:
        shown = ", ".join(f"{one.pid} ({one.cmdline[:80]})" for _pid, one in sorted(busy.items())[:3])
        raise RepairError(
            f"{look.environment} is used by {len(busy)} process{'es' * (len(busy) > 1)}: {shown}: its files are not "
            "replaced meanwhile. Stop them first, or allow it with ml_env_repair_in_use: true"
        )


def _put_aside(order: Order, look: Look, todo: Todo) -> Kept:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    wanted = os.path.join(order.home, FOLDER, f"{stamp}-{os.path.basename(os.path.abspath(order.path))}")
    folder, number = wanted, 1
    while os.path.lexists(folder):
        number += 1
        folder = f"{wanted}-{number}"
    os.makedirs(folder, mode=0o700)
    kept = Kept(folder, look.site, gone=[installers.without_passwords(_line(one).text) for one in todo.remove])
    names = {item.name for item in todo.install} | {one.name for one in todo.remove}
    chosen = {path: owner for path, owner in look.differences.edited.items() if owner in names}
    chosen.update((path, look.differences.added[path]) for path in todo.take_out)
    try:
        for path, owner in sorted(chosen.items()):
            inside = os.path.join("files", *("__" if part == ".." else part for part in path.split("/")))
            copy = os.path.join(folder, inside)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            # What is a link stays one: its target is not ours to copy, and may not be there.
            shutil.copy2(os.path.join(look.site, path), copy, follow_symlinks=not _added_link(look, path))
            kept.paths[path], kept.owners[path] = inside, owner
        note = {
            "environment": look.environment,
            "distributions": {item.name: item.version for item in todo.install},
            "edited": sorted(path for path in chosen if path in look.differences.edited),
            "added": todo.take_out,
            "missing": sorted(path for path, owner in look.differences.missing.items() if owner in names),
            "patches": look.patches,
            "uninstalled": kept.gone,
        }
        files.write_json(os.path.join(folder, "kept.json"), note)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return kept


def _added_link(look: Look, path: str) -> bool:
    return path in look.differences.added and os.path.islink(os.path.join(look.site, path))


def _install(order: Order, look: Look, todo: Todo) -> None:
    started = time.monotonic()
    kind, program = installers.choose(order.installer)
    inside = os.path.join(look.environment, "bin", "python")
    settings = installers.pip_settings(inside)
    # Its own for each environment: whoever repairs another one must not clear it away.
    scratch = os.path.join(order.home, "cache", f"repair-{files.digest(look.environment)[:8]}")
    shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
    os.makedirs(scratch, mode=0o700)
    try:
        places = [order.sources]
        if order.bundle and os.path.exists(order.bundle):
            manifest = bundle.read_manifest(order.bundle)
            bundle.unpack(order.bundle, manifest, os.path.join(scratch, "bundle"))
            places = [Sources(find_links=(os.path.join(scratch, "bundle", bundle.WHEELS),), no_index=True)]
        elif order.sources.find_links:
            # The wheels may all be at hand: then no index has to be reachable.
            places.insert(0, Sources(find_links=order.sources.find_links, no_index=True))
        for path, text in installers.inputs(scratch, kind, todo.install).items():
            files.write_atomic(path, text)
        log = os.path.join(scratch, "install.log")
        with Store(os.path.join(order.home, "cache", "repair-environment")).locked(order.timeout_s) as lock:
            for sources in places:
                try:
                    steps = installers.again(kind, program, inside, scratch, todo.install, sources)
                    deadline = started + order.timeout_s
                    installers.carry_out(steps, kind, sources, settings, log, deadline, lock, f" with {kind}")
                    break
                except installers.StepFailed as error:
                    if sources is places[-1]:
                        raise RepairError(str(error)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check_result(order: Order, todo: Todo, kept: Kept) -> None:
    """Raises RepairError when files of what was installed again still are not what its RECORD says."""
    now = pristine.look(order.path, os.path.join(order.home, "cache"))
    names = {item.name for item in todo.install}
    wrong = {**now.differences.edited, **now.differences.missing}
    if now.drift:
        raise RepairError(
            f"{now.environment}: after the repair {'; '.join(now.drift.lines())}. What was there before is in "
            f"{kept.folder}"
        )
    still = sorted(path for path, owner in wrong.items() if owner in names)
    if still:
        raise RepairError(
            f"{now.environment}: after {', '.join(sorted(names))} was installed again, {len(still)} files still are "
            f"not what its wheel says, first {still[0]}. What was there before is in {kept.folder}"
        )


# --- after it ----------------------------------------------------------------------------------------


def settle(kept: Kept) -> list[str]:
    """Make patches of what was put aside, against what is there now; returns the paths of what stays.

    Call it when declared patches are in force again: a diff then holds only what nobody declared. Only what a diff
    gives back exactly is kept as one; anything else stays as a copy.
    """
    if not kept.paths and not kept.gone:
        shutil.rmtree(kept.folder)
        return []
    texts: dict[str, list[bytes]] = {}
    for path, inside in sorted(kept.paths.items()):
        copy = os.path.join(kept.folder, inside)
        piece = _as_patch(os.path.join(kept.site, path), path, copy)
        if piece is not None:
            texts.setdefault(kept.owners[path] or "environment", []).append(piece)
            os.unlink(copy)
    for name, pieces in texts.items():
        files.write_atomic(os.path.join(kept.folder, f"{name}.patch"), b"".join(pieces), 0o600)
    for here, _folders, _names in os.walk(os.path.join(kept.folder, "files"), topdown=False):
        with contextlib.suppress(OSError):  # not empty: copies stay
            os.rmdir(here)
    found = [os.path.join(here, name) for here, _folders, names in os.walk(kept.folder) for name in names]
    return sorted(found)


def _as_patch(place: str, path: str, copy: str) -> bytes | None:
    """The diff from what is there now to the copy; None for what a diff cannot say."""
    if (
        os.path.islink(copy)
        or max(os.path.getsize(one) for one in (copy, place) if os.path.exists(one)) > _LARGEST_TEXT
    ):
        return None
    before, _mode = file_change.read(place)
    after, _mode = file_change.read(copy)
    try:
        text = patch_format.render(path, before, after).decode("utf-8", "replace")
        if any(one in text for one in _NO_TEXT):
            return None
        changes = patch_format.parse(text) if text else []
        made = before
        for change in changes:
            made = patch_format.apply(made, change)
    except (PatchError, UnicodeError):  # the latter for a name that is not UTF-8
        return None
    return text.encode("utf-8") if made == after else None
