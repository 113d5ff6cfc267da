#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the rollout_plan action: it runs on the controller only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_plan
short_description: Plan a rollout, or go on with the last one
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Cuts the hosts into batches, canaries first, and leaves out those that have passed in the rollout that this run goes
    on with. A rollout goes on while it is not over and its hosts are declared as they were; otherwise a new one begins.
  - Expects that M(groundstate.llm.rollout_declaration) ran on all hosts and was registered as
    C(rollout_declaration_result).
  - Refuses a rollback that could not work before anything is changed. Runs once for all hosts.
extends_documentation_fragment:
  - groundstate.llm.controller
options:
  records_dir:
    description: Folder on the controller that holds the records; rollouts are in C(rollouts) there.
    type: path
    required: true
  hosts:
    description: All hosts of the rollout, in their order.
    type: list
    elements: str
    required: true
  canaries:
    description: Those of them that come first, in one batch.
    type: list
    elements: str
    default: []
  batches:
    description: How many hosts come in each batch after the canaries, numbers or shares of all hosts. The last repeats.
    type: list
    elements: raw
    default: []
  max_failed:
    description: How many hosts of a batch may not pass, a number or a share of the batch.
    type: raw
    default: 0
  on_failure:
    description: What happens beyond it.
    type: str
    choices: [stop, rollback]
    default: stop
  resume:
    description: Whether it may go on with the last rollout.
    type: bool
    default: true
  partial:
    description: Whether only some steps run, so that nothing can be said of a host. Nothing is written then.
    type: bool
    default: false
  puts_back:
    description: Whether a hook puts hosts back into service. One that passed and is still drained has another turn.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Plan the batches
  groundstate.llm.rollout_plan:
    records_dir: ./records
    hosts: "{{ ansible_play_hosts_all }}"
    canaries: "{{ groups['groundstate_canaries'] | default([]) }}"
    batches: [1, "10%", "50%"]
  run_once: true
  register: rollout_plan_result
"""

RETURN = r"""
id:
  description: Name of the rollout; empty in check mode and with O(partial).
  returned: success
  type: str
  sample: rollout-20261129T170000Z-a1b2c3
path:
  description: Its file on the controller; empty where C(id) is.
  returned: success
  type: str
  sample: records/rollouts/rollout-20261129T170000Z-a1b2c3.json
resumed:
  description: Whether it goes on with an earlier run.
  returned: success
  type: bool
  sample: false
batches:
  description: The batches in their order, with all C(hosts) and those that have yet to C(run).
  returned: success
  type: list
  elements: dict
  sample: [{number: 0, hosts: [pcie-1, nvlink-1], run: [pcie-1, nvlink-1]}]
hosts:
  description: What the rollout knows of each host.
  returned: success
  type: dict
  sample: {pcie-1: {declaration: 3f2a..., outcome: "", why: [], before: null}}
lines:
  description: The plan for a person, with what changes on which hosts.
  returned: success
  type: list
  elements: str
  sample: ["batch 1 (canaries): pcie-1, nvlink-1"]
"""
