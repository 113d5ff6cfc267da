#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a running container reachable over ssh."""

from __future__ import annotations

DOCUMENTATION = r"""
module: proxmox_lxc_ssh
short_description: Make a running LXC container of Proxmox VE reachable over ssh
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Runs on the node, as root. Through C(pct exec) it waits until the container has started up and has an address,
    installs an ssh server and Python where they are missing, starts it, and adds keys of root.
  - What the container has already is left alone, so that a second run changes nothing.
options:
  vmid:
    description: Number of the container, which has to be running.
    type: int
    required: true
  ssh_public_keys:
    description: Keys that may log in as root. Others that are there stay.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds that each step may take.
    type: int
    default: 180
attributes:
  check_mode:
    description: Looks into the container and says what would be done.
    support: full
  diff_mode:
    description: RV(actions) says what was done.
    support: none
seealso:
  - module: groundstate.llm.proxmox_lxc
"""

EXAMPLES = r"""
- name: Let us in
  groundstate.llm.proxmox_lxc_ssh:
    vmid: 129
    ssh_public_keys: ["{{ lookup('ansible.builtin.file', '~/.ssh/id_ed25519.pub') }}"]
"""

RETURN = r"""
addresses:
  description: Addresses of the container, without its loopback.
  returned: always
  type: list
  elements: str
  sample: [192.0.2.129]
host_keys:
  description: Its public host keys, read on the node and not over the network, for C(known_hosts).
  returned: always
  type: list
  elements: str
actions:
  description: What was done, or in check mode would be.
  returned: always
  type: list
  elements: str
  sample: [started sshd, added 1 keys]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.pve import bootstrap, shell


def main() -> None:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "vmid": {"type": "int", "required": True},
            "ssh_public_keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "timeout": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        seen, done = bootstrap.ensure(
            shell.here(), given["vmid"], given["ssh_public_keys"], given["timeout"], module.check_mode
        )
    except (shell.ShellError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(done), actions=done, addresses=seen.addresses, host_keys=seen.host_keys)


if __name__ == "__main__":
    main()
