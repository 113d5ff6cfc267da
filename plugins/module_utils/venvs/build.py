# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring an environment to what is declared: look, plan, build beside, verify, switch."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass, field, replace
from typing import Any

from .. import files
from ..fingerprint.distributions import installed
from . import bundle, imports, installers, interpreters, patches, requirements, running
from .drift import TOOLS, Drift, drift, versions
from .extras import Extras
from .extras import apply as apply_extras
from .extras import names as extra_names
from .installers import Sources
from .interpreters import Interpreter
from .requirements import Requirement
from .store import Store
from .usage import users


class EnvError(Exception):
    """What went wrong, as one message for a person."""


@dataclass(frozen=True)
class Spec:
    """The declaration of an environment."""

    path: str
    requirements: str
    python: str = interpreters.AUTO
    python_range: str = ""
    platform: str = ""  # that the lock is for, or how its name begins
    extras: Extras = field(default_factory=Extras)
    forbidden: tuple[str, ...] = ()
    patches: tuple[patches.Patch, ...] = ()  # compared with the lock
    apply_patches: bool = False  # also put them into force in a folder before it is used
    imports: tuple[str, ...] = ()
    installer: str = "auto"
    sources: Sources = field(default_factory=Sources)
    bundle: str = ""  # path of a bundle of the lock: then no index is asked
    size_mib: int = 0
    keep: int = 2
    timeout_s: float = 1800.0


@dataclass
class Plan:
    """What there is and what has to be done."""

    items: list[Requirement]
    interpreter: Interpreter
    python_version: str  # of the environment, which may have been made for another one
    key: str  # digest that names the folder: lock, Python, platform
    hash: str  # digest of the whole declaration
    folder: str
    current: str | None  # folder in use
    before: dict[str, Any]  # its manifest
    action: str  # none, extras, switch, build
    changes: list[str]
    needs_bundle: bool = False  # a build, for which the declared bundle is not on the host yet
    drift: Drift = field(default_factory=Drift)  # of the environment in use, when it stays
    why: str = ""  # it is made although there is one of the same key
    warnings: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return self.action != "none"


def site_packages(folder: str, version: str) -> str:
    """Where an environment of this Python version ("3.11.7") has its distributions."""
    return os.path.join(folder, "lib", "python" + ".".join(version.split(".")[:2]), "site-packages")


def distributions(site: str) -> dict[str, str]:
    """Normal name -> version of what is installed, read from the folders' names; aliases of ours included."""
    return {name: found[-1] for name, found in versions(site).items()}


def _check_patches(spec: Spec, items: list[Requirement]) -> None:
    """Raises ValueError for a patch of a version that the lock does not have: after the build it would be too late."""
    there = {item.name: item.version for item in items}
    for alias in spec.extras.aliases:
        version = there.get(alias.distribution, "")
        if version:
            local = f"+{alias.local_version}" if alias.local_version and "+" not in version else ""
            there[requirements.normal(alias.name)] = version + local
    problems = []
    for one in spec.patches:
        locked = there.get(requirements.normal(one.distribution))
        if locked is None:
            problems.append(f"the patch {one.name} is for {one.distribution}, which is not in the lock")
        elif not requirements.same_version(one.version, locked):
            problems.append(f"the patch {one.name} is for {one.distribution} {one.version}, the lock has {locked}")
    if problems:
        raise ValueError("; ".join(problems) + ": declare patches of these versions, or none (ml_env_patches)")


def _patch(spec: Spec, made: Plan, site: str) -> None:
    """Bring the declared patches into force in a folder that nothing works from yet. Raises ValueError, OSError."""
    if spec.apply_patches:
        todo = patches.plan(made.folder, site, installed(site), list(spec.patches))
        patches.carry_out(todo)
        made.changes += todo.describe()


