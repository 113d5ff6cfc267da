#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""See within seconds whether the GPUs of a host can talk to each other, and how fast."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_preflight
short_description: Run a timed all-reduce over the GPUs of a host before a server is started
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Starts one process for each GPU with the Python and the torch of an ML environment, and reduces messages of several
    sizes with the variables of an NCCL profile. Every process is ended again, whatever happens.
  - A collective that hangs (P2P blocked by ACS or an IOMMU, a small C(/dev/shm)) is found within O(timeout) and named,
    rank by rank, instead of a server that never gets ready.
  - Returns time, bandwidth, algorithm and protocol for each size, so that two profiles can be compared without a model.
    The algorithms come from a first, untimed pass, because NCCL's account of each collective disturbs the timing.
  - On a host without GPUs it runs with gloo on the CPU and says so.
options:
  env_path:
    description: Environment (a Python venv) with torch.
    type: path
    required: true
  gpus:
    description: V(all), or a list of numbers of GPUs as C(CUDA_VISIBLE_DEVICES) has them. An empty list takes the CPU.
    type: raw
    default: all
  cpu_ranks:
    description: Number of processes on a host without GPUs.
    type: int
    default: 2
  profile:
    description: Name of the profile whose variables are set, one of O(profiles).
    type: str
  profiles:
    description: The profiles that there are, as for M(groundstate.llm.nccl_profile).
    type: dict
    default: {}
  environment:
    description: Variables that the processes get besides those of the profile, as the server would.
    type: dict
    default: {}
  sizes_kib:
    description: Sizes of the messages in KiB.
    type: list
    elements: int
    default: [8, 64, 512, 4096, 32768]
  timeout:
    description: Seconds within which some process has to get a step further.
    type: int
    default: 60
  home:
    description: Folder on the host that holds all that Groundstate writes there. With O(server).
    type: path
  server:
    description: Name of a server that uses the same GPUs. While it runs nothing is done, because it would be disturbed.
    type: str
attributes:
  check_mode:
    description: Changes nothing, but keeps GPUs busy, so that in check mode it is skipped.
    support: full
  diff_mode:
    description: Returns what changed in diff mode.
    support: none
seealso:
  - module: groundstate.llm.nccl_profile
  - module: groundstate.llm.nccl_proof
"""

EXAMPLES = r"""
- name: See whether the GPUs can talk to each other with the profile of the story
  groundstate.llm.nccl_preflight:
    env_path: /opt/ml-env
    profile: pcie_ll_ring
    profiles:
      pcie_ll_ring:
        variables: {NCCL_PROTO: LL, NCCL_ALGO: Ring, NCCL_P2P_LEVEL: SYS}
  register: preflight

- name: Show the table
  groundstate.llm.show:
    title: All-reduce
    lines: "{{ preflight.table }}"
"""

RETURN = r"""
verdict:
  description: >-
    C(passed), C(hung), C(failed) or C(skipped) (check mode, a running server, a single GPU). The module fails with
    C(hung) and C(failed).
  returned: always
  type: str
  sample: passed
backend:
  description: C(nccl), or C(gloo) on a host without GPUs; empty when nothing ran.
  returned: always
  type: str
  sample: nccl
ranks:
  description: Number of processes.
  returned: always
  type: int
  sample: 2
profile:
  description: Name of the profile; empty when there is none.
  returned: always
  type: str
  sample: pcie_ll_ring
sizes:
  description: What came of each size.
  returned: always
  type: list
  elements: dict
  sample:
    - bytes: 8192
      microseconds: 14.2
      algorithm_gbs: 0.58
      bus_gbs: 0.58
      algorithm: RING
      protocol: LL
      correct: true
transports:
  description: How the GPUs talk to each other, as NCCL says.
  returned: always
  type: list
  elements: str
  sample: [P2P/IPC]
stages:
  description: Where each rank was, by its number, when the collective failed.
  returned: on failure
  type: dict
  sample: {"0": first all_reduce, "1": init_process_group}
advice:
  description: What to try, one sentence each.
  returned: on failure
  type: list
  elements: str
flags:
  description: What should be known besides, one sentence each. Also given as warnings.
  returned: always
  type: list
  elements: str
table:
  description: Lines for a person.
  returned: always
  type: list
  elements: str
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import collective, nccl_preflight, nccl_profiles, servers


def why_not(module: AnsibleModule) -> str:
    """Why nothing is done here now, or ""."""
    if module.check_mode:
        return "check mode: it would keep the GPUs busy"
    name = module.params["server"]
    if name and module.params["home"]:
        servers.check_name(name)
        record = servers.load(module.params["home"], name)
        if record is not None and record.running():
            return f"server {name!r} runs and would be disturbed"
    return ""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "env_path": {"type": "path", "required": True},
            "gpus": {"type": "raw", "default": "all"},
            "cpu_ranks": {"type": "int", "default": 2},
            "profile": {"type": "str"},
            "profiles": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}},
            "sizes_kib": {"type": "list", "elements": "int", "default": [8, 64, 512, 4096, 32768]},
            "timeout": {"type": "int", "default": 60},
            "home": {"type": "path"},
            "server": {"type": "str"},
        },
        supports_check_mode=True,
    )
    params = module.params
    result = nccl_preflight.Result()
    try:
        variables = {}
        if params["profile"]:
            resolved = nccl_profiles.resolve(params["profile"], params["profiles"])
            result.profile, variables = resolved.name, resolved.variables
        wanted = nccl_preflight.Wanted(
            params["env_path"],
            nccl_preflight.gpu_numbers(params["gpus"]),
            params["cpu_ranks"],
            variables,
            {str(key): str(value) for key, value in params["environment"].items()},
            params["sizes_kib"],
            params["timeout"],
        )
        reason = why_not(module)
        if reason:
            result.skip(reason)
        else:
            with tempfile.TemporaryDirectory(prefix="nccl-", dir=module.tmpdir) as folder:
                nccl_preflight.run(wanted, result, folder, os.environ)
    except collective.CollectiveError as error:
        result.verdict = "hung" if error.hung else "failed"
        told = nccl_preflight.failure(error, result)
        module.fail_json(msg=told, **result.as_dict())
    except (ValueError, OSError) as error:
        module.fail_json(msg=f"the collective cannot be run: {error}", **result.as_dict())
    for text in result.flags:
        module.warn(text)
    module.exit_json(changed=False, **result.as_dict())


if __name__ == "__main__":
    main()
