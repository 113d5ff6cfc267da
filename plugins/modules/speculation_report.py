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
    length, time of a cycle, break-even, speed-up, acceptance, needed acceptance, ceiling and tokens per chunk with
    their intervals, and names what makes these figures mean something else than they seem to. C(docs/speculation.md)
    explains them.
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
    base_step_s:
      description: Time per token of the base; null while no block counts.
      type: float
      returned: always
    base_step_interval_s:
      description: Its interval, as a list of its ends; these are null with fewer than two blocks, as in all intervals.
      type: list
      elements: float
      returned: always
    blocks: {description: Blocks that count., type: int, returned: always}
    confidence: {description: Confidence of each interval., type: float, returned: always}
    concurrency:
      description: Streams at once of the headline; null before the first start.
      type: int
      returned: always
    configurations:
      description: One entry for each other arm.
      type: list
      elements: dict
      returned: always
      contains:
        arm: {description: Its name., type: str, returned: always}
        verdict: {description: "C(pays), C(does not pay) or C(inconclusive).", type: str, returned: always}
        verdict_note:
          description: What is to be said of the verdict, such as a gain below the tolerance; null when nothing is.
          type: str
          returned: always
        drafts:
          description: >-
            Drafted tokens that a cycle can accept; null before the first start, and when neither the declaration nor
            the engine told their number.
          type: int
          returned: always
        accept_length:
          description: >-
            Tokens per cycle over all cycles, with its interval (C(value), C(low), C(high)); all null when the engine
            told none.
          type: dict
          returned: always
        accept_length_source:
          description: Where it comes from; null when the engine told none.
          type: str
          returned: always
        accept_length_note:
          description: What is known to be wrong with that source; null when the engine told none.
          type: str
          returned: always
        tokens_per_chunk:
          description: Tokens per chunk of the streams; null before the first start.
          type: float
          returned: always
        tokens_per_chunk_interval:
          description: Its interval over the starts of the arm; null ends with fewer than two.
          type: list
          elements: float
          returned: always
        acceptance_per_position:
          description: >-
            Share of accepted drafts at each position, of those that got there; null at one that nothing got to, and
            empty where the engine does not count positions.
          type: list
          elements: float
          returned: always
        acceptance_per_position_intervals:
          description: The interval of each of them over the starts of the arm; null ends with fewer than two.
          type: list
          elements: list
          returned: always
        cycle_s:
          description: Time of a cycle, accept length / rate; C(value), C(low) and C(high) are null without the former.
          type: dict
          returned: always
        break_even:
          description: Accept length at which it is as fast as the base; null like C(cycle_s).
          type: dict
          returned: always
        speedup: {description: Rate against that of the base., type: dict, returned: always}
        acceptance:
          description: >-
            Acceptance that gives this accept length if it were the same at each position; null when the accept length
            or the number of drafts is not known, when nothing was drafted, or when so many tokens cannot be.
          type: float
          returned: always
        acceptance_interval:
          description: Its interval; null ends where that of the accept length has them, or without a value.
          type: list
          elements: float
          returned: always
        needed_acceptance:
          description: The same for break-even; null also when no acceptance reaches it (then C(ceiling) is below 1).
          type: float
          returned: always
        needed_acceptance_interval:
          description: Its interval. An end is null when no acceptance reaches it; both are with those of C(break_even).
          type: list
          elements: float
          returned: always
        ceiling:
          description: >-
            Speed-up if every draft were accepted; null when the accept length or the number of drafts is not known, or
            when nothing was drafted.
          type: float
          returned: always
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
