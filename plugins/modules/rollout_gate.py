#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the rollout_gate action: it runs on the controller only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_gate
short_description: Decide whether the next batch of a rollout may begin
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Counts the hosts of a batch that failed, are slower, unproved or unreachable. A host that was lost on the way counts
    as unreachable. More than O(max_failed) stop the rollout.
  - Expects what M(groundstate.llm.rollout_host) returned for each host as C(rollout_host_result). Runs once a batch.
extends_documentation_fragment:
  - groundstate.llm.controller
options:
  records_dir:
    description: Folder on the controller that holds the records; rollouts are in C(rollouts) there.
    type: path
    required: true
  rollout:
    description: What M(groundstate.llm.rollout_plan) returned as C(id). Empty, nothing is written.
    type: str
    default: ""
  batch:
    description: The batch, one of those that M(groundstate.llm.rollout_plan) returned.
    type: dict
    required: true
  hosts:
    description: What that module returned as C(hosts).
    type: dict
    required: true
  max_failed:
    description: How many hosts of the batch may not pass, a number or a share of the batch.
    type: raw
    default: 0
  on_failure:
    description: What happens beyond it.
    type: str
    choices: [stop, rollback]
    default: stop
"""

EXAMPLES = r"""
- name: Judge the batch
  groundstate.llm.rollout_gate:
    records_dir: ./records
    rollout: "{{ rollout_plan_result.id }}"
    batch: "{{ rollout_plan_result.batches[0] }}"
    hosts: "{{ rollout_plan_result.hosts }}"
    max_failed: 10%
  run_once: true
  register: rollout_gate_result
"""

RETURN = r"""
stop:
  description: Whether no further batch may begin. Never in check mode or where only some steps run.
  returned: success
  type: bool
  sample: true
gate:
  description: The count, with C(size), C(bad), C(allowed) and C(stop).
  returned: success
  type: dict
  sample: {size: 4, bad: {pcie-3: slower}, allowed: 0, stop: true}
roll_back:
  description: Hosts that go back to the declaration before.
  returned: success
  type: list
  elements: str
  sample: [pcie-3]
entries:
  description: What the rollout knows of each host of the batch.
  returned: success
  type: dict
  sample: {pcie-3: {outcome: slower}}
lines:
  description: The count for a person.
  returned: success
  type: list
  elements: str
  sample: ["3 of 4 passed; 0 may fail"]
"""
