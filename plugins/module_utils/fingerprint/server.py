# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Section server: what was started, as the server's record tells."""

from __future__ import annotations

from typing import Any

from .. import procfs, servers
from . import running
from .reading import Unknown

# Differ from start to start or from login to login, and no engine's speed depends on them.
_PASSING = frozenset(
    f"""{servers.START_VARIABLE} _ PWD OLDPWD SHLVL MAIL LOGNAME LS_COLORS TERM INVOCATION_ID JOURNAL_STREAM
    SYSTEMD_EXEC_PID MANAGERPID MEMORY_PRESSURE_WATCH MEMORY_PRESSURE_WRITE NOTIFY_SOCKET LISTEN_PID""".split()
)
_PASSING_PREFIXES = ("SSH_", "XDG_", "SUDO_", "ANSIBLE_", "DBUS_", "LC_")


def passing(name: str) -> bool:
    """Whether a variable says who started the server rather than how it runs."""
    return name in _PASSING or name.startswith(_PASSING_PREFIXES)


def read(
    record: servers.ServerRecord | None,
    tree: list[procfs.Process],
    versions: dict[str, str],
    distribution: str,
    unknown: Unknown,
) -> dict[str, Any]:
    """The section. ``tree``: the server's processes; ``versions``: distributions of the environment;
    ``distribution``: the one that is the engine."""
    if record is None:
        unknown["server"] = "no server was named, or none of this name was started from this home"
        return {}
    version = versions.get(distribution) if distribution else None
    if version is None:
        unknown["server.version"] = (
            f"distribution {distribution} is not in the environment"
            if distribution
            else f"{record.engine} is not a Python distribution"
        )
    # Neither pid nor start id: they differ with every start of the same server.
    return {
        "engine": record.engine,
        "version": version,
        "argv": list(record.argv),
        "port": record.port,
        "environment": {key: value for key, value in sorted(record.environment.items()) if not passing(key)},
        "declaration_hash": record.declaration_hash,
        "tensor_parallel": record.tensor_parallel,
        "resolved": running.resolved(record, unknown),
        "nccl_mapped": running.nccl(tree, unknown),
    }
