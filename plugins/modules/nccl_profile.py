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
  - A profile without variables writes a file that says so, and thereby takes away what an earlier profile set, in
    every place.
  - Returns what each source of NCCL would yield to the server and which wins, and who else on the host sets variables
    of NCCL. What contradicts the profile there is a warning.
extends_documentation_fragment:
  - groundstate.llm.server
options:
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
  places:
    description:
      - Where the profile is written. What stands in a place that is not named any more is taken away.
      - V(server) is the server's own environment, which wins over all others and is the one to prefer.
      - V(conf) is a file that NCCL reads by itself, whatever starts the server. Lines of others stay.
      - V(python_startup) sets defaults at every start of O(python), see M(groundstate.llm.python_startup).
    type: list
    elements: str
    choices: [server, conf, python_startup]
    default: [server]
  conf_path:
    description:
      - The file of place V(conf). Empty is C(nccl.conf) in the server's folder.
      - For any but C(/etc/nccl.conf), C(NCCL_CONF_FILE) is set in the server's environment.
    type: path
    default: ""
  python:
    description:
      - The Python that the server runs with. Required for place V(python_startup); without that place only its
        start-up code is searched for variables of NCCL, when it is there.
    type: path
    default: ""
  python_method:
    description: How place V(python_startup) does it, see O(groundstate.llm.python_startup#module:method).
    type: str
    choices: [pth, sitecustomize]
    default: pth
  environment:
    description: What goes over the profile in the server's environment (C(llm_server.env)); only judged, not written.
    type: dict
    default: {}
  state:
    description: Whether the profile is in its places, or nothing of it is anywhere.
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
  - module: groundstate.llm.python_startup
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

- name: Write it where any process of the host finds it, whoever starts it
  groundstate.llm.nccl_profile:
    home: /var/lib/groundstate
    server: kimi
    profile: pcie_ll_ring
    profiles: "{{ my_profiles }}"
    places: [server, conf]
    conf_path: /etc/nccl.conf

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
  description: Names and values of the profile.
  returned: with O(state=present)
  type: dict
  sample: {NCCL_ALGO: Ring, NCCL_PROTO: LL}
environment:
  description: What the file gives to the server's environment.
  returned: with O(state=present)
  type: dict
  sample: {NCCL_ALGO: Ring, NCCL_PROTO: LL}
written:
  description: The files that changed (in check mode, would change).
  returned: always
  type: list
  elements: str
  sample: [/etc/nccl.conf]
startup:
  description: How the Python was started to prove the place V(python_startup), a line each.
  returned: with O(state=present)
  type: list
  elements: str
  sample: ["spawn       set"]
sources:
  description: The sources that NCCL asks, in their order, and what each would yield to the server.
  returned: with O(state=present)
  type: list
  elements: dict
  sample:
    - {source: environment, path: /var/lib/groundstate/servers/kimi/nccl.env, exists: true, variables: {NCCL_PROTO: LL}}
    - {source: ~/.nccl.conf, path: /root/.nccl.conf, exists: false, variables: {}}
    - {source: /etc/nccl.conf, path: /etc/nccl.conf, exists: true, variables: {NCCL_ALGO: Ring}}
winners:
  description: Per variable the value that wins, its source, and those that it shadows.
  returned: with O(state=present)
  type: dict
  sample: {NCCL_PROTO: {value: LL, source: environment, shadowed: [{source: /etc/nccl.conf, value: Simple}]}}
others:
  description: Who else on the host sets variables of NCCL. A value that is computed there is null.
  returned: with O(state=present)
  type: list
  elements: dict
  sample:
    - path: /etc/profile.d/nccl.sh
      kind: login
      variables: {NCCL_DEBUG: INFO}
      reaches_server: false
      who: shells of people; servers do not get it
unread:
  description: Places that could not be looked into.
  returned: with O(state=present)
  type: list
  elements: str
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
from contextlib import suppress

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import (
    gpu_topology,
    nccl_conf,
    nccl_lint,
    nccl_order,
    nccl_places,
    nccl_profiles,
    nccl_sources,
    nvidia,
    python_startup,
    python_startup_proof,
    server_env,
    servers,
)


def interpreter(python: str) -> python_startup.Interpreter | None:
    """The Python of the server, where there is one that runs."""
    try:
        return python_startup.inspect(python) if python else None
    except python_startup.StartupError:
        return None


def planned(module: AnsibleModule, wish: nccl_places.Wish, profile: nccl_profiles.Profile) -> nccl_places.Plan:
    """What has to be done. In check mode the Python may be one that a task before only pretended to install."""
    try:
        return nccl_places.plan(wish, profile.name, profile.variables)
    except python_startup.StartupError as error:
        left = tuple(one for one in wish.places if one != nccl_places.PYTHON)
        if not module.check_mode or os.path.exists(wish.python) or not left:
            raise
        module.warn(f"place python_startup: {error}")
        return nccl_places.plan(
            nccl_places.Wish(wish.home, wish.server, left, wish.conf_path), profile.name, profile.variables
        )


def judge(module: AnsibleModule, profile: nccl_profiles.Profile, is_new: bool) -> None:
    """Warn of what speaks against the profile; the driver is asked how the GPUs are linked when it is new here."""
    said = [one.text for one in profile.findings if one.level == nccl_lint.WARNING]
    program = nvidia.find_program() if is_new and profile.applies_to else None
    if program:
        # Who cannot tell has no GPUs that are linked, or fails where the GPUs matter.
        with suppress(gpu_topology.TopologyError):
            said.append(nccl_profiles.misfit(profile, gpu_topology.links(gpu_topology.read(program))))
    for text in filter(None, said):
        module.warn(f"NCCL profile {profile.name}: {text}")


def view(module: AnsibleModule, wish: nccl_places.Wish, made: nccl_places.Plan) -> dict:
    """What each source yields, which wins, and who else sets variables; contradictions are warned of."""
    declared = {name: str(value) for name, value in module.params["environment"].items()}
    home = declared.get("HOME") or server_env.account(os.geteuid(), os.environ)[1]
    found = nccl_order.sources(wish, made, declared, home)
    read = [one["path"] for one in found if one["source"] not in (nccl_conf.ENVIRONMENT, nccl_places.PYTHON)]
    others, unread = nccl_sources.others(
        wish.server, home, servers.servers_folder(wish.home), read, made.interpreter or interpreter(wish.python)
    )
    user = os.path.join(home, ".nccl.conf")
    hidden = next((one.variables for one in others if one.path == user and user not in read), {})
    for text in nccl_order.warnings(made.variables, found, hidden):
        module.warn(text)
    for text in nccl_sources.contradictions(made.variables, others):
        module.warn(text)
    return {
        "sources": found,
        "winners": nccl_order.winners(found),
        "others": [one.as_dict() for one in others],
        "unread": unread,
    }


def present(module: AnsibleModule) -> dict:
    """Make the places hold the profile, and no other."""
    params = module.params
    resolved = nccl_profiles.resolve(params["profile"], params["profiles"])
    wish = nccl_places.Wish(
        params["home"],
        params["server"],
        tuple(params["places"]),
        params["conf_path"],
        params["python"],
        params["python_method"],
    )
    made = planned(module, wish, resolved)
    changes = made.needed
    rows = [] if module.check_mode else nccl_places.do(made, wish)
    judge(module, resolved, bool(changes))
    return {
        "changed": bool(changes) or made.record != made.before,
        "path": nccl_profiles.path(wish.home, wish.server),
        "profile": resolved.name,
        "variables": resolved.variables,
        "environment": made.environment,
        "applies_to": list(resolved.applies_to),
        "findings": [one.as_dict() for one in resolved.findings],
        "inert": [one.text for one in resolved.findings if one.level == nccl_lint.INERT],
        "written": [one.path for one in changes],
        "startup": python_startup_proof.table(rows),
        "diff": [one.diff for one in changes],
        **view(module, wish, made),
    }


def absent(module: AnsibleModule) -> dict:
    """Make nothing of a profile be there."""
    home, server = module.params["home"], module.params["server"]
    changes = nccl_places.absent(home, server)
    if not module.check_mode:
        for one in changes:
            one.do()
    return {
        "changed": bool(changes),
        "path": nccl_profiles.path(home, server),
        "written": [one.path for one in changes],
        "diff": [one.diff for one in changes],
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "server": {"type": "str", "required": True},
            "profile": {"type": "str"},
            "profiles": {"type": "dict", "default": {}},
            "places": {
                "type": "list",
                "elements": "str",
                "choices": ["server", "conf", "python_startup"],
                "default": ["server"],
            },
            "conf_path": {"type": "path", "default": ""},
            "python": {"type": "path", "default": ""},
            "python_method": {"type": "str", "choices": ["pth", "sitecustomize"], "default": "pth"},
            "environment": {"type": "dict", "default": {}},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ["profile"])],
        supports_check_mode=True,
    )
    try:
        servers.check_name(module.params["server"])
        result = (present if module.params["state"] == "present" else absent)(module)
    except (ValueError, nccl_places.PlaceError, python_startup.StartupError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"the NCCL profile cannot be written: {error}; run as root or as the owner of what is named there"
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
