# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the module proxmox_lxc does: from its options to a container in the state asked for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import nvidia
from . import api as pve_api
from . import note, passthrough, raw
from .api import Api, ApiError, PveError
from .container import Container, find, shown
from .declared import Declared, Values, declare
from .plan import Plan, after, create_parameters, make_plan, root_only
from .shell import Shell, ShellError

Options = Mapping[str, Any]


@dataclass
class Result:
    """What the module returns."""

    vmid: int | None = None
    node: str = ""
    status: str = "absent"
    actions: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    config: Values = field(default_factory=dict)
    raw: list[str] = field(default_factory=list)
    addresses: list[str] | None = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    before: str = ""
    after: str = ""


def ensure(options: Options, api: Api, check: bool, sleep: Callable[[float], None] = time.sleep) -> Result:
    """Bring one container to the state asked for. Raises PveError or ValueError with what is wrong, all at once."""
    return _Job(options, api, check, sleep).run()


def driver_gpus(node: Shell, names: list[str]) -> list[nvidia.Gpu]:
    """The GPUs of a node: from /proc where that says enough for these names, else from nvidia-smi. Raises PveError."""
    _status, text, _error = node.run(["sh", "-c", 'cat "$1"/proc/driver/nvidia/gpus/*/information', "sh", node.root])
    gpus = passthrough.from_proc(text)
    nameless = any("?" in one.uuid for one in gpus)
    if gpus and not (nameless and any(name.upper().startswith("GPU-") for name in names)):
        return gpus
    remedy = "the role proxmox_node_gpu brings the driver up"
    try:
        status, out, err = node.run(["nvidia-smi", "-q", "-x"], nvidia.TIMEOUT_S * 2)
        if status != 0:
            raise ValueError(" ".join((err or out).split())[:200] or f"nvidia-smi ended with status {status}")
        found = nvidia.parse(out).gpus
    except (ShellError, ValueError) as error:
        raise PveError(f"gpus: the driver on {node.where} names no GPU: {error}; {remedy}") from error
    if not found:
        raise PveError(f"gpus: the driver on {node.where} has no GPU; {remedy}")
    return list(found)


