"""What one can ask of the stand-in node: make, change, start, stop and destroy containers. pct and pvesh end here."""

from __future__ import annotations

import os
import re
import shutil
import sys

import ctconf
import guest
import schema
from errors import PveError, bad_parameter

TEMPLATES = "/var/lib/vz/template/cache"
# What a running container takes at once, of what the stand-in knows. The rest, devices among it, waits for a start.
_AT_ONCE = {
    *("cores", "cpulimit", "cpuunits", "description", "hookscript", "lock", "memory", "onboot", "protection"),
    *("startup", "swap", "tags"),
}
_DEFAULTS = {"arch": "amd64", "memory": "512", "swap": "512", "ostype": "debian"}


def _refuse_locked(vmid: str, config: ctconf.Config) -> None:
    if "lock" in config.options:
        raise PveError(f"CT is locked ({config.options['lock']})")


def _volumes(vmid: str, options: dict[str, str]) -> None:
    """``local:8`` (make one of 8 GiB) -> the volume that was made for it."""
    taken = len([value for value in options.values() if f"{vmid}/vm-{vmid}-disk-" in value])
    for name, value in sorted(options.items(), reverse=True):  # rootfs before mp
        if schema.kind(name) in ("rootfs", "mp"):
            asked = re.match(r"(?:volume=)?([\w-]+):(\d+)(?=,|$)", value)
            if asked:
                made = f"{asked[1]}:{vmid}/vm-{vmid}-disk-{taken}.raw"
                options[name] = f"{made}{value[asked.end() :]},size={asked[2]}G"
                taken += 1


def create(vmid: str, template: str, options: dict[str, str]) -> None:
    """Make a container from a template. Raises PveError; nothing is left of one that could not be made."""
    if not re.fullmatch(r"[1-9]\d{2,8}", vmid):
        raise bad_parameter("vmid", "invalid format - value does not look like a valid VM ID")
    if os.path.exists(ctconf.path(vmid)):
        raise PveError(f"CT {vmid} already exists on node '{ctconf.NODE}'")
    wanted = dict(options)
    start_now = schema.truth(wanted.pop("start", "0"))
    key_file = wanted.pop("ssh-public-keys", "")
    storage = wanted.pop("storage", "local")
    for ignored in ("password", "force", "unique", "restore"):
        wanted.pop(ignored, None)
    wanted = {**_DEFAULTS, "hostname": f"CT{vmid}", "rootfs": f"{storage}:4", **wanted}
    for name, value in wanted.items():
        schema.check(name, value)
    archive = re.sub(r"^local:vztmpl/", f"{TEMPLATES}/", template)
    if not os.path.isfile(archive):
        raise PveError(f"volume '{template}' does not exist")
    _volumes(vmid, wanted)
    try:
        guest.unpack(vmid, archive, key_file)
    except BaseException:
        shutil.rmtree(guest.folder(vmid), ignore_errors=True)
        raise
    ctconf.save(vmid, ctconf.Config(wanted))
    if start_now:
        start(vmid)


def update(vmid: str, options: dict[str, str]) -> None:
    """Set and delete options; on a running container some of them wait for its next start. Raises PveError."""
    config = ctconf.load(vmid)
    wanted = dict(options)
    wanted.pop("digest", None)
    delete = [name for name in re.split(r"[,; ]+", wanted.pop("delete", "")) if name]
    revert = [name for name in re.split(r"[,; ]+", wanted.pop("revert", "")) if name]
    _refuse_locked(vmid, config)
    for name in [*delete, *revert]:
        if not schema.kind(name):
            raise bad_parameter("delete", f"unknown option '{name}'")
    if "unprivileged" in {*wanted, *delete}:
        raise bad_parameter("unprivileged", "unable to modify read-only option: 'unprivileged'")
    for name, value in wanted.items():
        schema.check(name, value)
    _volumes(vmid, wanted)
    for name in revert:
        config.pending.pop(name, None)
        config.delete = [one for one in config.delete if one != name]
    for name in delete:
        config.pending.pop(name, None)
        if name not in config.options:
            print(f"cannot delete '{name}' - not set in current configuration!", file=sys.stderr)
        elif name not in config.delete:
            config.delete.append(name)
    for name, value in wanted.items():
        config.delete = [one for one in config.delete if one != name]
        config.pending.pop(name, None)
        if config.options.get(name) != value:
            config.pending[name] = value
    if not guest.running(vmid):
        config.apply_pending()
    for name in [one for one in config.pending if one in _AT_ONCE]:
        config.options[name] = config.pending.pop(name)
    for name in [one for one in config.delete if one in _AT_ONCE]:
        config.options.pop(name, None)
        config.delete.remove(name)
    ctconf.save(vmid, config)


def start(vmid: str) -> None:
    """Start a container with all that waited for it. Raises PveError."""
    config = ctconf.load(vmid)
    _refuse_locked(vmid, config)
    if guest.running(vmid):
        raise PveError(f"CT {vmid} already running")
    config.apply_pending()
    ctconf.save(vmid, config)
    guest.start(vmid, config)


def stop(vmid: str, kill: bool = True, timeout_s: int = 60) -> None:
    """Stop a container: at once, or by its own shutdown. Raises PveError."""
    _refuse_locked(vmid, ctconf.load(vmid))
    if not guest.running(vmid):
        raise PveError(f"CT {vmid} not running")
    guest.stop(vmid, kill, timeout_s)


def reboot(vmid: str) -> None:
    """Shut a container down and start it with what waited for that. Raises PveError."""
    stop(vmid, kill=False)
    start(vmid)


def destroy(vmid: str, force: bool = False) -> None:
    """Remove a stopped (or, with ``force``, any) container. Raises PveError."""
    config = ctconf.load(vmid)
    _refuse_locked(vmid, config)
    if schema.truth(config.options.get("protection", "0")):
        raise PveError(f"can't remove CT {vmid} - protection mode enabled")
    if guest.running(vmid):
        if not force:
            raise PveError(f"unable to destroy CT {vmid} - container is running")
        guest.stop(vmid, kill=True)
    shutil.rmtree(guest.folder(vmid))
    os.unlink(ctconf.path(vmid))


def unlock(vmid: str) -> None:
    """Remove a lock. Raises PveError."""
    config = ctconf.load(vmid)
    config.options.pop("lock", None)
    ctconf.save(vmid, config)


def status(vmid: str) -> str:
    ctconf.load(vmid)
    return "running" if guest.running(vmid) else "stopped"


def pending(vmid: str) -> list[dict[str, object]]:
    """Each option with its value now, and what waits for the next start."""
    config = ctconf.load(vmid)
    rows: list[dict[str, object]] = []
    for name in sorted({*config.options, *config.pending}):
        row: dict[str, object] = {"key": name}
        if name in config.options:
            row["value"] = config.options[name]
        if name in config.pending:
            row["pending"] = config.pending[name]
        if name in config.delete:
            row["delete"] = 1
        rows.append(row)
    return rows
