#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: host_fingerprint
short_description: The state of a host that can explain a number
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Reads hardware, kernel, the Python environment of an engine, the server's arguments and the model, and gives each of
    these sections a hash.
  - Finds files of installed packages that were edited, deleted or added after the installation, by comparing them with
    the hashes in the packages' own C(RECORD) files.
  - Changes nothing on the host but its own cache of file hashes, C(cache/) below O(home).
options:
  home:
    description: Folder on the host that holds all that Groundstate writes there.
    type: path
    default: ~/.local/state/groundstate
  server:
    description: Name of the server whose arguments, model and environment are read. Empty for none.
    type: str
    default: ""
  env_path:
    description: Folder of the Python environment. Empty for the one in the server's record.
    type: path
    default: ""
  verify_files:
    description: Compare the files of the environment with what was installed. The first time reads every file.
    type: bool
    default: true
  hash_weights:
    description:
      - Hash all files of the model, however large, and keep the hashes until a file changes. Otherwise weights are
        compared by name and size.
      - A fingerprint with these hashes has another C(state_hash) than one without.
    type: bool
    default: false
attributes:
  check_mode:
    description: Reads in check mode as well.
    support: full
  diff_mode:
    description: There is nothing that it changes.
    support: none
"""

EXAMPLES = r"""
- name: Take the fingerprint of the server smollm and its host
  groundstate.llm.host_fingerprint:
    server: smollm
  register: fingerprint

- name: Show which files of the environment are not what was installed
  ansible.builtin.debug:
    var: fingerprint.fingerprint.sections.python_env.edited

- name: Take the fingerprint of an environment that somebody else made, without a server
  groundstate.llm.host_fingerprint:
    env_path: /root/ml-env
"""

RETURN = r"""
fingerprint:
  description: The fingerprint.
  returned: always
  type: dict
  contains:
    schema:
      description: Version of this structure.
      type: int
      sample: 1
    taken_at:
      description: When it was taken, in seconds since 1970.
      type: float
      sample: 1795969000.5
    sections:
      description:
        - C(hardware), C(kernel), C(python_env), C(server), C(model). A value that could not be read is null, with the
          reason in RV(fingerprint.unknown).
      type: dict
    conditions:
      description: What comes and goes (uptime, load, clocks, temperatures). Not part of any hash.
      type: dict
    hashes:
      description: The hash of each section.
      type: dict
    state_hash:
      description: The hash of all sections. Equal while nothing that can explain a number has changed.
      type: str
    unknown:
      description: Path of a value that could not be read, and why.
      type: dict
      sample:
        hardware.product: neither /sys/class/dmi/id nor a device tree names it
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import servers
from ..module_utils.fingerprint import take


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "default": "~/.local/state/groundstate"},
            "server": {"type": "str", "default": ""},
            "env_path": {"type": "path", "default": ""},
            "verify_files": {"type": "bool", "default": True},
            "hash_weights": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    name, env_path = module.params["server"], module.params["env_path"]
    try:
        if name:
            servers.check_name(name)
        if env_path and not os.path.isdir(env_path):
            raise ValueError(
                f"env_path {env_path} is not a folder on this host: name the environment, or leave it empty"
            )
        home, verify = module.params["home"], module.params["verify_files"]
        found = take.take(home, name, env_path, verify, hash_weights=module.params["hash_weights"])
    except (ValueError, OSError) as error:
        module.fail_json(msg=f"The fingerprint could not be taken: {error}")
    module.exit_json(changed=False, fingerprint=found)


if __name__ == "__main__":
    main()
