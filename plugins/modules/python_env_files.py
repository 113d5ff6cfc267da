#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: python_env_files
short_description: The files of a Python environment as installed, with declared patches
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Compares the files of an environment with what its wheels installed (their C(RECORD) files) and requires, reports or
    restores that.
  - Applies declared patches to installed files, all of them or none, and takes back those that are declared no longer.
    They are always applied to what the wheel has, exactly, without any fuzz.
  - The environment need not have been made by Groundstate.
  - Of several runs for one environment, one works and the others wait for it.
extends_documentation_fragment:
  - groundstate.llm.wheels
options:
  path:
    description: The environment, a folder with C(bin/python), or the link to it.
    type: path
    required: true
  home:
    description: Folder on the host that holds all that Groundstate writes there.
    type: path
    default: ~/.local/state/groundstate
  pristine:
    description:
      - What is done about files that are not as installed and not changed by a declared patch.
      - V(off) does not look (the first look reads all files). V(warn) warns. V(require) fails and names them.
      - V(repair) installs exactly the distributions with edited or missing files again, at the same versions, and takes
        out files that were added, C(.pth) files and C(sitecustomize.py) among them.
      - In an environment that M(groundstate.llm.python_env) made, distributions that are missing, in another version or
        added count as well. A repair installs those of the lock and uninstalls what was added.
      - What was edited or added is kept below C(patches-kept/) in O(home), as a patch that can be declared, or as a
        copy where a patch cannot say it; what was uninstalled, as lines for pip.
    type: str
    choices: ["off", warn, require, repair]
    default: "off"
  patches:
    description:
      - The patches that are to be in force, in the order in which they are applied. An empty list takes all back.
      - Without this option those that are in force stay.
    type: list
    elements: dict
    suboptions:
      file:
        description: Name of the patch, by which O(texts) has its text and by which it is recorded.
        type: str
        required: true
      distribution:
        description: The installed distribution whose files it changes. Files of others are refused.
        type: str
        required: true
      version:
        description: The version of it that the patch is for. Any other is refused.
        type: str
        required: true
      strip:
        description:
          - How many leading folders are left out of the names in the patch, as with C(patch -p). With V(1),
            C(a/engine/core.py) is C(engine/core.py) below C(site-packages).
        type: int
        default: 1
  texts:
    description: The texts of the patches by their names, as C(git diff) or C(diff -u) write them.
    type: dict
    default: {}
  repair_in_use:
    description: Repair also while a process works from the environment.
    type: bool
    default: false
  installer:
    description: V(uv), V(pip), the path of a uv, or V(auto) for uv where it runs and pip elsewhere.
    type: str
    default: auto
  bundle:
    description: Path on the host of a bundle with the wheels. When it is there, a repair asks no index.
    type: path
  timeout_s:
    description: Seconds that a repair may take, and that are waited for another run on the same environment.
    type: int
    default: 1800
seealso:
  - module: groundstate.llm.python_env
  - module: groundstate.llm.python_env_info
attributes:
  check_mode:
    support: full
    description: Says what would be repaired and patched, and changes nothing but its own cache of file hashes.
  diff_mode:
    support: full
    description: Shows the patched files before and after.
"""

EXAMPLES = r"""
- name: Refuse an environment in which somebody edited files
  groundstate.llm.python_env_files:
    path: /root/ml-env
    pristine: require

- name: Put it back to what was installed, with one patch and nothing else
  groundstate.llm.python_env_files:
    path: /root/ml-env
    pristine: repair
    patches:
      - file: topk.patch
        distribution: sglang
        version: 0.5.11
    texts:
      topk.patch: "{{ lookup('ansible.builtin.file', 'topk.patch', rstrip=false) }}"

- name: Take all patches back
  groundstate.llm.python_env_files:
    path: /root/ml-env
    patches: []
"""

RETURN = r"""
path:
  description: The environment.
  type: str
  returned: always
verdict:
  description:
    - V(pristine), V(patched) (as installed but for the patches in force), V(modified), or V(unknown) when it could not
      be told or O(pristine=off).
  type: str
  returned: always
  sample: patched
patches:
  description: Names of the patches in force.
  type: list
  elements: str
  returned: always
changes:
  description: What was changed, or would be in check mode.
  type: list
  elements: str
  returned: always
  sample: ["sglang 0.5.11 installed again (2 edited)", "patches: none -> topk.patch (1 file changed)"]
modified:
  description: One line for each distribution and each file that is not as declared.
  type: list
  elements: str
  returned: always
kept:
  description: Paths on the host of what a repair put aside.
  type: list
  elements: str
  returned: always
seconds:
  description: Duration of this call.
  type: float
  returned: always
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.venvs import installers, patches, upkeep
from ..module_utils.venvs.repair import Order, RepairError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "home": {"type": "path", "default": "~/.local/state/groundstate"},
            "pristine": {"type": "str", "choices": list(upkeep.POLICIES), "default": "off"},
            "patches": {
                "type": "list",
                "elements": "dict",
                "options": {
                    "file": {"type": "str", "required": True},
                    "distribution": {"type": "str", "required": True},
                    "version": {"type": "str", "required": True},
                    "strip": {"type": "int", "default": 1},
                },
            },
            "texts": {"type": "dict", "default": {}},
            "repair_in_use": {"type": "bool", "default": False},
            "installer": {"type": "str", "default": "auto"},
            "index_url": {"type": "str", "default": ""},
            "extra_index_urls": {"type": "list", "elements": "str", "default": []},
            "find_links": {"type": "list", "elements": "str", "default": []},
            "torch_index": {"type": "str", "default": ""},
            "bundle": {"type": "path"},
            "timeout_s": {"type": "int", "default": 1800},
        },
        supports_check_mode=True,
    )
    started = time.monotonic()
    params = module.params
    path = params["path"].rstrip("/")
    # An index's password must not come back in a result or a message.
    module.no_log_values.update(installers.secrets(params))
    try:
        sources = installers.sources(params)
    except ValueError as error:
        module.fail_json(msg=str(error))
    order = Order(
        path,
        params["home"],
        sources,
        params["installer"],
        params["bundle"] or "",
        params["repair_in_use"],
        float(params["timeout_s"]),
    )
    try:
        given = params["patches"]
        wanted = None if given is None else patches.of_options(given, params["texts"])
        done = upkeep.ensure(order, params["pristine"], wanted, module.check_mode)
    except (upkeep.Refused, RepairError) as error:
        module.fail_json(msg=str(error))
    except (ValueError, OSError) as error:
        module.fail_json(msg=f"{path}: {error}")
    for text in done.warnings:
        module.warn(text)
    result = {
        "changed": bool(done.changes),
        "path": path,
        "verdict": done.verdict,
        "patches": done.patches,
        "changes": done.changes,
        "modified": done.before.modified if done.before else [],
        "kept": done.kept,
    }
    if module._diff:
        result["diff"] = [one.diff for one in done.diffs]
    module.exit_json(**result, seconds=round(time.monotonic() - started, 3))


if __name__ == "__main__":
    main()
