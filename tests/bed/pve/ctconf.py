"""The file of a container, /etc/pve/lxc/ID.conf, in Proxmox' format: options, raw lxc lines, pending changes."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from errors import PveError

FOLDER = "/etc/pve/lxc"
NODE = "pve1"
# What Proxmox leaves as it is in a description, which stands in comment lines: printable ASCII but the colon.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != ":")


@dataclass
class Config:
    """A container's configuration; ``pending`` and ``delete`` wait for its next start."""

    options: dict[str, str] = field(default_factory=dict)
    raw: list[tuple[str, str]] = field(default_factory=list)
    pending: dict[str, str] = field(default_factory=dict)
    delete: list[str] = field(default_factory=list)

    def wanted(self) -> dict[str, str]:
        """The options after the next start."""
        kept = {name: value for name, value in self.options.items() if name not in self.delete}
        return {**kept, **self.pending}

    def apply_pending(self) -> None:
        """Let what waited for a start come into force."""
        self.options, self.pending, self.delete = self.wanted(), {}, []


def encoded(text: str) -> str:
    """A description as Proxmox writes and prints it."""
    return quote(text, safe=_PLAIN)


def path(vmid: str) -> str:
    return f"{FOLDER}/{vmid}.conf"


def ids() -> list[str]:
    """All containers, by number."""
    return sorted((name[:-5] for name in os.listdir(FOLDER) if re.fullmatch(r"\d+\.conf", name)), key=int)


def load(vmid: str) -> Config:
    """Read a container's file. Raises PveError when there is none; lines that nobody understands are warned of."""
    try:
        with open(path(vmid), encoding="utf-8") as source:
            lines = source.read().splitlines()
    except FileNotFoundError:
        raise PveError(f"Configuration file 'nodes/{NODE}/lxc/{vmid}.conf' does not exist", 2) from None
    found, section = Config(), ""
    description: list[str] = []
    for line in lines:
        if header := re.fullmatch(r"\[([^]]+)\]\s*", line):
            section = header[1]
        elif section not in ("", "pve:pending"):
            continue  # a snapshot's
        elif line.startswith("#"):
            description.append(unquote(line[1:]))
        elif raw := re.fullmatch(r"(lxc\.[a-z0-9_.-]+)(?::|\s*=)\s*(.*?)\s*", line):
            found.raw.append((raw[1], raw[2]))
        elif option := re.fullmatch(r"([a-z][a-z_-]*\d*):\s*(.+?)\s*", line):
            name, value = option[1], option[2]
            if section and name == "delete":
                found.delete = re.split(r"[,; ]+", value)
            else:
                (found.pending if section else found.options)[name] = unquote(value) if name == "description" else value
        elif line.strip():
            print(f"vm {vmid} - unable to parse config: {line.strip()}", file=sys.stderr)
    if description:
        found.options["description"] = "\n".join(description) + "\n"
    return found


def save(vmid: str, config: Config) -> None:
    """Write a container's file, whole or not at all."""
    described = config.options.get("description", "")
    lines = [f"#{encoded(line)}" for line in described.splitlines()]
    lines += [f"{name}: {value}" for name, value in sorted(config.options.items()) if name != "description"]
    lines += [f"{name}: {value}" for name, value in config.raw]
    if config.pending or config.delete:
        lines += ["", "[pve:pending]"]
        if config.delete:
            lines.append(f"delete: {','.join(sorted(config.delete))}")
        for name, value in sorted(config.pending.items()):
            lines.append(f"{name}: {encoded(value) if name == 'description' else value}")
    new = f"{path(vmid)}.new"
    with open(new, "w", encoding="utf-8") as target:
        target.write("".join(f"{line}\n" for line in lines))
    os.rename(new, path(vmid))
