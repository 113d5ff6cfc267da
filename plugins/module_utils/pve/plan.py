# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a container as it is to the container as declared: the changes, and why some of them cannot be. Pure.

A configuration is what PVE answers for it: keys (``memory``, ``net0``, ...) and texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from . import note, properties, raw
from .declared import PLAIN, Declared, Values, is_bind, new_size, plain_text, storage_of
from .passthrough import is_nvidia

Config = Mapping[str, str]
MAX_INDEX = {"net": 31, "mp": 255, "dev": 255}


@dataclass
class Plan:
    """What has to be done to a container, in this order: grow, put and delete."""

    put: Values = field(default_factory=dict)
    delete: list[str] = field(default_factory=list)
    grow: Values = field(default_factory=dict)  # rootfs or mpN -> its new size
    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def changes(self) -> bool:
        return bool(self.put or self.delete or self.grow)

    def set(self, key: str, text: str | None) -> None:
        """Put a key, or delete it (None)."""
        if text is None:
            self.delete.append(key)
        else:
            self.put[key] = text


def keys_of(config: Config, prefix: str) -> list[str]:
    """The numbered keys of a kind (net0, net1, ...), by number."""
    found = [key for key in config if re.fullmatch(rf"{prefix}\d+", key)]
    return sorted(found, key=lambda key: int(key[len(prefix) :]))


def parsed(key: str, text: str) -> Values:
    """A property string of PVE's. One that we do not understand (a newer PVE) is equal to nothing, and no error."""
    kind = properties.kind_of(key) or key
    try:
        return properties.read(kind, text)
    except ValueError:
        try:
            return properties.split(kind, text)
        except ValueError:
            return {"": text}


def _essence(key: str, values: Values) -> Values:
    kind = properties.kind_of(key) or key
    known = properties.KINDS[kind]
    return properties.essence(kind, values) if set(values) <= set(known) else values


def make_plan(declared: Declared, config: Config, raw_lines: list[note.RawLine] | None = None) -> Plan:
    """The way from a configuration (what is pending included) to the declared one.

    ``raw_lines``: the raw lines of ours to note in the description; None where they cannot be changed.
    """
    plan = Plan()
    for key, text in sorted(declared.plain.items()):
        _plain(plan, key, text, config)
    for key, values in (("startup", declared.startup), ("features", declared.features)):
        if values is not None and _essence(key, values) != _essence(
            key, parsed(key, config[key]) if key in config else {}
        ):
            plan.set(key, properties.render(key, _essence(key, values)) if _essence(key, values) else None)
    if declared.rootfs is not None:
        _volume(plan, "rootfs", declared.rootfs, config, "rootfs")
    if declared.networks is not None:
        for key, values in _placed(plan, "net", declared.networks, "name", config, lambda _: True).items():
            _network(plan, key, values, config)
    if declared.mounts is not None:
        for key, values in _placed(plan, "mp", declared.mounts, "mp", config, lambda _: True).items():
            if values is None:
                _drop_mount(plan, key, config)
            else:
                _volume(plan, key, values, config, f"mounts: {values['mp']}")
    _devices(plan, declared, config)
    _marks(plan, declared, config, raw_lines)
    _refuse(plan, declared, config)
    return plan


def _plain(plan: Plan, key: str, text: str, config: Config) -> None:
    default = PLAIN[key][1]
    there = plain_text(key, config.get(key, "")) or default
    if (text or default) == there:
        return
    plan.set(key, text or (default if key in ("memory", "swap") else None))


def _placed(
    plan: Plan, prefix: str, wanted: list[Values], identity: str, config: Config, ours: Callable[[Values], bool]
) -> dict[str, Values | None]:
    """A key for each of the wanted: that of the entry with the same identity, else a free one. None: to be deleted."""
    keys = keys_of(config, prefix)
    there = {key: parsed(key, config[key]) for key in keys}
    by_name = {values.get(identity, ""): key for key, values in reversed(there.items()) if ours(values)}
    free = (f"{prefix}{index}" for index in range(MAX_INDEX[prefix] + 1) if f"{prefix}{index}" not in keys)
    placed: dict[str, Values | None] = {}
    for values in wanted:
        key = by_name.get(values[identity]) or next(free, None)
        if key is None:
            plan.refusals.append(f"there is no free {prefix}N for {values[identity]}: all are taken")
        else:
            placed[key] = values
    placed.update({key: None for key in keys if ours(there[key]) and key not in placed})
    return placed


def _network(plan: Plan, key: str, values: Values | None, config: Config) -> None:
    if values is None:
        plan.delete.append(key)
        return
    there = parsed(key, config.get(key, "")) if key in config else {}
    # PVE gives an address out when none is declared; it stays, or the network would be another to everyone else.
    wanted = {**({"hwaddr": there["hwaddr"]} if "hwaddr" in there else {}), **values}
    if _essence(key, wanted) != _essence(key, there):
        plan.put[key] = properties.render("net", wanted)


def _volume(plan: Plan, key: str, values: Values, config: Config, where: str) -> None:
    """A rootfs or mount, which is there, grows, changes its options, is made, or cannot be as declared."""
    kind = properties.kind_of(key) or key
    there = parsed(key, config[key]) if key in config else {}
    old = there.get("volume", "")
    size = new_size(values["volume"])
    wanted = dict(values)
    if old and not is_bind(old):
        if size is not None and storage_of(values["volume"]) == storage_of(old):
            wanted.update(volume=old, size=properties.size_text(size))
        elif values["volume"] != old:
            plan.refusals.append(
                f"{where}: the container has its volume {old} there, and another is declared, which would leave its "
                "data behind: declare that one, or remove the mount first (PVE keeps its volume as unusedN)"
            )
            return
        if not _resize(plan, key, wanted, there, where):
            return
    elif size is not None and kind == "mp" and there:
        plan.warnings.append(f"{where}: {old} was mounted there, and a new volume takes its place")
    if _essence(key, wanted) != _essence(key, there):
        plan.put[key] = properties.render(kind, wanted)


