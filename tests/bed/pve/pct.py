"""Stand-in for Proxmox' pct over real LXC: subcommands, messages and exit codes, as far as a GPU host needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

import ctconf
import guest
import node
from errors import PveError


def parse(words: Iterable[str], flags: Iterable[str] = ()) -> dict[str, str]:
    """``--name value``, ``--name=value`` or, for ``flags``, ``--name``. Raises PveError."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            raise PveError("400 too many arguments", 2)
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            bare = name in flags and (not rest or rest[0].startswith("-"))
            if not bare and not rest:
                raise PveError(f"Option {name} requires an argument\n400 unable to parse option", 2)
            value = "1" if bare else rest.pop(0)
        found[name] = value
    return found


def show(vmid: str, current: bool) -> None:
    config = ctconf.load(vmid)
    for name, value in sorted((config.options if current else config.wanted()).items()):
        print(f"{name}: {ctconf.encoded(value) if name == 'description' else value}")
    for name, value in config.raw:
        print(f"{name}: {value}")


def show_pending(vmid: str) -> None:
    for row in node.pending(vmid):
        if "value" in row:
            print(f"{'del' if row.get('delete') else 'cur'} {row['key']}: {row['value']}")
        if "pending" in row:
            print(f"new {row['key']}: {row['pending']}")


def listing() -> None:
    form = "{:<10} {:<10} {:<12} {:<20}"
    if found := ctconf.ids():
        print(form.format("VMID", "Status", "Lock", "Name"))
    for vmid in found:
        options = ctconf.load(vmid).options
        print(form.format(vmid, node.status(vmid), options.get("lock", ""), options.get("hostname", "")))


def run_inside(vmid: str, words: list[str]) -> None:
    """pct exec and enter: this process becomes the command."""
    ctconf.load(vmid)
    if not guest.running(vmid):
        raise PveError(f"container '{vmid}' not running!")
    while words and words[0] != "--" and words[0].startswith("-"):
        words = words[2:]
    command = words[1:] if words[:1] == ["--"] else words
    line = guest.attach(vmid, command or ["/bin/bash", "-l"])
    os.execvp(line[0], line)


def push(vmid: str, source: str, target: str, options: dict[str, str]) -> int:
    owner = f"{options.get('user', '0')}:{options.get('group', '0')}"
    script = 'umask 077; cat >"$1" && chmod "$2" "$1" && chown "$3" "$1"'
    command = ["sh", "-c", script, "-", target, options.get("perms", "0644"), owner]
    with open(source, "rb") as data:
        return subprocess.run(guest.attach(vmid, command), stdin=data, check=False).returncode


def pull(vmid: str, source: str, target: str) -> int:
    with open(target, "wb") as data:
        return subprocess.run(guest.attach(vmid, ["cat", source]), stdout=data, check=False).returncode


def main(words: list[str]) -> int:
    """Run one subcommand. Raises PveError."""
    if not words:
        raise PveError("ERROR: no command specified")
    verb, vmid, rest = words[0], *(words[1:2] or [""]), words[2:]
    if verb == "list":
        listing()
    elif not vmid:
        raise PveError("400 not enough arguments", 2)
    elif verb == "create":
        node.create(vmid, rest[0] if rest else "", parse(rest[1:], flags=("force", "start", "unique")))
    elif verb == "set":
        node.update(vmid, parse(rest))
    elif verb == "config":
        show(vmid, "current" in parse(rest, flags=("current",)))
    elif verb == "pending":
        show_pending(vmid)
    elif verb == "status":
        print(f"status: {node.status(vmid)}")
    elif verb == "start":
        node.start(vmid)
    elif verb == "stop":
        node.stop(vmid)
    elif verb == "shutdown":
        node.stop(vmid, kill=False, timeout_s=int(parse(rest).get("timeout", "60")))
    elif verb == "reboot":
        node.reboot(vmid)
    elif verb == "destroy":
        flags = parse(rest, flags=("force", "purge", "destroy-unreferenced-disks"))
        node.destroy(vmid, force=flags.get("force", "0") == "1")
    elif verb == "unlock":
        node.unlock(vmid)
    elif verb in ("exec", "enter"):
        run_inside(vmid, rest)
    elif verb == "push":
        return push(vmid, rest[0], rest[1], parse(rest[2:]))
    elif verb == "pull":
        return pull(vmid, rest[0], rest[1])
    else:
        raise PveError(f"ERROR: unknown command 'pct {verb}'")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PveError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)
