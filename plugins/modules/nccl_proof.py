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
  - Reads NCCL's own log of each worker (a server that M(groundstate.llm.llm_server) starts on GPUs writes one), and
    the environment that each worker has now, from its memory, without stopping it. C(/proc/PID/environ), which
    process titles overwrite, is used only where that fails, and then a missing variable is unknown, not absent.
  - Each variable is C(proved) (the value was seen, and nothing speaks against it), C(contradicted) (another value,
    certainly absent, or not taken by NCCL) or C(unknown) (could not be told). The whole is proved only when all
    workers were found, all is proved in each and, where logs are written, all have made one communicator.
  - Where there are no logs (CPU engines, one rank, logging left to the user), the environment alone is the evidence.
  - Names where each value came from (environment of the start, a file C(nccl.conf), Python start-up, the engine).
  - A variable that NCCL reads and nobody declared contradicts a profile too; what the engine sets by itself is shown
    and does not.
extends_documentation_fragment:
  - groundstate.llm.server
options:
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
      variables:
        NCCL_PROTO:
          {declared: LL, seen: LL, verdict: proved, by: NCCL's log, source: environment of the start, cause: ""}
      set_by_engine: {NCCL_CUMEM_ENABLE: "0"}
      undeclared: {}
      log: {path: /var/lib/groundstate/servers/kimi/nccl/gpuhost.732.log, lacking: ""}
      libraries: [/opt/ml-env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2]
      nccl_version: 2.28.9+cuda13.0
      communicators: [{rank: 0, ranks: 2, nodes: 1, channels: 16, transports: {"0 -> 1": {P2P/IPC: 16}}}]
root:
  description: The process that was started, in the same form, when it is no worker itself. It does not count.
  returned: always
  type: dict
table:
  description: Lines for a person, one per process, and what NCCL said.
  returned: always
  type: list
  elements: str
why:
  description: Why it is not proved, one sentence each, with how to fix it.
  returned: always
  type: list
  elements: str
flags:
  description:
    - What is no verdict on the profile and should be known, one sentence each, for example workers that talk over the
      network within one host, or that map different libraries of NCCL. Also given as warnings.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import nccl_lint, nccl_profiles, proof, proof_reading, proof_table, servers


def declared(module: AnsibleModule) -> tuple[str, dict[str, str]]:
    """Name of the profile and the variables that have to be in force. Raises ValueError, OSError."""
    if module.params["profile"]:
        resolved = nccl_profiles.resolve(module.params["profile"], module.params["profiles"])
        return resolved.name, resolved.variables
    if module.params["variables"] is not None:
        return "", {str(key): nccl_lint.value_text(value) for key, value in module.params["variables"].items()}
    return nccl_profiles.load(module.params["home"], module.params["server"]) or ("", {})


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
    result = {"verdict": "off", "profile": "", "expected_workers": 0, "root": {}}
    result.update({key: [] for key in ("workers", "table", "why", "flags")})
    if policy == "off":
        module.exit_json(changed=False, **result)
    try:
        servers.check_name(name)
        result["profile"], variables = declared(module)
        record = servers.load(home, name)
        if record is not None and record.running():
            made, expected = proof_reading.prove(home, record, variables)
            result.update(
                verdict=made.verdict,
                expected_workers=expected,
                workers=made.workers,
                root=made.root or {},
                table=proof_table.table(variables, made),
                why=made.why,
                flags=made.flags,
            )
        else:
            why = f"server {name!r} does not run (looked in {servers.folder(home, name)}); start it with llm_server"
            result.update(verdict=proof.UNKNOWN, why=[why])
            if module.check_mode:
                module.exit_json(changed=False, msg=why, **result)
    except (ValueError, OSError) as error:
        module.fail_json(msg=f"the NCCL profile of server {name!r} cannot be proved: {error}")
    for text in result["flags"]:
        module.warn(text)
    if result["verdict"] != proof.PROVED:
        what = f"NCCL profile {result['profile'] or '(none)'} of server {name!r} is {result['verdict']}"
        message = f"{what}: {'; '.join(result['why'])}"
        if policy == "require":
            module.fail_json(msg=f"{message}. (nccl_profile_proof: warn goes on nevertheless)", **result)
        module.warn(message)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
