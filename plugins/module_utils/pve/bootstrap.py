# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a running container reachable over ssh, with ``pct exec`` from its node.

``pct exec`` is the way in that needs nothing in the container, and a slow one: each call starts Perl on the node. So
it is used for this alone, in few calls, and everything after goes over ssh.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .api import check_vmid
from .shell import Shell, ShellError

# The environment of whoever calls pct leaks into the container, its PATH included.
_CLEAN = (
    "env", "-i", "HOME=/root", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
)  # fmt: skip
_LOOK = r"""
echo "system $(systemctl is-system-running 2>/dev/null || :)"
command -v python3 >/dev/null && echo "has python3"
command -v sshd >/dev/null && echo "has sshd"
for unit in ssh.socket ssh sshd; do systemctl is-active -q $unit 2>/dev/null && { echo "has service"; break; }; done
[ -f /root/.ssh/authorized_keys ] && sed 's/^/key /' /root/.ssh/authorized_keys
for file in /etc/ssh/ssh_host_*_key.pub; do [ -f "$file" ] && sed 's/^/host /' "$file"; done
for word in $(hostname -I 2>/dev/null); do echo "address $word"; done
"""
_PACKAGES = r"""
set -e
if command -v apt-get >/dev/null; then
  apt-get -q update
  apt-get -q install -y --no-install-recommends openssh-server python3
elif command -v dnf >/dev/null; then dnf -q install -y openssh-server python3
elif command -v apk >/dev/null; then apk add openssh python3
else
  echo "no package manager that we know (apt-get, dnf, apk): have python3 and an ssh server in the template" >&2
  exit 1
fi
"""
_SERVICE = r"""
ssh-keygen -A >/dev/null
for unit in ssh sshd; do
  if systemctl cat $unit.service >/dev/null 2>&1; then exec systemctl enable --now $unit.service; fi
done
rc-update add sshd default && rc-service sshd start
"""
_KEYS = r"""
set -e
umask 077
mkdir -p /root/.ssh
file=/root/.ssh/authorized_keys
[ ! -s "$file" ] || [ -z "$(tail -c1 "$file")" ] || echo >> "$file"
printf '%s\n' "$@" >> "$file"
"""
_KEY = re.compile(r"(?:^|\s)((?:ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/=]+)(?:\s|$)")


@dataclass
class Seen:
    """What a look into the container found."""

    system: str = ""
    has: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)  # type and key, without options and comment
    host_keys: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)


def key_of(line: str) -> str:
    """Type and key of a line of authorized_keys, by which it is the same whatever its comment. Raises ValueError."""
    found = _KEY.search(line)
    if not found:
        raise ValueError(f"ssh_public_keys: {line[:40]!r} is no public key (ssh-ed25519 AAAA...)")
    return found.group(1)


def parse(text: str) -> Seen:
    """What the look printed."""
    seen = Seen()
    for line in text.splitlines():
        kind, _space, value = line.partition(" ")
        if kind == "system":
            seen.system = value.strip()
        elif kind == "has":
            seen.has.add(value)
        elif kind == "host" and _KEY.match(value):
            seen.host_keys.append(key_of(value))
        elif kind == "address" and _is_address(value):
            seen.addresses.append(value)
        elif kind == "key" and _KEY.search(value):
            seen.keys.add(key_of(value))
    return seen


def _is_address(text: str) -> bool:
    """The container says it, and ssh gets it as an argument: "-oProxyCommand=..." must not come through."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def inside(shell: Shell, vmid: int, script: str, arguments: list[str], timeout_s: float) -> str:
    """Run a script in a container and return its output. Raises ShellError."""
    return shell.check(["pct", "exec", str(vmid), "--", *_CLEAN, "sh", "-c", script, "sh", *arguments], timeout_s)


def ensure(
    shell: Shell, vmid: int, keys: list[str], timeout_s: float, check: bool, sleep: Callable[[float], None] = time.sleep
) -> tuple[Seen, list[str]]:
    """Bring ssh, Python and the keys into a container: (what is there now, what was done).

    In check mode nothing is done. Raises ShellError or ValueError.
    """
    check_vmid(vmid)
    # An entry may be a whole file of keys.
    lines = [line.strip() for entry in keys for line in entry.splitlines()]
    wanted = {key_of(line): line for line in lines if line and not line.startswith("#")}
    seen = _settled(shell, vmid, timeout_s, sleep)
    steps: list[tuple[str, str, list[str]]] = []
    if not {"python3", "sshd"} <= seen.has:
        steps.append(("installed " + ", ".join(sorted({"python3", "sshd"} - seen.has)), _PACKAGES, []))
    if "service" not in seen.has:
        steps.append(("started sshd", _SERVICE, []))
    missing = [line for key, line in wanted.items() if key not in seen.keys]
    if missing:
        steps.append((f"added {len(missing)} keys", _KEYS, missing))
    if steps and not check:
        for _what, script, arguments in steps:
            inside(shell, vmid, script, arguments, timeout_s)
        seen = _settled(shell, vmid, timeout_s, sleep)
        lacks = sorted({"python3", "sshd", "service"} - seen.has)
        if lacks:
            raise ShellError(f"container {vmid} still has no {', '.join(lacks)} after installing: look with pct enter")
    return seen, [step[0] for step in steps]


def _settled(shell: Shell, vmid: int, timeout_s: float, sleep: Callable[[float], None]) -> Seen:
    """Look until the container has started up and has an address."""
    end = time.monotonic() + timeout_s
    while True:
        seen = parse(inside(shell, vmid, _LOOK, [], 60.0))
        if seen.addresses and seen.system not in ("initializing", "starting"):
            return seen
        if time.monotonic() > end:
            what = "has no address" if not seen.addresses else f"is still {seen.system}"
            raise ShellError(f"container {vmid} {what} after {timeout_s:g} s: check its networks and its console")
        sleep(0.5)
