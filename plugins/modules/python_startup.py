#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Environment defaults at the start of a Python interpreter."""

from __future__ import annotations

DOCUMENTATION = r"""
module: python_startup
short_description: Set environment variables at every start of a Python interpreter, and prove it
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Sets defaults in the environment before the first line of any program runs. Workers that an engine spawns start a
    Python of their own and get them too, whatever their parent lost.
  - Values are defaults. What is in the environment already wins, and so does what the engine sets by itself.
  - Proves it by running the interpreter in all the ways in which engines start workers. What cannot be proved is put
    back, and the module fails.
  - It is the last resort. The environment of the server (M(groundstate.llm.llm_server)) comes first.
options:
  python:
    description: The interpreter, such as C(/srv/venv/bin/python). A venv's own stands for that venv alone.
    type: path
    required: true
  name:
    description: Whose variables these are, of letters, digits, C(-) and C(_). Several can be there at once.
    type: str
    default: default
  variables:
    description: Names and values. Required with O(state=present).
    type: dict
  method:
    description:
      - V(pth) puts a module and a C(.pth) file that imports it into site-packages, and from Python 3.15 on a C(.start)
        file (PEP 829). It works with C(-I), C(-E) and C(-s), and beside any sitecustomize.
      - V(sitecustomize) adds a marked block to the C(sitecustomize.py) that this interpreter loads, which for a venv of
        Debian's Python is that of the system, for all of its venvs. What is in there stays.
      - Another method than the last time takes the place of the first.
    type: str
    choices: [pth, sitecustomize]
    default: pth
  force:
    description: Whether the values go over those that are in the environment already, and over the engine's own.
    type: bool
    default: false
  state:
    description: Whether the variables are set at the start, or nothing of them is left. Files of others are then as
      they were, byte by byte.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Can run in check mode and return what would change. The table then shows how it is now.
    support: full
  diff_mode:
    description: Returns what changed in diff mode.
    support: full
notes:
  - Start-up code does not run with C(-S), nor in programs that embed Python without site.
  - The C(.start) file follows PEP 829.
seealso:
  - module: groundstate.llm.nccl_profile
"""

EXAMPLES = r"""
- name: Give every worker of this environment a default
  groundstate.llm.python_startup:
    python: /srv/venv/bin/python
    name: nccl
    variables:
      NCCL_PROTO: LL
      NCCL_ALGO: Ring
  register: startup

- name: Show how that was proved
  groundstate.llm.show:
    title: Start of Python
    lines: "{{ startup.table }}"

- name: Leave nothing behind
  groundstate.llm.python_startup:
    python: /srv/venv/bin/python
    name: nccl
    state: absent
"""

RETURN = r"""
interpreter:
  description: What the interpreter told about itself; of several sitecustomize it loads the first alone.
  returned: always
  type: dict
  sample:
    executable: /srv/venv/bin/python
    version: 3.11.2
    venv: true
    site_packages: /srv/venv/lib/python3.11/site-packages
    sitecustomize:
      - {path: /usr/lib/python3.11/sitecustomize.py, loaded: true, shadowed_by: ""}
    usercustomize: []
written:
  description: The files that changed (in check mode, would change).
  returned: always
  type: list
  elements: str
  sample: [/srv/venv/lib/python3.11/site-packages/_groundstate_startup_nccl.py]
proof:
  description: Each way to start, with the values that were there.
  returned: always
  type: list
  elements: dict
  contains:
    how:
      description: C(plain), an option of Python, C(subprocess), or a start method of multiprocessing.
      type: str
      returned: always
    set:
      description: Whether every variable had its value.
      type: bool
      returned: always
    expected:
      description: Whether start-up code runs then at all.
      type: bool
      returned: always
    values:
      description: What was there; null is unset.
      type: dict
      returned: always
    why:
      description: What the interpreter wrote to its error output.
      type: str
      returned: always
table:
  description: The same as lines for a person.
  returned: always
  type: list
  elements: str
  sample: ["spawn       set"]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import python_startup, python_startup_proof, servers


def run(module: AnsibleModule) -> dict:
    """Bring the interpreter's start to the state."""
    params = module.params
    servers.check_name(params["name"])
    there = params["state"] == "present"
    variables = {str(name): str(value) for name, value in (params["variables"] or {}).items()} if there else {}
    if there and not variables:
        raise python_startup.StartupError("there are no variables to set; use state absent to take them away")
    if there and params["force"]:
        module.warn(
            f"force: {', '.join(sorted(variables))} will go over the environment that a program is started with and, "
            "in spawned workers, over what the engine sets by itself"
        )
    of = python_startup.inspect(params["python"])
    changes = python_startup.changes(of, params["name"], variables, params["method"], params["force"])
    if module.check_mode:
        rows = python_startup_proof.run(of.executable, variables) if variables else []
    else:
        rows = python_startup_proof.establish(of, changes, variables)
    return {
        "changed": bool(changes),
        "interpreter": of.as_dict(),
        "written": [one.path for one in changes],
        "proof": [one.as_dict() for one in rows],
        "table": python_startup_proof.table(rows),
        "diff": [one.diff for one in changes],
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "required": True},
            "name": {"type": "str", "default": "default"},
            "variables": {"type": "dict"},
            "method": {"type": "str", "choices": ["pth", "sitecustomize"], "default": "pth"},
            "force": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ["variables"])],
        supports_check_mode=True,
    )
    try:
        result = run(module)
    except (ValueError, python_startup.StartupError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"{error.filename or module.params['python']}: {error.strerror or error}; run as root or as its owner"
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
