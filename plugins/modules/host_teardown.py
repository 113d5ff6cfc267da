#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stop all our servers on a host and remove all that we wrote there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_teardown
short_description: Stop all our servers on a host and remove all that Groundstate wrote there
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Ends the processes of every server recorded below O(home), gracefully first, and removes the folders that were made
    below it. Files below O(home) that are not ours stay and are listed.
  - Clocks, power limits and persistence mode that M(groundstate.llm.gpu_clocks) set go back to what was there before.
  - Records of measurements lie on the controller and are not touched.
options:
  home:
    description: Folder that holds all that is written on the host.
    type: path
    required: true
  local_fact:
    description: The local fact file to remove, too. Empty for none.
    type: path
    default: ""
attributes:
  check_mode:
    description: Can run in check mode and return what would be removed.
    support: full
  diff_mode:
    description: Returns what is there before and after.
    support: full
"""

EXAMPLES = r"""
- name: Leave nothing behind
  groundstate.llm.host_teardown:
    home: ~/.local/state/groundstate
"""

RETURN = r"""
ended:
  description: What became of each process that had to end (in check mode, what would be ended).
  returned: success
  type: list
  elements: dict
  sample: [{pid: 4711, start: 123456, cmdline: python server, how: exited on TERM, gone: true}]
clocks:
  description: What was put back of the clocks that had been set (in check mode, what would be), in words.
  returned: success
  type: list
  elements: str
  sample: ["GPU 0 (NVIDIA H200): SM clock released"]
removed:
  description: What was removed (in check mode, what would be).
  returned: success
  type: list
  elements: str
  sample: [/home/me/.local/state/groundstate/servers/local]
kept:
  description: What lies below O(home) and is not ours.
  returned: success
  type: list
  elements: str
  sample: []
"""

import os
import shutil

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import control, ending, gpu_clocks, servers

# What we make below home, besides the servers' folders, which are removed one by one.
OURS = ("envs", "bundles", "models", "cache", "facts.d")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "local_fact": {"type": "path", "default": ""},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**run(module))
    except (control.ControlError, gpu_clocks.ClocksError, ValueError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"cannot remove {error.filename}: {error.strerror}; run as its owner or as root")


def run(module: AnsibleModule) -> dict:
    home, fact = module.params["home"], module.params["local_fact"]
    names = servers.names(home)
    for name in names:
        control.check_ours(home, name)
    removed = [servers.folder(home, name) for name in names]
    removed += [path for path in (os.path.join(home, one) for one in OURS) if os.path.lexists(path)]
    if fact and os.path.isfile(fact) and not fact.startswith(os.path.join(home, "")):
        removed.append(fact)
    clocks = gpu_clocks.path(home)
    kept = sorted(set(entries(home)) - {clocks, *(os.path.join(home, one) for one in (*OURS, "servers"))})
    if os.path.isdir(home) and not kept:
        removed.append(home)
    ended: list[dict] = []
    # First: while it is not known that they went back, what they were must not be removed.
    back = gpu_clocks.put_back(home, module.check_mode)
    if module.check_mode:
        tree = [one for name in names for one in servers.look(home, name).tree]
        ended = [ending.Ended(one.pid, one.start, one.cmdline, "would be ended").as_dict() for one in tree]
    elif removed:
        if names:
            with control.locked(home):
                for name in names:
                    stopped = control.stop(home, name, servers.look(home, name))
                    ended += [one.as_dict() for one in stopped.ended]
                    control.remove(home, name)
        for path in removed:
            remove(path)
        if kept and os.path.isdir(servers.servers_folder(home)):
            os.rmdir(servers.servers_folder(home))
    diff = {"before": "".join(f"{path}\n" for path in removed) + back.before, "after": back.after}
    result = {"ended": ended, "clocks": back.actions, "removed": removed, "kept": kept, "diff": diff}
    return {"changed": bool(removed) or back.changed, **result}


def entries(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in os.listdir(folder)] if os.path.isdir(folder) else []


def remove(path: str) -> None:
    """Remove a file or a folder of ours; one that is gone already is fine."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


if __name__ == "__main__":
    main()
