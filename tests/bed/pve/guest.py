"""A container as LXC runs it: what of a Proxmox configuration becomes which line of lxc.conf; start, stop, commands.

Not done: limits of memory and CPUs (their controllers may sit in the machine's other hierarchy), AppArmor.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator

import schema
from ctconf import Config
from errors import PveError

HERE = os.path.dirname(os.path.abspath(__file__))
LXC = "/var/lib/lxc"
FIRST_ID = 100000  # of an unprivileged container's users, as /etc/subuid has it


def folder(vmid: str) -> str:
    return f"{LXC}/{vmid}"


def running(vmid: str) -> bool:
    said = subprocess.run(["lxc-info", "-sH", "-n", vmid], capture_output=True, text=True, check=False)
    return said.stdout.strip() == "RUNNING"


def monitored(vmid: str) -> bool:
    """Whether LXC still has something to do with a container, be it its end."""
    return os.path.isdir(f"/sys/fs/cgroup/lxc.monitor.{vmid}") or running(vmid)


def _device_lines(vmid: str, name: str, text: str, offset: int) -> Iterator[str]:
    """A node of the container's own, with the number that the node's has now."""
    parts = schema.properties(name, text)
    found = schema.device(parts["path"])
    node = f"{folder(vmid)}/passthrough{parts['path']}"
    os.makedirs(os.path.dirname(node), exist_ok=True)
    os.mknod(node, found.st_mode, found.st_rdev)
    os.chmod(node, int(parts.get("mode", "0660"), 8))
    os.chown(node, offset + int(parts.get("uid", 0)), offset + int(parts.get("gid", 0)))
    letter = "b" if stat.S_ISBLK(found.st_mode) else "c"
    access = "r" if schema.truth(parts.get("deny-write", "0")) else "rw"
    number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    yield f"lxc.cgroup2.devices.allow = {letter} {number} {access}"
    yield f"lxc.mount.entry = {node} {parts['path'][1:]} none bind,create=file"


def _mount_line(vmid: str, name: str, text: str) -> str:
    parts = schema.properties(name, text)
    source = parts["volume"]
    if not source.startswith("/"):
        source = f"{folder(vmid)}/{name}"
    elif not os.path.isdir(source):
        raise PveError(f"directory '{source}' does not exist")
    only_read = ",ro" if schema.truth(parts.get("ro", "0")) else ""
    source = source.replace(" ", r"\040")  # as in an fstab
    return f"lxc.mount.entry = {source} {parts['mp'].lstrip('/')} none bind,create=dir{only_read}"


def _net_lines(vmid: str, name: str, text: str) -> Iterator[str]:
    parts = schema.properties(name, text)
    at = f"lxc.net.{name[3:]}"
    yield f"{at}.type = veth"
    yield f"{at}.link = {parts.get('bridge', 'vmbr0')}"
    yield f"{at}.flags = up"
    yield f"{at}.name = {parts['name']}"
    yield f"{at}.veth.pair = veth{vmid}i{name[3:]}"
    if "hwaddr" in parts:
        yield f"{at}.hwaddr = {parts['hwaddr']}"
    if "/" in parts.get("ip", ""):
        yield f"{at}.ipv4.address = {parts['ip']}"
        if "gw" in parts:
            yield f"{at}.ipv4.gateway = {parts['gw']}"


def _raw_lines(raw: list[tuple[str, str]]) -> Iterator[str]:
    for name, value in raw:
        # A machine that may not raise limits could not start the container at all.
        if not name.startswith("lxc.prlimit.") or _may_raise_limits():
            yield f"{name} = {value}"


def _may_raise_limits() -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, resource.RLIM_INFINITY))
    except (ValueError, OSError):
        return False
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    return True


def lines(vmid: str, config: Config) -> list[str]:
    """The container's lxc.conf; makes the device nodes that it names. Raises PveError."""
    options = config.options
    found = [
        "lxc.arch = amd64",
        "lxc.include = /usr/share/lxc/config/common.conf",
        "lxc.apparmor.profile = unconfined",
        "lxc.tty.max = 2",
        f"lxc.uts.name = {options['hostname']}",
        f"lxc.rootfs.path = dir:{folder(vmid)}/rootfs",
        f"lxc.hook.post-stop = {shlex.join([sys.executable, '-ES', f'{HERE}/post_stop.py'])}",
    ]
    if "features" in options and schema.truth(schema.properties("features", options["features"]).get("nesting", "0")):
        found.append("lxc.mount.auto = proc:rw sys:mixed cgroup:mixed")
    offset = 0
    if schema.truth(options.get("unprivileged", "0")):
        offset = FIRST_ID
        # In this order: the include forgets the rules for devices that came before it. Proxmox, too, allows all.
        found += [
            "lxc.include = /usr/share/lxc/config/userns.conf",
            "lxc.cgroup2.devices.allow = a",
            f"lxc.idmap = u 0 {FIRST_ID} 65536",
            f"lxc.idmap = g 0 {FIRST_ID} 65536",
            "lxc.rootfs.options = idmap=container",
        ]
    for name, value in sorted(options.items()):
        of = schema.kind(name)
        if of == "dev":
            found += _device_lines(vmid, name, value, offset)
        elif of == "mp":
            found.append(_mount_line(vmid, name, value))
        elif of == "net":
            found += _net_lines(vmid, name, value)
    return [*found, *_raw_lines(config.raw)]


