# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Launch a server so that it outlives us: as a detached process with a supervisor, or as a systemd unit.

Both leave the same traces in the server's folder: server.log, and ``exit`` when the process has ended.
"""

from __future__ import annotations

# Pure code: there is no AnsibleModule here whose run_command it could call.
# pylint: disable=ansible-bad-function
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass

from . import files, limits, procfs, server_env, servers

SYSTEMD_RUNNING = "/run/systemd/system"
# Volatile on purpose: after a reboot no unit is left that could start what is no longer declared.
UNIT_FOLDER = "/run/systemd/system"

# Runs the engine in the foreground (a background child of a shell would ignore SIGINT and SIGQUIT), waits for it and
# writes down how it ended. It has no marker in its own environment: it is not part of what is ended. env removes what
# the shell adds of its own, sets the markers, and becomes the engine, whose process is thus the shell's only child.
SUPERVISOR = f"""\
out=$1; server=$2; start=$3; shift 3
/usr/bin/env -u PWD -u OLDPWD -u SHLVL -u _ "{servers.SERVER_VARIABLE}=$server" "{servers.START_VARIABLE}=$start" "$@"
status=$?
PATH=/usr/bin:/bin
new=$out/.exit.$start
printf '%s %s\\n' "$status" "$(date +%s)" > "$new" && mv -f "$new" "$out/exit" || rm -f "$new"
"""


#: The end of the log that a unit leaves in the journal.
JOURNAL_LINES = 50
#: Logs of earlier starts that are kept.
KEEP_LOGS = 5


class LaunchError(Exception):
    """The process could not be brought to life; the message says why."""


@dataclass(frozen=True)
class Launched:
    """A process that runs now. ``supervisor`` is None under systemd."""

    engine: procfs.Process
    supervisor: procfs.Process | None = None


def systemd_usable() -> str:
    """ "" when units can be started here, else why not."""
    if not os.path.isdir(SYSTEMD_RUNNING):
        return "systemd does not run this system"
    if os.geteuid() != 0:
        return "system units need root"
    if not shutil.which("systemctl"):
        return "systemctl is not in PATH"
    return ""


def choose(asked: str) -> str:
    """``auto`` -> ``systemd`` where it runs and we are root, else ``process``. Raises LaunchError."""
    why = systemd_usable() if asked in ("auto", "systemd") else "not asked for"
    if asked == "systemd" and why:
        raise LaunchError(f"launcher 'systemd': {why}; use 'auto' or 'process'")
    return "process" if why else "systemd"


def unit_name(server: str) -> str:
    return f"groundstate-{server}.service"


def rotate_log(folder: str, keep: int = KEEP_LOGS) -> str:
    """Make room for a new server.log; the one before becomes server.log.1, and so on up to ``keep``.

    Older ones are removed. Returns the path.
    """
    path = os.path.join(folder, "server.log")
    old = {int(name[11:]) for name in os.listdir(folder) if re.fullmatch(r"server\.log\.[1-9]\d*", name)}
    for number in sorted(old | {0}, reverse=True):
        one = f"{path}.{number}" if number else path
        if number >= keep and os.path.exists(one):
            os.unlink(one)
        elif os.path.exists(one):
            os.replace(one, f"{path}.{number + 1}")
    return path


def forget_exit(folder: str) -> None:
    """Remove what is known of the end and the readiness of an earlier start."""
    for name in ("exit", "ready.json"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            os.unlink(path)


def read_exit(folder: str) -> str:
    """ "<status> <unix time>" of the last end, or ""."""
    return "".join(files.tail(os.path.join(folder, "exit"), 1)).strip()


# --- a detached process --------------------------------------------------------------------------


def launch_process(
    folder: str, argv: list[str], environment: dict[str, str], start_id: str, keep_logs: int = KEEP_LOGS
) -> Launched:
    """Start the engine below a supervisor in a session of its own. Raises LaunchError, OSError."""
    log = rotate_log(folder, keep_logs)
    with open(log, "ab") as output:
        os.chmod(log, 0o640)
        supervisor = subprocess.Popen(
            ["/bin/sh", "-c", SUPERVISOR, "groundstate-supervisor", folder, folder, start_id, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
            close_fds=True,
            start_new_session=True,
            preexec_fn=_own_start,
        )
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        for item in procfs.descendants(supervisor.pid, procfs.processes()):
            if item.ppid == supervisor.pid and _marked(item.pid, start_id):
                return Launched(item, procfs.process(supervisor.pid))
        if supervisor.poll() is not None:
            raise LaunchError(f"{argv[0]} ended at once")
        time.sleep(0.01)
    raise LaunchError(f"{argv[0]} did not come to life within 5 s")


def _own_start() -> None:
    limits.raise_own()
    # What our parents ignore (nohup: SIGHUP; some runners: SIGINT, SIGPIPE) would be inherited through exec.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _marked(pid: int, start_id: str) -> bool:
    """Whether a process carries the mark of this start: from then on it is the engine, not the shell before exec."""
    return procfs.initial_environment(pid).variables.get(servers.START_VARIABLE) == start_id


def find_start(start_id: str, tree: list[procfs.Process]) -> Launched | None:
    """The engine of a start of which no process was recorded, from the server's live processes; None when it is gone.

    The engine is the first process with the mark whose parent has it not.
    """
    marked = [item for item in tree if _marked(item.pid, start_id)]
    numbers = {item.pid for item in marked}
    for item in marked:
        if item.ppid not in numbers:
            parent = procfs.process(item.ppid)
            ours = parent is not None and "groundstate-supervisor" in parent.cmdline
            return Launched(item, parent if ours else None)
    return None


# --- a systemd unit ------------------------------------------------------------------------------


def render_unit(server: str, folder: str, argv: list[str], grace_s: float) -> str:
    """The text of a server's unit. A server that died stays dead: a baseline must not hide a restart."""
    exit_file = os.path.join(folder, "exit")
    log = os.path.join(folder, "server.log")
    # In ExecStopPost systemd sets EXIT_STATUS: a number, or the name of the signal. All that the server says is in its
    # log; the journal has starts and ends, and what was said last. The journal finds the unit of a line by the process
    # that wrote it, so that one has to live until the journal has read it: hence the shell's own printf, then --sync.
    say = (
        f"tail -n {JOURNAL_LINES} {_shell_quote(log)} | "
        r'{ while IFS= read -r line; do printf "%s\n" "$line"; done; journalctl --sync 2>/dev/null || :; }'
    )
    note = (
        f'printf "%s %s\\n" "$EXIT_STATUS" "$(date +%s)" > {_shell_quote(exit_file)}; '
        f"systemd-cat -t {unit_name(server).removesuffix('.service')} /bin/sh -c {_shell_quote(say)}"
    )
    return "\n".join(
        [
            "# Written by Groundstate (groundstate.llm.llm_server); changes are lost at the next launch.",
            "[Unit]",
            f"Description=LLM server {server} (Groundstate)",
            "After=network.target",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={' '.join(_unit_quote(word) for word in argv)}",
            f"ExecStopPost=/bin/sh -c {_unit_quote(note)}",
            f"EnvironmentFile={_unit_escape(os.path.join(folder, 'environment'))}",
            f"WorkingDirectory={_unit_escape(folder)}",
            f"StandardOutput=append:{_unit_escape(log)}",
            f"StandardError=append:{_unit_escape(log)}",
            "StandardInput=null",
            "Restart=no",
            "KillMode=mixed",
            f"TimeoutStopSec={int(grace_s)}",
            *limits.unit_lines(),
            "TasksMax=infinity",
            "OOMPolicy=stop",
            "",
        ]
    )


