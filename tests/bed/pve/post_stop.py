"""LXC's hook when a container stopped. A reboot from within becomes a start, with what waited for one, as in Proxmox.

LXC's own reboot would take the configuration of the last start, and forgets that the root file system is mapped to the
users of an unprivileged container.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import guest
import node

WAIT_S = 30.0


def start_again(vmid: str) -> None:
    """Start the container once LXC is done with its end. Raises PveError."""
    deadline = time.monotonic() + WAIT_S
    while guest.monitored(vmid) and time.monotonic() < deadline:
        time.sleep(0.02)
    node.start(vmid)


if __name__ == "__main__":
    if sys.argv[1] == "start":
        start_again(sys.argv[2])
    elif os.environ.get("LXC_TARGET") == "reboot":
        with open(f"{guest.folder(sys.argv[1])}/reboot.log", "wb") as log:
            command = [sys.executable, "-ES", __file__, "start", sys.argv[1]]
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        sys.exit(1)  # LXC shall stop it, not reboot