class _Job:
    def __init__(self, options: Options, api: Api, check: bool, sleep: Callable[[float], None]):
        self.options = options
        self.api = api
        self.check = check
        self.sleep = sleep
        self.result = Result(node=str(options.get("node") or ""))

    # --- finding ----------------------------------------------------------------------------------

    def run(self) -> Result:
        state = self.options["state"]
        if self.options.get("vmid") is not None:
            pve_api.check_vmid(self.options["vmid"])
        found = find(self.api, self.options.get("vmid"), self.options.get("hostname"))
        if not found and state == "absent":
            self.result.vmid = self.options.get("vmid")
            return self.result
        container = self.container(found)
        if found:
            container.look()
            self.check_ours(container)
        if state == "absent":
            self.absent(container)
        else:
            self.present(container, state)
        return self.result

    def container(self, found: list[dict[str, Any]]) -> Container:
        """The container meant, that is there or is to be made."""
        name, vmid = self.options.get("hostname"), self.options.get("vmid")
        if len(found) > 1:
            numbers = ", ".join(sorted(str(one["vmid"]) for one in found))
            raise PveError(f"containers {numbers} are all called {name}: say which one with vmid")
        if found:
            one = found[0]
            vmid = int(one["vmid"])
            if one.get("type") != "lxc":
                raise PveError(f"guest {vmid} is a virtual machine, not a container: use another vmid")
            if self.result.node and one["node"] != self.result.node:
                raise PveError(f"container {vmid} is on node {one['node']}, not on {self.result.node}: correct node")
            self.result.node = one["node"]
        else:
            self.result.node = self.result.node or self.only_node()
            if vmid is None:
                told = self.ask("/cluster/nextid", "asking for a free vmid")
                if not str(told).isdecimal():
                    raise PveError(f"vmid: the cluster tells no free one ({told!r:.80}): name one")
                vmid = int(told)
        self.result.vmid = vmid
        return Container(self.api, self.result.node, vmid, float(self.options["timeout"]), self.sleep)

    def ask(self, path: str, doing: str) -> Any:
        try:
            return self.api.call("GET", path)
        except ApiError as error:
            raise PveError(pve_api.sentence(error, doing, self.api.who, {}, [])) from error

    def only_node(self) -> str:
        """The node for a new container where none is named."""
        if self.api.shell:
            return self.api.shell.check(["hostname", "-s"]).strip()
        doing = "listing the nodes"
        nodes = sorted(str(one["node"]) for one in pve_api.as_objects(self.ask("/nodes", doing), doing, self.api.who))
        if len(nodes) != 1:
            raise PveError(f"node: the cluster has {', '.join(nodes) or 'none'}: say on which the container is to be")
        return nodes[0]

    def check_ours(self, container: Container) -> None:
        """Refuse a container that somebody else made."""
        if note.is_ours(container.there):
            return
        name, state = container.there.get("hostname", ""), self.options["state"]
        if not self.options["force" if state == "absent" else "adopt"]:
            fix = "force: true destroys it all the same" if state == "absent" else "adopt: true takes it over"
            raise PveError(
                f"container {container.vmid} ({name}) has neither the tag {note.TAG} nor our block in its description, "
                f"so it is somebody else's: {fix}, or name another vmid"
            )

    # --- absent -----------------------------------------------------------------------------------

    def absent(self, container: Container) -> None:
        config, vmid = container.there, container.vmid
        name = config.get("hostname", f"CT{vmid}")
        wrong = []
        if self.options.get("confirm_destroy") != name:
            wrong.append(
                f"confirm_destroy has to be its hostname, {name}: with the container all its volumes are destroyed"
            )
        if config.get("protection") == "1":
            wrong.append("protection is on: declare protection: false first (state: present)")
        if config.get("lock"):
            wrong.append(f"it is locked ({config['lock']}): wait until that job ends")
        if container.ha and not self.options["purge"]:
            wrong.append("the HA manager has it: purge: true removes it from there, and from backup jobs")
        if wrong:
            raise PveError(f"container {vmid} is not destroyed: " + "; ".join(wrong))
        self.result.before = shown(config, [], "running" if container.running else "stopped")
        if container.running:
            self.do("stopped", container.stop, self.options["shutdown_timeout"])
        self.do("destroyed", container.destroy, self.options["purge"])

    # --- present ----------------------------------------------------------------------------------

    def present(self, container: Container, state: str) -> None:
        declared = declare(self.options, self.gpu_devices())
        self.check_devices(declared)
        if container.config is None:
            if not self.create(container, declared):
                return
        else:
            status = "running" if container.running else "stopped"
            lines, _target = self.raw_lines(container, declared)
            self.result.before = shown(container.there, lines, status)
            self.update(container, declared)
        self.power(container, state)
        self.finish(container, declared)

    def do(self, action: str, act: Callable[..., None], *arguments: Any) -> None:
        """Do something, or only say so in check mode."""
        if not self.check:
            act(*arguments)
        self.result.actions.append(action)

    def gpu_devices(self) -> list[Values] | None:
        """The devices for the option gpus; None when it says nothing. Raises PveError or ValueError."""
        names = self.options.get("gpus")
        if names is None:
            return None
        if not names:
            return []
        if self.api.shell is None:
            raise PveError(
                "gpus: which /dev/nvidiaN belongs to which GPU only the node itself can tell: use transport local or "
                "openssh, or name the nodes in devices (which needs api_user root@pam with api_password)"
            )
        gpus = driver_gpus(self.api.shell, names)
        # Each node in the folder: the folder itself cannot be passed through.
        caps = self.api.shell.character_devices(passthrough.CAPS) if self.options["gpu_caps"] else []
        wanted = passthrough.paths(passthrough.choose(gpus, names), self.options["gpu_modeset"], caps)
        return [self.gpu_device(path) for path in wanted]

    def gpu_device(self, path: str) -> Values:
        mode = str(self.options["gpu_mode"])
        if not re.fullmatch(r"0[0-7]{3}", mode):
            raise ValueError(f"gpu_mode: {mode!r} is no mode: write it in quotes, with four octal digits, like '0666'")
        return {"path": path, "mode": mode, "gid": str(self.options["gpu_gid"])}

    def check_devices(self, declared: Declared) -> None:
        """Refuse what is no device, before anything is changed: PVE would only at the start."""
        if self.api.shell is None:
            return
        wanted = [one["path"] for one in (*(declared.gpus or []), *(declared.devices or []))]
        wrong = passthrough.refusals(wanted, self.api.shell.modes(wanted))
        if wrong:
            raise PveError(f"devices of container {self.result.vmid}: " + "; ".join(wrong))

    def refuse(self, wrong: Iterable[str], what: str) -> None:
        wrong = list(wrong)
        if wrong:
            raise PveError(f"container {self.result.vmid} is not {what}: " + "; ".join(wrong))

    def forbidden(self, put: Values, delete: list[str], config: Values, unprivileged: bool) -> list[str]:
        """What only root may set, told before anything is changed."""
        if self.api.is_root:
            return []
        keys = root_only(put, delete, config, unprivileged)
        return [pve_api.root_only_sentence(self.api.who, keys, put)] if keys else []

    def raw_needs_shell(self, declared: Declared) -> list[str]:
        if (declared.memlock or declared.shm_size) and self.api.shell is None:
            return ["memlock and shm_size are lines of the node's own file: use transport local or openssh"]
        return []

    def create(self, container: Container, declared: Declared) -> bool:
        """Make the container; False when the rest does not follow (check mode)."""
        options, source = self.options, self.options.get("clone")
        wrong = self.raw_needs_shell(declared)
        if not declared.plain.get("hostname"):
            wrong.append("hostname: a new container needs one")
        if bool(source) == bool(options.get("template")):
            wrong.append("template or clone: a new container needs one of them")
        parameters: Values = {}
        try:
            parameters = {"hostname": options.get("hostname") or ""} if source else create_parameters(declared)
        except ValueError as error:
            wrong.append(str(error))
        wrong += self.forbidden(parameters, [], {}, parameters.get("unprivileged", "1") == "1")
        self.refuse(wrong, "made")
        self.result.after = shown(
            parameters, self.raw_wanted(container, declared), "running" if options["state"] == "started" else "stopped"
        )
        if self.check:
            self.result.actions.append("cloned" if source else "created")
            if options["state"] == "started":
                self.result.actions.append("started")
            return False
        if source:
            parameters["description"] = note.write("", options.get("description"), self.raw_wanted(container, declared))
            parameters.update(newid=str(container.vmid), full="1" if options["full_clone"] else "0")
            if options.get("storage"):
                parameters["storage"] = options["storage"]
            container.clone(source, parameters)
            self.result.actions.append("cloned")
        else:
            parameters.update(vmid=str(container.vmid), ostemplate=options["template"])
            if options.get("ssh_public_keys"):
                parameters["ssh-public-keys"] = "\n".join(key.strip() for key in options["ssh_public_keys"]) + "\n"
            container.create(parameters)
            self.result.actions.append("created")
        self.update(container, declared)
        return True

    @staticmethod
    def raw_wanted(container: Container, declared: Declared) -> list[note.RawLine]:
        """The raw lines of ours, as declared."""
        ours = raw.noted((container.config or {}).get("description", ""))
        return raw.wanted(declared.memlock, declared.shm_size, ours)

    def raw_lines(self, container: Container, declared: Declared) -> tuple[list[note.RawLine], list[note.RawLine]]:
        """(the raw lines that are there, the raw lines as they should be)."""
        return container.raw_target(self.raw_wanted(container, declared), declared.gpus is not None)

    def plan(self, container: Container, declared: Declared) -> Plan:
        return make_plan(declared, container.there, self.raw_wanted(container, declared) if self.api.shell else None)

    def update(self, container: Container, declared: Declared) -> None:
        plan = self.plan(container, declared)
        lines, wanted = self.raw_lines(container, declared)
        config = container.there
        unprivileged = config.get("unprivileged", "0") == "1"
        raw_changes = self.api.shell is not None and lines != wanted
        wrong = [*self.raw_needs_shell(declared), *plan.refusals]
        wrong += self.forbidden(plan.put, plan.delete, config, unprivileged)
        self.refuse(wrong, "changed")
        self.result.warnings += plan.warnings
        self.result.after = shown(after(config, plan), wanted, "running" if container.running else "stopped")
        if raw_changes:
            # Before the description that names our lines: a run that ends between both is completed by the next one.
            self.do(
                "changed " + ", ".join(sorted({line[0] for line in {*lines} ^ {*wanted}})), container.write_raw, wanted
            )
        if plan.changes:
            self.do("changed " + ", ".join(sorted({*plan.put, *plan.delete, *plan.grow})), container.apply, plan)
        if self.check:
            return
        left = self.plan(container, declared)
        if left.changes:
            keys = ", ".join(sorted({*left.put, *left.delete, *left.grow}))
            raise PveError(f"container {container.vmid}: Proxmox VE took the change of {keys} and did not keep it")

    def power(self, container: Container, state: str) -> None:
        options = self.options
        pending = container.pending()
        if state == "stopped" and container.running:
            self.do("stopped", container.stop, options["shutdown_timeout"])
        elif state == "started" and not container.running:
            self.do("started", container.start)
        elif container.running and pending and options["restart"] == "if_needed":
            self.do("restarted", container.restart, options["shutdown_timeout"])
        if self.check:
            self.result.pending = pending
            return
        self.result.pending = container.pending()
        if "restarted" in self.result.actions and self.result.pending:
            keys = ", ".join(self.result.pending)
            raise PveError(f"container {container.vmid} was restarted, and {keys} still does not take effect")

    def finish(self, container: Container, declared: Declared) -> None:
        result = self.result
        result.status = "running" if container.running else "stopped"
        result.config = container.there
        lines, _target = self.raw_lines(container, declared)
        result.raw = [f"{key}: {value}" for key, value in lines]
        if not self.check:
            result.after = shown(container.there, lines, result.status)
        elif "started" in result.actions:
            result.after = result.after.replace("# stopped", "# running", 1)
        elif "stopped" in result.actions:
            result.after = result.after.replace("# running", "# stopped", 1)
        try:
            result.addresses = container.addresses()
        except PveError:
            result.addresses = None  # an older PVE does not know the call
