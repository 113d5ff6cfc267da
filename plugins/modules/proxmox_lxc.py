#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One container of Proxmox VE, as declared."""

from __future__ import annotations

DOCUMENTATION = r"""
module: proxmox_lxc
short_description: Create, change, start, stop and destroy an LXC container of Proxmox VE, GPUs included
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Declares one container. What differs is changed, in both directions, so that a feature, mount, network or device
    that is no longer in its list is removed. An option that is left away leaves what the container has.
  - GPUs are passed through as C(devN), found by index, PCI address or UUID at each run. An old container that has them
    as raw C(lxc.cgroup2.devices.allow) and C(lxc.mount.entry) lines is brought over to that.
  - Changes that Proxmox VE cannot make to a running container are returned as RV(pending), and take effect with a
    restart, which O(restart) allows.
  - Device nodes, mounts of folders of the node and most features can be set by C(root@pam) alone, and not with an API
    token. Run the module on the node as root (O(transport=local)), which needs no login at all and nothing installed.
options:
  transport:
    description:
      - V(local) runs C(pvesh) where the module runs, as root of the node.
      - V(openssh) runs it on O(api_host) through the C(ssh) program.
      - V(https) speaks to the API of O(api_host). It needs C(proxmoxer) and C(requests) where the module runs.
    type: str
    choices: [local, openssh, https]
    default: local
  api_host:
    description: Name or address of the node, for O(transport=openssh) and O(transport=https).
    type: str
  api_port:
    description: Port there, 22 or 8006 by default.
    type: int
  api_user:
    description: User there, V(root) or V(root@pam) by default. Of another user than root C(sudo) is expected.
    type: str
  api_password:
    description: Password of O(api_user), for O(transport=https).
    type: str
  api_token_id:
    description: Name of an API token of O(api_user), as in V(ansible) of C(root@pam!ansible), in place of a password.
    type: str
  api_token_secret:
    description: Its secret.
    type: str
  validate_certs:
    description: Whether the certificate of O(api_host) has to be trusted.
    type: bool
    default: true
  api_ca_path:
    description: Certificate of the authority that signed it, such as a copy of C(/etc/pve/pve-root-ca.pem) of the node.
    type: path
  api_timeout:
    description: Seconds that one answer of the API may take.
    type: int
    default: 30
  ssh_options:
    description: More arguments of the C(ssh) program, for O(transport=openssh).
    type: list
    elements: str
    default: []
  state:
    description:
      - V(present) makes the container as declared, and leaves it running or stopped.
      - V(started) also starts it, V(stopped) shuts it down.
      - V(absent) destroys it with all its volumes, if O(confirm_destroy) says so.
    type: str
    choices: [present, started, stopped, absent]
    default: started
  restart:
    description:
      - V(if_needed) restarts a running container when something takes effect only then.
      - V(never) leaves it running, with what is pending returned.
    type: str
    choices: [never, if_needed]
    default: never
  node:
    description: Node that the container is on. By default the only one, or the one the module runs on.
    type: str
  vmid:
    description: Number of the container. By default that of the container called O(hostname), or the next free one.
    type: int
  hostname:
    description: Name of the container.
    type: str
  template:
    description: Archive that a new container is made of, as in V(local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst).
    type: str
  clone:
    description: Number of the container that a new one is a copy of, in place of O(template).
    type: int
  full_clone:
    description: Whether the copy has volumes of its own, which only the copy of a template may do without.
    type: bool
    default: true
  storage:
    description: Storage of the copy's volumes.
    type: str
  rootfs:
    description:
      - Root file system, a property string as Proxmox VE writes it (V(local-lvm:64) are 64 GiB), or a dictionary with
        C(storage), C(size) (as V(64G)) and the keys of Proxmox VE.
      - It grows when it has to, and never shrinks.
    type: raw
  unprivileged:
    description: Whether the container's root is nobody on the node. Cannot be changed later. V(true) for a new one.
    type: bool
  cores:
    description: Number of cores; V(0) for all.
    type: int
  cpulimit:
    description: Limit of CPU time, in cores; V(0) for none.
    type: float
  cpuunits:
    description: Weight of the container for the CPU scheduler; V(0) for the default.
    type: int
  memory:
    description: Memory in MiB.
    type: int
  swap:
    description: Swap in MiB.
    type: int
  networks:
    description: >-
      Networks, each a property string (V(name=eth0,bridge=vmbr0,ip=dhcp)) or a dictionary of the same keys; told apart
      by C(name).
    type: list
    elements: raw
  mounts:
    description:
      - Mounts, told apart by their path in the container. V(/shared) alone is that folder of the node under the same
        path. Otherwise a property string (V(/srv/models,mp=/models,ro=1)) or a dictionary, which for a volume may name
        C(storage) and C(size).
      - The volume of a mount that is removed is kept, as C(unusedN).
    type: list
    elements: raw
  features:
    description: >-
      Features, a property string (V(nesting=1,keyctl=1)) or a dictionary; those that are not in it are taken away.
    type: raw
  devices:
    description: Other devices, each a path, a property string (V(/dev/kvm,gid=104)) or a dictionary.
    type: list
    elements: raw
  gpus:
    description: >-
      V(all), or the GPUs by index (as nvidia-smi counts), PCI address or UUID; V([]) for none. Needs O(transport=local)
      or O(transport=openssh).
    type: list
    elements: str
  gpu_gid:
    description: Group of the nodes in the container.
    type: int
    default: 0
  gpu_mode:
    description: Their mode, in quotes.
    type: str
    default: "0666"
  gpu_modeset:
    description: Also pass C(/dev/nvidia-modeset) through, which graphics needs and CUDA does not.
    type: bool
    default: false
  gpu_caps:
    description: Also pass the nodes in C(/dev/nvidia-caps) through, which MIG needs.
    type: bool
    default: false
  memlock:
    description: >-
      Limit of locked memory, V(unlimited) or a size, which NCCL and pinned buffers need. A raw line of the
      container's file, as Proxmox VE has no key for it; V("") removes ours.
    type: str
  shm_size:
    description: Size of C(/dev/shm), as V(64G); another such line. Without one it is half the memory of the node.
    type: str
  onboot:
    description: Whether it starts with the node.
    type: bool
  startup:
    description: Its turn then, a property string (V(order=2,up=30)) or a dictionary.
    type: raw
  protection:
    description: Whether Proxmox VE refuses to destroy it or to change its disks.
    type: bool
  nameserver:
    description: Name servers, separated by blanks; V("") for those of the node.
    type: str
  searchdomain:
    description: Domain that names are searched in; V("") for that of the node.
    type: str
  timezone:
    description: Time zone, or V(host).
    type: str
  cmode:
    description: What the console of the container attaches to.
    type: str
    choices: [shell, console, tty]
  console:
    description: Whether it has a console.
    type: bool
  tty:
    description: Number of its terminals.
    type: int
  tags:
    description: Tags besides C(groundstate), by which the container is known as ours.
    type: list
    elements: str
  description:
    description: Text of our block in the description; what others wrote around it stays.
    type: str
  ssh_public_keys:
    description: Keys for root of a new container.
    type: list
    elements: str
    default: []
  adopt:
    description: Take over a container that has not our tag.
    type: bool
    default: false
  confirm_destroy:
    description: For O(state=absent), the hostname of the container that is to be destroyed.
    type: str
  force:
    description: For O(state=absent), destroy a container that has not our tag.
    type: bool
    default: false
  purge:
    description: For O(state=absent), remove it from backup jobs, replication and the HA manager, too.
    type: bool
    default: false
  timeout:
    description: Seconds that one task (create, start, ...) may take.
    type: int
    default: 600
  shutdown_timeout:
    description: Seconds that the container has to shut down before it is stopped.
    type: int
    default: 60
attributes:
  check_mode:
    description: Says what would be done; of a container that is not there yet, without the details of a clone.
    support: full
  diff_mode:
    description: The configuration before and after, with our raw lines.
    support: full
"""

