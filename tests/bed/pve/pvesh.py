"""Stand-in for Proxmox' pvesh: the paths of the API that concern the node and its containers, answers in JSON."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import ctconf
import node
from errors import PveError
from pct import parse

TASKS = "/var/lib/pve/tasks"
VERSION = {"release": "9.1", "repoid": "stand-in", "version": "9.1.4"}


def task(kind: str, vmid: str, work: Callable[[], None]) -> str:
    """Do something as Proxmox' tasks do: remembered with its outcome, known by its UPID. Raises PveError."""
    now = time.time()
    ticks = int(now * 100) & 0xFFFFFFFF
    upid = f"UPID:{ctconf.NODE}:{os.getpid():08X}:{ticks:08X}:{int(now):08X}:{kind}:{vmid}:root@pam:"
    log, status = ["TASK OK"], "OK"
    try:
        work()
    except PveError as error:
        log, status = [*str(error).splitlines(), f"TASK ERROR: {error}"], str(error)
        raise
    finally:
        os.makedirs(TASKS, exist_ok=True)
        with open(f"{TASKS}/{upid}", "w", encoding="utf-8") as target:
            json.dump({"log": log, "status": status, "type": kind, "id": vmid, "starttime": int(now)}, target)
    return upid


def config(vmid: str, current: bool) -> dict[str, Any]:
    found = ctconf.load(vmid)
    options: dict[str, Any] = dict(found.options if current else found.wanted())
    for name in ("cores", "memory", "onboot", "protection", "swap", "tty", "unprivileged"):
        if name in options:
            options[name] = int(options[name])
    if found.raw:
        options["lxc"] = [list(pair) for pair in found.raw]
    with open(ctconf.path(vmid), "rb") as source:
        options["digest"] = hashlib.sha1(source.read(), usedforsecurity=False).hexdigest()
    return options


def summary(vmid: str) -> dict[str, Any]:
    options = ctconf.load(vmid).options
    found: dict[str, Any] = {"vmid": int(vmid), "status": node.status(vmid), "name": options["hostname"], "type": "lxc"}
    return {**found, **{name: options[name] for name in ("lock", "tags") if name in options}}


def remembered(upid: str) -> dict[str, Any]:
    try:
        with open(f"{TASKS}/{upid}", encoding="utf-8") as source:
            return dict(json.load(source))
    except FileNotFoundError:
        raise PveError(f"no such task: {upid}", 2) from None


def templates() -> list[dict[str, Any]]:
    return [
        {"volid": f"local:vztmpl/{name}", "content": "vztmpl", "size": os.stat(f"{node.TEMPLATES}/{name}").st_size}
        for name in sorted(os.listdir(node.TEMPLATES))
    ]


def get(path: str, options: dict[str, str]) -> Any:
    """Answer a GET. Raises PveError."""
    at = f"/nodes/{ctconf.NODE}"
    if path == "/version":
        return VERSION
    if path in ("/nodes", f"{at}/status"):
        answer = {"node": ctconf.NODE, "status": "online", "type": "node"}
        return [answer] if path == "/nodes" else {"pveversion": f"pve-manager/{VERSION['version']}/stand-in"}
    if path == "/cluster/nextid":
        return str(next(number for number in range(100, 1000000) if not os.path.exists(ctconf.path(str(number)))))
    if path in (f"{at}/lxc", "/cluster/resources"):
        return [{**summary(vmid), "node": ctconf.NODE} for vmid in ctconf.ids()]
    if path == "/cluster/ha/resources" or path == f"{at}/qemu":
        return []
    if path == f"{at}/storage":
        return [{"storage": "local", "type": "dir", "content": "rootdir,vztmpl", "active": 1, "enabled": 1}]
    if path == f"{at}/storage/local/content":
        return templates()
    if found := re.fullmatch(rf"{at}/tasks/([^/]+)/(status|log)", path):
        done = remembered(found[1])
        if found[2] == "log":
            return [{"n": number, "t": line} for number, line in enumerate(done["log"], 1)]
        return {**done, "upid": found[1], "node": ctconf.NODE, "status": "stopped", "exitstatus": done["status"]}
    if found := re.fullmatch(rf"{at}/lxc/(\d+)/(config|pending|status/current)", path):
        vmid = found[1]
        if found[2] == "config":
            return config(vmid, options.get("current", "0") == "1")
        return node.pending(vmid) if found[2] == "pending" else summary(vmid)
    raise PveError(f"No 'get' handler defined for '{path}'", 2)


def create(vmid: str, template: str, options: dict[str, str]) -> None:
    """Make a container; the API takes the public keys themselves, pct a file with them. Raises PveError."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as keys:
        given = dict(options)
        if "ssh-public-keys" in given:
            keys.write(given["ssh-public-keys"] + "\n")
            keys.flush()
            given["ssh-public-keys"] = keys.name
        node.create(vmid, template, given)


def change(verb: str, path: str, options: dict[str, str]) -> Any:
    """Answer a POST (create), PUT (set) or DELETE. Raises PveError."""
    at = f"/nodes/{ctconf.NODE}/lxc"
    if verb == "create" and path == at:
        vmid, template = options.pop("vmid", ""), options.pop("ostemplate", "")
        return task("vzcreate", vmid, lambda: create(vmid, template, options))
    if verb == "set" and (found := re.fullmatch(rf"{at}/(\d+)/config", path)):
        node.update(found[1], options)
        return None
    if verb == "delete" and (found := re.fullmatch(rf"{at}/(\d+)", path)):
        vmid = found[1]
        return task("vzdestroy", vmid, lambda: node.destroy(vmid, options.get("force", "0") == "1"))
    if verb == "create" and (found := re.fullmatch(rf"{at}/(\d+)/status/(start|stop|shutdown|reboot)", path)):
        vmid, action = found[1], found[2]
        timeout_s = int(options.get("timeout", "60"))
        work = {
            "start": lambda: node.start(vmid),
            "stop": lambda: node.stop(vmid),
            "shutdown": lambda: node.stop(vmid, kill=False, timeout_s=timeout_s),
            "reboot": lambda: node.reboot(vmid),
        }[action]
        return task(f"vz{action}", vmid, work)
    raise PveError(f"No '{verb}' handler defined for '{path}'", 2)


def main(words: list[str]) -> None:
    """Run one request and print its answer. Raises PveError."""
    if len(words) < 2 or words[0] not in ("get", "create", "set", "delete"):
        raise PveError("ERROR: usage: pvesh get|create|set|delete PATH [OPTIONS]")
    verb, path = words[0], "/" + words[1].strip("/")
    options = parse(words[2:], flags=("noborder", "noheader"))
    for ours in ("output-format", "noborder", "noheader", "human-readable", "quiet"):
        options.pop(ours, None)
    answer = get(path, options) if verb == "get" else change(verb, path, options)
    if answer is not None:
        print(json.dumps(answer))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except PveError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)
