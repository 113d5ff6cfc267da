"""A stand-in for systemd and its service with Restart=always: starts the command again whenever it ends, until stopped.

systemd.py FOLDER UNIT GROUP COMMAND...: FOLDER/UNIT.main has the number of the main process; FOLDER/UNIT.stop ends it.
The script systemctl beside this file reads and writes both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

folder, unit, group, *command = sys.argv[1:]
os.makedirs(group, exist_ok=True)
inside = ["sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh", *command]
while not os.path.exists(f"{folder}/{unit}.stop"):
    child = subprocess.Popen(inside)
    with open(f"{folder}/{unit}.new", "w", encoding="ascii") as out:
        out.write(str(child.pid))
    os.rename(f"{folder}/{unit}.new", f"{folder}/{unit}.main")
    child.wait()
    time.sleep(0.1)  # RestartSec
