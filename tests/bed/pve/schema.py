"""The part of Proxmox' schema that the stand-in knows: names of options, and the property strings among them."""

from __future__ import annotations

import os
import re
import stat

from errors import PveError, bad_parameter

_BOOL = r"[01]|yes|no|on|off|true|false"
_SIZE = r"\d+(\.\d+)?[KMGT]?"
_PLAIN = {
    *("arch", "cmode", "console", "cores", "cpulimit", "cpuunits", "description", "hookscript", "hostname", "lock"),
    *("memory", "nameserver", "onboot", "ostype", "protection", "searchdomain", "startup", "swap", "tags", "timezone"),
    *("tty", "unprivileged"),
}
# Option -> (the key of a value without one, the keys with their patterns).
_PROPERTIES: dict[str, tuple[str, dict[str, str]]] = {
    "dev": ("path", {"path": r"/dev/.+", "mode": r"0[0-7]{3}", "uid": r"\d+", "gid": r"\d+", "deny-write": _BOOL}),
    "mp": (
        "volume",
        {
            **{"volume": r".+", "mp": r"/.+", "size": _SIZE, "mountoptions": r"[a-z;]+"},
            **dict.fromkeys(("acl", "backup", "keepattrs", "quota", "replicate", "ro", "shared"), _BOOL),
        },
    ),
    "rootfs": (
        "volume",
        {
            **{"volume": r".+", "size": _SIZE, "mountoptions": r"[a-z;]+"},
            **dict.fromkeys(("acl", "quota", "replicate", "ro", "shared"), _BOOL),
        },
    ),
    "net": (
        "",
        {
            **{"name": r"[-\w]+", "bridge": r"[-\w.]+", "hwaddr": r"(?i:[0-9a-f]{2}(:[0-9a-f]{2}){5})"},
            **{"ip": r"manual|dhcp|[\d.]+/\d+", "gw": r"[\d.]+", "ip6": r"manual|auto|dhcp|[0-9a-f:]+/\d+"},
            **{"gw6": r"[0-9a-f:]+", "mtu": r"\d+", "rate": r"\d+(\.\d+)?", "tag": r"\d+", "trunks": r"[\d;]+"},
            **{"type": "veth", "firewall": _BOOL, "link_down": _BOOL, "host-managed": _BOOL},
        },
    ),
    "features": (
        "",
        {
            **dict.fromkeys(("force_rw_sys", "fuse", "keyctl", "mknod", "nesting"), _BOOL),
            "mount": r"[a-z0-9_;]+",
        },
    ),
}


def kind(name: str) -> str:
    """ "plain", the kind of a property string (``dev``, ``mp``...), or "" for a name that the schema does not have."""
    if name in _PLAIN:
        return "plain"
    if name in ("rootfs", "features"):
        return name
    numbered = re.fullmatch(r"(dev|mp|net|unused)(\d{1,3})", name)
    if not numbered or int(numbered[2]) > 255:
        return ""
    return "plain" if numbered[1] == "unused" else numbered[1]


def properties(name: str, text: str) -> dict[str, str]:
    """The parts of a property string. Raises PveError with Proxmox' message for what the schema does not allow."""
    default, known = _PROPERTIES[kind(name)]
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            if not default:
                raise bad_parameter(
                    name, "invalid format - value without key, but schema does not define a default key"
                )
            key, value = default, part
        where = f"{name}.{key}"
        if key not in known:
            raise bad_parameter(
                name,
                f"invalid format - format error\n{where}: property is not defined in schema and the schema does not "
                "allow additional properties",
            )
        if key == "path" and (not value.startswith("/dev/") or re.search(r"/\.\.?(/|$)", value)):
            raise bad_parameter(
                name, f"invalid format - format error\n{where}: invalid format - {value} is not a valid device path\n"
            )
        if not re.fullmatch(known[key], value):
            raise bad_parameter(name, f"invalid format - format error\n{where}: value does not match the regex pattern")
        found[key] = value
    return found


def device(path: str) -> os.stat_result:
    """A node of this node that may be passed through. Raises PveError."""
    try:
        found = os.stat(path)
    except OSError:
        raise PveError(f"Device {path} does not exist", 2) from None
    if not (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)):
        raise PveError(f"{path} is not a device", 2)
    return found


def check(name: str, value: str) -> None:
    """Refuse an option that Proxmox refuses. Raises PveError."""
    of = kind(name)
    if not of:
        raise PveError(f"Unknown option: {name}\n400 unable to parse option", 2)
    if of != "plain":
        parts = properties(name, value)
        if of == "dev":
            device(parts["path"])
        needed = {"mp": "mp", "net": "name"}.get(of)
        if needed and needed not in parts:
            where = f"{name}.{needed}"
            raise bad_parameter(
                name, f"invalid format - format error\n{where}: property is missing and it is not optional"
            )
    elif name in ("cores", "memory", "swap") and not value.isdigit():
        raise bad_parameter(name, f"type check ('integer') failed - got '{value}'")


def truth(value: str) -> bool:
    return value in ("1", "yes", "on", "true")
