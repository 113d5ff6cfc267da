"""Print as JSON what systemd and /proc say of the unit of the server ``bed``; ansible.builtin.script runs it there."""

import glob
import json
import os
import re
import subprocess

UNIT = "groundstate-bed.service"
FOLDER = "/var/lib/groundstate/servers/bed"


def run(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read()
    except OSError:
        return ""


def limits(pid):
    """Hard limits of a process; None is no limit."""
    found = {}
    for line in read(f"/proc/{pid}/limits").splitlines():
        match = re.match(r"Max (open files|locked memory) +\S+ +(\S+)", line)
        if match:
            found[match[1]] = None if match[2] == "unlimited" else int(match[2])
    return found


def marked():
    """Processes with the mark of our servers."""
    return [
        int(path.split("/")[2])
        for path in glob.glob("/proc/[0-9]*/environ")
        if f"GROUNDSTATE_SERVER={FOLDER}" in read(path)
    ]


run("journalctl", "--sync")  # what was just said may still be on its way into the journal
shown = dict(line.partition("=")[::2] for line in run("systemctl", "show", UNIT).splitlines())
pid = int(shown.get("MainPID", "0"))
print(
    json.dumps(
        {
            "state": shown.get("ActiveState"),
            "load": shown.get("LoadState"),
            "fragment": shown.get("FragmentPath"),
            "restarts": shown.get("NRestarts"),
            "pid": pid,
            "argv": read(f"/proc/{pid}/cmdline").split("\0") if pid else [],
            "environment": dict(one.partition("=")[::2] for one in read(f"/proc/{pid}/environ").split("\0"))
            if pid
            else {},
            "cgroup": read(f"/proc/{pid}/cgroup") if pid else "",
            "limits": limits(pid) if pid else {},
            "ceiling": limits(1),
            "journal": run("journalctl", "--quiet", "--no-pager", "--output=cat", "--unit", UNIT).splitlines(),
            "unit": read(shown.get("FragmentPath") or "/nonexistent"),
            "log": read(f"{FOLDER}/server.log"),
            "log_before": read(f"{FOLDER}/server.log.1"),
            "exit": read(f"{FOLDER}/exit"),
            "secret_mode": oct(os.stat(f"{FOLDER}/environment").st_mode & 0o777) if os.path.isdir(FOLDER) else "",
            "marked": marked(),
            "units": run("systemctl", "list-units", "--all", "--no-legend", "groundstate-*").split(),
            "system": run("systemctl", "is-system-running").strip(),
            "home": os.path.exists("/var/lib/groundstate"),
        }
    )
)
