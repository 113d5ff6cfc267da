#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the rollout_report action: it runs on the controller only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_report
short_description: Look at all hosts of a rollout together
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Finds hosts that are unlike their group, by a robust z of their rates (median and median absolute deviation, beyond
    3.5), and names what differs between their fingerprint and that of the group's median host.
  - A group is a C(baseline_group), or the hosts with the same server, arguments, model, workload and GPUs.
  - Ends the file of the rollout with it. Runs once.
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
  hosts:
    description: What M(groundstate.llm.rollout_plan) returned as C(hosts).
    type: dict
    required: true
  tolerance:
    description: Share of the rate that does not matter; a smaller distance from the group makes no outlier.
    type: float
    default: 0.02
"""

EXAMPLES = r"""
- name: Look at all hosts together
  groundstate.llm.rollout_report:
    records_dir: ./records
    rollout: "{{ rollout_plan_result.id }}"
    hosts: "{{ rollout_plan_result.hosts }}"
  run_once: true
"""

RETURN = r"""
state:
  description: Whether the rollout is V(complete), V(stopped) or still V(running), where hosts wait for another run.
  returned: success
  type: str
  sample: complete
title:
  description: The rollout in a line.
  returned: success
  type: str
  sample: "rollout-20261129T170000Z-a1b2c3: complete; 12 passed"
bad:
  description: Hosts that did not pass.
  returned: success
  type: list
  elements: str
  sample: []
report:
  description: The groups with their rates, change against before and outliers, and the hosts that are still drained.
  returned: success
  type: dict
  sample: {groups: [], drained: []}
lines:
  description: A table with a row for each host, the groups and the outliers.
  returned: success
  type: list
  elements: str
  sample: ["host7: 12.0 % below its group (z -8.1); GPU 0 pcie width: 8x instead of 16x"]
"""
