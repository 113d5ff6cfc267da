# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One container of a node: found, made, changed, started, restarted, stopped and destroyed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from . import api as pve_api
from . import note, raw, shell
from .api import Api, ApiError, PveError
from .declared import Values
from .plan import Plan, keys_of, root_only


class Container:
    """A container by its number; ``config`` is None while there is none."""

    def __init__(self, api: Api, node: str, vmid: int, timeout_s: float, sleep: Callable[[float], None] = time.sleep):
        self.api = api
        self.node = node
        self.vmid = vmid
        self.timeout_s = timeout_s
        self.sleep = sleep
        self.path = f"/nodes/{node}/lxc/{vmid}"
        self.config: Values | None = None  # with what is pending
        self.digest = ""
        self.running = False
        self.ha = False
        self.conf: str | None = None  # ID.conf as text, where there is a shell

    # --- calls ------------------------------------------------------------------------------------

    def call(self, method: str, path: str, doing: str, parameters: Mapping[str, str] | None = None) -> Any:
        """A call whose errors are sentences. Raises PveError."""
        sent = dict(parameters or {})
        try:
            return self.api.call(method, path, sent)
        except ApiError as error:
            unprivileged = (self.config or sent).get("unprivileged", "0") == "1"
            deleted = sent.get("delete", "").split(",") if sent.get("delete") else []
            keys = root_only(sent, deleted, self.config or {}, unprivileged)
            raise PveError(pve_api.sentence(error, doing, self.api.who, sent, keys)) from error

    def task(self, method: str, path: str, doing: str, parameters: Mapping[str, str] | None = None) -> None:
        """A call that may start a task, and its end. Raises PveError with the task's log."""
        answer = self.call(method, path, doing, parameters)
        if pve_api.is_upid(answer):
            pve_api.wait(self.api, answer, self.timeout_s, doing, self.sleep)

    # --- looking ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Read the container anew. Raises PveError."""
        doing = f"reading container {self.vmid}"
        answer = dict(pve_api.as_object(self.call("GET", f"{self.path}/config", doing), doing, self.api.who))
        self.digest = str(answer.pop("digest", ""))
        answer.pop("lxc", None)  # the raw lines, which are read from the file where they can be changed
        self.config = {key: str(value) for key, value in answer.items()}
        status = pve_api.as_object(self.call("GET", f"{self.path}/status/current", doing), doing, self.api.who)
        self.running = status.get("status") == "running"
        self.ha = str((status.get("ha") or {}).get("managed", 0)) == "1"
        if self.api.shell:
            self.conf = self.api.shell.read(shell.CONF.format(vmid=self.vmid))

    @property
    def there(self) -> Values:
        """The configuration of a container that is there."""
        if self.config is None:
            raise PveError(f"container {self.vmid} is not there")
        return self.config

    def pending(self) -> list[str]:
        """The keys that take effect with a restart; raw lines by their key."""
        doing = f"reading what is pending of container {self.vmid}"
        answer = pve_api.as_objects(self.call("GET", f"{self.path}/pending", doing), doing, self.api.who)
        found = [str(item["key"]) for item in answer if "pending" in item or str(item.get("delete", 0)) != "0"]
        if self.running and self.api.shell and self.conf is not None:
            running = self.api.shell.read(shell.RUNNING.format(vmid=self.vmid))
            if running is not None:
                found += raw.pending(raw.lines_of(self.conf), raw.lines_of(running))
        return sorted(found)

    def addresses(self) -> list[str]:
        """The addresses of a running container, without its loopback; [] while it has none."""
        if not self.running:
            return []
        doing = f"reading the addresses of container {self.vmid}"
        found = []
        for interface in pve_api.as_objects(self.call("GET", f"{self.path}/interfaces", doing), doing, self.api.who):
            if interface.get("name") != "lo":
                texts = [str(interface.get(key) or "") for key in ("inet", "inet6")]
                found += [text.partition("/")[0] for text in texts if text and not text.startswith("fe80:")]
        return found

    # --- changing ---------------------------------------------------------------------------------

    def create(self, parameters: Mapping[str, str]) -> None:
        """Make it from a template."""
        self.task("POST", f"/nodes/{self.node}/lxc", f"creating container {self.vmid}", parameters)
        self.look()

    def clone(self, source: int, parameters: Mapping[str, str]) -> None:
        """Make it as a copy of another."""
        path = f"/nodes/{self.node}/lxc/{source}/clone"
        self.task("POST", path, f"cloning container {source} to {self.vmid}", parameters)
        self.look()

    def raw_target(self, wanted: list[note.RawLine], migrate: bool) -> tuple[list[note.RawLine], list[note.RawLine]]:
        """(the raw lines that are there, the raw lines as they should be)."""
        lines = raw.lines_of(self.conf or "")
        ours = raw.noted(self.there.get("description", ""))
        return lines, raw.target(lines, ours, wanted, migrate)

    def write_raw(self, lines: list[note.RawLine]) -> None:
        """Write the raw lines into ID.conf. Raises PveError."""
        if self.api.shell is None or self.conf is None:
            raise PveError(f"the configuration file of container {self.vmid} cannot be read on the node")
        try:
            self.api.shell.replace_conf(self.vmid, self.conf, raw.write(self.conf, lines))
        except shell.ShellError as error:
            raise PveError(str(error)) from error
        before = self.config
        self.look()
        if before != self.config:
            raise PveError(f"container {self.vmid} was changed by someone else meanwhile: run this again")

    def apply(self, plan: Plan) -> None:
        """Carry a plan out. Raises PveError."""
        doing = f"changing container {self.vmid}"
        digest = {"digest": self.digest} if self.digest else {}
        for key, size in sorted(plan.grow.items()):
            self.task(
                "PUT", f"{self.path}/resize", f"growing {key} of container {self.vmid}", {"disk": key, "size": size}
            )
            digest = {}  # it is another one now
        if plan.put or plan.delete:
            deleted = {"delete": ",".join(sorted(plan.delete))} if plan.delete else {}
            self.call("PUT", f"{self.path}/config", doing, {**plan.put, **deleted, **digest})
        self.look()

    # --- power ------------------------------------------------------------------------------------

    def start(self) -> None:
        self.task("POST", f"{self.path}/status/start", f"starting container {self.vmid}")
        self._until(True)

    def stop(self, grace_s: int) -> None:
        """Shut it down; what has not ended after ``grace_s`` seconds is stopped."""
        parameters = {"timeout": str(grace_s), "forceStop": "1"}
        self.task("POST", f"{self.path}/status/shutdown", f"stopping container {self.vmid}", parameters)
        self._until(False)

    def restart(self, grace_s: int) -> None:
        self.task("POST", f"{self.path}/status/reboot", f"restarting container {self.vmid}", {"timeout": str(grace_s)})
        self._until(True)

    def destroy(self, purge: bool) -> None:
        """Destroy it with its volumes. ``purge``: also from backup jobs, replication and HA."""
        parameters = {"purge": "1"} if purge else {}
        self.task("DELETE", self.path, f"destroying container {self.vmid}", parameters)
        self.config = None

    def _until(self, running: bool) -> None:
        """The HA manager only takes the request: the container follows later."""
        end = time.monotonic() + self.timeout_s
        self.look()
        while self.running != running:
            if time.monotonic() > end:
                want = "running" if running else "stopped"
                why = " (the HA manager was asked for it)" if self.ha else ""
                raise PveError(f"container {self.vmid} is not {want} after {self.timeout_s:g} s{why}")
            self.sleep(pve_api.POLL_S)
            self.look()


def find(api: Api, vmid: int | None, hostname: str | None) -> list[dict[str, Any]]:
    """Guests of the cluster with this number, or containers of this name. Raises PveError."""
    doing = "looking for the container"
    try:
        answer = pve_api.as_objects(api.call("GET", "/cluster/resources", {"type": "vm"}), doing, api.who)
    except ApiError as error:
        raise PveError(pve_api.sentence(error, doing, api.who, {}, [])) from error
    if vmid is not None:
        return [one for one in answer if int(one["vmid"]) == vmid]
    return [one for one in answer if one.get("type") == "lxc" and one.get("name") == hostname]


def shown(config: Mapping[str, str], lines: list[note.RawLine], status: str) -> str:
    """A container as text for a diff, like its ID.conf."""
    numbered = [key for prefix in ("dev", "mp", "net") for key in keys_of(config, prefix)]
    keys = sorted(set(config) - set(numbered)) + numbered
    body = [f"{key}: {value}".rstrip("\n") for key, value in ((key, config[key]) for key in keys)]
    return "\n".join([f"# {status}", *body, *(f"{key}: {value}" for key, value in lines)]) + "\n"
