#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the rollout_declaration action: it runs on the controller only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_declaration
short_description: Check what is declared for a host, and tell it as a document
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Holds the variables of the host against the specifications of all roles, without asking the host, so that a whole
    fleet is checked before any of it is touched.
  - Returns what is declared as a document with a hash. Secrets are only in the hash.
extends_documentation_fragment:
  - groundstate.llm.controller
options:
  roles:
    description: Roles whose variables are checked. Empty for all of this collection.
    type: list
    elements: str
    default: []
  known_variables:
    description: Variables with a prefix of these roles that are meant as they are, though no role knows them.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Check what is declared for every host
  groundstate.llm.rollout_declaration:
  register: rollout_declaration_result
"""

RETURN = r"""
declared:
  description: The declaration, with its C(hash), C(variables), the hashes of its C(secrets) and the C(lock).
  returned: success
  type: dict
  sample: {schema: 1, hash: 3f2a..., variables: {nccl_profile_name: nvlink}, secrets: {}, lock: null}
together:
  description: The hosts that run the server together; empty for a server on this host alone.
  returned: success
  type: list
  elements: str
  sample: []
"""
