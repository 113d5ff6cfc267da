#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring the GPUs of a host to the clean state."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_reset
short_description: End exactly what holds the GPUs and prove that their memory drained
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Ends the processes that the policy names, SIGTERM to the root of each process tree first, SIGKILL to what is left
    after O(grace_s).
  - A process is ended only when it is confirmed to hold a GPU that was asked for (open or mapped C(/dev/nvidiaN),
    joined with the driver's own list), or when it is ours by record or by the variables in its environment. It is
    identified by process number and start time. A name alone is never a reason.
  - Then waits until the memory of every GPU asked for is back at the idle level of this host, removes shared memory
    that is nobody's any more, and tells who has the ports asked for.
  - Puts back clocks, power limits and persistence mode that M(groundstate.llm.gpu_clocks) set, unless O(keep_clocks).
  - Never resets a GPU, changes no such setting of others, and never touches protected programs, the processes of a
    server that is kept, or of a container that it was not told to reset with O(scope).
  - On a host without GPUs only servers of ours, what they left over, and shared memory are dealt with.
options:
  home:
    description: Folder of everything that Groundstate writes on this host.
    type: path
    default: ~/.local/state/groundstate
  gpus:
    description: V(all), or the GPUs in scope by index (as nvidia-smi counts) or UUID.
    type: list
    elements: str
    default: [all]
  policy:
    description:
      - V(stale) ends recorded servers of ours that are not in O(keep_servers), processes that dead starts of our
        servers left over, and what holds a GPU in scope and is a process of a known engine or a Python process.
      - V(all) ends everything that holds a GPU in scope, and the same servers and orphans of ours.
      - V(only) ends what O(only) names and holds a GPU in scope, and of ours likewise only what it names.
    type: str
    choices: [stale, all, only]
    default: stale
  only:
    description:
      - What O(policy=only) ends. Each entry is a process number (with what descends from it), the name of a systemd
        service (C(vllm.service)), or a regular expression that is searched in command lines, titles and program names.
      - A server of ours of which a process is named ends as a whole.
    type: list
    elements: str
    default: []
  scope:
    description:
      - V(namespace) looks at the processes of the PID namespace that the module runs in. Those of other containers are
        never ended.
      - C(lxc:NUMBER), on a Proxmox (or LXC) node, limits the reset to the processes of one container, by their control
        group. The node's own and those of other containers are never ended, servers of ours are processes like others,
        files are not removed, and O(ports) and O(keep_servers) cannot be used.
    type: str
    default: namespace
  keep_servers:
    description: Names of servers of ours to leave wholly alone while their process lives.
    type: list
    elements: str
    default: []
  protected:
    description:
      - Patterns (shell style) of program names that are never ended. They are compared with the name of the process, of
        its executable and, for a Python process, of its script.
      - It replaces the default, which protects services of the driver, DCGM, exporters, MPS and display servers.
    type: list
    elements: str
  ports:
    description: TCP ports that have to be free (or of a kept server) afterwards.
    type: list
    elements: int
    default: []
  grace_s:
    description: Seconds between SIGTERM and SIGKILL.
    type: float
    default: 30
  drain_timeout_s:
    description: Seconds to wait for the memory of the GPUs.
    type: float
    default: 120
  tolerance_mib:
    description:
      - MiB above the idle level that still count as idle. The idle level of a GPU is recorded at its first clean state.
    type: int
    default: 64
  query_timeout_s:
    description: Seconds that nvidia-smi may take to answer before the driver counts as hung.
    type: float
    default: 30
  keep_clocks:
    description: Leave what M(groundstate.llm.gpu_clocks) set; else it is left over from a run, and put back.
    type: bool
    default: false
attributes:
  check_mode:
    description: Returns the full plan and changes nothing.
    support: full
  diff_mode:
    description: Shows processes, servers and leftover files before and after.
    support: full
seealso:
  - module: groundstate.llm.gpu_info
  - module: groundstate.llm.gpu_clocks
"""

EXAMPLES = r"""
- name: End stale jobs on all GPUs, but keep the declared server
  groundstate.llm.gpu_reset:
    keep_servers: [kimi]

- name: Clear two GPUs of everything and make sure that the port is free
  groundstate.llm.gpu_reset:
    gpus: ["0", "1"]
    policy: all
    ports: [8000]
  register: result

- name: End one service and what matches an expression, where it holds GPU 3
  groundstate.llm.gpu_reset:
    gpus: ["3"]
    policy: only
    only: [vllm.service, 'train\.py .*--run=17']

- name: Clear what container 101 holds, from its Proxmox node
  groundstate.llm.gpu_reset:
    scope: lxc:101
    policy: all
"""

RETURN = r"""
available:
  description: Whether this host has GPUs.
  returned: always
  type: bool
why:
  description: Why there are none, when there are none.
  returned: always
  type: str
before:
  description: GPUs in scope with memory in bytes and owner, the processes that hold them, and live servers of ours.
  returned: always
  type: dict
after:
  description: The same afterwards; in check mode as far as it can be foreseen.
  returned: success
  type: dict
ended:
  description: >-
    Processes that were ended (in check mode: would be), with C(pid), C(start), C(cmdline), C(kind) and C(why),
    C(gpus), C(server), C(unit), C(how) it ended, whether it is C(gone), and C(zombie_of) (the parent that has not taken
    note of its end yet; a zombie holds no memory).
  returned: always
  type: list
  elements: dict
ended_lines:
  description: They in words, those that differ in numbers alone in one line.
  returned: success
  type: list
  elements: str
left:
  description: Processes that hold a GPU in scope and were left alone, with C(kind) and C(why).
  returned: success
  type: list
  elements: dict
removed:
  description: Shared memory and sockets that were removed.
  returned: success
  type: list
  elements: str
left_files:
  description: Files of that kind that stay, with C(path) and C(why).
  returned: success
  type: list
  elements: dict
clocks:
  description: What was put back of the clocks that M(groundstate.llm.gpu_clocks) had set, in words.
  returned: success
  type: list
  elements: str
ports:
  description: >-
    Who has the ports asked for, with C(port), C(state) (listening, bound, or time_wait, which a server may take),
    C(pid) (C(null) when not known), C(cmdline), C(unit), and whether it is C(foreign), which makes the module fail.
  returned: success
  type: list
  elements: dict
"""

import re

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import ended_lines, holders, nvidia, ports, reset_plan
from ..module_utils.gpu_clean import Options, Reset, ResetError


def lines(state: dict, files: list[str]) -> str:
    """One side of the diff."""
    text = [f"GPU {one['index']}: {one['owner']}, processes {one['pids']}" for one in state.get("gpus", [])]
    text += [f"server {name}: process {pid}" for name, pid in sorted(state.get("servers", {}).items())]
    text += [f"process {one['pid']}: {one['cmdline'] or one['comm']}" for one in state.get("processes", [])]
    text += [f"file {path}" for path in files]
    return "".join(f"{line}\n" for line in text)


def scope(given: dict) -> str:
    """The container that the reset is limited to, "" for none. Raises ValueError for what does not go together."""
    if (given["policy"] == "only") != bool(given["only"]):
        raise ValueError("policy only and the option only go together: set both, or another policy and no only")
    for name in given["only"]:
        try:
            reset_plan.name_kind(name)
        except ValueError as error:
            raise ValueError(f"only: {error}") from error
    if given["scope"] == "namespace":
        return ""
    kind, _colon, container = given["scope"].partition(":")
    if kind != "lxc" or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", container):
        raise ValueError(f"scope is {given['scope']!r}: use namespace, or lxc: and the number of a container")
    for name in ("ports", "keep_servers"):
        if given[name]:
            raise ValueError(f"{name} is about this host and cannot be used with scope {given['scope']}: run it inside")
    if not holders.container_exists(container):
        raise ValueError(f"scope: this host has no container {container}; run it on the node that has it")
    return container


def main() -> None:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "default": "~/.local/state/groundstate"},
            "gpus": {"type": "list", "elements": "str", "default": ["all"]},
            "policy": {"type": "str", "choices": ["stale", "all", "only"], "default": "stale"},
            "only": {"type": "list", "elements": "str", "default": []},
            "scope": {"type": "str", "default": "namespace"},
            "keep_servers": {"type": "list", "elements": "str", "default": []},
            "protected": {"type": "list", "elements": "str"},
            "ports": {"type": "list", "elements": "int", "default": []},
            "grace_s": {"type": "float", "default": 30},
            "drain_timeout_s": {"type": "float", "default": 120},
            "tolerance_mib": {"type": "int", "default": 64},
            "query_timeout_s": {"type": "float", "default": 30},
            "keep_clocks": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    for name in ("grace_s", "drain_timeout_s", "tolerance_mib", "query_timeout_s"):
        if given[name] < 0:
            module.fail_json(msg=f"{name} is {given[name]}: use 0 or more")
    for port in given["ports"]:
        if not 1 <= port <= ports.LAST_PORT:
            module.fail_json(msg=f"ports has {port}: TCP ports are 1 to {ports.LAST_PORT}")
    try:
        container = scope(given)
    except ValueError as error:
        module.fail_json(msg=str(error))
    options = Options(
        home=given["home"],
        gpus=tuple(given["gpus"]),
        policy=given["policy"],
        only=tuple(given["only"]),
        container=container,
        keep_servers=tuple(given["keep_servers"]),
        protected=reset_plan.PROTECTED if given["protected"] is None else tuple(given["protected"]),
        ports=tuple(given["ports"]),
        grace_s=given["grace_s"],
        drain_timeout_s=given["drain_timeout_s"],
        tolerance=given["tolerance_mib"] * nvidia.MIB,
        query_timeout_s=given["query_timeout_s"],
        keep_clocks=given["keep_clocks"],
    )
    try:
        result = Reset(options).run(check=module.check_mode)
    except ResetError as error:
        result = error.result
        for text in result.pop("warnings", []):
            module.warn(text)
        module.fail_json(msg=str(error), **result)
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"the reset of the GPUs stopped half-way: {error}; run it again")
    for text in result.pop("warnings"):
        module.warn(text)
    result["ended_lines"] = ended_lines.lines(result["ended"])
    stale = ended_lines.planned(result["ended"])
    result["diff"] = {
        "before": lines(result["before"], result["removed"]) + "".join(f"stale {line}\n" for line in stale),
        "after": lines(result["after"], []) + "".join(f"{line}\n" for line in result["clocks"]),
    }
    module.exit_json(**result)


if __name__ == "__main__":
    main()
