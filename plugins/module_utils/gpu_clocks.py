# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Set persistence mode, power limit and locked clocks of GPUs, and put them back to what was there before.

What was there is written to ``<home>/gpu_clocks.json`` before the first change, so that whatever happens to the run,
the next one, a reset or a teardown can put it back. What the driver refuses half-way is undone at once.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import files, gpu_settings, nvidia, procfs
from .gpu_settings import LOCKS, MEMORY, PERSISTENCE, POWER, SM, Held, Settings, Step

SCHEMA = 1
# A clock needs a moment to come down to its lock.
_SETTLE_S = 10.0
_FLAGS = {SM: ("-lgc", "-rgc"), MEMORY: ("-lmc", "-rmc")}
# nvidia-smi ends with status 0 where a GPU does not support a setting: "Treating as warning and moving on."
_UNSUPPORTED = re.compile(r"not supported|deprecated", re.I)
_FORBIDDEN = re.compile(r"does not have permission|insufficient permission|no permission", re.I)
_REFUSED = re.compile(r"unable to|failed|treating as warning|not a valid|unknown error", re.I)
_CAP_SYS_ADMIN = 1 << 21
_ON_HOST = "set the clocks on the host that the container runs on, there as root"


class ClocksError(Exception):
    """One sentence for the user; ``left`` says what could not be undone."""


@dataclass(frozen=True)
class Result:
    """What a call did, or would do."""

    changed: bool
    gpus: list[dict[str, Any]]
    actions: list[str]
    notes: list[str]
    before: str
    after: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "changed": self.changed,
            "gpus": self.gpus,
            "actions": self.actions,
            "notes": self.notes,
            "diff": {"before": self.before, "after": self.after},
        }


# --- what we hold --------------------------------------------------------------------------------


def path(home: str) -> str:
    """The file that says what was there before."""
    return os.path.join(home, "gpu_clocks.json")


def loaded(root: str = "") -> list[Any]:
    """Which load of the driver in which boot this is: both a reboot and a reload end every setting."""
    try:
        # The kernel numbers the folder of a module anew at each load; also a container sees this number.
        number = os.stat(f"{root}/sys/module/nvidia").st_ino
    except OSError:
        number = 0
    return [procfs.boot_id(f"{root}/proc") or "", number]


def held(home: str, root: str = "") -> dict[str, Held]:
    """UUID -> what we hold of that GPU since this load of the driver; {} for nothing.

    Raises ValueError for a damaged file, OSError for one that cannot be read.
    """
    document = files.read_json(path(home))
    if document is None:
        return {}
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(f"{path(home)} has schema {document['schema']}, this version knows {SCHEMA}")
        found = {
            uuid: Held(dict(one["ours"]), dict(one["before"]), document["done"] is True)
            for uuid, one in document["gpus"].items()
        }
        return found if document["loaded"] == loaded(root) else {}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path(home)} is damaged ({error!r}): release the clocks by hand (nvidia-smi -rgc; nvidia-smi -rmc), "
            "then remove the file"
        ) from error


def locks(home: str, root: str = "") -> dict[str, dict[str, list[int]]]:
    """UUID -> the clocks that we locked there, ``[least, most]`` in MHz by item; {} for none. Raises like `held`."""
    found = {
        uuid: {item: one.ours[item] for item in LOCKS if item in one.ours} for uuid, one in held(home, root).items()
    }
    return {uuid: one for uuid, one in found.items() if one}


def _save(home: str, holding: Mapping[str, Held], done: bool) -> None:
    """``done`` False: what is written is about to be set."""
    kept = {uuid: one for uuid, one in holding.items() if one.ours}
    if not kept:
        if os.path.lexists(path(home)):
            os.unlink(path(home))
        return
    gpus = {uuid: {"ours": dict(one.ours), "before": dict(one.before)} for uuid, one in kept.items()}
    files.write_json(path(home), {"schema": SCHEMA, "loaded": loaded(), "done": done, "gpus": gpus})


# --- the driver ----------------------------------------------------------------------------------


def obstacle(proc: str = procfs.PROC) -> str:
    """Why the driver will not let this process change clocks, with the way out; "" when nothing is known against it.

    The driver asks for CAP_SYS_ADMIN in the first user namespace, whatever the user is called.
    """
    try:
        with open(f"{proc}/self/status", encoding="ascii", errors="replace") as source:
            found = re.search(r"^CapEff:\s*([0-9a-f]+)", source.read(), re.M)
        with open(f"{proc}/self/uid_map", encoding="ascii") as source:
            first = source.read().split() == ["0", "0", "4294967295"]
    except OSError:
        return ""
    if not first:
        return f"this is an unprivileged container, whose root is an ordinary user to the driver: {_ON_HOST}"
    if found and not int(found.group(1), 16) & _CAP_SYS_ADMIN:
        if os.geteuid() != 0:
            return "only root may change the clocks of a GPU: run as root (become: true)"
        return f"this container runs without the capability CAP_SYS_ADMIN, which the driver asks for: {_ON_HOST}"
    return ""