def _resize(plan: Plan, key: str, wanted: Values, there: Values, where: str) -> bool:
    """Grow a volume where it has to; ``wanted`` keeps the size that it has, as only a resize changes it."""
    if "size" not in there:
        wanted.pop("size", None)
        return True
    asked = wanted.get("size", there["size"])
    wanted["size"] = there["size"]
    if properties.size_bytes(asked) < properties.size_bytes(there["size"]):
        plan.refusals.append(f"{where}: the volume has {there['size']} and cannot shrink to {asked}: declare its size")
        return False
    if properties.size_bytes(asked) > properties.size_bytes(there["size"]):
        plan.grow[key] = asked
    return True


def _drop_mount(plan: Plan, key: str, config: Config) -> None:
    there = parsed(key, config[key])
    plan.delete.append(key)
    if there.get("volume") and not is_bind(there["volume"]):
        plan.warnings.append(f"{key}: the volume {there['volume']} is kept, as unusedN of the container")


def _devices(plan: Plan, declared: Declared, config: Config) -> None:
    """devN: NVIDIA's belong to gpus, the others to devices. Without gpus, devices may name NVIDIA's, too."""
    named = {one["path"] for one in declared.devices or []}
    wanted: list[Values] = []
    groups = []
    if declared.gpus is not None:
        wanted += declared.gpus
        groups.append(is_nvidia)
    if declared.devices is not None:
        wanted += declared.devices
        groups.append(lambda path: not is_nvidia(path) or path in named)

    def ours(values: Values) -> bool:
        return any(group(values.get("path", "")) for group in groups)

    for key, values in _placed(plan, "dev", wanted, "path", config, ours).items():
        if values is None:
            plan.delete.append(key)
        elif key not in config or _essence(key, values) != _essence(key, parsed(key, config[key])):
            plan.put[key] = properties.render("dev", values)


def _marks(plan: Plan, declared: Declared, config: Config, raw_lines: list[note.RawLine] | None) -> None:
    """Our tag and our block in the description."""
    there = note.tags(config.get("tags"))
    wanted = sorted({*(there if declared.tags is None else declared.tags), note.TAG})
    if wanted != there:
        plan.put["tags"] = ";".join(wanted)
    description = config.get("description", "")
    lines = raw.noted(description) if raw_lines is None else raw_lines
    text = note.write(description, declared.description, lines)
    if text.rstrip("\n") != description.rstrip("\n"):
        plan.put["description"] = text


def _refuse(plan: Plan, declared: Declared, config: Config) -> None:
    """What PVE would refuse, in the words of the declaration."""
    if declared.unprivileged is not None and declared.unprivileged != (config.get("unprivileged", "0") == "1"):
        now, then = ("unprivileged", "privileged") if not declared.unprivileged else ("privileged", "unprivileged")
        plan.refusals.append(
            f"unprivileged: the container is {now} and cannot become {then}: declare it as it is, or destroy it "
            "(state: absent) and create it anew (its files belong to other users then; a backup and restore maps them)"
        )
    if not plan.changes:
        return
    if config.get("lock"):
        plan.refusals.append(
            f"the container is locked ({config['lock']}): wait until that job ends; where none runs any more, "
            "pct unlock on the node removes the lock"
        )
    disks = sorted(key for key in (*plan.put, *plan.delete) if key == "rootfs" or key.startswith("mp"))
    if disks and config.get("protection") == "1":
        plan.refusals.append(
            f"protection is on, and with it PVE changes no disk ({', '.join(disks)}): declare protection: false first"
        )


def root_only(changed: Config, deleted: list[str], config: Config, unprivileged: bool) -> list[str]:
    """The keys of a change that PVE allows to nobody but root@pam with its password (or root on the node).

    ``config``: the container as it is, {} for one to be created.
    """
    found = []
    for key in (*changed, *deleted):
        kind = properties.kind_of(key)
        if kind == "dev" or (kind == "mp" and key in changed and is_bind(parsed(key, changed[key]).get("volume", ""))):
            found.append(key)
        elif kind == "features":
            before, after = (parsed(key, of[key]) if key in of else {} for of in (config, changed))
            differ = {name for name in {*before, *after} if before.get(name) != after.get(name)}
            if not unprivileged or differ - {"nesting"}:
                found.append(key)
    return found


def create_parameters(declared: Declared) -> Values:
    """The keys of a new container. Raises ValueError when something is missing that PVE cannot choose."""
    if declared.rootfs is None or new_size(declared.rootfs["volume"]) is None:
        raise ValueError("rootfs: a new container needs storage and size, like {storage: local-lvm, size: 64G}")
    plan = make_plan(
        Declared(**{**declared.__dict__, "rootfs": None, "unprivileged": None}),
        {},
        raw.wanted(declared.memlock, declared.shm_size),
    )
    parameters = dict(plan.put)
    parameters["rootfs"] = properties.render("rootfs", declared.rootfs)
    parameters["unprivileged"] = "0" if declared.unprivileged is False else "1"
    return parameters


def after(config: Config, plan: Plan) -> Values:
    """The configuration once the plan was carried out, for a diff."""
    grown = {
        key: properties.render(properties.kind_of(key) or key, {**parsed(key, config[key]), "size": size})
        for key, size in plan.grow.items()
    }
    kept = {key: text for key, text in config.items() if key not in plan.delete}
    return {**kept, **grown, **plan.put}
