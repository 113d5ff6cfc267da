"""The command line of the Ansible collection groundstate.llm."""

__version__ = "0.1.0"
