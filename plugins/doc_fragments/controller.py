# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Attributes of the modules that write documents on the controller."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Can run in check mode and return what would change.
    support: full
  diff_mode:
    description: Returns what changed in diff mode.
    support: none
  action:
    description: Runs on the controller, without a connection to the host.
    support: full
"""
