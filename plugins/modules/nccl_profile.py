#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the NCCL profile of a server."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_profile
short_description: Write a named set of NCCL variables into the environment of a server
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Looks the profile up, puts together what it extends, and judges it as NCCL would read it. Misspelt names, values
    that NCCL would ignore or misread, and contradictions stop the module before anything is written.
  - Writes C(<home>/servers/<server>/nccl.env), one C(KEY=VALUE) line each, which M(groundstate.llm.llm_server) gives to
    the server and which systemd can read as an EnvironmentFile. A running server keeps what it was started with.
  - A profile without variables writes a file that says so, and thereby takes away what an earlier profile set.
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
    description: Name of the profile. Required with O(state=present).
    type: str
  profiles:
    description:
      - The profiles that there are, by name. Each is a dictionary with C(variables) (names and values; null takes an
        inherited variable away), C(comment), C(applies_to) (a list of C(pcie), C(nvlink), C(multi_node)) and
        C(extends) (the name of another profile).
    type: dict
    default: {}
  state:
    description: Whether the file is there with the profile, or not there.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Can run in check mode and return what would change.
    support: full
  diff_mode:
    description: Returns what changed in diff mode.
    support: full
seealso:
  - module: groundstate.llm.nccl_proof
"""

EXAMPLES = r"""
- name: Write the profile of the story
  groundstate.llm.nccl_profile:
    home: /var/lib/groundstate
    server: kimi
    profile: pcie_ll_ring
    profiles:
      pcie_ll_ring:
        comment: Small messages over PCIe.
        applies_to: [pcie]
        variables:
          NCCL_PROTO: LL
          NCCL_ALGO: Ring
          NCCL_P2P_LEVEL: SYS

- name: Set nothing
  groundstate.llm.nccl_profile:
    home: /var/lib/groundstate
    server: kimi
    profile: stock
    profiles:
      stock: {}
"""

RETURN = r"""
path:
  description: The file.
  returned: always
  type: str
  sample: /var/lib/groundstate/servers/kimi/nccl.env
profile:
  description: Name of the profile.
  returned: with O(state=present)
  type: str
  sample: pcie_ll_ring
variables:
  description: Names and values that the server gets.
  returned: with O(state=present)
  type: dict
  sample: {NCCL_ALGO: Ring, NCCL_PROTO: LL}
applies_to:
  description: Topologies that the profile is meant for; empty for any.
  returned: with O(state=present)
  type: list
  elements: str
  sample: [pcie]
findings:
  description: What there is to say of the variables, each with RV(findings[].level), variable and message.
  returned: with O(state=present)
  type: list
  elements: dict
  contains:
    level:
      description: C(warning) for a known trap, C(inert) for what changes nothing here.
      type: str
      returned: always
    variable:
      description: Name of the variable.
      type: str
      returned: always
    message:
      description: A sentence.
      type: str
      returned: always
inert:
  description: Sentences on settings that change nothing, with what they cost.
  returned: with O(state=present)
  type: list
  elements: str
  sample: ["NCCL_NTHREADS: 512 is what the LL protocol uses anyway"]
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import files, nccl_lint, nccl_profiles


def read(path: str) -> tuple[str, int | None]:
    """Text and mode of the file; ("", None) when there is none. Raises OSError."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read(), os.stat(path).st_mode & 0o7777
    except FileNotFoundError:
        return "", None


def present(module: AnsibleModule, path: str) -> dict:
    """Make the file hold the profile."""
    resolved = nccl_profiles.resolve(module.params["profile"], module.params["profiles"])
    text = nccl_profiles.render(resolved.name, resolved.variables)
    before, mode = read(path)
    changed = mode is None or before != text or mode != 0o644
    if changed and not module.check_mode:
        files.write_atomic(path, text, 0o644)
    for one in resolved.findings:
        if one.level == nccl_lint.WARNING:
            module.warn(f"NCCL profile {resolved.name}: {one.text}")
    return {
        "changed": changed,
        "path": path,
        "profile": resolved.name,
        "variables": resolved.variables,
        "applies_to": list(resolved.applies_to),
        "findings": [one.as_dict() for one in resolved.findings],
        "inert": [one.text for one in resolved.findings if one.level == nccl_lint.INERT],
        "diff": {"before_header": path, "after_header": path, "before": before, "after": text},
    }


def absent(module: AnsibleModule, path: str) -> dict:
    """Make the file not be there."""
    before, mode = read(path)
    if mode is not None and not module.check_mode:
        os.unlink(path)
    diff = {"before_header": path, "after_header": path, "before": before, "after": ""}
    return {"changed": mode is not None, "path": path, "diff": diff}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "server": {"type": "str", "required": True},
            "profile": {"type": "str"},
            "profiles": {"type": "dict", "default": {}},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ["profile"])],
        supports_check_mode=True,
    )
    try:
        path = nccl_profiles.path(module.params["home"], module.params["server"])
        result = (present if module.params["state"] == "present" else absent)(module, path)
    except ValueError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"the NCCL profile cannot be written: {error}; check the rights of {module.params['home']}"
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
