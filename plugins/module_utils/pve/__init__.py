# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Containers of Proxmox VE: what one should be, what it is, the plan between the two, and the ways to the node."""
