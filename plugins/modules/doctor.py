#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor
short_description: Say what is wrong with a host, from what other modules have told of it
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Takes the results of modules that only read, and the baseline of the host, and makes one list of findings of them,
    each with how to fix it. The playbook C(groundstate.llm.doctor) asks these modules.
  - Runs on the controller and changes nothing. A result of a task that was skipped counts as not asked; one of a task
    that failed is a finding itself.
options:
  preflight:
    description: Result of M(groundstate.llm.preflight).
    type: dict
    default: {}
  reset:
    description: Result of M(groundstate.llm.gpu_reset) in check mode, what a reset would end.
    type: dict
    default: {}
  gpus:
    description: Result of M(groundstate.llm.gpu_info).
    type: dict
    default: {}
  info:
    description: Result of M(groundstate.llm.llm_server_info).
    type: dict
    default: {}
  proof:
    description: Result of M(groundstate.llm.nccl_proof).
    type: dict
    default: {}
  environment:
    description: Result of M(groundstate.llm.python_env_info).
    type: dict
    default: {}
  fingerprint:
    description: Result of M(groundstate.llm.host_fingerprint), compared with the one of the baseline.
    type: dict
    default: {}
  server:
    description: Name of the server whose baseline is compared with; empty for none.
    type: str
    default: ""
  records_dir:
    description: Folder of the records on the controller; empty for none.
    type: path
    default: ""
  group:
    description: Whose baselines count; empty for the host's own.
    type: str
    default: ""
attributes:
  check_mode:
    description: Changes nothing in any mode.
    support: full
  diff_mode:
    description: There is nothing that it changes.
    support: none
"""

EXAMPLES = r"""
- name: Look at the GPUs
  groundstate.llm.gpu_info:
  register: seen
  failed_when: false

- name: Say what is wrong with them
  groundstate.llm.doctor:
    gpus: "{{ seen }}"
"""

RETURN = r"""
findings:
  description: >-
    What was found, problems first, each with C(level) (V(problem), or V(note) for what is worth knowing), C(what),
    C(where) and C(fix).
  returned: always
  type: list
  elements: dict
  sample:
    - level: problem
      what: "server kimi is hung: health answers 200, and a completion of our own: no reply within 30 s"
      where: server
      fix: groundstate reset ends it, groundstate deploy starts it anew; its log may tell why
problems:
  description: How many of them are problems.
  returned: always
  type: int
count:
  description: Both numbers in words.
  returned: always
  type: str
  sample: 1 problem, 2 notes
lines:
  description: The findings as lines for a person.
  returned: always
  type: list
  elements: str
"""