def _arguments(step: Step) -> list[str]:
    if step.item == PERSISTENCE:
        return ["-pm", "1" if step.value else "0"]
    if step.item == POWER:
        return ["-pl", f"{step.value:g}"]
    lock, lift = _FLAGS[step.item]
    return [lift] if step.value is None else [lock, f"{step.value[0]},{step.value[1]}"]


def _set(program: str, step: Step, timeout_s: float) -> None:
    """Make one setting. Raises ClocksError when the driver does not do it, whatever its status says."""
    what = f"{step.gpu.label}: the {gpu_settings.WORDS[step.item]} cannot be set"
    try:
        status, out, err = nvidia.run([program, "-i", step.gpu.uuid, *_arguments(step)], timeout_s)
    except OSError as error:
        raise ClocksError(f"{what}: {program} cannot be run: {error}") from error
    if status is None:
        raise ClocksError(f"{what}: {program} did not answer in {timeout_s:g} s")
    said = " ".join(f"{out} {err}".split())[:300]
    if _FORBIDDEN.search(said):
        raise ClocksError(f"{what}: the driver forbids it ({said}): run as root; in a container, {_ON_HOST}")
    if _UNSUPPORTED.search(said):
        raise ClocksError(f"{what}: this GPU or its driver does not support it ({said}): leave {step.item} out")
    if status != 0 or _REFUSED.search(said):
        raise ClocksError(f"{what}: nvidia-smi ended with status {status} and said: {said or 'nothing'}")


def _ask(timeout_s: float) -> list[Settings]:
    """Every GPU. Raises ClocksError when there is none, or none that answers."""
    answer = nvidia.query(timeout_s)
    if answer.report is None or not answer.gpus:
        raise ClocksError(f"the GPUs cannot be asked: {answer.why}")
    return gpu_settings.parse(answer.report.text)


def _unmet(gpus: list[Settings], steps: list[Step]) -> str:
    """The first step that the driver took, and that is not so; "" for none."""
    now = {one.uuid: one for one in gpus}
    for step in steps:
        gpu = now.get(step.gpu.uuid)
        if gpu is None:
            return f"{step.gpu.label} has vanished"
        words = gpu_settings.WORDS[step.item]
        if step.item in LOCKS:
            clock = gpu.sm_now if step.item == SM else gpu.memory_now
            if step.value is not None and gpu.above(step.item, step.value):
                told = gpu_settings.show(step.item, step.value)
                return f"{gpu.label}: the driver took the setting, but the {words} runs at {clock} MHz, not {told}"
        elif gpu.told(step.item) != step.value:
            told = gpu_settings.show(step.item, gpu.told(step.item))
            return f"{gpu.label}: the driver took the setting, but the {words} is {told}"
    return ""


# --- the work ------------------------------------------------------------------------------------


def set_clocks(
    home: str,
    given: Mapping[str, Any],
    gpus: Iterable[str] = ("all",),
    check: bool = False,
    timeout_s: float = nvidia.TIMEOUT_S,
) -> Result:
    """Bring GPUs (by index or UUID) to a declaration; what we hold of them beyond it goes back to what was before.

    An empty declaration puts everything back. ``check``: only say what would be done. Raises ClocksError, before any
    change where that can be known before, else after all changes were undone; ValueError for wrong arguments.
    """
    wishes = gpu_settings.wanted(given)
    holding = _held(home)
    if not wishes and not holding:
        if not check and os.path.lexists(path(home)):
            os.unlink(path(home))  # of another boot or load of the driver: the settings ended with it
        return Result(False, [], [], [], "", "")
    if check:
        return _work(home, wishes, list(gpus), True, timeout_s)
    if not os.path.isdir(home):
        _ask(timeout_s)  # a refusal should leave no folder behind
        os.makedirs(home, exist_ok=True)
    try:
        with files.folder_locked(home, 300.0):
            return _work(home, wishes, list(gpus), False, timeout_s)
    except files.Busy as error:
        raise ClocksError(f"another run is changing clocks: {error}; wait until it ends, or end it") from error


def put_back(home: str, check: bool = False, timeout_s: float = nvidia.TIMEOUT_S) -> Result:
    """Put everything that we hold on this host back to what was there before. Raises ClocksError."""
    return set_clocks(home, {}, ("all",), check, timeout_s)


def _held(home: str) -> dict[str, Held]:
    try:
        return held(home)
    except (OSError, ValueError) as error:
        raise ClocksError(str(error)) from error


