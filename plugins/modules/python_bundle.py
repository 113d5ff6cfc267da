#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: python_bundle
short_description: All wheels of a lock in one file, for hosts without a network
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Fetches the wheels of a lock with pip, for any Python and platform, and writes them with the lock and the SHA-256 of
    every file into one tar, from which M(groundstate.llm.python_env) installs without asking any index.
  - Runs on a machine that reaches a package index; nothing of what it fetches is run there.
  - A bundle that is there and whole is left as it is. One that is damaged is made again.
extends_documentation_fragment:
  - groundstate.llm.wheels
options:
  path:
    description: Folder that the bundle is put into; its name is made from lock, Python and platform.
    type: path
    required: true
  lock:
    description: Name of the lock, for the name of the file.
    type: str
    required: true
  requirements:
    description: The lock as text, as for M(groundstate.llm.python_env).
    type: str
    required: true
  python:
    description:
      - Python of the hosts, such as V(3.12), in quotes (YAML reads 3.10 as 3.1). Empty means the one that runs this
        module, or else the only one that the lock is for.
    type: str
    default: ""
  python_range:
    description: Versions that the lock is for, for example C(>=3.10,<3.15); O(python) has to be one of them.
    type: str
    default: ""
  platform:
    description:
      - Platform of the hosts, V(linux-x86_64) or V(linux-aarch64). Empty means that of this machine, or else that of
        the lock.
    type: str
    default: ""
  lock_platform:
    description: Platform that the lock is for, or how its name begins; O(platform) has to be one of these.
    type: str
    default: ""
  glibc:
    description:
      - Version of the oldest C library among the hosts, in quotes. Wheels that need a newer one are not taken.
    type: str
    default: "2.28"
  installer:
    description: What makes the environment in which pip runs, V(uv), V(pip), the path of a uv, or V(auto).
    type: str
    default: auto
  timeout_s:
    description: Seconds that fetching may take.
    type: int
    default: 3600
attributes:
  check_mode:
    support: full
    description: Says whether a bundle would be made; one that is there is checked.
  diff_mode:
    support: full
    description: Lists the files of the bundle.
seealso:
  - module: groundstate.llm.python_env
"""

EXAMPLES = r"""
- name: Make the bundle of an engine for hosts with Python 3.12
  groundstate.llm.python_bundle:
    path: /srv/bundles
    lock: llama_cpp
    python: "3.12"
    platform: linux-x86_64
    requirements: "{{ lookup('ansible.builtin.file', 'requirements.txt') }}"
"""

RETURN = r"""
path:
  description: The bundle.
  type: str
  returned: always
  sample: /srv/bundles/llama_cpp-cpython-312-linux-x86_64-0f0bdb4c.tar
files:
  description: Number of files in it; 0 in check mode when it is not there yet.
  type: int
  returned: always
size_mib:
  description: Their size in MiB.
  type: float
  returned: always
seconds:
  description: Duration of this call.
  type: float
  returned: always
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.venvs import installers, wheelhouse


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "lock": {"type": "str", "required": True},
            "requirements": {"type": "str", "required": True},
            "python": {"type": "str", "default": ""},
            "python_range": {"type": "str", "default": ""},
            "platform": {"type": "str", "default": ""},
            "lock_platform": {"type": "str", "default": ""},
            "glibc": {"type": "str", "default": "2.28"},
            "installer": {"type": "str", "default": "auto"},
            "index_url": {"type": "str", "default": ""},
            "extra_index_urls": {"type": "list", "elements": "str", "default": []},
            "find_links": {"type": "list", "elements": "str", "default": []},
            "torch_index": {"type": "str", "default": ""},
            "timeout_s": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    started = time.monotonic()
    given = module.params
    # An index's password must not come back in a result or a message.
    module.no_log_values.update(installers.secrets(given))
    try:
        sources = installers.sources(given)
    except ValueError as error:
        module.fail_json(msg=str(error))
    same = ("path", "lock", "requirements", "python", "python_range", "platform", "lock_platform", "glibc", "installer")
    order = wheelhouse.Order(
        sources=sources, timeout_s=float(given["timeout_s"]), **{name: given[name] for name in same}
    )
    try:
        made = wheelhouse.ensure(order, dry=module.check_mode)
    except wheelhouse.BundleError as error:
        module.fail_json(msg=str(error))
    names = sorted(made.manifest.files) if made.manifest else []
    result = {
        "changed": made.changed,
        "path": made.path,
        "files": len(names),
        "size_mib": round(made.manifest.size / (1 << 20), 1) if made.manifest else 0.0,
        "seconds": round(time.monotonic() - started, 3),
    }
    if made.changed:
        result["diff"] = {"before": "", "after": "".join(f"{name}\n" for name in names), "after_header": made.path}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
