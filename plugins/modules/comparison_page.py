#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the comparison_page action: it runs on the controller only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: comparison_page
short_description: Write the page of a comparison
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Writes one HTML file that needs no network to be read. It has the verdict in words, every start in time order, the
    ratio with its interval, accept length against break-even, what the GPUs did under load, and what differs.
  - Can be called at any time of a comparison. The same document gives the same page, byte for byte.
  - The charts need C(vl-convert-python) on the controller, which comes with the package C(groundstate). Without it the
    page has its tables and says so.
options:
  records_dir:
    description: Folder on the controller that holds one folder per host.
    type: path
    required: true
  id:
    description: The comparison's id. The host is the one that the task runs for.
    type: str
    required: true
  path:
    description: Where the page goes. By default C(result.html) beside the comparison's document.
    type: path
attributes:
  check_mode:
    description: Can run in check mode and return whether the page would change.
    support: full
  diff_mode:
    description: Returns what changed in diff mode.
    support: none
  action:
    description: Runs on the controller, without a connection to the host.
    support: full
"""

EXAMPLES = r"""
- name: Write the page of the comparison
  groundstate.llm.comparison_page:
    records_dir: ./records
    id: 20261129T231152Z-a1b2c3
"""

RETURN = r"""
path:
  description: Path of the page on the controller.
  returned: success
  type: str
  sample: records/local/comparisons/20261129T231152Z-a1b2c3/result.html
charts:
  description: Whether it has charts.
  returned: success
  type: bool
  sample: true
"""
