"""The errors of the stand-in: Proxmox' messages, and the status with which pct ends."""

from __future__ import annotations


class PveError(Exception):
    """Something that Proxmox refuses; ``status`` is that of pct."""

    def __init__(self, message: str, status: int = 255) -> None:
        super().__init__(message)
        self.status = status


def bad_parameter(name: str, problem: str) -> PveError:
    """A value that the schema does not allow."""
    return PveError(f"400 Parameter verification failed.\n{name}: {problem}", 2)