def _work(home: str, wishes: Mapping[str, Any], names: list[str], check: bool, timeout_s: float) -> Result:
    answer = nvidia.query(timeout_s)
    if answer.report is None or not answer.gpus:
        raise ClocksError(f"the GPUs cannot be asked: {answer.why}")
    chosen = {one.index for one in nvidia.select(answer.gpus, names)}
    settings = [one for one in gpu_settings.parse(answer.report.text) if one.index in chosen]
    wrong = [text for gpu in settings for text in gpu_settings.problems(gpu, wishes)]
    if wrong:
        raise ClocksError("nothing was changed: " + "; ".join(wrong))
    old = _held(home)
    new = {uuid: one for uuid, one in old.items() if uuid in {gpu.uuid for gpu in answer.gpus}}
    notes = [f"{uuid} is no longer in this host: what was set there is gone" for uuid in sorted(set(old) - set(new))]
    steps: list[Step] = []
    for gpu in settings:
        mine, new[gpu.uuid], said = gpu_settings.plan(gpu, wishes, old.get(gpu.uuid, gpu_settings.NOTHING))
        steps += mine
        notes += said
    why = obstacle() if steps else ""
    if why:
        raise ClocksError(f"nothing was changed: {why}")
    if not check:
        if steps:
            union = {uuid: both(old.get(uuid), one) for uuid, one in new.items()}
            _save(home, union, done=False)
            _carry_out(home, steps, old, timeout_s)
        _save(home, new, done=True)
    after = settings if check or not steps else [one for one in _ask(timeout_s) if one.index in chosen]
    return _result(settings, after, steps, old, new, notes, check)


def both(old: Held | None, new: Held) -> Held:
    """What we may hold while the steps from one to the other are made."""
    return new if old is None else replace(new, ours={**old.ours, **new.ours}, before={**old.before, **new.before})


def _carry_out(home: str, steps: list[Step], old: Mapping[str, Held], timeout_s: float) -> None:
    """Make the steps, and see that they are so. Raises ClocksError after it has undone them."""
    program = nvidia.find_program() or nvidia.PROGRAM
    done: list[Step] = []
    try:
        for step in steps:
            done.append(step)  # also what was refused may have been made in part
            _set(program, step, timeout_s)
        deadline = time.monotonic() + _SETTLE_S
        while True:
            unmet = _unmet(_ask(timeout_s), steps)
            if not unmet:
                return
            if time.monotonic() > deadline:
                raise ClocksError(unmet)
            time.sleep(0.2)
    except ClocksError as error:
        refused = done[-1]
        failed = [text for step in reversed(done) for text in _undo(program, step, step is refused, old, timeout_s)]
        if failed:
            raise ClocksError(f"{error}; undoing what had been set failed as well: {'; '.join(failed)}") from error
        _save(home, old, done=True)
        raise ClocksError(f"{error}. Everything is as it was before") from error


def _undo(program: str, step: Step, refused: bool, old: Mapping[str, Held], timeout_s: float) -> list[str]:
    """Put back what was there before one step; why that failed. What was refused need not be there to be put back."""
    if step.item in LOCKS:
        mine = old.get(step.gpu.uuid, gpu_settings.NOTHING)
        value = mine.ours.get(step.item) if mine.known else None
    else:
        value = step.gpu.told(step.item)
        if value is None:
            return []
    try:
        _set(program, replace(step, value=value), timeout_s)
    except ClocksError as error:
        return [] if refused else [str(error)]
    return []


def _result(
    settings: list[Settings],
    after: list[Settings],
    steps: list[Step],
    old: Mapping[str, Held],
    new: Mapping[str, Held],
    notes: list[str],
    check: bool,
) -> Result:
    later = {one.uuid: one for one in after}
    rows: list[dict[str, Any]] = []
    lines: tuple[list[str], list[str]] = ([], [])
    for gpu in settings:
        was = _values(gpu, old.get(gpu.uuid, gpu_settings.NOTHING))
        now = _values(later.get(gpu.uuid, gpu), new[gpu.uuid])
        if check:
            now.update({step.item: step.value for step in steps if step.gpu is gpu})
        rows.append(
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "before": was,
                "after": now,
                "held": dict(new[gpu.uuid].ours),
                "clock_sm_mhz": later.get(gpu.uuid, gpu).sm_now,
                "clock_memory_mhz": later.get(gpu.uuid, gpu).memory_now,
            }
        )
        for side, values in zip(lines, (was, now)):
            side.append(gpu_settings.line(gpu, values) + "\n")
    news = [step for step in steps if step.news]
    return Result(
        changed=bool(news),
        gpus=rows,
        actions=[gpu_settings.sentence(step) for step in news],
        notes=notes,
        before="".join(lines[0]),
        after="".join(lines[1]),
    )


def _values(gpu: Settings, mine: Held) -> dict[str, Any]:
    locked = {item: mine.ours.get(item) if mine.known else None for item in LOCKS}
    return {PERSISTENCE: gpu.persistence, POWER: gpu.power_limit_w, **locked}
