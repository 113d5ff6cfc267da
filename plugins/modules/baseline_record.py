#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the baseline_record action: it runs on the controller only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: baseline_record
short_description: Compare a measurement with its baseline and keep both as a record on the controller
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Writes one JSON document with fingerprints, proof, measurement and verdict to C(<records_dir>/<host>/<id>.json),
    atomically, and never overwrites one.
  - The first measurement of a declaration becomes its provisional baseline. Later ones are compared with it.
  - The unit of comparison is the start of a server, not the request; the verdict says when there are too few of them.
    C(docs/statistics.md) has the formulas.
  - Keeps an index of all records of all hosts, which C(groundstate history) searches and exports.
extends_documentation_fragment:
  - groundstate.llm.controller
options:
  records_dir:
    description: Folder on the controller that holds one folder per host.
    type: path
    required: true
  measurement:
    description: What M(groundstate.llm.llm_benchmark) returned as C(measurement).
    type: dict
    required: true
  fingerprints:
    description: What M(groundstate.llm.llm_benchmark) returned as C(fingerprints).
    type: dict
    required: true
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
  tolerance:
    description: Share of the rate that does not matter.
    type: float
    default: 0.02
  accept:
    description: Make this measurement part of the baseline of its declaration.
    type: bool
    default: false
  group:
    description: Hosts with the same group share their baselines. Empty for the host's own.
    type: str
    default: ""
  looks:
    description:
      - Numbers of new starts at which a verdict is given, ascending. V([1]) judges each start at once. With
        V([3, 5, 8]) starts of the same state are collected and judged together, each time as strictly as three looks
        ask for.
    type: list
    elements: int
    default: [1]
  history_url:
    description:
      - URL of a PostgreSQL database for the index of all records, instead of C(history.sqlite) in O(records_dir). Needs
        SQLAlchemy on the controller. The records do not depend on it.
    type: str
    default: ""
  reused:
    description: Whether the measurement is an earlier one that still speaks for the running server.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Compare with the baseline and keep the record
  groundstate.llm.baseline_record:
    records_dir: ./records
    measurement: "{{ benchmark.measurement }}"
    fingerprints: "{{ benchmark.fingerprints }}"
"""

RETURN = r"""
record:
  description: Path of the record on the controller.
  returned: when something was measured
  type: str
  sample: records/local/20261129T170000Z-a1b2c3.json
key:
  description: Identifies what may be compared, being server, arguments, model and workload.
  returned: when something was measured
  type: str
  sample: 0f3a5c7e9b1d2f40
verdict:
  description: The verdict with interval, reasons and the differences of the fingerprints.
  returned: when something was measured
  type: dict
  sample: {verdict: slower, ratio: 0.926, ratio_low: 0.91, ratio_high: 0.94, reasons: [], explanations: []}
in_baseline:
  description: Whether this record is part of the baseline of its declaration.
  returned: when something was measured
  type: bool
  sample: true
baseline:
  description: How many starts the baseline has now, and whether it is provisional (fewer than three).
  returned: when something was measured
  type: dict
  sample: {starts: 3, provisional: false}
summary:
  description: Lines of a table for a person.
  returned: when something was measured
  type: list
  elements: str
  sample: ["decode    31.2 tok/s (30.4 to 32.0), 5 repeats within one start"]
ansible_facts:
  description: The host fact C(groundstate).
  returned: when something was measured
  type: dict
  contains:
    groundstate:
      description: Summary of the measurement, its verdict and where its record is.
      returned: when something was measured
      type: dict
      sample: {verdict: same, record: records/local/20261129T170000Z-a1b2c3.json}
"""
