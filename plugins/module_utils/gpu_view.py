# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One look at a host, as the plan of a reset needs it: processes, who holds which GPU, servers of ours."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import engines, holders, nvidia, procfs, servers
from .holders import Hold, Scan
from .nvidia import Gpu
from .reset_plan import Server, Traits, View


@dataclass(frozen=True)
class Look:
    """A view for the plan, and the open files it was made from."""

    view: View
    scan: Scan

    def processes(self, proc: str = procfs.PROC) -> list[dict[str, Any]]:
        """The processes that hold a GPU, as the modules return them."""
        found = []
        nodes = self.scan.device_nodes()
        for pid in sorted(self.view.holds):
            traits = self.view.traits.get(pid, Traits())
            found.append(
                {
                    **holders.describe(self.view.table[pid], self.view.holds[pid], nodes.get(pid, ()), proc),
                    "engine": traits.engine[0] if traits.engine else "",
                    "part": traits.engine[1] if traits.engine else "",
                    "server": traits.marker[0] if traits.marker else "",
                }
            )
        return found


def look(
    home: str, gpus: Iterable[Gpu], asked: Iterable[int], dev: str = "/dev", proc: str = procfs.PROC, ours: bool = True
) -> Look:
    """Look once at everything; without ``ours``, servers of ours are processes like others (their records are those of
    another host). Raises ValueError for a damaged server record: whose it is cannot be told then."""
    known = list(gpus)
    table = procfs.processes(proc)
    scan = holders.scan(table, dev, proc)
    holds = {pid: hold for pid, hold in holders.holds(scan.nodes(dev), known, asked).items() if pid in table}
    traits = {pid: _traits(home, item, proc, ours) for pid, item in table.items() if item.cmdline or pid in holds}
    view = View(
        table=table,
        traits=traits,
        holds=holds,
        servers=tuple(_server(home, name, known, proc) for name in servers.names(home) if ours),
        me=os.getpid(),
        uid=os.geteuid(),
    )
    return Look(view, scan)


def _traits(home: str, item: procfs.Process, proc: str, ours: bool) -> Traits:
    exe = holders.executable(item.pid, proc)
    groups = holders.cgroups(item.pid, proc)
    return Traits(
        names=holders.program_names(item, exe),
        engine=engines.classify(item.cmdline),
        python=holders.is_python(item, exe),
        marker=_marker(home, item.pid, proc) if ours else None,
        same_namespace=holders.same_namespace(item.pid, proc),
        unit=holders.unit(holders.main_group(groups)),
        container=holders.container(groups),
    )


def _marker(home: str, pid: int, proc: str) -> tuple[str, str] | None:
    """(server name, start id) of a process that carries the variables of a server below this home."""
    found = servers.marker(pid, proc)
    if found is None:
        return None
    where, name = os.path.split(found[0].rstrip("/"))
    mine = servers.servers_folder(home)
    return (name, found[1]) if where == mine or os.path.realpath(where) == os.path.realpath(mine) else None


def _server(home: str, name: str, gpus: list[Gpu], proc: str) -> Server:
    record = servers.load(home, name)
    if record is None:
        return Server(name)
    same_boot = record.boot_id == procfs.boot_id(proc)
    supervised = same_boot and procfs.alive(record.supervisor_pid, record.supervisor_start, proc)
    return Server(
        name=name,
        start_id=record.start_id,
        root=record.pid if record.running(proc) else None,
        supervisor=record.supervisor_pid if supervised else None,
        unit=record.unit if record.launcher == "systemd" else "",
        gpus=_declared(record.declaration.get("gpus"), gpus),
    )


def _declared(wanted: Any, gpus: list[Gpu]) -> frozenset[int] | None:
    """Indices of the GPUs that a declaration names; None where that cannot be told."""
    if not isinstance(wanted, list):
        return None
    try:
        return frozenset(one.index for one in nvidia.select(gpus, wanted))
    except ValueError:
        return None


def owners(gpu: Gpu, holding: dict[int, Hold], unreadable: bool, threshold: int = 64 * nvidia.MIB) -> dict[str, Any]:
    """Who has one GPU, in the words of the result: ``visible``, ``none``, ``not visible`` or ``unknown``, and why."""
    pids = sorted(pid for pid, hold in holding.items() if gpu.index in hold.gpus)
    if pids:
        return {"owner": "visible", "owner_why": "", "pids": pids}
    doubtful = sorted(pid for pid, hold in holding.items() if gpu.index in hold.doubtful)
    if doubtful:
        why = f"process {', '.join(map(str, doubtful))}: device node open; the driver does not tell whether it is used"
        return {"owner": "unknown", "owner_why": why, "pids": []}
    hidden = [one.pid for one in gpu.processes]
    if hidden:
        why = f"the driver lists process {', '.join(map(str, hidden))} of another PID namespace: it holds nothing here"
        return {"owner": "not visible", "owner_why": why, "pids": []}
    if gpu.memory_used is None:
        return {"owner": "unknown", "owner_why": "the driver does not tell how much memory is used", "pids": []}
    if gpu.memory_used <= threshold:
        return {"owner": "none", "owner_why": "", "pids": []}
    if unreadable:
        return {
            "owner": "unknown",
            "owner_why": "the open files of other users may not be read: run as root",
            "pids": [],
        }
    why = "another container or PID namespace, an MPS server, an importer of CUDA IPC memory, or driver teardown"
    return {"owner": "not visible", "owner_why": why, "pids": []}


# --- what is compared before and after ------------------------------------------------------------


def later(gpu: Gpu, used: Mapping[str, int | None]) -> Gpu:
    """A GPU with its last level of memory. The driver's list is of before: only what was seen afterwards counts."""
    return replace(gpu, memory_used=used.get(gpu.uuid, gpu.memory_used), processes=())


def state(gpus: list[Gpu], seen: Look) -> dict[str, Any]:
    """The part of a look that a reset of these GPUs compares before and after."""
    holding = dict(seen.view.holds)
    blind = bool(seen.scan.unreadable)
    asked = {one.index for one in gpus}
    running = [one for one in seen.view.servers if one.root is not None]
    return {
        "gpus": [
            {"index": one.index, "uuid": one.uuid, "memory_used": one.memory_used, **owners(one, holding, blind)}
            for one in gpus
        ],
        "processes": [one for one in seen.processes() if asked & {*one["gpus"], *one["doubtful_gpus"]}],
        "servers": {one.name: one.root for one in running},
    }


def planned_state(before: dict[str, Any], gone: Collection[int]) -> dict[str, Any]:
    """``before`` without what is planned to end. The memory cannot be foreseen."""
    gpus = []
    for one in before["gpus"]:
        pids = [pid for pid in one["pids"] if pid not in gone]
        freed = bool(one["pids"]) and not pids
        gpus.append({**one, "pids": pids, **({"owner": "none", "memory_used": None} if freed else {})})
    return {
        "gpus": gpus,
        "processes": [one for one in before["processes"] if one["pid"] not in gone],
        "servers": {name: pid for name, pid in before["servers"].items() if pid not in gone},
    }