def plan(spec: Spec, bundle_later: bool = False) -> Plan:
    """Find out what has to be done; changes nothing. Raises EnvError.

    ``bundle_later``: a bundle that cannot be used is needed (again) instead of an error.
    """
    try:
        spec.extras.check()
        requirements.check_range(spec.python_range)
        interpreters.check_platform(spec.platform)
        items = requirements.parse(spec.requirements)
        unwanted = {requirements.normal(name) for name in spec.forbidden} & {item.name for item in items}
        if unwanted:
            raise ValueError(f"the lock holds what it forbids itself: {', '.join(sorted(unwanted))}")
        _check_patches(spec, items)
        store = Store(spec.path)
        store.check()
        current = store.current()
        before = (store.manifest(current) if current else None) or {}
        interpreter = interpreters.find(spec.python, spec.python_range, before.get("interpreter"))
        key, there = _choose(spec, store, items, interpreter, current, before)
        folder = store.folder(key[:8])
        whole = files.digest([key, spec.extras.as_dict()])
        made = Plan(items, interpreter, interpreter.version, key, whole, folder, current, before, "build", [])
        if there:
            _take(spec, made, there)
        if made.action == "build" and spec.bundle:
            made.needs_bundle = not os.path.exists(spec.bundle)
            try:
                if not made.needs_bundle:
                    _manifest(spec, made)
            except bundle.Unusable:
                if not bundle_later:
                    raise
                made.needs_bundle = True
    except (ValueError, OSError, KeyError) as error:
        raise EnvError(str(error)) from error
    return made


def _choose(
    spec: Spec,
    store: Store,
    items: list[Requirement],
    interpreter: Interpreter,
    current: str | None,
    before: dict[str, Any],
) -> tuple[str, dict[str, Any] | None]:
    """The key of the environment that fits, and its manifest; of a new one, and None.

    Lock, Python's version and platform make the key. Another executable of the same version, asked for by its path,
    has a key of its own, where the first one belongs to a finished environment: that one may be in use.
    """
    parts = [sorted(item.text for item in items), interpreter.tag, interpreter.platform]
    first, own = files.digest(parts), files.digest([*parts, interpreter.executable])
    kept = files.digest([*parts, before.get("interpreter", {}).get("executable")])  # where that may stay
    for key in sorted((first, own, kept), key=lambda one: store.folder(one[:8]) != current):
        folder = store.folder(key[:8])
        there = store.manifest(folder)
        if not there or there.get("key") != key or not os.path.exists(os.path.join(folder, "bin", "python")):
            continue
        made_for = os.path.realpath(there["interpreter"]["executable"])
        if not os.path.isabs(spec.python) or made_for == os.path.realpath(interpreter.executable):
            return key, there
    usable = os.path.exists(os.path.join(store.folder(first[:8]), "bin", "python"))
    return (own if usable and store.state(store.folder(first[:8])) == "finished" else first), None


def _take(spec: Spec, made: Plan, there: dict[str, Any]) -> None:
    """Complete the plan for an environment that is there; one that was kept is taken only if nothing differs in it."""
    version = there["interpreter"]["version"]
    site = site_packages(made.folder, version)
    found = drift(site, there)
    if found and made.current != made.folder:
        made.why = f"{made.folder} was kept, but is not what was installed there: {'; '.join(found.lines())}"
        return
    made.drift = found
    if found:
        said = "; ".join(found.lines())
        made.warnings.append(f"what is installed is not what was locked: {said}. ml_env_pristine: repair puts it back")
    made.python_version = version
    made.changes = apply_extras(spec.extras, made.folder, site, there["distributions"], there["extras"], dry=True)
    made.action = "switch" if made.current != made.folder else "extras" if made.changes else "none"


def _manifest(spec: Spec, made: Plan) -> bundle.Manifest:
    """The manifest of the declared bundle, if it is for this lock and host. Raises bundle.Unusable, OSError."""
    manifest = bundle.read_manifest(spec.bundle)
    bundle.check(spec.bundle, manifest, made.items, bundle.Target(made.interpreter.tag, made.interpreter.platform))
    return manifest


