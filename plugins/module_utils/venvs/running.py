# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run an installer so that it is never left alone: bounded in time, ended with whoever started it."""

from __future__ import annotations

# Pure code: there is no AnsibleModule here whose run_command it could call.
# pylint: disable=ansible-bad-function
import contextlib
import ctypes
import os
import re
import signal
import subprocess

from .. import files

_PR_SET_PDEATHSIG = 1
# They would make the new interpreter load another one's modules.
_UNWANTED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "CONDA_PREFIX")
# Written to the log with a command, whose words do not say where it looks.
_SAID = ("UV_DEFAULT_INDEX", "UV_INDEX", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")


class Failed(Exception):
    """A command that failed; ``output`` holds its last lines."""

    def __init__(self, why: str, output: str) -> None:
        super().__init__(why)
        self.output = output


def clean_environment(changes: dict[str, str]) -> dict[str, str]:
    """This process's environment for an interpreter of its own. What the host has set wins over ``changes``."""
    kept = {key: value for key, value in os.environ.items() if key not in _UNWANTED}
    return {**changes, **kept}


def without_passwords(text: str) -> str:
    """A text whose URLs have no credentials."""
    # The second form is a password with a slash that should have been quoted, and no host with a port.
    return re.sub(r"(://)(?:[^/\s]+@|[^/\s:@]+:(?!\d+/)[^\s@]*@)", r"\1***@", text)


def run(argv: list[str], environment: dict[str, str], log: str, timeout_s: float, keep_fd: int) -> None:
    """Run a command with its output appended to ``log``.

    The command inherits ``keep_fd`` (the lock) and gets KILL when this process dies, whatever kills it. Raises
    Failed when it exits with another status than 0 or does not end within ``timeout_s`` seconds.
    """
    libc = ctypes.CDLL(None, use_errno=True)  # before the fork: not much is safe after it

    def tie_to_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as out:
        said = [f"{name}={environment[name]}" for name in _SAID if environment.get(name)]
        out.write(without_passwords(f"$ {' '.join([*said, *argv])}\n").encode())
        out.flush()
        start = out.tell()
        try:
            child = subprocess.Popen(
                argv,
                env=environment,
                cwd="/",  # uv would take settings from a project around the current folder
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=(keep_fd,),
                start_new_session=True,
                preexec_fn=tie_to_parent,
            )
        except OSError as error:
            raise Failed(f"{argv[0]} does not run ({error})", "") from error
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"not done after {timeout_s:.0f} s", _since(log, start)) from error
        finally:
            # Also on Ctrl-C: nothing of the session may go on writing into the folder.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if status != 0:
        raise Failed(f"exit status {status}", _since(log, start))


def _since(log: str, start: int) -> str:
    """The last lines of what was written to a log since an offset."""
    with open(log, "rb") as source:
        size = source.seek(0, os.SEEK_END) - start
    return "\n".join(line for line in files.tail(log, 15, max(0, size)) if line.strip())
