#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Say whether speculative decoding pays: see DOCUMENTATION. The work is done by the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: speculation_report
short_description: Say whether speculative decoding pays, from a comparison that was measured
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Reads a comparison of kind C(speculation) and the records of its starts, computes for each configuration accept
    length, time of a cycle, break-even, speed-up, needed acceptance and ceiling with their intervals, and names what
    makes these figures mean something else than they seem to. C(docs/speculation.md) explains them.
  - The result is kept in the comparison's document. Runs on the controller; the host is not contacted.
options:
  records_dir:
    description: Folder on the controller that holds one folder of records for each host.
    type: path
    required: true
  id:
    description: The comparison.
    type: str
    required: true
attributes:
  check_mode:
    description: Computes everything and writes nothing.
    support: full
  diff_mode:
    description: Returns what changed in diff mode.
    support: none
  action:
    description: Runs on the controller, without a connection to the host.
    support: full
seealso:
  - plugin: groundstate.llm.break_even
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Say whether speculation pays
  groundstate.llm.speculation_report:
    records_dir: "{{ groundstate_records_dir }}"
    id: "{{ compare_plan_result.id }}"
  register: result
"""

RETURN = r"""
speculation:
  description: What the comparison says of speculation.
  returned: success
  type: dict
  contains:
    base: {description: Name of the arm without speculation., type: str, returned: always}
    base_step_s: {description: Time per token of the base., type: float, returned: when a block is complete}
    base_step_interval_s: {description: Its interval., type: list, elements: float, returned: always}
    blocks: {description: Blocks that count., type: int, returned: always}
    confidence: {description: Confidence of each interval., type: float, returned: always}
    concurrency: {description: Streams at once of the headline., type: int, returned: always}
    configurations:
      description: One entry for each other arm.
      type: list
      elements: dict
      returned: always
      contains:
        arm: {description: Its name., type: str, returned: always}
        verdict: {description: "C(pays), C(does not pay) or C(inconclusive).", type: str, returned: always}
        drafts: {description: Drafted tokens that a cycle can accept., type: int, returned: always}
        accept_length:
          description: Tokens per cycle over all cycles, with its interval (C(value), C(low), C(high)).
          type: dict
          returned: always
        accept_length_source: {description: Where it comes from., type: str, returned: always}
        accept_length_note: {description: What is known to be wrong with that source., type: str, returned: always}
        tokens_per_chunk: {description: Tokens per chunk of the streams., type: float, returned: always}
        acceptance_per_position:
          description: Share of accepted drafts at each position, of those that got there.
          type: list
          elements: float
          returned: always
        cycle_s: {description: "Time of a cycle, accept length / rate.", type: dict, returned: always}
        break_even: {description: Accept length at which it is as fast as the base., type: dict, returned: always}
        speedup: {description: Rate against that of the base., type: dict, returned: always}
        acceptance:
          description: Acceptance that gives this accept length if it were the same at each position.
          type: float
          returned: always
        needed_acceptance:
          description: The same for break-even; null when no acceptance reaches it.
          type: float
          returned: always
        needed_acceptance_interval: {description: Its interval., type: list, elements: float, returned: always}
        ceiling: {description: Speed-up if every draft were accepted., type: float, returned: always}
        ceiling_interval: {description: Its interval., type: list, elements: float, returned: always}
        would_pay_if:
          description: What would have to change, as sentences.
          type: list
          elements: str
          returned: always
        traps:
          description: What makes the figures mean something else than they seem to (C(name), C(text)).
          type: list
          elements: dict
          returned: always
path:
  description: The comparison's document on the controller.
  returned: success
  type: str
summary:
  description: The result as lines for a person.
  returned: success
  type: list
  elements: str
"""
