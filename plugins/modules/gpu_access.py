#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Proof that a host can compute on its GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_access
short_description: Prove that a host or container can compute on its GPUs
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Opens the device nodes, compares the versions of driver and libraries, makes a CUDA context and takes memory on each
    GPU, and looks at C(/dev/shm) and the limit of locked memory. Changes nothing.
  - C(nvidia-smi) alone is no proof, as it does without C(/dev/nvidia-uvm).
options:
  policy:
    description: V(require) fails with all problems, V(warn) warns, V(off) only returns them.
    type: str
    choices: [require, warn, 'off']
    default: require
  gpus:
    description: Number of GPUs that have to be usable; V(0) for any.
    type: int
    default: 0
  peer_to_peer:
    description: Whether every GPU has to reach the memory of every other.
    type: bool
    default: false
  min_shm:
    description: Least size of C(/dev/shm), as V(1G); NCCL needs it between the processes of a server.
    type: str
    default: 1G
  min_memlock:
    description: Least limit of locked memory, as V(64M).
    type: str
    default: 64M
  torch_python:
    description: Interpreter with PyTorch that has to compute on a GPU, too; V("") for none.
    type: path
    default: ""
  timeout:
    description: Seconds that CUDA may take.
    type: int
    default: 120
attributes:
  check_mode:
    description: Changes nothing in any mode.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
seealso:
  - module: groundstate.llm.gpu_info
  - module: groundstate.llm.proxmox_lxc
"""

EXAMPLES = r"""
- name: Prove that all eight GPUs can be used
  groundstate.llm.gpu_access:
    gpus: 8
    torch_python: /root/ml-env/bin/python
"""

RETURN = r"""
usable:
  description: Whether there is no problem.
  returned: always
  type: bool
problems:
  description: What is wrong, each with what helps.
  returned: always
  type: list
  elements: str
nodes:
  description: >-
    Device nodes with C(path), C(state) (open, forbidden: EPERM, no_driver: ENXIO, denied: EACCES, absent, no_device,
    error) and C(why).
  returned: always
  type: list
  elements: dict
driver:
  description: C(kernel), the version that the kernel runs, and C(userland), the versions of the libraries here.
  returned: always
  type: dict
cuda:
  description: C(works) (C(null) when that could not be told), C(why) and C(devices), the names of the usable GPUs.
  returned: always
  type: dict
peer_to_peer:
  description: Whether every GPU reaches every other's memory; C(null) with fewer than two.
  returned: always
  type: bool
shm_bytes:
  description: Size of C(/dev/shm).
  returned: always
  type: int
memlock_bytes:
  description: Limit of locked memory; C(null) for none.
  returned: always
  type: int
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import cuda_probe, gpu_access
from ..module_utils.pve.properties import size_bytes


def examine(given: dict) -> dict:
    """The module's result. Raises ValueError for a size that is none."""
    wanted = {name: size_bytes(given[name]) for name in ("min_shm", "min_memlock")}
    nodes = gpu_access.nodes()
    kernel, userland = gpu_access.kernel_version(), gpu_access.userland_versions()
    cuda = cuda_probe.run(given["timeout"])
    shm, memlock = gpu_access.shm_bytes(), gpu_access.memlock_bytes()
    problems = [f"{one.path}: {one.why}" for one in nodes if one.state != "open"]
    problems += [text for text in (gpu_access.version_problem(kernel, userland, cuda.works),) if text]
    if not cuda.works:
        problems.append(f"CUDA does not work: {cuda.why}")
    elif len(cuda.devices) < given["gpus"]:
        problems.append(f"CUDA sees {len(cuda.devices)} GPUs, {given['gpus']} are wanted: pass them through (gpus)")
    if given["peer_to_peer"] and cuda.peer_to_peer is False:
        problems.append(
            "not every GPU reaches the memory of every other: see the node's IOMMU and ACS (proxmox_node_gpu)"
        )
    if given["torch_python"]:
        why = cuda_probe.torch(given["torch_python"], given["timeout"])
        problems += [f"PyTorch does not compute on a GPU: {why}"] if why else []
    problems += gpu_access.limit_problems(shm, memlock, wanted["min_shm"], wanted["min_memlock"])
    return {
        "usable": not problems,
        "problems": problems,
        "nodes": [{"path": one.path, "state": one.state, "why": one.why} for one in nodes],
        "driver": {"kernel": kernel, "userland": userland},
        "cuda": {"works": cuda.works, "why": cuda.why, "devices": cuda.devices},
        "peer_to_peer": cuda.peer_to_peer,
        "shm_bytes": shm,
        "memlock_bytes": memlock,
    }


def main() -> None:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "policy": {"type": "str", "choices": ["require", "warn", "off"], "default": "require"},
            "gpus": {"type": "int", "default": 0},
            "peer_to_peer": {"type": "bool", "default": False},
            "min_shm": {"type": "str", "default": "1G"},
            "min_memlock": {"type": "str", "default": "64M"},
            "torch_python": {"type": "path", "default": ""},
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    try:
        result = examine(module.params)
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    if result["problems"] and module.params["policy"] == "require":
        module.fail_json(msg="the GPUs cannot be used: " + "; ".join(result["problems"]), **result)
    if module.params["policy"] == "warn":
        for text in result["problems"]:
            module.warn(text)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
