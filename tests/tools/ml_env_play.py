"""A play of the role ml_env alone, for tests that run it."""

from __future__ import annotations

PLAY = """
- hosts: groundstate
  gather_facts: false
  tasks:
    - ansible.builtin.import_role:
        name: groundstate.llm.ml_env
"""