def ensure(spec: Spec, bundle_later: bool = False) -> Plan:
    """Do what the plan says; returns the plan that was carried out. Raises EnvError.

    ``bundle_later``: a plan that needs the bundle, which is not there or damaged, is returned and not carried out.
    """
    made = plan(spec, bundle_later)
    if not made.changed or (made.needs_bundle and bundle_later):
        return made
    if made.needs_bundle:
        raise _no_bundle(spec)
    store = Store(spec.path)
    try:
        with store.locked(spec.timeout_s) as lock:
            made = plan(spec, bundle_later)  # another run may have done it meanwhile
            if made.action != "build" and made.changes:
                _refresh(spec, made, store)
            if made.action == "switch":
                # Files of it that somebody edited are a matter of their own: python_env_files says so, or repairs.
                with contextlib.suppress(patches.Edited):
                    _patch(spec, made, site_packages(made.folder, made.python_version))
                _prove(spec, made, lock, bundle_later)
            if made.needs_bundle and bundle_later:
                return made
            if made.action == "build":
                _build(spec, made, store, lock)
            if made.current != made.folder:
                store.switch(made.folder)
            store.prune(spec.keep)
            made.warnings += store.doubts
    except bundle.Unusable as error:
        if not bundle_later:
            raise EnvError(_because(made, f"{spec.path}: {error}")) from error
        made.needs_bundle = True
    except EnvError as error:
        raise EnvError(_because(made, str(error))) from error
    except (OSError, TimeoutError, ValueError) as error:
        hint = ". " + installers.remedy(str(error)) if getattr(error, "errno", 0) == 28 else ""
        raise EnvError(_because(made, f"{spec.path}: {error}{hint}")) from error
    return made


def _because(made: Plan, message: str) -> str:
    return f"{message}\n(It had to be made again: {made.why})" if made.why else message


def _prove(spec: Spec, made: Plan, lock: int, bundle_later: bool) -> None:
    """Import from a kept environment what a new one has to import; one that fails is made again."""
    try:
        _check_imports(spec, made, lock)
    except EnvError as error:
        made.action, made.changes, made.python_version = "build", [], made.interpreter.version
        made.why = f"{made.folder} was kept, but it cannot be imported: {str(error).splitlines()[-1]}"
        made.needs_bundle = bool(spec.bundle) and not os.path.exists(spec.bundle)
        if made.needs_bundle and not bundle_later:
            raise _no_bundle(spec) from error


def _no_bundle(spec: Spec) -> EnvError:
    return EnvError(f"{spec.path}: the bundle {spec.bundle} is not on the host: copy it there, or correct its path")


def _refresh(spec: Spec, made: Plan, store: Store) -> None:
    """Bring the extras of a finished environment up to date."""
    manifest = dict(store.manifest(made.folder) or {})
    known = manifest["distributions"]
    site = site_packages(made.folder, manifest["interpreter"]["version"])
    apply_extras(spec.extras, made.folder, site, known, manifest["extras"])
    manifest.update(hash=made.hash, extras=extra_names(spec.extras, known))
    store.update(made.folder, manifest)


