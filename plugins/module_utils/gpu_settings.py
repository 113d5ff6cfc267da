# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Persistence mode, power limit and locked clocks of a GPU: what is, what may be, and the steps from one to the other.

Pure. The driver tells the persistence mode and the power limit, but there is no question that it answers with a locked
clock: neither ``nvidia-smi -q`` nor NVML has one, the greatest clocks stay those of the board, and no event reason
becomes active. What is known of a lock is therefore that we set it (``held``), and that nothing since contradicts it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

#: What can be set, in the order in which it is.
PERSISTENCE, POWER, SM, MEMORY = "persistence", "power_limit_w", "sm_mhz", "memory_mhz"
ITEMS = (PERSISTENCE, POWER, SM, MEMORY)
LOCKS = (SM, MEMORY)
WORDS = {PERSISTENCE: "persistence mode", POWER: "power limit", SM: "SM clock", MEMORY: "memory clock"}

_NUMBER = re.compile(r"^(-?\d+(?:\.\d+)?) (?:W|MHz)$")
# Our name -> where the drivers' generations have it.
_POWER = {
    "limit": ("requested_power_limit", "power_limit", "current_power_limit"),
    "least": ("min_power_limit",),
    "most": ("max_power_limit",),
}


@dataclass(frozen=True)
class Settings:
    """What the driver says of one GPU; None where it does not tell. Clocks in MHz, power in W."""

    index: int
    uuid: str
    name: str
    persistence: bool | None
    power_limit_w: float | None
    power_least_w: float | None
    power_most_w: float | None
    sm_clocks: tuple[int, ...]  # those that the board has, ascending; () when the driver does not list them
    memory_clocks: tuple[int, ...]
    sm_now: int | None
    memory_now: int | None

    def told(self, item: str) -> Any:
        """The current value of an item that the driver tells; None for a lock."""
        return {PERSISTENCE: self.persistence, POWER: self.power_limit_w}.get(item)

    def above(self, item: str, lock: list[int]) -> bool:
        """Whether the clock runs above a lock now, so that the lock is not in force."""
        clocks, now = (self.sm_clocks, self.sm_now) if item == SM else (self.memory_clocks, self.memory_now)
        # A lock between two clocks of the board may be served by the next one above it.
        return now is not None and now > min((one for one in clocks if one >= lock[1]), default=lock[1])

    @property
    def label(self) -> str:
        return f"GPU {self.index} ({self.name})"


@dataclass(frozen=True)
class Step:
    """One setting to make. ``value`` None lifts a lock; ``news`` is False for a lock that is held and set once more."""

    gpu: Settings
    item: str
    value: Any
    news: bool = True


