#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The GPUs of a Proxmox VE node, ready for its containers now and after each boot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: proxmox_node_gpu
short_description: Have the GPUs of a Proxmox VE node ready for its containers
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Loads the driver with C(nvidia_uvm), makes the device nodes that are missing, removes plain files that were left at
    their places, and installs a systemd unit that does so at each boot before containers start.
  - Reports versions, the kernel's command line, the IOMMU and the ACS state of each bridge above a GPU, with advice. It
    changes none of that, installs no driver and reboots nothing.
options:
  modeset:
    description: Also C(nvidia_modeset), which graphics needs and CUDA does not.
    type: bool
    default: false
  persistence:
    description: Keep the driver awake without users (C(nvidia-persistenced), or C(nvidia-smi -pm 1)).
    type: bool
    default: true
  driver_version:
    description: Version that the driver has to have, checked before anything is changed; V("") for any.
    type: str
    default: ""
attributes:
  check_mode:
    description: Says what would be done.
    support: full
  diff_mode:
    description: RV(actions) says what was done.
    support: none
seealso:
  - module: groundstate.llm.proxmox_lxc
"""

EXAMPLES = r"""
- name: Have the GPUs ready before containers start
  groundstate.llm.proxmox_node_gpu:
  register: node
"""

RETURN = r"""
driver:
  description: Version that the kernel runs; C("") when none is loaded (check mode).
  returned: always
  type: str
  sample: 595.45.04
reboot_needed:
  description: Whether another version is installed than the kernel runs.
  returned: always
  type: bool
gpus:
  description: The GPUs with C(index), C(pci), C(uuid), C(name) and C(minor) (N of /dev/nvidiaN).
  returned: always
  type: list
  elements: dict
persistence:
  description: Whether the driver stays awake; C(null) when that cannot be told.
  returned: always
  type: bool
cmdline:
  description: Command line of the kernel.
  returned: always
  type: str
iommu:
  description: C(off), C(passthrough) or C(translated).
  returned: always
  type: str
bridges:
  description: >-
    Bridges above the GPUs with C(address), C(gpus) and C(redirects): whether ACS sends traffic between GPUs over the
    root complex (C(null) without ACS, or when it cannot be read).
  returned: always
  type: list
  elements: dict
advice:
  description: What keeps GPUs from reaching each other's memory, and what helps.
  returned: always
  type: list
  elements: str
actions:
  description: What was done, or in check mode would be.
  returned: always
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import files
from ..module_utils.pve import node, shell