def _unit_escape(text: str) -> str:
    return text.replace("%", "%%")


def _unit_quote(word: str) -> str:
    """One word of an Exec line: quoted, with $, % and backslash kept from systemd's own substitution."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not escaped or set(escaped) & set(" \t\"'\\;") else escaped


def _shell_quote(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def launch_unit(server: str, folder: str, argv: list[str], grace_s: float, keep_logs: int = KEEP_LOGS) -> Launched:
    """Write the unit and start it. The environment file must be there. Raises LaunchError, OSError."""
    unit = unit_name(server)
    log = rotate_log(folder, keep_logs)
    with open(log, "ab"):
        os.chmod(log, 0o640)
    files.write_atomic(os.path.join(UNIT_FOLDER, unit), render_unit(server, folder, argv, grace_s))
    _systemctl("daemon-reload")
    _systemctl("reset-failed", unit, check=False)
    _systemctl("start", unit)
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        pid = _systemctl("show", "--property=MainPID", "--value", unit).strip()
        found = procfs.process(int(pid)) if pid.isdigit() and int(pid) else None
        if found:
            return Launched(found)
        if _systemctl("show", "--property=ActiveState", "--value", unit).strip() in ("failed", "inactive"):
            raise LaunchError(f"{argv[0]} ended at once")
        time.sleep(0.02)
    raise LaunchError(f"{unit} has no main process 5 s after its start")


def stop_unit(server: str) -> None:
    """Let systemd stop the unit, if it has it; it sends TERM, waits for the grace and then kills."""
    _systemctl("stop", unit_name(server), check=False)


def remove_unit(server: str) -> bool:
    """Remove the unit file. Returns whether there was one."""
    path = os.path.join(UNIT_FOLDER, unit_name(server))
    if not os.path.exists(path):
        return False
    os.unlink(path)
    _systemctl("daemon-reload")
    # One that was killed stays listed as failed, without its file, until it is forgotten.
    _systemctl("reset-failed", unit_name(server), check=False)
    return True


def _systemctl(*words: str, check: bool = True) -> str:
    done = subprocess.run(
        ["systemctl", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300
    )
    if check and done.returncode != 0:
        raise LaunchError(f"systemctl {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def environment_text(environment: dict[str, str], folder: str, start_id: str) -> str:
    """The text of the file ``environment``: what the process gets, marks included."""
    marks = {servers.SERVER_VARIABLE: folder, servers.START_VARIABLE: start_id}
    return server_env.render({**environment, **marks})
