# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Property strings of Proxmox VE ("name=eth0,bridge=vmbr0"): read, write and compare them. Pure.

A property string is a dictionary on one line: ``key=value`` pairs separated by commas, of which one key (the default
key) may stand without its name. Values are kept in one spelling each, so that two strings are equal when they say the
same: in any order, with ``yes`` or ``1``, with a default written out or left away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

TRUE = ("1", "on", "yes", "true")
FALSE = ("0", "off", "no", "false")
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_SIZE = re.compile(r"(\d+)(?:\.(\d+))?([KMGT]?)", re.IGNORECASE | re.ASCII)
_DEVICE = re.compile(r"/dev(?!.*/\.{1,2}(?:/|$))/.+", re.DOTALL)

Option = Union[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Property:
    """What one key may hold. ``default`` is what PVE takes without it (in our spelling), "" where there is none."""

    kind: str = "text"  # bool, int, number, size, set (of words with ; between), mac, device, folder, text
    default: str = ""
    pattern: str = ""
    low: int = 0
    high: int | None = None
    required: bool = False


_FLAG = Property("bool", "0")
_WORD = Property(pattern=r"[-_.A-Za-z0-9]+")
_VOLUME = {
    "volume": Property("folder", required=True),  # or storage:name
    "acl": Property("bool"),  # unset, it is inherited
    "idmap": Property(pattern=r"passthrough|[ug]:\d+:\d+:[1-9]\d*(?:;[ug]:\d+:\d+:[1-9]\d*)*"),
    "mountoptions": Property("set", pattern=r"discard|lazytime|noatime|nodev|noexec|nosuid"),
    "quota": _FLAG,
    "replicate": Property("bool", "1"),
    "ro": _FLAG,
    "shared": _FLAG,
    "size": Property("size"),
}

KINDS: dict[str, dict[str, Property]] = {
    "net": {
        "name": Property(pattern=_WORD.pattern, required=True),
        "bridge": _WORD,
        "firewall": _FLAG,
        "gw": Property(),
        "gw6": Property(),
        "host-managed": _FLAG,
        "hwaddr": Property("mac"),
        "ip": Property(),
        "ip6": Property(),
        "link_down": _FLAG,
        "mtu": Property("int", low=64, high=65535),
        "rate": Property("number"),
        "tag": Property("int", low=1, high=4094),
        "trunks": Property("set", pattern=r"\d+"),
        "type": Property(default="veth", pattern="veth"),
    },
    "mp": {**_VOLUME, "mp": Property("folder", required=True), "backup": _FLAG, "keepattrs": _FLAG},
    "rootfs": _VOLUME,
    "dev": {
        "path": Property("device", required=True),
        "deny-write": _FLAG,
        "gid": Property("int", "0"),
        "mode": Property(default="0660", pattern=r"0[0-7]{3}"),
        "uid": Property("int", "0"),
    },
    "features": {
        "force_rw_sys": _FLAG,
        "fuse": _FLAG,
        "keyctl": _FLAG,
        "mknod": _FLAG,
        "mount": Property("set", pattern=r"[a-zA-Z0-9_ ]+"),
        "nesting": _FLAG,
    },
    "startup": {"order": Property("int"), "up": Property("int"), "down": Property("int")},
}
_DEFAULT_KEYS = {"mp": "volume", "rootfs": "volume", "dev": "path", "startup": "order"}


def kind_of(key: str) -> str | None:
    """The kind of a key of a container's configuration ("net0" -> "net"); None for a plain value."""
    name = key.rstrip("0123456789")
    return name if name in KINDS and (name == key) == (name in ("rootfs", "features", "startup")) else None


def boolean(text: Any) -> str:
    """ "1" or "0", from any spelling that PVE takes. Raises ValueError."""
    word = str(text).strip().lower()
    if word in TRUE:
        return "1"
    if word in FALSE:
        return "0"
    raise ValueError(f"{text!r} is neither yes nor no")


def size_bytes(text: Any) -> int:
    """Bytes in a size as PVE writes it (64G, 512M, 1.5T; a bare number is bytes). Raises ValueError."""
    found = _SIZE.fullmatch(str(text).strip())
    if not found:
        raise ValueError(f"{text!r} is no size: write it like 64G or 512M")
    factor = _UNITS[found.group(3).upper()]
    whole, part = int(found.group(1)), found.group(2) or ""
    # In whole numbers: a terabyte with three decimals is beyond what a float keeps exactly.
    return whole * factor + (int(part) * factor // 10 ** len(part) if part else 0)


def size_text(size: int) -> str:
    """A number of bytes as PVE writes it: in the largest unit that divides it."""
    for unit in "TGMK":
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


def _whole(text: str, rule: Property) -> str:
    if not re.fullmatch(r"\d+", text, re.ASCII):
        raise ValueError(f"{text!r} is no whole number")
    number = int(text)
    if number < rule.low or (rule.high is not None and number > rule.high):
        raise ValueError(f"{number} is not between {rule.low} and {rule.high}")
    return str(number)


def _words(text: str, rule: Property) -> str:
    words = {word.strip() for word in text.split(";")} - {""}
    wrong = sorted(word for word in words if not re.fullmatch(rule.pattern, word, re.ASCII))
    if wrong or not words:
        raise ValueError(f"{'; '.join(wrong) or repr(text)} is not of the form {rule.pattern}")
    return ";".join(sorted(words, key=lambda word: (len(word), word) if word.isdigit() else (0, word)))


def _spelled(rule: Property, value: Any) -> str:
    """A value in our one spelling. Raises ValueError."""
    if rule.kind == "bool":
        return boolean(value)
    text = ";".join(str(one) for one in value) if isinstance(value, (list, tuple)) else str(value).strip()
    if not text or "," in text or not text.isprintable():
        raise ValueError(f"{text!r} is empty or has a comma or a control character")
    if rule.kind == "int":
        return _whole(text, rule)
    if rule.kind == "number":
        if not re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
            raise ValueError(f"{text!r} is no number")
        return f"{float(text):.15g}"
    if rule.kind == "size":
        return size_text(size_bytes(text))
    if rule.kind == "set":
        return _words(text, rule)
    if rule.kind == "mac":
        if not re.fullmatch(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}", text):
            raise ValueError(f"{text!r} is no MAC address")
        return text.upper()
    if rule.kind == "folder":
        return text.rstrip("/") or "/"
    if rule.kind == "device" and not _DEVICE.fullmatch(text):
        raise ValueError(f"{text!r} is no device: the path has to start with /dev/, without . and .. in it")
    if rule.pattern and not re.fullmatch(rule.pattern, text, re.ASCII):
        raise ValueError(f"{text!r} is not of the form {rule.pattern}")
    return text


def split(kind: str, text: str) -> dict[str, str]:
    """The pairs of a property string as they are written. Raises ValueError for what is no property string."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals:
            key, value = _DEFAULT_KEYS.get(kind, ""), key
        if not key or not value:
            raise ValueError(f"{part!r} is no key=value" if part else "there is nothing between two commas")
        if key in found:
            raise ValueError(f"{key} is there twice")
        found[key] = value
    return found


def read(kind: str, option: Option, where: str = "") -> dict[str, str]:
    """A property string, or the same as a dictionary (``_`` may stand for ``-`` in keys), in our spelling.

    ``where``: name of it for messages. Raises ValueError: unknown or missing keys, values of another type.
    """
    where = where or kind
    known = KINDS[kind]
    try:
        pairs: Mapping[str, Any] = split(kind, option) if isinstance(option, str) else option
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    found = {}
    for name, value in pairs.items():
        key = name if name in known else str(name).replace("_", "-")
        if key not in known:
            raise ValueError(f"{where}: there is no {name}; known: {', '.join(sorted(known))}")
        if value is None:
            continue  # an option that was left away
        try:
            found[key] = _spelled(known[key], value)
        except ValueError as error:
            raise ValueError(f"{where}: {name}: {error}") from error
    missing = [key for key, rule in known.items() if rule.required and key not in found]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} is missing")
    return found


def render(kind: str, values: Mapping[str, str]) -> str:
    """The property string of values that :func:`read` gave: the default key first, then by name."""
    first = _DEFAULT_KEYS.get(kind)
    parts = [f"{key}={values[key]}" for key in sorted(values) if key != first]
    if first and first in values:
        bare = values[first]  # what has an = in it would be taken for a pair
        parts.insert(0, f"{first}={bare}" if "=" in bare else bare)
    return ",".join(parts)


def essence(kind: str, values: Mapping[str, str]) -> dict[str, str]:
    """The values without those that say what PVE takes anyway."""
    known = KINDS[kind]
    return {key: value for key, value in values.items() if not known[key].default or value != known[key].default}


def same(kind: str, one: Option, other: Option) -> bool:
    """Whether two property strings say the same. Raises ValueError."""
    return essence(kind, read(kind, one)) == essence(kind, read(kind, other))
