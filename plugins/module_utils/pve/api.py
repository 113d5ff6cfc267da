# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What all ways to Proxmox VE have in common: a call, its errors as one sentence, and the wait for a task."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from . import properties
from .shell import Shell

UPID = re.compile(r"UPID:[^:\s]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+:[^:\s]*:[^:\s]*:[^:\s]+:")
POLL_S = 1.0
LOG_LINES = 20
_OPTIONS = {"net": "networks", "mp": "mounts", "dev": "devices or gpus"}
_ROOT_ONLY = "only allowed for root@pam"


class ApiError(Exception):
    """PVE said no. ``errors``: parameter -> what is wrong with it."""

    def __init__(self, status: int, message: str, errors: Mapping[str, Any] | None = None):
        super().__init__(message)
        self.status = status
        self.message = " ".join(message.split())
        self.errors = {str(key): " ".join(str(text).split()) for key, text in (errors or {}).items()}


class PveError(Exception):
    """One clear sentence for the user, and the log of the task that failed, if one did."""

    def __init__(self, sentence: str, log: list[str] | None = None):
        super().__init__(sentence)
        self.log = log or []


class Api(Protocol):
    """A way to the API of a node."""

    who: str  # as messages name it: "root@pam!ansible (a token)"
    is_root: bool  # root@pam with its password, or root on the node: what no token can be
    shell: Shell | None  # commands on the node itself, where this way has them

    def call(self, method: str, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """The data that PVE answers with. Raises ApiError or PveError."""


def check_vmid(vmid: int) -> None:
    """Raises ValueError for what cannot be the number of a guest."""
    if not 100 <= vmid <= 999_999_999:
        raise ValueError(f"vmid: {vmid} is no number of a guest, which are from 100 to 999999999")


def option_of(key: str) -> str:
    """The option of the module behind a parameter of PVE."""
    kind = properties.kind_of(key)
    if kind in _OPTIONS:
        return _OPTIONS[kind]
    known = {
        "ostemplate": "template",
        "ssh-public-keys": "ssh_public_keys",
        "newid": "vmid",
        "lxc": "memlock or shm_size",
    }
    return known.get(key, key)


def _named(key: str, sent: Mapping[str, str]) -> str:
    """A parameter as the user knows it, with the value that was sent."""
    option, value = option_of(key), f"{key}={sent[key]}" if key in sent else key
    return f"{option} ({value})" if option != key else value


def root_only_sentence(who: str, keys: list[str], sent: Mapping[str, str]) -> str:
    """Why these parameters are refused, and what helps."""
    what = ", ".join(_named(key, sent) for key in keys) or "this change"
    return (
        f"PVE lets only root@pam itself set {what}, and {who} is not: API tokens never are, not even root@pam's; "
        "use transport local or openssh (as root on the node), or api_user root@pam with api_password"
    )


def sentence(error: ApiError, doing: str, who: str, sent: Mapping[str, str], root_only: list[str]) -> str:
    """One clear sentence for an error of the API. ``sent``: the parameters of the call."""
    if error.status == 401:
        return f"Proxmox VE refuses the login of {who} while {doing}: check user, password or token ({error.message})"
    if error.status == 403:
        if _ROOT_ONLY in error.message:
            return root_only_sentence(who, root_only, sent)
        lacks = re.search(r"\((/[^,]*), ([^)]+)\)", error.message)
        if lacks:
            path, privileges = lacks.groups()
            fix = f"grant {privileges} on {path} (a token with privilege separation needs it itself, too)"
            return f"{who} may not do this while {doing}: {fix}"
        return f"{who} may not do this while {doing}: {error.message}"
    if error.errors:
        each = "; ".join(f"{_named(key, sent)}: {text}" for key, text in sorted(error.errors.items()))
        return f"Proxmox VE refuses a parameter while {doing}: {each}"
    if "locked (" in error.message:
        return (
            f"{error.message} while {doing}: wait until that job ends; where none runs any more, pct unlock removes it"
        )
    if "got timeout" in error.message and "lock" in error.message:
        return f"another job holds the container's configuration while {doing}: run this again later ({error.message})"
    if error.status in (595, 596):
        return f"the node cannot be reached through the API while {doing}: {error.message}"
    if error.status == 501:
        return f"this Proxmox VE does not know the call for {doing}: {error.message}"
    return f"Proxmox VE failed while {doing}: {error.message or f'status {error.status}'}"


def as_object(answer: Any, doing: str, who: str) -> dict[str, Any]:
    """An answer that has to be an object. Raises PveError: a proxy's or a portal's page is none."""
    if not isinstance(answer, dict) or set(answer) == {"errors"}:  # what proxmoxer makes of a page
        raise PveError(_not_pve(answer, doing, who))
    return answer


def as_objects(answer: Any, doing: str, who: str) -> list[dict[str, Any]]:
    """An answer that has to be a list of objects; [] for none. Raises PveError."""
    if answer is None:
        return []
    if not isinstance(answer, list) or not all(isinstance(one, dict) for one in answer):
        raise PveError(_not_pve(answer, doing, who))
    return answer


def _not_pve(answer: Any, doing: str, who: str) -> str:
    return (
        f"while {doing} as {who}, something answered that is no Proxmox VE API ({answer!r:.80}): check api_host and "
        "api_port, and what stands between"
    )


def is_upid(value: Any) -> bool:
    """Whether an answer is the number of a task that goes on."""
    return isinstance(value, str) and bool(UPID.fullmatch(value))


def wait(api: Api, upid: str, timeout_s: float, doing: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until a task has ended well. Raises PveError with its log when it failed or goes on for too long."""
    node = upid.split(":")[1]
    path = f"/nodes/{node}/tasks/{upid}"
    end = time.monotonic() + timeout_s
    delay = 0.1
    while True:
        status = as_object(api.call("GET", f"{path}/status"), doing, api.who)
        if status.get("status") != "running":
            break
        if time.monotonic() > end:
            raise PveError(
                f"{doing} still runs after {timeout_s:g} s and was left running: raise timeout, or look at task {upid}",
                _log(api, path),
            )
        sleep(delay)
        delay = min(POLL_S, delay * 2)
    ended = str(status.get("exitstatus", ""))
    if ended != "OK" and not ended.startswith("WARNINGS"):
        raise PveError(f"{doing} failed: {ended or 'its task ended without a status'}", _log(api, path))


def _log(api: Api, path: str) -> list[str]:
    """The last lines of a task's log; [] when it cannot be read, as the failure itself counts more."""
    try:
        lines = as_objects(api.call("GET", f"{path}/log", {"limit": "500"}), "reading a log", api.who)
    except (ApiError, PveError):
        return []
    return [str(line.get("t", "")) for line in lines][-LOG_LINES:]
