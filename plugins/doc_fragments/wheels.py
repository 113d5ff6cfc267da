# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of the modules that fetch wheels."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  index_url:
    description:
      - Package index to use instead of the host's; V(none) for no index at all, only O(find_links).
    type: str
    default: ""
  extra_index_urls:
    description: Further indexes.
    type: list
    elements: str
    default: []
  find_links:
    description: Folders or pages with wheels.
    type: list
    elements: str
    default: []
  torch_index:
    description: One more index, for builds of torch that the others do not have.
    type: str
    default: ""
"""
