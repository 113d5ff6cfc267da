# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The collective before a start: which ranks, with which environment, in which passes; and its result in words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from . import collective, nccl_log, p2p_advice, proof, proof_table, server_env
from .collective import CollectiveError
from .engines.base import python_of


@dataclass(frozen=True)
class Wanted:
    """What is to be run. Raises ValueError for numbers that make no sense."""

    env_path: str
    gpus: list[int] | None  # None: all
    cpu_ranks: int
    variables: Mapping[str, str]  # of the NCCL profile
    environment: Mapping[str, str]  # besides, as the server has it
    sizes_kib: list[int]
    timeout_s: int

    def __post_init__(self) -> None:
        if not self.sizes_kib or any(not 1 <= size <= 4 << 20 for size in self.sizes_kib):
            raise ValueError(f"sizes_kib {self.sizes_kib}: use sizes from 1 KiB to 4194304 KiB (4 GiB)")
        if not 2 <= self.cpu_ranks <= 64:
            raise ValueError(f"cpu_ranks {self.cpu_ranks}: a collective needs 2 to 64 processes")
        if self.timeout_s < 1:
            raise ValueError(f"timeout {self.timeout_s}: use at least 1 s")


@dataclass
class Result:
    """What came of it, as the module returns it."""

    verdict: str = "failed"
    backend: str = ""
    ranks: int = 0
    profile: str = ""
    sizes: list[dict[str, Any]] = field(default_factory=list)
    transports: list[str] = field(default_factory=list)
    stages: dict[str, str] = field(default_factory=dict)
    advice: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    table: list[str] = field(default_factory=list)

    def skip(self, reason: str) -> None:
        self.verdict, self.table = "skipped", [f"skipped: {reason}"]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def gpu_numbers(gpus: Any) -> list[int] | None:
    """GPUs as declared: None for "all". Raises ValueError for anything but "all" or a list of numbers."""
    if gpus == "all":
        return None
    if isinstance(gpus, list) and all(str(one).isdigit() for one in gpus):
        return [int(one) for one in gpus]
    raise ValueError(f"gpus {gpus!r}: use all or a list of numbers")


def run(wanted: Wanted, result: Result, folder: str, inherited: Mapping[str, str]) -> None:
    """Run it and fill in the result. ``folder`` is an empty one for this run alone.

    Raises CollectiveError when it hangs or fails.
    """
    python = python_of(wanted.env_path)
    # One thread of arithmetic a rank, as with torchrun: more fight for the cores.
    base = {"OMP_NUM_THREADS": "1", **server_env.base_environment(wanted.env_path, inherited)}
    environment = {**base, **wanted.environment}
    if wanted.gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(one) for one in wanted.gpus)
    worker = collective.write_worker(folder)
    found = collective.probe(python, worker, environment, wanted.timeout_s, folder)
    if wanted.gpus and len(found["gpus"]) < len(wanted.gpus):
        raise CollectiveError(f"torch finds {len(found['gpus'])} of the GPUs {wanted.gpus}; see nvidia-smi")
    on_gpus = bool(found["gpus"])
    result.backend, result.ranks = ("nccl", len(found["gpus"])) if on_gpus else ("gloo", wanted.cpu_ranks)
    if result.ranks < 2:
        result.skip("one GPU: there is nobody to talk to")
        return
    if not found["nccl" if on_gpus else "gloo"]:
        raise CollectiveError(f"torch {found['torch']} of {python} comes without {result.backend}")
    sizes = [size << 10 for size in wanted.sizes_kib]

    def once(name: str, timed: bool, more: Mapping[str, str]) -> list[collective.Size]:
        place = os.path.join(folder, name)
        os.mkdir(place)
        return collective.run(
            python, worker, {**environment, **more}, result.ranks, result.backend, sizes, timed, wanted.timeout_s, place
        )

    logs: dict[int, nccl_log.ProcessLog] = {}
    if on_gpus:
        log = os.path.join(folder, "nccl.log.")
        said = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING", "NCCL_DEBUG_FILE": log + "%p"}
        try:
            once("look", False, {**wanted.variables, **said})
        finally:
            logs = read_logs(folder)
            _from_logs(result, logs)
        made = once("time", True, wanted.variables)
    else:
        result.flags.append("no GPU is used here: the all-reduce ran with gloo on the CPU, and says nothing of NCCL")
        # Within the host: the name of a host need not lead to an address of its own.
        made = once("time", True, {"GLOO_SOCKET_IFNAME": "lo"})
    result.sizes = [_row(one, result.ranks, logs) for one in made]
    wrong = [collective.human(one.bytes) for one in made if not one.correct]
    if wrong:
        raise CollectiveError(f"the sums are wrong for messages of {', '.join(wrong)}: data is damaged on its way")
    result.verdict = "passed"
    result.table = table(result, found)