class Job:
    """The steps, each done only where it is needed."""

    def __init__(self, module: AnsibleModule):
        self.module = module
        self.given = module.params
        self.shell = shell.here()
        self.actions: list[str] = []

    def do(self, action: str, *commands: list[str]) -> None:
        """Run commands that have to succeed, or only say so in check mode. Raises ShellError."""
        if not self.module.check_mode:
            for command in commands:
                self.shell.check(command, 120.0)
        self.actions.append(action)

    def load(self) -> None:
        """The modules: the devices that they register are what counts."""
        wanted = {"nvidia_uvm": "nvidia-uvm", **({"nvidia_modeset": "nvidia-modeset"} if self.given["modeset"] else {})}
        there = node.registered("\n".join(files.tail("/proc/devices", 1000)))
        missing = [name for name, device in wanted.items() if device not in there]
        if not node.loaded_version():
            if not node.installed_version(self.shell):
                raise ValueError(
                    "no NVIDIA driver is installed on this node: name its packages or .run file "
                    "(proxmox_node_gpu_packages, proxmox_node_gpu_run_file), or install it by hand"
                )
            missing.insert(0, "nvidia")
        if missing:
            self.do(f"loaded {', '.join(missing)}", [node.program("modprobe") or "modprobe", "-a", *missing])

    def make_nodes(self, gpus: list) -> None:
        paths = node.expected(gpus, self.given["modeset"])
        missing, other = node.wrong_nodes(paths)
        folders = [path for path in other if os.path.isdir(path)]
        if folders:
            raise ValueError(
                f"{', '.join(folders)} is a folder where a device node belongs: look what it is, and move it"
            )
        if other:
            self.do(f"removed {', '.join(other)}, no device", ["rm", "--", *other])
        if not missing and not other:
            return
        maker = node.program("nvidia-modprobe")
        if maker is None:
            raise ValueError("nvidia-modprobe is not installed, which makes the device nodes: it comes with the driver")
        minors = [one.minor for one in gpus]
        commands = [node.make_command(maker, minor, self.given["modeset"]) for minor in minors]
        self.do(f"made {', '.join([*missing, *other])}", *commands)
        left = [] if self.module.check_mode else [path for some in node.wrong_nodes(paths) for path in some]
        if left:
            raise ValueError(f"nvidia-modprobe made no {', '.join(left)}: see the kernel log for what the driver says")

    def boot(self, minors: list[int]) -> None:
        """The unit for the next boots."""
        path = os.path.join(node.UNIT_FOLDER, node.UNIT)
        text = node.unit_text(minors, self.given["modeset"])
        enabled = os.path.lexists(os.path.join(node.UNIT_FOLDER, "multi-user.target.wants", node.UNIT))
        if self.shell.read(path) == text and enabled:
            return
        if not self.module.check_mode:
            files.write_atomic(path, text)
        # In an image or a container without systemd there is nothing to tell.
        reload = [["systemctl", "daemon-reload"]] if os.path.isdir("/run/systemd/system") else []
        self.do(f"installed {node.UNIT}", *reload, ["systemctl", "enable", node.UNIT])

    def stay_awake(self) -> bool | None:
        awake = node.persistence(self.shell)
        if not self.given["persistence"] or awake is not False:
            return awake
        status, _out, _error = self.shell.run(["systemctl", "cat", "nvidia-persistenced.service"])
        daemon = ["systemctl", "enable", "--now", "nvidia-persistenced.service"]
        self.do("turned persistence on", daemon if status == 0 else ["nvidia-smi", "-pm", "1"])
        return True

    def run(self) -> dict:
        wanted, loaded = self.given["driver_version"], node.loaded_version()
        installed = node.installed_version(self.shell)
        if wanted and wanted not in (loaded, installed):
            raise ValueError(
                f"driver {loaded or installed or 'none'} is on this node and {wanted} is asked for: install that one "
                "(proxmox_node_gpu_packages or proxmox_node_gpu_run_file), or correct proxmox_node_gpu_driver_version"
            )
        self.load()
        gpus = node.driver_gpus()
        loaded = node.loaded_version()
        if not gpus and loaded:
            raise ValueError(f"driver {loaded} is loaded and has no GPU: see lspci and the kernel log of the node")
        self.make_nodes(gpus)
        self.boot(sorted(one.minor for one in gpus))
        awake = self.stay_awake()
        cmdline = (self.shell.read("/proc/cmdline") or "").strip()
        above, state = node.bridges(gpus), node.iommu(cmdline)
        return {
            "driver": loaded,
            "reboot_needed": bool(installed and loaded and installed != loaded),
            "gpus": [
                {"index": one.index, "pci": one.pci, "uuid": one.uuid, "name": one.name, "minor": one.minor}
                for one in gpus
            ],
            "persistence": awake,
            "cmdline": cmdline,
            "iommu": state,
            "bridges": [{"address": one.address, "redirects": one.redirects, "gpus": one.gpus} for one in above],
            "advice": node.advice(state, above, len(gpus)),
            "actions": self.actions,
        }


def main() -> None:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "modeset": {"type": "bool", "default": False},
            "persistence": {"type": "bool", "default": True},
            "driver_version": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    try:
        result = Job(module).run()
    except (shell.ShellError, ValueError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(changed=bool(result["actions"]), **result)


if __name__ == "__main__":
    main()
