#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the rollout_host action: it runs on the controller only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_host
short_description: Keep one step of one host of a rollout
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Writes what became of the host to the file of the rollout, under a lock, so that an interrupted rollout can go on.
  - At the end of a host it judges it from its proof, its verdict and its rate under the declaration before.
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
  entry:
    description: What is known of the host, where nothing is written. Otherwise the file tells.
    type: dict
    default: {}
  step:
    description:
      - V(begin), its turn has come. V(drained) and V(undrained), a hook took it out of service and put it back.
      - V(end), it was deployed, or could not be. V(restore) returns what was declared before. V(back), it was rolled
        back, or could not be.
    type: str
    choices: [begin, drained, undrained, end, restore, back]
    required: true
  batch:
    description: Number of its batch, from 0.
    type: int
    default: 0
  seen:
    description: What reading the record of its server came to (M(ansible.builtin.slurp)).
    type: dict
    default: {}
  error:
    description: Why a task failed; empty when none did.
    type: str
    default: ""
  proof:
    description: What M(groundstate.llm.nccl_proof) returned.
    type: dict
    default: {}
  record:
    description: The path that M(groundstate.llm.baseline_record) returned; empty when nothing was measured.
    type: str
    default: ""
  max_drop:
    description: Share of its rate before that the host may lose where too few starts are known for a verdict.
    type: float
    default: 0.1
  tolerance:
    description: Share of the rate that does not matter.
    type: float
    default: 0.02
"""

EXAMPLES = r"""
- name: Keep what came of it
  groundstate.llm.rollout_host:
    records_dir: ./records
    rollout: "{{ rollout_plan_result.id }}"
    step: end
    proof: "{{ nccl_profile_proof_result }}"
    record: "{{ baseline_record_result.record }}"
"""

RETURN = r"""
entry:
  description: What the rollout knows of the host now.
  returned: success
  type: dict
  sample: {outcome: slower, why: ["14.0 % below 98.2 tok/s, its declaration before"], batch: 1, value: 84.4}
good:
  description: Whether it passed, or is back at the declaration before.
  returned: at the steps end and back
  type: bool
  sample: true
variables:
  description: The variables that declare again what was declared before, without secrets.
  returned: at the step restore
  type: dict
  sample: {nccl_profile_name: nvlink}
"""
