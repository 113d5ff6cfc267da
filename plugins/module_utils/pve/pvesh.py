# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The API of a node through its own ``pvesh``, as root there: nothing to log in to, nothing that root may not set."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .api import UPID, ApiError, PveError
from .shell import Shell, ShellError

_VERBS = {"GET": "get", "POST": "create", "PUT": "set", "DELETE": "delete"}
_STATUS = re.compile(r"(\d{3}) (.*)")
_PARAMETER = re.compile(r"([a-z][a-z0-9_-]*(?:\.[a-z0-9_-]+)?): (.*)")


class Pvesh:
    """A node through a shell on it."""

    is_root = True

    def __init__(self, shell: Shell, timeout_s: float = 600.0):
        self.shell: Shell = shell
        self.who = f"root on {shell.where}"
        self.timeout_s = timeout_s

    def call(self, method: str, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """See :class:`api.Api`. A call that starts a task returns when it has ended: so does pvesh."""
        options = [f"--{key}={value}" for key, value in (parameters or {}).items()]
        try:
            status, out, err = self.shell.run(
                ["pvesh", _VERBS[method], path, *options, "--output-format", "json"], self.timeout_s
            )
        except ShellError as error:
            raise PveError(str(error)) from error
        if status == 127:
            raise PveError(f"there is no pvesh on {self.shell.where}: is it a Proxmox VE node?")
        if status != 0:
            raise error_of(err or out)
        return answer(out)


def answer(out: str) -> Any:
    """The data in the output of pvesh, which shows the log of a task before it. None when there is none."""
    lines = out.splitlines()
    for first in range(len(lines)):
        try:
            return json.loads("\n".join(lines[first:]))
        except ValueError:
            continue
    found = UPID.findall(out)
    return found[-1] if found else None


def error_of(text: str) -> ApiError:
    """The error in what pvesh wrote: "400 Parameter verification failed." and "key: what" lines, or just a message."""
    status, message, errors = 500, [], {}
    for line in text.splitlines():
        if line.startswith(("pvesh ", "Usage: ", "USAGE: ")):
            break  # how pvesh is called: for people at a prompt
        said, parameter = _STATUS.fullmatch(line.strip()), _PARAMETER.fullmatch(line.strip())
        if said:
            status, message = int(said.group(1)), [said.group(2)]
        elif parameter and status == 400:
            key, dot, inner = parameter.group(1).partition(".")
            errors[key] = f"{inner}: {parameter.group(2)}" if dot else parameter.group(2)
        elif line.strip():
            message.append(line.strip())
    return ApiError(status, " ".join(message), errors)