def _build(spec: Spec, made: Plan, store: Store, lock: int) -> None:
    started = time.monotonic()
    kind, program = installers.choose(spec.installer)
    manifest = _manifest(spec, made) if spec.bundle else None
    for one in store.folders():
        if store.state(one) == "unfinished":  # it may be what fills the disk
            with contextlib.suppress(OSError):
                store.remove(one)
    if made.current != made.folder and store.state(made.folder) == "finished":
        working = users([made.folder])[made.folder]
        if working:
            raise EnvError(
                f"{made.folder} has to be made again, and process {working[0].pid} ({working[0].comm}) works from it: "
                "stop it first"
            )
    _check_space(spec, manifest.size >> 20 if manifest else 0)
    store.begin(made.folder)
    try:
        site = site_packages(made.folder, made.interpreter.version)
        if manifest is not None:
            # Checked while it is unpacked, before anything of it is installed.
            unpacked = os.path.join(made.folder, "bundle")
            bundle.unpack(spec.bundle, manifest, unpacked)
            spec = replace(spec, sources=Sources(find_links=(os.path.join(unpacked, bundle.WHEELS),), no_index=True))
        _install(spec, made, kind, program, lock, started)
        if manifest is not None:
            shutil.rmtree(unpacked)
        have = distributions(site)
        locked = {item.name for item in made.items}
        problems = requirements.differences(made.items, have)
        problems += [f"{name} {have[name]} is there, the lock forbids it" for name in spec.forbidden if name in have]
        if problems:
            raise EnvError(f"{spec.path}: the installation does not match the lock: {'; '.join(problems)}")
        have = {name: version for name, version in have.items() if name in locked or name not in TOOLS}
        apply_extras(spec.extras, made.folder, site, have, {})
        _patch(spec, made, site)
        _check_imports(spec, made, lock)
        record = {
            "key": made.key,
            "hash": made.hash,
            "interpreter": made.interpreter.as_dict(),
            "installer": kind,
            "bundle": os.path.basename(spec.bundle),
            "distributions": have,
            "extras": extra_names(spec.extras, have),
            "made_at": round(time.time(), 3),
            "seconds": round(time.monotonic() - started, 3),
        }
        store.finish(made.folder, record)
    except BaseException:
        # The environment in use is untouched; a part of a new one would only fill the disk. What stays of it is marked
        # and goes with the next run: what went wrong first is what has to be said.
        with contextlib.suppress(OSError):
            store.remove(made.folder)
        raise


def _install(spec: Spec, made: Plan, kind: str, program: str, lock: int, started: float) -> None:
    settings = installers.pip_settings(made.interpreter.executable)
    for path, text in installers.inputs(made.folder, kind, made.items).items():
        files.write_atomic(path, text)
    log = os.path.join(made.folder, "install.log")
    python = made.interpreter.executable
    steps = installers.steps(kind, program, python, made.folder, made.items, spec.sources)
    how = f" with {kind} for Python {made.interpreter.version}"
    try:
        installers.carry_out(steps, kind, spec.sources, settings, log, started + spec.timeout_s, lock, how)
    except installers.StepFailed as error:
        raise EnvError(f"{spec.path}: {error}") from error


def _check_imports(spec: Spec, made: Plan, lock: int) -> None:
    """Prove with the new interpreter that the engine can be imported."""
    if not spec.imports:
        return
    python = os.path.join(made.folder, "bin", "python")
    log = os.path.join(made.folder, "install.log")
    try:
        argv = [python, "-I", "-c", imports.PROGRAM, *spec.imports]
        running.run(argv, running.clean_environment({}), log, 600.0, lock)
    except running.Failed as error:
        helps = imports.missing_library(error.output)
        raise EnvError(
            f"{spec.path}: installed as locked, but it cannot be imported ({error}).{helps}\n{error.output}"
        ) from error


def _check_space(spec: Spec, bundle_mib: int = 0) -> None:
    folder = spec.path
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free >> 20
    needed = spec.size_mib + bundle_mib
    if free < needed:
        raise EnvError(
            f"{spec.path}: {free} MiB are free at {folder}, the environment needs about {needed} MiB: free some "
            "space, or put ml_env_path elsewhere"
        )


def remove(path: str, dry: bool, timeout_s: float = 60.0) -> list[str]:
    """Remove all environments of a path; returns what was (or would be) removed. Raises EnvError."""
    store = Store(path)
    try:
        store.check()
        found = ([path] if os.path.islink(path) else []) + store.folders()
        if not found or dry:
            return found
        with store.locked(timeout_s):
            return store.remove_all()
    except (ValueError, OSError, TimeoutError) as error:
        raise EnvError(str(error)) from error


def listing(known: dict[str, str], extras: dict[str, list[str]] | None) -> str:
    """An environment as text, one line a distribution, for a diff."""
    lines = [f"{name}=={version}" for name, version in sorted(known.items())]
    for kind, names in sorted((extras or {}).items()):
        lines += [f"{kind}: {name}" for name in names]
    return "".join(line + "\n" for line in lines)


def after(made: Plan, spec: Spec) -> str:
    """The declared environment in the form of :func:`listing`."""
    known = {item.name: item.version for item in made.items}
    return listing(known, extra_names(spec.extras, known))
