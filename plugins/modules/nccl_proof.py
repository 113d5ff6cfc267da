#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prove that every worker of a running server has the declared NCCL variables."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_proof
short_description: Prove, worker by worker, that the NCCL profile of a running server is in force
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Reads the environment that each worker has now, from its memory, without stopping it. C(/proc/PID/environ), which
    process titles overwrite, is used only where that fails, and then a missing variable is unknown, not absent.
  - Each variable is C(proved) (the value was seen), C(contradicted) (another value, or certainly absent) or C(unknown)
    (could not be told). The whole is proved only when all workers were found and all is proved in each.
  - A variable that NCCL reads and nobody declared contradicts a profile too; what the engine sets by itself is shown
    and does not.
options:
  home:
    description: Folder on the host that holds all that Groundstate writes there.
    type: path
    required: true
  server:
    description: Name of the server.
    type: str
    required: true
  profile:
    description:
      - Name of the profile that has to be in force, one of O(profiles). Without it and without O(variables), what was
        written for the server by M(groundstate.llm.nccl_profile).
    type: str
  profiles:
    description: The profiles that there are, as for M(groundstate.llm.nccl_profile).
    type: dict
    default: {}
  variables:
    description: Names and values that have to be in force, in place of those of a profile.
    type: dict
  policy:
    description:
      - C(require) fails unless all is proved, C(warn) warns instead, C(off) does not look.
    type: str
    choices: [require, warn, 'off']
    default: require
attributes:
  check_mode:
    description: Changes nothing, so that it does the same. Without a running server it says so and succeeds.
    support: full
  diff_mode:
    description: Returns what changed in diff mode.
    support: none
notes:
  - Needs to run as root or as the user of the server.
seealso:
  - module: groundstate.llm.nccl_profile
"""

EXAMPLES = r"""
- name: Prove that the profile reached every worker
  groundstate.llm.nccl_proof:
    home: /var/lib/groundstate
    server: kimi
  register: proof

- name: Show the table
  groundstate.llm.show:
    title: NCCL profile
    lines: "{{ proof.table }}"
"""

RETURN = r"""
verdict:
  description: C(proved), C(contradicted), C(unknown), or C(off) when O(policy=off).
  returned: always
  type: str
  sample: proved
profile:
  description: Name of the profile that was looked for; empty when there is none.
  returned: always
  type: str
  sample: pcie_ll_ring
expected_workers:
  description: How many workers the declaration makes; 0 when the engine cannot say.
  returned: always
  type: int
  sample: 2
workers:
  description: Each worker with its variables.
  returned: always
  type: list
  elements: dict
  sample:
    - rank: 0
      pid: 732
      title: sglang::scheduler_TP0
      source: memory
      complete: true
      verdict: proved
      variables: {NCCL_PROTO: {declared: LL, seen: LL, verdict: proved}}
      set_by_engine: {NCCL_CUMEM_ENABLE: "0"}
      undeclared: {}
root:
  description: The process that was started, in the same form, when it is no worker itself. It does not count.
  returned: always
  type: dict
table:
  description: Lines for a person, one per process.
  returned: always
  type: list
  elements: str
why:
  description: Why it is not proved, one sentence each, with how to fix it.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import nccl_lint, nccl_places, nccl_profiles, procfs, proof, servers
from ..module_utils.engines import get_engine


def seen(item: procfs.Process, rank: int | None) -> proof.Seen:
    """A process with the environment that it has now."""
    environment = procfs.live_environment(item.pid)
    if not procfs.alive(item.pid, item.start):
        environment = procfs.Environment({}, False, "none", "the process ended while it was looked at")
    return proof.Seen(rank, item.pid, item.cmdline, environment)


def members(home: str, record: servers.ServerRecord) -> list[procfs.Process]:
    """The processes of this start: the root first, its descendants, and those that lost their parent."""
    table = procfs.processes()
    below = {item.pid for item in procfs.descendants(record.pid, table)} | {record.pid}
    found = []
    for item in servers.started_by_us(home, record.name, table):
        mark = procfs.initial_environment(item.pid).variables.get(servers.START_VARIABLE)
        if item.pid in below or mark == record.start_id:
            found.append(item)
    return sorted(found, key=lambda item: item.pid != record.pid)


def declared(module: AnsibleModule) -> tuple[str, dict[str, str]]:
    """Name of the profile and the variables that have to be in force. Raises ValueError, OSError."""
    if module.params["profile"]:
        resolved = nccl_profiles.resolve(module.params["profile"], module.params["profiles"])
        return resolved.name, resolved.variables
    if module.params["variables"] is not None:
        return "", {str(key): nccl_lint.value_text(value) for key, value in module.params["variables"].items()}
    return nccl_profiles.load(module.params["home"], module.params["server"]) or ("", {})


def prove(home: str, record: servers.ServerRecord, variables: dict[str, str]) -> dict:
    """Look at all workers of a running server. Raises ValueError, OSError."""
    engine = get_engine(record.engine)
    processes = members(home, record)
    expected = engine.expected_workers(record.declaration)
    ranks = {item.pid: rank for rank, item in engine.find_workers(processes, record.declaration).items()}
    # An engine that cannot tell its workers: each process of the server has to have the profile.
    workers = [item for item in processes if item.pid in ranks] if expected or ranks else processes
    root = next((item for item in processes if item.pid == record.pid), None)
    made = proof.judge(
        variables,
        [seen(item, ranks.get(item.pid)) for item in workers],
        seen(root, None) if root is not None else None,
        expected,
        engine.sets_nccl,
        record.environment,
        {**nccl_places.beside(home, record.name), **(record.declaration.get("env") or {})},
    )
    return {
        "verdict": made.verdict,
        "expected_workers": expected,
        "workers": made.workers,
        "root": made.root or {},
        "table": made.table,
        "why": made.why,
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "server": {"type": "str", "required": True},
            "profile": {"type": "str"},
            "profiles": {"type": "dict", "default": {}},
            "variables": {"type": "dict"},
            "policy": {"type": "str", "choices": ["require", "warn", "off"], "default": "require"},
        },
        mutually_exclusive=[("profile", "variables")],
        supports_check_mode=True,
    )
    home, name, policy = (module.params[one] for one in ("home", "server", "policy"))
    result = {"verdict": "off", "profile": "", "expected_workers": 0, "workers": [], "root": {}, "table": [], "why": []}
    if policy == "off":
        module.exit_json(changed=False, **result)
    try:
        servers.check_name(name)
        result["profile"], variables = declared(module)
        record = servers.load(home, name)
        if record is not None and record.running():
            result.update(prove(home, record, variables))
        else:
            why = f"server {name!r} does not run (looked in {servers.folder(home, name)}); start it with llm_server"
            result.update(verdict=proof.UNKNOWN, why=[why])
            if module.check_mode:
                module.exit_json(changed=False, msg=why, **result)
    except (ValueError, OSError) as error:
        module.fail_json(msg=f"the NCCL profile of server {name!r} cannot be proved: {error}")
    if result["verdict"] != proof.PROVED:
        what = f"NCCL profile {result['profile'] or '(none)'} of server {name!r} is {result['verdict']}"
        message = f"{what}: {'; '.join(result['why'])}"
        if policy == "require":
            module.fail_json(msg=f"{message}. (nccl_profile_proof: warn goes on nevertheless)", **result)
        module.warn(message)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
