"""Process 1 of a stand-in GPU host: its own /dev with nodes named /dev/nvidia*, its own /proc and /dev/shm.

Runs under ``unshare --mount --pid --fork --mount-proc``. Reads one JSON command a line, {"argv", "env", "title"},
starts it and answers with its pid. Reaps whatever dies, as an init does.
"""

from __future__ import annotations

import json
import os
import select
import stat
import subprocess
import sys

NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
# Stand-ins: opening them does nothing. /dev/zero can be mapped, as a GPU's node can.
GPUS = {"nvidia0": (1, 5), "nvidia1": (1, 5), "nvidiactl": (1, 3), "nvidia-uvm": (1, 3)}


def make_dev(folder: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "stand-in", folder], check=True)
    for name, (major, minor) in {**NODES, **GPUS}.items():
        os.mknod(f"{folder}/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(f"{folder}/{name}", 0o666)
    os.symlink("/proc/self/fd", f"{folder}/fd")
    for name in ("shm", "pts"):
        os.mkdir(f"{folder}/{name}")
    subprocess.run(["mount", "-t", "tmpfs", "stand-in", f"{folder}/shm"], check=True)
    os.chmod(f"{folder}/shm", 0o1777)
    subprocess.run(["mount", "--rbind", "/dev/pts", f"{folder}/pts"], check=False)
    subprocess.run(["mount", "--move", folder, "/dev"], check=True)


def start(argv: list[str], env: dict[str, str], title: str) -> int:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1):
            os.dup2(nothing, number)
        # An argv[0] of its own is what a process title looks like from outside.
        os.execvpe(argv[0], [title or argv[0], *argv[1:]], {**os.environ, **env})
    return pid


def main() -> None:
    make_dev(sys.argv[1])
    print("ready", flush=True)
    while True:
        ready, _write, _other = select.select([sys.stdin], [], [], 0.05)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        if ready:
            line = sys.stdin.readline()
            if not line:
                return
            print(start(**json.loads(line)), flush=True)


main()
