# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The files of an environment as declared: those of its wheels, with the declared patches, and nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..file_change import Change
from ..fingerprint import distributions
from . import patches, pristine, repair
from .patch_format import PatchError
from .patches import Edited, NotInstalled, Patch
from .pristine import Look
from .repair import Order, RepairError
from .requirements import normal, same_version
from .store import Store

LOCK = "groundstate-files"  # .lock, in the environment
OFF, WARN, REQUIRE, REPAIR = POLICIES = ("off", "warn", "require", "repair")


class Refused(Exception):
    """An environment that is not what the policy requires; the message names the files."""


@dataclass
class Outcome:
    """What was (or, in check mode, would be) done, and what was found."""

    changes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    diffs: list[Change] = field(default_factory=list)  # of patched files
    kept: list[str] = field(default_factory=list)  # paths of what was put aside
    before: Look | None = None  # None: the policy did not ask
    verdict: str = pristine.UNKNOWN
    patches: list[str] = field(default_factory=list)


def ensure(order: Order, policy: str, wanted: list[Patch] | None, check: bool) -> Outcome:
    """Bring the files to what is declared. ``wanted`` None: the patches in force stay. ``check``: change nothing.

    A second run for the same environment waits until the first one is done: of two plans that are carried out at once,
    each would change files that the other one has counted on. Raises Refused, RepairError, PatchError, ValueError,
    OSError; a refused declaration before anything is changed.
    """
    environment = os.path.realpath(order.path)
    pristine.site_of(environment)
    writes = not check and (wanted is not None or policy == REPAIR)
    with _alone(environment, order) if writes else contextlib.nullcontext():
        return _ensure(environment, order, policy, wanted, check)


@contextlib.contextmanager
def _alone(environment: str, order: Order) -> Iterator[None]:
    """Hold the lock of an environment's files. Raises RepairError when another run does not let go of it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(Store(os.path.join(environment, LOCK)).locked(order.timeout_s))
        except TimeoutError:
            raise RepairError(
                f"{environment}: another run has been working on its files for {order.timeout_s:.0f} s, and this one "
                "has waited that long (ml_env_timeout_s)"
            ) from None
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            # Who may not write there can look only.
        yield


def _ensure(environment: str, order: Order, policy: str, wanted: list[Patch] | None, check: bool) -> Outcome:
    declared = patches.declared(environment) if wanted is None else wanted
    trouble: PatchError | None = None
    todo = patches.Plan(environment)
    try:
        todo = _plan(environment, declared)
    except Edited as error:
        if policy != REPAIR:
            raise
        trouble = error  # a repair may help
    except NotInstalled as error:
        if policy != REPAIR or not _comes_back(error.patches, _look(order, todo)):
            raise
        trouble = error
    made = Outcome(patches=[one.name for one in declared])
    if policy != OFF:
        made.before = _look(order, todo)
        if policy == REPAIR:
            todo = _repaired(order, made, made.before, declared, todo, trouble, check)
        elif policy == REQUIRE:
            _require(made.before)
        elif pristine.message(made.before):
            made.warnings.append(pristine.message(made.before))
        made.verdict = made.before.verdict
    if todo.changed:
        made.changes += todo.describe()
        made.diffs = [one for one in todo.changes if one.needed]
        if not check:
            patches.carry_out(todo)
    if made.verdict in (pristine.PRISTINE, pristine.PATCHED):
        made.verdict = pristine.PATCHED if made.patches else pristine.PRISTINE
    return made


def _plan(environment: str, wanted: list[Patch]) -> patches.Plan:
    site = pristine.site_of(environment)
    return patches.plan(environment, site, distributions.installed(site), wanted)


def _look(order: Order, todo: patches.Plan) -> Look:
    """What differs, without what the patches explain that will be in force."""
    found = pristine.look(order.path, os.path.join(order.home, "cache"))
    for kind in (found.differences.edited, found.differences.missing, found.differences.added):
        for path in [one for one in kind if one in todo.paths]:
            del kind[path]
    found.unfinished = found.unfinished and not todo.changed  # else that is what it finishes
    return found


def _comes_back(wanted: Sequence[Patch], found: Look) -> bool:
    """Whether a repair installs what these patches are for."""
    versions = {**found.drift.missing, **{name: then for name, (then, _now) in found.drift.other.items()}}
    return all(same_version(one.version, versions.get(normal(one.distribution), "")) for one in wanted)


def _require(found: Look) -> None:
    if pristine.message(found):
        raise Refused(pristine.message(found))


def _repaired(
    order: Order,
    made: Outcome,
    found: Look,
    declared: list[Patch],
    todo: patches.Plan,
    trouble: PatchError | None,
    check: bool,
) -> patches.Plan:
    """Repair what differs, with the declared patches in force again; returns what is left to do about patches."""
    fix = repair.plan(found)
    if fix.left:
        raise RepairError(f"{found.environment} cannot be repaired: {'; '.join(fix.left)}")
    if not fix.changed:
        if trouble is not None:
            raise trouble
        if found.doubts:
            made.warnings.append(pristine.message(found))
        return todo
    repair.check_unused(order, found)
    made.changes += fix.describe(found)
    if check:
        if trouble is not None:
            made.changes.append(f"patches: {', '.join(made.patches)} after that")
        return todo
    kept = repair.repair(order, found, fix)
    try:
        again = _plan(found.environment, declared)
        made.diffs = [one for one in todo.changes if one.needed]
        if again.changed:
            if todo.changed or trouble is not None:
                made.changes += again.describe()
            patches.carry_out(again)
    except (ValueError, OSError) as error:
        raise RepairError(f"{error}. The repair itself is done, what was there before is in {kept.folder}") from error
    finally:
        made.kept = repair.settle(kept)
    made.before = _look(order, again)
    _require_repaired(made.before)
    return patches.Plan(found.environment)


def _require_repaired(found: Look) -> None:
    if found.modified:
        raise RepairError(f"after the repair {pristine.message(found)}")
