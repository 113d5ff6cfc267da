#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the show action: it runs on the controller only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: show
short_description: Print lines for a person, as they are
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Prints a title and lines on the controller, where C(ansible.builtin.debug) would print a list of quoted strings.
options:
  title:
    description: Printed first and underlined.
    type: str
    required: true
  lines:
    description: Printed below it, one a line.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Changes nothing, so that it does the same.
    support: full
  diff_mode:
    description: Returns what changed in diff mode.
    support: none
  action:
    description: Runs on the controller, without a connection to the host.
    support: full
"""

EXAMPLES = r"""
- name: Show the proof
  groundstate.llm.show:
    title: "{{ inventory_hostname }}: NCCL profile"
    lines: "{{ proof.table }}"
"""

RETURN = r"""#"""
