# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Take a fingerprint: all sections, their hashes, the conditions beside them."""

from __future__ import annotations

import os
import time
from typing import Any

from .. import engines, files, procfs, servers
from . import conditions, gpus, hardware, kernel, model, python_env, running, server
from .reading import Unknown

SCHEMA = 1


def _distribution(engine: str) -> str:
    adapter = engines.ENGINES.get(engine)
    return adapter.distribution if adapter is not None else ""


def take(
    home: str,
    name: str = "",
    env_path: str = "",
    verify_files: bool = True,
    root: str = "",
    hash_weights: bool = False,
) -> dict[str, Any]:
    """The fingerprint of this host, of the server ``name`` (if given) and of its environment.

    ``env_path`` "" means the one in the server's record. Raises ValueError for a damaged record.
    """
    unknown: Unknown = {}
    record = servers.load(home, name) if name else None
    environment = env_path or (record.env_path if record else "")
    cache = os.path.join(home, "cache")
    table = procfs.processes()
    tree = servers.started_by_us(home, name, table) if record else []
    tenants = running.Tenants(table, tree)
    stable_gpus, passing_gpus = gpus.read(unknown, f"{root}/dev")
    gpus.add_locks(home, stable_gpus, unknown)
    packages = python_env.read(environment, cache, unknown, verify_files)
    sections = {
        "hardware": hardware.read(root, stable_gpus, unknown, gpus.topology(stable_gpus, unknown)),
        "kernel": kernel.read(root, record.pid if record and record.running() else "self", unknown),
        "python_env": packages,
        "server": server.read(
            record, tree, packages["distributions"], _distribution(record.engine if record else ""), unknown
        ),
        "model": model.read(record.model if record else "", cache, unknown, hash_weights),
    }
    hashes = {key: files.digest(section) for key, section in sections.items()}
    return {
        "schema": SCHEMA,
        "taken_at": time.time(),
        "sections": sections,
        "conditions": {**conditions.read(root, passing_gpus), "tenants": tenants.read(passing_gpus)},
        "hashes": hashes,
        "state_hash": files.digest(hashes),
        "unknown": unknown,
    }
