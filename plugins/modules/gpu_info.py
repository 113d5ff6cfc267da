#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Facts about the GPUs of a host and who holds them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Tell which GPUs a host has, how much of them is used, and by whom
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - GPUs come from C(nvidia-smi -q -x), processes from a scan of C(/proc) for open or mapped C(/dev/nvidiaN), joined
    with the driver's own list. Changes nothing.
  - What could not be read is C(null) or C(unknown), never C(none).
options:
  home:
    description: Folder of everything that Groundstate writes on this host; it tells which processes are of our servers.
    type: path
    default: ~/.local/state/groundstate
  gpus:
    description: V(all), or the GPUs to tell about, by index (as nvidia-smi counts) or UUID.
    type: list
    elements: str
    default: [all]
  ports:
    description: TCP ports of which to tell who has them.
    type: list
    elements: int
    default: []
  query_timeout_s:
    description: Seconds that nvidia-smi may take to answer before the driver counts as hung.
    type: float
    default: 30
attributes:
  check_mode:
    description: Changes nothing in any mode.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
seealso:
  - module: groundstate.llm.gpu_reset
"""

EXAMPLES = r"""
- name: Look at the GPUs and at the port of the server
  groundstate.llm.gpu_info:
    ports: [8000]
  register: gpus
"""

RETURN = r"""
available:
  description: V(true), V(false) (the host has no GPU), or C(unknown), for instance when nvidia-smi hangs.
  returned: always
  type: raw
  sample: true
why:
  description: Why there are no GPUs or why that could not be told.
  returned: always
  type: str
driver:
  description: Version of the driver, C("") when unknown.
  returned: always
  type: str
  sample: 580.159.04
cuda:
  description: Highest CUDA version that the driver supports.
  returned: always
  type: str
gpus:
  description: >-
    One entry a GPU, with C(index), C(uuid), C(pci), C(name), C(minor) (N of /dev/nvidiaN), C(memory_total),
    C(memory_reserved) and C(memory_used) in bytes, C(utilisation) in percent, C(mig), C(owner) (visible, none,
    not visible, unknown), C(owner_why), C(pids), and the driver's own list as C(processes).
  returned: always
  type: list
  elements: dict
processes:
  description: >-
    Processes that hold one of these GPUs, with C(pid), C(start) (clock ticks since boot), C(ppid), C(uid), C(user),
    C(state), C(wchan) (kernel function, in state D), C(comm), C(cmdline), C(title) (that it gave itself), C(cgroup),
    C(unit) (systemd service), C(container) (LXC), C(nodes) (open or mapped), C(gpus), C(doubtful_gpus) (node open, use
    not certain), C(gpu_memory) (bytes, C(null) when the driver does not tell), C(same_namespace), C(engine), C(part)
    and C(server).
  returned: always
  type: list
  elements: dict
unreadable:
  description: Number of processes whose open files may not be read; 0 as root.
  returned: always
  type: int
ports:
  description: >-
    Who has the ports asked for, with C(port), C(state) (listening, bound, or time_wait, which a server may take),
    C(pid) (C(null) when not known), C(cmdline) and C(unit).
  returned: always
  type: list
  elements: dict
xid:
  description: The last Xid lines of the kernel log, oldest first; C(null) when it may not be read.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import gpu_view, kernel_log, nvidia, ports


def gather(home: str, wanted: list[str], numbers: list[int], timeout_s: float) -> dict:
    """The module's result. Raises ValueError for a GPU that is not there, no port number, or a damaged record."""
    answer = nvidia.query(timeout_s)
    xid = kernel_log.xid_lines()
    # Where the driver cannot be asked, which indices there are is not known either.
    chosen = nvidia.select(answer.gpus, wanted if answer.available is not None else ["all"])
    asked = {one.index for one in chosen}
    seen = gpu_view.look(home, answer.gpus, asked)
    holding = dict(seen.view.holds)
    blind = bool(seen.scan.unreadable)
    return {
        "available": "unknown" if answer.available is None else answer.available,
        "why": answer.why + (kernel_log.told(xid) if answer.available is None else ""),
        "driver": answer.report.driver if answer.report else "",
        "cuda": answer.report.cuda if answer.report else "",
        "gpus": [{**one.as_dict(), **gpu_view.owners(one, holding, blind)} for one in chosen],
        "processes": [one for one in seen.processes() if asked & {*one["gpus"], *one["doubtful_gpus"]}],
        "unreadable": len(seen.scan.unreadable),
        "ports": [use for number in numbers for use in ports.tell(number)],
        "xid": xid,
    }


def main() -> None:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "default": "~/.local/state/groundstate"},
            "gpus": {"type": "list", "elements": "str", "default": ["all"]},
            "ports": {"type": "list", "elements": "int", "default": []},
            "query_timeout_s": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        result = gather(given["home"], given["gpus"], given["ports"], given["query_timeout_s"])
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