def read_logs(folder: str) -> dict[int, nccl_log.ProcessLog]:
    """NCCL's logs of the first pass."""
    lines: list[str] = []
    for name in sorted(os.listdir(folder)):
        if name.startswith("nccl.log."):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as source:
                lines += source
    return nccl_log.parse(lines)


def _from_logs(result: Result, logs: Mapping[int, nccl_log.ProcessLog]) -> None:
    result.transports = sorted({way for log in logs.values() for way in proof.transports(log)})
    for log in logs.values():
        told = [*proof.network_within_host(log), *(f"NCCL warns: {text}" for text in log.warnings)]
        result.flags.extend(text for text in told if text not in result.flags)


def _row(one: collective.Size, ranks: int, logs: Mapping[int, nccl_log.ProcessLog]) -> dict[str, Any]:
    chosen = {
        (algorithm, protocol)
        for log in logs.values()
        for made in log.communicators
        for (function, algorithm, protocol), (low, high, _lines) in made.chosen.items()
        if function == "AllReduce" and low <= one.bytes <= high
    }
    row: dict[str, Any] = {
        "bytes": one.bytes,
        "microseconds": None,
        "algorithm_gbs": None,
        "bus_gbs": None,
        "algorithm": " or ".join(sorted({algorithm for algorithm, _protocol in chosen})),
        "protocol": " or ".join(sorted({protocol for _algorithm, protocol in chosen})),
        "correct": one.correct,
    }
    if one.seconds:
        algorithm, bus = collective.bandwidths(one.bytes, one.seconds, ranks)
        row.update(microseconds=round(one.seconds * 1e6, 1), algorithm_gbs=round(algorithm, 3), bus_gbs=round(bus, 3))
    return row


def table(result: Result, found: Mapping[str, Any]) -> list[str]:
    """Lines for a person: what ran, then one line for each size."""
    what = f"{result.ranks} x {found['gpus'][0]}" if found["gpus"] else f"{result.ranks} processes on the CPU, no GPU"
    library = f", NCCL {found['nccl']}" if found["nccl"] else ""
    ways = f", over {', '.join(result.transports)}" if result.transports else ""
    head = f"{result.backend}: {what}, torch {found['torch']}{library}{ways}"
    rows = [["size", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "algorithm", "protocol"]]
    for one in result.sizes:
        numbers = [f"{one['microseconds']:.1f}", f"{one['algorithm_gbs']:.2f}", f"{one['bus_gbs']:.2f}"]
        rows.append([collective.human(one["bytes"]), *numbers, one["algorithm"] or "-", one["protocol"] or "-"])
    return [head, *proof_table.columns(rows)]


def failure(error: CollectiveError, result: Result) -> str:
    """The message for a collective that hung or failed, with what to try; fills in stages and advice."""
    result.stages = {str(number): stage for number, stage in error.stages.items()}
    if not error.stages:
        return str(error)
    if result.backend == "nccl":
        result.advice = p2p_advice.advice(p2p_advice.look())
    what = f"{result.backend or 'torch'} all-reduce of {result.ranks or 1} processes {result.verdict}: {error}"
    return f"{what}. Try: {'; '.join(result.advice)}" if result.advice else what
