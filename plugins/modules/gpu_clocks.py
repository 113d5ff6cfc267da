#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Persistence mode, power limit and locked clocks of GPUs, and the way back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_clocks
short_description: Lock the clocks of GPUs, limit their power, and put back what was there before
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Sets persistence mode, power limit and locked clocks by C(nvidia-smi). What is there before the first change is
    written to C(gpu_clocks.json) below O(home), so that O(state=restored), M(groundstate.llm.gpu_reset) and
    M(groundstate.llm.host_teardown) can put it back, also after a run that was killed.
  - The options are all that is wanted of the GPUs in O(gpus). What this module set there earlier and is no longer asked
    for goes back to what was there before.
  - Values that a GPU does not take, and a container or user that may not set them, are refused before anything is
    changed. What the driver refuses half-way is undone at once.
  - The driver tells no one which clocks are locked. A lock of ours counts as standing while the driver was not loaded
    anew, persistence mode is on and the clock does not run above it; it is then set once more, which changes nothing,
    and reported as unchanged. A lock that somebody else set is not seen, and is gone once ours is released.
options:
  home:
    description: Folder of everything that Groundstate writes on this host.
    type: path
    default: ~/.local/state/groundstate
  state:
    description: V(present) sets what the options say, V(restored) puts back everything that was set on this host.
    type: str
    choices: [present, restored]
    default: present
  gpus:
    description: V(all), or the GPUs to set, by index (as nvidia-smi counts) or UUID. Others keep what they have.
    type: list
    elements: str
    default: [all]
  persistence:
    description:
      - Whether the driver keeps its state while no program uses the GPU. Without persistence mode it forgets a limit or
        lock as soon as the last program ends, so that one without the other is refused.
    type: bool
  sm_mhz:
    description: Clock of the SMs in MHz, or the lowest and the highest one. V(0) as the lowest leaves that end free.
    type: raw
  memory_mhz:
    description: Clock of the memory in MHz, one of those that the GPU lists.
    type: raw
  power_limit_w:
    description: Power limit of each GPU in watts.
    type: float
  query_timeout_s:
    description: Seconds that nvidia-smi may take to answer before the driver counts as hung.
    type: float
    default: 30
attributes:
  check_mode:
    description: Can run in check mode and tell what would be set. Refuses what it would refuse in earnest.
    support: full
  diff_mode:
    description: Returns the settings of each GPU before and after.
    support: full
seealso:
  - module: groundstate.llm.gpu_info
  - module: groundstate.llm.gpu_reset
  - module: groundstate.llm.host_teardown
"""

EXAMPLES = r"""
- name: Let all GPUs run at one clock
  groundstate.llm.gpu_clocks:
    persistence: true
    sm_mhz: 1500

- name: Limit the power of two GPUs and the range of their clocks
  groundstate.llm.gpu_clocks:
    gpus: ["0", "1"]
    persistence: true
    power_limit_w: 450
    sm_mhz: [1200, 1800]

- name: Put everything back
  groundstate.llm.gpu_clocks:
    state: restored
"""

RETURN = r"""
gpus:
  description: >-
    One entry a GPU, with C(index), C(uuid), C(name), C(before) and C(after) (C(persistence), C(power_limit_w),
    C(sm_mhz) and C(memory_mhz); of the last two only locks of ours, C(null) for none), C(held) (what of it we set, and
    will put back), and C(clock_sm_mhz) and C(clock_memory_mhz), at which it runs now. Empty when there was nothing to
    do.
  returned: success
  type: list
  elements: dict
actions:
  description: What was changed (in check mode, what would be), in words.
  returned: success
  type: list
  elements: str
  sample: ["GPU 0 (NVIDIA H200): SM clock locked at 1500 MHz"]
notes:
  description: What was left as it is, and why.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import gpu_clocks, gpu_settings


def main() -> None:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "default": "~/.local/state/groundstate"},
            "state": {"type": "str", "choices": ["present", "restored"], "default": "present"},
            "gpus": {"type": "list", "elements": "str", "default": ["all"]},
            "persistence": {"type": "bool"},
            "sm_mhz": {"type": "raw"},
            "memory_mhz": {"type": "raw"},
            "power_limit_w": {"type": "float"},
            "query_timeout_s": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    given = module.params
    wishes = {item: given[item] for item in gpu_settings.ITEMS if given[item] is not None}
    if wishes and given["state"] == "restored":
        module.fail_json(msg=f"state restored puts everything back: leave out {', '.join(wishes)}")
    try:
        gpus = ["all"] if given["state"] == "restored" else given["gpus"]
        result = gpu_clocks.set_clocks(given["home"], wishes, gpus, module.check_mode, given["query_timeout_s"])
    except (gpu_clocks.ClocksError, ValueError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}; run as the user that set the clocks, or as root")
    module.exit_json(**result.as_dict())


if __name__ == "__main__":
    main()