def parse(text: str) -> list[Settings]:
    """Each GPU in the output of ``nvidia-smi -q -x``. Raises ValueError when it is not one."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"the output of nvidia-smi -q -x is not XML: {error}") from error
    found = []
    for index, node in enumerate(root.iterfind("gpu")):
        power = node.find("gpu_power_readings")
        power = node.find("power_readings") if power is None else power
        mode = (node.findtext("persistence_mode") or "").strip()
        watts = {
            name: next((one for tag in tags if (one := _number(power, tag)) is not None), None)
            for name, tags in _POWER.items()
        }
        found.append(
            Settings(
                index=index,
                uuid=(node.findtext("uuid") or "").strip(),
                name=(node.findtext("product_name") or "").strip(),
                persistence={"Enabled": True, "Disabled": False}.get(mode),
                power_limit_w=watts["limit"],
                power_least_w=watts["least"],
                power_most_w=watts["most"],
                sm_clocks=_clocks(node, "supported_clocks/supported_mem_clock/supported_graphics_clock"),
                memory_clocks=_clocks(node, "supported_clocks/supported_mem_clock/value"),
                sm_now=_whole(_number(node, "clocks/sm_clock")),
                memory_now=_whole(_number(node, "clocks/mem_clock")),
            )
        )
    return found


def _number(node: ElementTree.Element | None, path: str) -> float | None:
    found = _NUMBER.match((node.findtext(path) or "").strip()) if node is not None else None
    return float(found.group(1)) if found else None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _clocks(node: ElementTree.Element, path: str) -> tuple[int, ...]:
    found = {_NUMBER.match((one.text or "").strip()) for one in node.iterfind(path)}
    return tuple(sorted({int(float(one.group(1))) for one in found if one}))


# --- what is wanted ------------------------------------------------------------------------------


def wanted(given: Mapping[str, Any]) -> dict[str, Any]:
    """The declaration in one form: locks as ``[least, most]``, watts as a number with two digits; None left out.

    Raises ValueError for a name or a value that can be of no GPU.
    """
    unknown = sorted(set(given) - set(ITEMS))
    if unknown:
        raise ValueError(f"gpu_clocks has no {', '.join(unknown)}; it has {', '.join(ITEMS)}")
    found: dict[str, Any] = {}
    for item in ITEMS:
        value = given.get(item)
        if value is None:
            continue
        if item == PERSISTENCE:
            if not isinstance(value, bool):
                raise ValueError(f"gpu_clocks.{item} is {value!r}: use true or false")
            found[item] = value
        elif item == POWER:
            watts = _plain_number(value)
            if watts is None or watts <= 0:
                raise ValueError(f"gpu_clocks.{item} is {value!r}: use a number of watts above 0")
            found[item] = round(watts, 2)
        else:
            found[item] = _range(item, value)
    return found


def _plain_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def _range(item: str, value: Any) -> list[int]:
    ends = [_plain_number(one) for one in (value if isinstance(value, (list, tuple)) else [value, value])]
    numbers = [int(one) for one in ends if one is not None and one == int(one) and one >= 0]
    if len(numbers) != 2 or len(ends) != 2 or numbers[0] > numbers[1] or numbers[1] == 0:
        raise ValueError(f"gpu_clocks.{item} is {value!r}: use one clock in MHz, or two, the lower one first")
    return numbers


def problems(gpu: Settings, wishes: Mapping[str, Any]) -> list[str]:
    """Why these wishes cannot be met on a GPU, one sentence each."""
    found = []
    watts = wishes.get(POWER)
    if watts is not None:
        least, most = gpu.power_least_w, gpu.power_most_w
        if least is None or most is None or gpu.power_limit_w is None:
            found.append(f"{gpu.label} has no power limit that can be set: leave power_limit_w out")
        elif not least <= watts <= most:
            found.append(f"power_limit_w is {watts:g}, but {gpu.label} takes {least:g} to {most:g} W")
    for item, clocks in ((SM, gpu.sm_clocks), (MEMORY, gpu.memory_clocks)):
        lock = wishes.get(item)
        if lock is None or not clocks:
            continue
        allowed = f"{clocks[0]} to {clocks[-1]} MHz" if item == SM else f"{', '.join(map(str, clocks))} MHz"
        # 0 as the lower end is the driver's way to say: no lower end.
        fits = all(clocks[0] <= one <= clocks[-1] for one in lock if one or item == MEMORY)
        if not fits or (item == MEMORY and not set(lock) <= set(clocks)):
            asked = lock[0] if lock[0] == lock[1] else lock
            found.append(f"{item} is {asked}, but {gpu.label} has {allowed}")
    stays = wishes.get(PERSISTENCE, gpu.persistence)
    if stays is False and set(wishes) - {PERSISTENCE}:
        names = ", ".join(item for item in ITEMS if item in wishes and item != PERSISTENCE)
        found.append(
            f"{gpu.label} is not in persistence mode: its driver would forget {names} as soon as the last program on "
            "it ends; add persistence: true"
        )
    return found


# --- the steps -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """What we hold of one GPU: the values that we set (``ours``) and what was there before.

    ``known`` is False after a run that was killed: any of its settings, and of those before it, may be what is there.
    """

    ours: Mapping[str, Any]
    before: Mapping[str, Any]
    known: bool = True


NOTHING = Held({}, {})


def plan(gpu: Settings, wishes: Mapping[str, Any], held: Held) -> tuple[list[Step], Held, list[str]]:
    """The steps for one GPU, what we hold after them, and what has to be said.

    All that we hold and that is not wished for any more goes back to what was there before.
    """
    steps, notes = [], []
    ours, before = {}, {}
    for item in ITEMS:
        mine = held.ours.get(item)
        if item in wishes:
            value = wishes[item]
            if item in LOCKS:
                stands = held.known and mine == value and not gpu.above(item, value) and gpu.persistence is not False
                steps.append(Step(gpu, item, value, news=not stands))
            elif gpu.told(item) != value:
                steps.append(Step(gpu, item, value))
            elif mine is None:
                continue  # it is so already, and not by us
            ours[item] = value
            before[item] = held.before.get(item) if mine is not None else gpu.told(item)
        elif mine is not None:
            now, old = gpu.told(item), held.before.get(item)
            if item in LOCKS:
                steps.append(Step(gpu, item, None))
            elif old not in (None, now) and (now == mine or not held.known):
                steps.append(Step(gpu, item, old))
            elif now not in (mine, old):
                notes.append(
                    f"{gpu.label}: the {WORDS[item]} is {show(item, now)}, neither what was set ({show(item, mine)}) "
                    f"nor what was there before ({show(item, old)}): somebody else set it, and it stays"
                )
    return sorted(steps, key=_order), Held(ours, before), notes


def _order(step: Step) -> tuple[int, int]:
    """Persistence mode on, what is lifted, what is set; persistence mode off at the very end."""
    place = ITEMS.index(step.item)
    if step.item == PERSISTENCE:
        return (0 if step.value else 3, place)
    return (1 if step.value is None else 2, place)


# --- words ---------------------------------------------------------------------------------------


def show(item: str, value: Any) -> str:
    """A value of an item, in words."""
    if item in LOCKS:
        if value is None:
            return "not locked by us"
        return f"locked at {value[0]} MHz" if value[0] == value[1] else f"locked to {value[0]}-{value[1]} MHz"
    if value is None:
        return "unknown"
    return ("on" if value else "off") if item == PERSISTENCE else f"{value:g} W"


def line(gpu: Settings, values: Mapping[str, Any]) -> str:
    """One GPU as one line of the diff."""
    told = ", ".join(f"{WORDS[item]} {show(item, values.get(item))}" for item in ITEMS)
    return f"{gpu.label}: {told}"


def sentence(step: Step) -> str:
    """One step in words."""
    what = f"{step.gpu.label}: {WORDS[step.item]}"
    if step.item in LOCKS:
        return f"{what} released" if step.value is None else f"{what} {show(step.item, step.value)}"
    return f"{what} {show(step.item, step.gpu.told(step.item))} -> {show(step.item, step.value)}"