EXAMPLES = r"""
- name: The container that serves, on the node itself
  groundstate.llm.proxmox_lxc:
    vmid: 129
    hostname: pcie8
    template: local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst
    rootfs: {storage: local-lvm, size: 64G}
    cores: 48
    memory: 262144
    networks: ["name=eth0,bridge=vmbr0,ip=192.0.2.129/24,gw=192.0.2.1"]
    mounts: [/shared, /data]
    features: {nesting: true}
    gpus: [all]
    memlock: unlimited
    restart: if_needed

- name: Two of the GPUs, wherever their nodes are after a reboot
  groundstate.llm.proxmox_lxc:
    vmid: 130
    gpus: ["0000:41:00.0", GPU-5f2e1c0a-0000-0000-0000-000000000001]

- name: A container without anything that only root may set, through the API
  groundstate.llm.proxmox_lxc:
    transport: https
    api_host: pve1.example.com
    api_user: ansible@pve
    api_token_id: provision
    api_token_secret: "{{ vault_pve_token }}"
    hostname: router
    template: local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst
    rootfs: local-lvm:8
  delegate_to: localhost

- name: Destroy it
  groundstate.llm.proxmox_lxc:
    vmid: 130
    state: absent
    confirm_destroy: scratch
"""

RETURN = r"""
vmid:
  description: Number of the container.
  returned: always
  type: int
  sample: 129
node:
  description: Node that it is on.
  returned: always
  type: str
status:
  description: C(running), C(stopped) or C(absent).
  returned: always
  type: str
actions:
  description: What was done, or in check mode would be.
  returned: always
  type: list
  elements: str
  sample: [created, started]
pending:
  description: Keys that take effect with the next start, raw lines by their key.
  returned: always
  type: list
  elements: str
config:
  description: The configuration as Proxmox VE has it, with what is pending.
  returned: always
  type: dict
raw:
  description: Raw C(lxc.*) lines of the container's file; always empty with O(transport=https), which cannot see them.
  returned: always
  type: list
  elements: str
addresses:
  description: Addresses of a running container; C(null) when Proxmox VE cannot tell.
  returned: always
  type: list
  elements: str
log:
  description: Last lines of the log of the task that failed.
  returned: when a task failed
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.pve import ensure, https, pvesh, shell
from ..module_utils.pve.api import Api, PveError

DEFAULT_PORTS = {"openssh": 22, "https": 8006}


def argument_spec() -> dict:
    """Options of the module."""
    text, number, yes_or_no = {"type": "str"}, {"type": "int"}, {"type": "bool"}
    off = {"type": "bool", "default": False}
    return {
        "transport": {"type": "str", "choices": ["local", "openssh", "https"], "default": "local"},
        "api_host": text,
        "api_port": number,
        "api_user": text,
        "api_password": {"type": "str", "no_log": True},
        "api_token_id": {"type": "str", "no_log": False},
        "api_token_secret": {"type": "str", "no_log": True},
        "validate_certs": {"type": "bool", "default": True},
        "api_ca_path": {"type": "path"},
        "api_timeout": {"type": "int", "default": 30},
        "ssh_options": {"type": "list", "elements": "str", "default": []},
        "state": {"type": "str", "choices": ["present", "started", "stopped", "absent"], "default": "started"},
        "restart": {"type": "str", "choices": ["never", "if_needed"], "default": "never"},
        "node": text,
        "vmid": number,
        "hostname": text,
        "template": text,
        "clone": number,
        "full_clone": {"type": "bool", "default": True},
        "storage": text,
        "rootfs": {"type": "raw"},
        "unprivileged": yes_or_no,
        "cores": number,
        "cpulimit": {"type": "float"},
        "cpuunits": number,
        "memory": number,
        "swap": number,
        "networks": {"type": "list", "elements": "raw"},
        "mounts": {"type": "list", "elements": "raw"},
        "features": {"type": "raw"},
        "devices": {"type": "list", "elements": "raw"},
        "gpus": {"type": "list", "elements": "str"},
        "gpu_gid": {"type": "int", "default": 0},
        "gpu_mode": {"type": "str", "default": "0666"},
        "gpu_modeset": off,
        "gpu_caps": off,
        "memlock": text,
        "shm_size": text,
        "onboot": yes_or_no,
        "startup": {"type": "raw"},
        "protection": yes_or_no,
        "nameserver": text,
        "searchdomain": text,
        "timezone": text,
        "cmode": {"type": "str", "choices": ["shell", "console", "tty"]},
        "console": yes_or_no,
        "tty": number,
        "tags": {"type": "list", "elements": "str"},
        "description": text,
        "ssh_public_keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
        "adopt": off,
        "confirm_destroy": text,
        "force": off,
        "purge": off,
        "timeout": {"type": "int", "default": 600},
        "shutdown_timeout": {"type": "int", "default": 60},
    }


def way(given: dict) -> Api:
    """The way to the node. Raises PveError or ShellError."""
    if given["transport"] == "local":
        return pvesh.Pvesh(shell.here(), given["timeout"])
    port = given["api_port"] or DEFAULT_PORTS[given["transport"]]
    if given["transport"] == "openssh":
        options = shell.SshOptions(given["api_host"], given["api_user"] or "root", port, given["ssh_options"])
        return pvesh.Pvesh(options.shell(), given["timeout"])
    verify = (given["api_ca_path"] or True) if given["validate_certs"] else False
    return https.Https(
        given["api_host"],
        port,
        given["api_user"] or "root@pam",
        given["api_password"] or "",
        given["api_token_id"] or "",
        given["api_token_secret"] or "",
        verify,
        given["api_timeout"],
    )


def main() -> None:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec=argument_spec(),
        supports_check_mode=True,
        required_one_of=[("vmid", "hostname")],
        required_if=[
            ("transport", "openssh", ["api_host"]),
            ("transport", "https", ["api_host"]),
            ("transport", "https", ["api_password", "api_token_id"], True),
        ],
        required_together=[("api_token_id", "api_token_secret")],
        mutually_exclusive=[("template", "clone"), ("api_password", "api_token_id")],
    )
    try:
        result = ensure.ensure(module.params, way(module.params), module.check_mode)
    except PveError as error:
        module.fail_json(msg=str(error), log=error.log)
    except (shell.ShellError, ValueError) as error:
        module.fail_json(msg=str(error))
    for text in result.warnings:
        module.warn(text)
    module.exit_json(
        changed=bool(result.actions),
        vmid=result.vmid,
        node=result.node,
        status=result.status,
        actions=result.actions,
        pending=result.pending,
        config=result.config,
        raw=result.raw,
        addresses=result.addresses,
        diff={"before": result.before, "after": result.after},
    )


if __name__ == "__main__":
    main()