def unpack(vmid: str, template: str, key_file: str) -> None:
    """Make the container's root file system, with the public keys of a file (or "") for its root. Raises PveError."""
    root = f"{folder(vmid)}/rootfs"
    os.makedirs(root)
    said = subprocess.run(
        ["tar", "-xpf", template, "--numeric-owner", "-C", root], capture_output=True, text=True, check=False
    )
    if said.returncode:
        raise PveError(f"unable to create CT {vmid} - command 'tar xpf {template}' failed: {said.stderr.strip()}")
    if key_file:
        os.makedirs(f"{root}/root/.ssh", 0o700, exist_ok=True)
        shutil.copy(key_file, f"{root}/root/.ssh/authorized_keys")
    # A template has no keys: sshd makes its own at the first boot.
    if os.path.exists(f"{root}/usr/bin/ssh-keygen"):
        subprocess.run(["chroot", root, "ssh-keygen", "-A"], capture_output=True, check=False)


def start(vmid: str, config: Config) -> None:
    """Start a stopped container. Raises PveError."""
    here = folder(vmid)
    shutil.rmtree(f"{here}/passthrough", ignore_errors=True)
    text = lines(vmid, config)
    with open(f"{here}/config", "w", encoding="utf-8") as target:
        target.write("\n".join(text) + "\n")
    with open(f"{here}/rootfs/etc/hostname", "w", encoding="utf-8") as target:
        target.write(f"{config.options['hostname']}\n")
    for name, value in config.options.items():
        if re.fullmatch(r"mp\d+", name) and not value.startswith("/"):
            os.makedirs(f"{here}/{name}", exist_ok=True)
    said = subprocess.run(
        ["lxc-start", "-n", vmid, "-o", f"{here}/log", "-l", "INFO"], capture_output=True, text=True, check=False
    )
    if said.returncode:
        with open(f"{here}/log", encoding="utf-8", errors="replace") as log:
            errors = [line.strip() for line in log if " ERROR " in line]
        raise PveError("\n".join([*errors[-5:], f"startup for container '{vmid}' failed"]))


def stop(vmid: str, kill: bool, timeout_s: int = 60) -> None:
    """Stop a running container, by its own shutdown or at once. Raises PveError."""
    how = ["-k"] if kill else ["-t", str(timeout_s), "--nokill"]
    if subprocess.run(["lxc-stop", "-n", vmid, *how], capture_output=True, check=False).returncode:
        raise PveError(f"command 'lxc-stop -n {vmid}' failed")


def attach(vmid: str, command: list[str]) -> list[str]:
    """The command line that runs a command in the container; like Proxmox', it keeps the caller's environment."""
    return ["lxc-attach", "-n", vmid, "--keep-env", "--", *command]
