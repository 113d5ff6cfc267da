#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the comparison action: it runs on the controller only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: comparison
short_description: One step of a comparison of declarations that are started in turn on one host
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Keeps a comparison as C(<records_dir>/<host>/comparisons/<id>/comparison.json), written atomically after each step,
    so that it goes on where it was, whatever was killed.
  - The role C(compare) calls it for each step; C(docs/compare.md) walks through one and has the formulas.
extends_documentation_fragment:
  - groundstate.llm.controller
options:
  state:
    description:
      - V(planned) begins a comparison, or finds the newest of the same declaration. V(started) says which start begins.
        V(recorded) keeps a finished start, and judges at a planned look. V(shown) returns the result.
    type: str
    required: true
    choices: [planned, started, recorded, shown]
  records_dir:
    description: Folder on the controller that holds one folder of records for each host.
    type: path
    required: true
  id:
    description: The comparison, for all states but V(planned).
    type: str
    default: ""
  kind:
    description: Kind of the document.
    type: str
    default: compare
    choices: [compare, speculation]
  title:
    description: Its name. Empty for the names of its arms.
    type: str
    default: ""
  ways:
    description:
      - The ways in which it can be said what is compared, name of the variable to list of arms. Exactly one of them and
        O(profiles) must not be empty.
      - An arm has a C(name), C(vars) (variables that take the place of the inventory's; C(llm_server) and
        C(baseline_workload) are merged into them) and C(clocks).
      - Arms of C(compare_arms) are read from the variable of this name, as it was written, so that their templates see
        the values of their own arm.
    type: dict
    default: {}
  profiles:
    description: NCCL profiles, one arm each.
    type: list
    elements: str
    default: []
  tolerance:
    description: Share of the rate that does not matter.
    type: float
    default: 0.02
  looks:
    description: Numbers of blocks after which it is judged, ascending; the last one is the end.
    type: list
    elements: int
    default: [3, 5, 8, 10]
  anew:
    description: Begin a new comparison even when there is one of this declaration.
    type: bool
    default: false
  covers:
    description:
      - What follows from declared differences, C({declared, covers, except}), all patterns of the names in the table
        of differences; with C(only_declared_names) of what the arms declare at all.
    type: list
    elements: dict
    default: []
  allow:
    description: Patterns of differences that nobody declared and that are meant.
    type: list
    elements: str
    default: []
  start:
    description: One of the starts that V(planned) returned, for V(started) and V(recorded).
    type: dict
    default: {}
  began:
    description: When it began, as V(started) returned.
    type: float
    default: 0.0
  launched:
    description:
      - What M(groundstate.llm.llm_server) returned. A measurement of a server that this start did not launch is
        refused.
    type: dict
    default: {}
  measurement:
    description: What M(groundstate.llm.llm_benchmark) returned as C(measurement).
    type: dict
    default: {}
  fingerprints:
    description: What M(groundstate.llm.llm_benchmark) returned as C(fingerprints).
    type: dict
    default: {}
  proof:
    description: What M(groundstate.llm.nccl_proof) returned.
    type: dict
    default: {}
  ready:
    description: What M(groundstate.llm.llm_server_ready) returned.
    type: dict
    default: {}
  profile:
    description: Name of the NCCL profile in force.
    type: str
    default: ""
  info:
    description: What M(groundstate.llm.llm_server_info) returned.
    type: dict
    default: {}
  left:
    description:
      - For V(shown), what was left on the host, which is noted in the document.
      - For V(planned), what is to be left there. As long as something is left to do, V(planned) notes this run as the
        one that compares on the host, and refuses a second one; V(shown) takes that away.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Begin a comparison, or go on with it
  groundstate.llm.comparison:
    state: planned
    records_dir: ./records
    profiles: [stock, pcie_ll_ring]
  register: plan

- name: Show what came of it
  groundstate.llm.comparison:
    state: shown
    records_dir: ./records
    id: "{{ plan.id }}"
"""

RETURN = r"""
id:
  description: The comparison.
  returned: with O(state=planned)
  type: str
  sample: 20261129T170000Z-a1b2c3
path:
  description: Path of its document on the controller.
  returned: with O(state=planned) and O(state=shown)
  type: str
  sample: records/local/comparisons/20261129T170000Z-a1b2c3/comparison.json
arms:
  description: Names of the arms, the reference first.
  returned: with O(state=planned)
  type: list
  elements: str
  sample: [stock, pcie_ll_ring]
reference:
  description: Name of the first arm.
  returned: with O(state=planned)
  type: str
  sample: stock
variables:
  description:
    - For each arm, the final values of all variables that some arm sets. They may hold secrets, so that this result is
      never printed.
  returned: with O(state=planned)
  type: dict
  sample: {stock: {nccl_profile_name: stock}, pcie_ll_ring: {nccl_profile_name: pcie_ll_ring}}
names:
  description: Names of these variables.
  returned: with O(state=planned)
  type: list
  elements: str
  sample: [nccl_profile_name]
env_differs:
  description: Whether the arms come to different environments, by variables of their own or by others made of these.
  returned: with O(state=planned)
  type: bool
  sample: false
clocks:
  description: Whether some arm, or the inventory for all of them, has clocks that are to be set.
  returned: with O(state=planned)
  type: bool
  sample: true
clocks_after:
  description: C(gpu_clocks) and C(gpu_clocks_gpus) of the inventory, where an arm has others. Empty where none has.
  returned: with O(state=planned)
  type: dict
  sample: {gpu_clocks: {}, gpu_clocks_gpus: [all]}
looks:
  description: What is left to be done, C(blocks) of each look, and its C(starts) with number, block, position and arm.
  returned: with O(state=planned)
  type: list
  elements: dict
  sample: [{blocks: 3, starts: [{number: 1, block: 1, position: 1, arm: stock}]}]
over:
  description: Whether it is decided, or its last look was inconclusive.
  returned: with O(state=planned) and O(state=recorded)
  type: bool
  sample: false
left:
  description: What was left on the host at its end, empty before.
  returned: with O(state=planned)
  type: str
  sample: reference
last_arm:
  description: Arm of the last start that is done, empty before the first.
  returned: with O(state=planned)
  type: str
  sample: stock
differences:
  description:
    - In what the arms differ from the reference, C(arm), C(what), C(reference), C(value), whether it is C(declared) and
      C(why).
  returned: with O(state=planned)
  type: list
  elements: dict
  sample: [{arm: ngram, what: argument --speculation, reference: null, value: ngram, declared: true, why: declared}]
began:
  description: Seconds since 1970.
  returned: with O(state=started)
  type: float
  sample: 1780000000.0
arm:
  description: The arm of the start.
  returned: with O(state=recorded)
  type: str
  sample: stock
record:
  description: Id of the start's record.
  returned: with O(state=recorded)
  type: str
  sample: 20261129T170112Z-d4e5f6
title:
  description: Name of the comparison.
  returned: with O(state=shown)
  type: str
  sample: stock vs pcie_ll_ring
result:
  description: The verdicts of the arms, and the drift of the machine.
  returned: with O(state=shown)
  type: dict
  sample: {reference: stock, blocks: 3, pairs: [{arm: pcie_ll_ring, verdict: faster, ratio: 1.05}]}
summary:
  description: Lines for a person.
  returned: with O(state=planned) and O(state=shown)
  type: list
  elements: str
  sample: ["verdict   pcie_ll_ring against stock: FASTER +5.1 % (+3.9 % to +6.3 %) over 3 blocks"]
"""
