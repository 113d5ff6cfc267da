# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One server over several hosts: who is which node of it, and what each node runs. Pure.

The engines do the distributing; here is only what has to be told to each of them, the same on every host but for the
number of the node. The first host of the list is the head: it has rank 0 and the API.
"""

from __future__ import annotations

from typing import Any

#: Where the nodes meet (the head's port for torch.distributed); that of torchrun.
MEETING_PORT = 29500


def complete(raw: dict[str, Any]) -> dict[str, Any]:
    """``multi_host`` with every field present, ``nodes`` and ``rank`` worked out; {} for a server on one host.

    A host that is not in its list has rank -1, which :func:`problems` tells.
    """
    given = {name: value for name, value in raw.items() if value is not None}
    hosts = [str(one) for one in given.get("hosts", [])]
    if not given:
        return {}
    this = str(given.get("this", ""))
    return {
        "hosts": hosts,
        "this": this,
        "head": str(given.get("head") or (hosts[0] if hosts else "")),
        "port": given.get("port", MEETING_PORT),
        "nodes": len(hosts),
        "rank": hosts.index(this) if this in hosts else -1,
    }


def nodes(declaration: dict[str, Any]) -> int:
    """Number of hosts that serve together; 1 for a server on one host."""
    return int((declaration.get("multi_host") or {}).get("nodes", 1)) or 1


def ranks(declaration: dict[str, Any]) -> int:
    """Number of workers of the whole server."""
    return int(declaration["tensor_parallel"]) * int(declaration.get("pipeline_parallel", 1))


def local_ranks(declaration: dict[str, Any]) -> int:
    """Number of workers on this host, each with a GPU of its own."""
    return max(1, ranks(declaration) // nodes(declaration))


def is_head(declaration: dict[str, Any]) -> bool:
    """Whether this host has the API: the only one, or the first of several. Records of older versions have no field."""
    return not (declaration.get("multi_host") or {}).get("rank", 0)


def problems(declaration: dict[str, Any]) -> list[str]:
    """What is wrong with ``multi_host`` and with how the ranks fall on its hosts, as sentences."""
    told = declaration["multi_host"]
    if not told:
        return []
    found = []
    if len(set(told["hosts"])) != len(told["hosts"]):
        found.append(f"multi_host.hosts: {', '.join(told['hosts'])} names a host twice")
    if not told["hosts"]:
        found.append("multi_host.hosts: required; the hosts of an inventory group, its head first")
    elif told["rank"] < 0:
        found.append(
            f"multi_host.this: {told['this'] or '(empty)'} is none of {', '.join(told['hosts'])}; "
            'it is "{{ inventory_hostname }}" where hosts is "{{ groups[...] }}"'
        )
    if not 1 <= told["port"] <= 65535:
        found.append(f"multi_host.port: {told['port']} is not a TCP port")
    elif told["port"] == declaration["port"]:
        found.append(f"multi_host.port: {told['port']} is the port of the API too; the nodes need one of their own")
    if ranks(declaration) % nodes(declaration):
        found.append(
            f"multi_host.hosts: {ranks(declaration)} ranks (tensor_parallel * pipeline_parallel) cannot be shared "
            f"evenly by {nodes(declaration)} hosts"
        )
    return found
