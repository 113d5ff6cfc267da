#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: All problems of a declaration and its host at once, before any change
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Checks the variables of a host against what the roles of this collection accept, on the controller, and what they
    need against what the host has. It fails with all problems in one message and changes nothing.
  - What is needed is derived from the variables of the host. O(environment), O(server), O(needs) and O(local_fact) are
    filled in by that and need not be given; a key that is given counts instead of the derived one.
options:
  home:
    description: Folder on the host for all that Groundstate writes there. Default is the host's groundstate_home.
    type: path
  records_dir:
    description: Folder on the controller for the records. Default is the host's groundstate_records_dir.
    type: str
  roles:
    description: Roles of this collection whose variables are checked; empty for all.
    type: list
    elements: str
    default: []
  known_variables:
    description: More variables with a prefix of these roles that are meant as they are.
    type: list
    elements: str
    default: []
  min_free_gib:
    description: Space wanted below O(home), in GiB. V(0) is what the environment needs, if it has to be made.
    type: float
    default: 0
  min_memory_gib:
    description: Memory that has to be available, in GiB. V(0) is what the engine needs at least.
    type: float
    default: 0
  environment:
    description:
      - The Python environment of the engine, C(path), C(lock), C(locks), C(python), C(python_range), C(platform) and
        C(size_mib).
    type: dict
    default: {}
  server:
    description:
      - The server, C(name), C(engine), C(host), C(port), C(models), C(program), C(gpus), C(gpus_needed),
        C(env_needed), C(tensor_parallel) and C(launcher).
    type: dict
    default: {}
  needs:
    description: What has to be there, C(free_mib) and C(memory_mib).
    type: dict
    default: {}
  made_later:
    description: Paths on the host that later steps make, so that nothing below them can be missed yet.
    type: list
    elements: str
    default: []
  local_fact:
    description: File on the host for the local fact; empty for none.
    type: path
  gpu_state:
    description: Whether the role gpu_state clears the host before the server is started.
    type: bool
    default: false
attributes:
  check_mode:
    description: Checks in check mode as well.
    support: full
  diff_mode:
    description: There is nothing that it changes.
    support: none
"""

EXAMPLES = r"""
- name: Check everything that can be known before a change
  groundstate.llm.preflight:

- name: Check only what the environment of the engine needs
  groundstate.llm.preflight:
    roles: [ml_env]
    min_free_gib: 20
"""

RETURN = r"""
problems:
  description: What is wrong, in the order of the message.
  returned: always
  type: list
  elements: dict
  sample:
    - what: port 8000 is taken (listening) by process 4711 (python -m http.server 8000)
      where: llm_server.port
      fix: "End that process, or declare another port (0: a free one)"
facts:
  description: What the host has, as far as it was looked at.
  returned: when there is no problem
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.preflight import checks, facts, wants


def main() -> None:
    module = AnsibleModule(argument_spec=wants.ARGUMENTS, supports_check_mode=True)
    wanted = wants.complete(module.params)
    try:
        found = facts.gather(wanted)
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"the host could not be looked at: {error}")
    problems, warnings = checks.check(wanted, found)
    for text in warnings:
        module.warn(text)
    result = {"changed": False, "problems": problems, "facts": found}
    if problems:
        module.fail_json(msg=checks.message(problems), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
