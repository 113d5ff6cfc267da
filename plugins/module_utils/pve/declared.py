# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A container as it is declared: the options of the module, checked and in the words of PVE's configuration. Pure.

An option that was left away (None) says nothing: what the container has stays. An empty one says that there is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import note, properties, raw

Values = dict[str, str]

# Keys of one value: how it is written, and what PVE takes where the key is not set ("": no one value).
PLAIN: dict[str, tuple[str, str]] = {
    "cmode": ("text", "tty"),
    "console": ("bool", "1"),
    "cores": ("int", ""),
    "cpulimit": ("number", "0"),
    "cpuunits": ("int", ""),
    "hostname": ("text", ""),
    "memory": ("int", "512"),
    "nameserver": ("text", ""),
    "onboot": ("bool", "0"),
    "protection": ("bool", "0"),
    "searchdomain": ("text", ""),
    "swap": ("int", "512"),
    "timezone": ("text", ""),
    "tty": ("int", "2"),
}
_NEW_VOLUME = re.compile(r"([A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]):(\d+(?:\.\d+)?)")
_VOLUME_ID = re.compile(r"([A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]):(.+)")
_HOSTNAME = re.compile(r"(?=.{1,255}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9-]{1,63})*")


@dataclass(frozen=True)
class Declared:
    """What a container should be. ``None`` anywhere: not declared."""

    plain: Values = field(default_factory=dict)  # key -> text; "" for a key that should not be set
    startup: Values | None = None
    features: Values | None = None
    rootfs: Values | None = None
    networks: list[Values] | None = None
    mounts: list[Values] | None = None
    devices: list[Values] | None = None  # without NVIDIA's
    gpus: list[Values] | None = None  # NVIDIA's
    unprivileged: bool | None = None
    tags: list[str] | None = None
    description: str | None = None
    memlock: str | None = None
    shm_size: str | None = None


def storage_of(volume: str) -> str:
    """The storage of a volume, new (``storage:GiB``) or there (``storage:name``); "" for a path of the node."""
    found = _VOLUME_ID.fullmatch(volume)
    return found.group(1) if found else ""


def new_size(volume: str) -> int | None:
    """Bytes of a volume that is to be made (``storage:GiB``); None for any other."""
    found = _NEW_VOLUME.fullmatch(volume)
    return properties.size_bytes(found.group(2) + "G") if found else None


def is_bind(volume: str) -> bool:
    """Whether a mount is a folder or device of the node, which PVE lets only root set."""
    return volume.startswith("/")


def plain_text(key: str, value: Any) -> str:
    """A plain value as PVE writes it. Raises ValueError."""
    kind, default = PLAIN[key]
    text = str(value).strip()
    if not text:
        return ""
    if not text.isprintable():
        raise ValueError(f"{key}: {text!r} has a line break or another control character")
    if kind == "bool":
        return properties.boolean(value)
    if kind in ("int", "number"):
        if not re.fullmatch(r"\d+" if kind == "int" else r"\d+(\.\d+)?", text, re.ASCII):
            raise ValueError(f"{key}: {value!r} is no {'whole ' if kind == 'int' else ''}number")
        text = f"{float(text):.15g}"
        # 0 cores is how one says "all of them", which PVE says by leaving the key away.
        return "" if text == "0" and not default and key in ("cores", "cpuunits") else text
    return text


def _mount(option: Any, where: str) -> Values:
    """A mount: a property string, its dictionary, or just a path, the same on the node and in the container."""
    if isinstance(option, str) and option.startswith("/") and "," not in option:
        option = {"volume": option, "mp": option}
    values = _volume("mp", option, where)
    if not values["mp"].startswith("/"):
        raise ValueError(f"{where}: mp: {values['mp']!r} is no absolute path in the container")
    return values


def _volume(kind: str, option: Any, where: str) -> Values:
    """A rootfs or mount, which may also name ``storage`` and ``size`` in place of a volume."""
    if isinstance(option, Mapping) and option.get("storage"):
        given = dict(option)
        storage, size = given.pop("storage"), given.pop("size", None)
        if given.get("volume") or not size:
            raise ValueError(f"{where}: give storage with size (like 64G), or a volume")
        try:
            gib = properties.size_bytes(size) / 2**30
        except ValueError as error:
            raise ValueError(f"{where}: size: {error}") from error
        option = {**given, "volume": f"{storage}:{gib:.15g}"}
    values = properties.read(kind, option, where)
    if new_size(values["volume"]) is not None:
        values.pop("size", None)  # the volume says it
    return values


def _unique(entries: list[Values], key: str, option: str) -> list[Values]:
    seen = [one[key] for one in entries]
    twice = sorted({one for one in seen if seen.count(one) > 1})
    if twice:
        raise ValueError(f"{option}: {key} {', '.join(twice)} is there twice")
    return entries


def _list(given: Any, read: Any, key: str, option: str) -> list[Values] | None:
    if given is None:
        return None
    return _unique([read(one, f"{option}[{index}]") for index, one in enumerate(given)], key, option)


def _device(option: Any, where: str) -> Values:
    return properties.read("dev", {"path": option} if isinstance(option, str) and "," not in option else option, where)


def declare(options: Mapping[str, Any], gpus: list[Values] | None = None) -> Declared:
    """The declaration in the module's options. ``gpus``: the devices that its option gpus was resolved to.

    Raises ValueError that tells all that is wrong with the options.
    """
    wrong: list[str] = []

    def attempt(make: Any, *arguments: Any) -> Any:
        try:
            return make(*arguments)
        except ValueError as error:
            wrong.append(str(error))
            return None

    plain = {key: attempt(plain_text, key, options[key]) for key in PLAIN if options.get(key) is not None}
    name = plain.get("hostname") or ""
    if name and not _HOSTNAME.fullmatch(name):
        wrong.append(f"hostname: {name!r} is no name of a host (letters, digits, - and . between labels)")
    devices = attempt(_list, options.get("devices"), _device, "path", "devices")
    ours = [one["path"] for one in devices or [] if one["path"].startswith("/dev/nvidia")]
    if ours and options.get("gpus") is not None:
        wrong.append(
            f"devices: {', '.join(ours)}: NVIDIA's are for the option gpus; name them there or leave gpus away"
        )
    attempt(raw.wanted, options.get("memlock"), options.get("shm_size"))
    declared = Declared(
        plain=plain,
        startup=attempt(_pairs, "startup", options.get("startup")),
        features=attempt(_pairs, "features", options.get("features")),
        rootfs=attempt(_volume, "rootfs", options["rootfs"], "rootfs") if options.get("rootfs") else None,
        networks=attempt(
            _list, options.get("networks"), lambda one, where: properties.read("net", one, where), "name", "networks"
        ),
        mounts=attempt(_list, options.get("mounts"), _mount, "mp", "mounts"),
        devices=devices,
        gpus=gpus,
        unprivileged=options.get("unprivileged"),
        tags=None if options.get("tags") is None else note.tags(";".join(str(one) for one in options["tags"])),
        description=options.get("description"),
        memlock=options.get("memlock"),
        shm_size=options.get("shm_size"),
    )
    if wrong:
        raise ValueError("; ".join(wrong))
    return declared


def _pairs(kind: str, option: Any) -> Values | None:
    """An option that is one property string; an empty one is an empty dictionary."""
    if option is None:
        return None
    return properties.read(kind, option) if option else {}
