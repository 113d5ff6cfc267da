# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of the modules that speak of one server on the host."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  home:
    description: Folder on the host that holds all that Groundstate writes there.
    type: path
    required: true
  server:
    description: Name of the server.
    type: str
    required: true
"""
