# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A timed all-reduce over the GPUs of a host: run the ranks, watch their stages, end them, name what hangs."""

from __future__ import annotations

# Pure code: there is no AnsibleModule here whose run_command it could call.
# pylint: disable=ansible-bad-function
import inspect
import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import collective_worker, ending, files, procfs

#: Seconds between TERM and KILL; a rank that waits in a collective does not answer to TERM.
GRACE_S = 2.0
_LONGEST_MESSAGE = 1 << 20  # bytes; a rank's own are short


class CollectiveError(Exception):
    """The collective did not work; a sentence that says where it stopped. ``stages``: rank -> where it was."""

    def __init__(self, message: str, stages: Mapping[int, str] | None = None, hung: bool = False) -> None:
        super().__init__(message)
        self.stages = dict(stages or {})
        self.hung = hung


@dataclass
class Size:
    """What came of one message size."""

    bytes: int
    seconds: float | None  # of the slowest rank; None when it was not timed
    correct: bool


@dataclass
class Rank:
    """One running rank."""

    number: int
    python: str
    process: subprocess.Popen[bytes]
    item: procfs.Process | None
    errors: str  # file with its stderr
    stage: str = "start"
    step: int = 0
    rest: bytes = b""
    facts: dict[str, Any] = field(default_factory=dict)
    results: dict[int, tuple[float | None, bool]] = field(default_factory=dict)


def write_worker(folder: str) -> str:
    """Put the program of the ranks into a folder. Returns its path."""
    path = os.path.join(folder, "collective_worker.py")
    files.write_atomic(path, inspect.getsource(collective_worker), 0o600)
    return path


def probe(python: str, worker: str, environment: Mapping[str, str], patience_s: float, folder: str) -> dict[str, Any]:
    """What torch of this interpreter can use: torch (version), gpus (names), nccl (version or ""), gloo (bool).

    Raises CollectiveError when there is no such interpreter, no torch in it, or when it hangs.
    """
    running: list[Rank] = []
    try:
        running.append(_start(0, python, worker, environment, folder, {"probe": True, "parent": os.getpid()}))
        _watch(running, patience_s)
    finally:
        _end(running)
    return running[0].facts


def run(
    python: str,
    worker: str,
    environment: Mapping[str, str],
    ranks: int,
    backend: str,
    sizes: list[int],
    timed: bool,
    patience_s: float,
    folder: str,
) -> list[Size]:
    """Run all ranks to their end. ``patience_s``: seconds in which some rank has to get further.

    ``folder`` is for this run alone. Raises CollectiveError when one dies, or when none gets further; none of the
    ranks is left in either case.
    """
    running: list[Rank] = []
    try:
        for number in range(ranks):
            running.append(
                _start(
                    number, python, worker, environment, folder,
                    {"rank": number, "ranks": ranks, "backend": backend, "store": os.path.join(folder, "store"),
                     "sizes": sizes, "timed": timed, "parent": os.getpid()},
                )
            )  # fmt: skip
        _watch(running, patience_s)
    finally:
        _end(running)
    return [_size(running, size) for size in sizes]


def _start(
    number: int, python: str, worker: str, environment: Mapping[str, str], folder: str, task: dict[str, Any]
) -> Rank:
    errors = os.path.join(folder, f"rank{number}.err")
    try:
        with open(errors, "wb") as output:
            process = subprocess.Popen(
                [python, "-u", worker, json.dumps(task)],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=folder,
            )
    except OSError as error:
        raise CollectiveError(
            f"{python} does not run ({error.strerror}); build the environment with ml_env, or correct ml_env_path"
        ) from error
    return Rank(number, python, process, procfs.process(process.pid), errors)


def _watch(running: list[Rank], patience_s: float) -> None:
    with selectors.DefaultSelector() as selector:
        for one in running:
            if one.process.stdout is None:
                raise TypeError("a rank was started without a pipe")
            selector.register(one.process.stdout, selectors.EVENT_READ, one)
        deadline = time.monotonic() + patience_s
        while selector.get_map():
            events = selector.select(max(0.0, deadline - time.monotonic()))
            for key, _mask in events:
                one = key.data
                raw = os.read(key.fd, 1 << 16)
                if raw:
                    step = one.step
                    _take(one, raw)
                    if one.step != step:  # a library that only prints gets no further
                        deadline = time.monotonic() + patience_s
                    continue
                selector.unregister(key.fileobj)
                _check_end(one, running, patience_s)
            if selector.get_map() and time.monotonic() >= deadline:
                raise CollectiveError(hang_words(running, patience_s), {one.number: one.stage for one in running}, True)


def _take(one: Rank, raw: bytes) -> None:
    """Understand what a rank wrote; what is no message of ours (a library's print) is passed over."""
    *lines, rest = (one.rest + raw).split(b"\n")
    one.rest = rest if len(rest) <= _LONGEST_MESSAGE else b""
    for line in lines:
        try:
            message = files.decode_json(line)
        except ValueError:
            continue
        if not isinstance(message, dict):
            continue
        if "stage" in message:
            one.stage, one.step = str(message["stage"]), one.step + 1
        elif "facts" in message:
            one.facts = message["facts"]
        elif "result" in message:
            one.results[message["result"]] = (message["seconds"], message["correct"])


def _check_end(one: Rank, running: list[Rank], patience_s: float) -> None:
    try:
        status = one.process.wait(patience_s)
    except subprocess.TimeoutExpired:
        raise CollectiveError(
            f"rank {one.number} closed its output in stage {one.stage!r} and does not end", hung=True
        ) from None
    if status == 0 and one.stage == "done":
        return
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    said = [line.strip() for line in files.tail(one.errors, 40) if line.strip()]
    if any("No module named 'torch'" in line for line in said):
        raise CollectiveError(
            f"the environment of {one.python} has no torch, which the collective needs; name another one "
            "(ml_env_path), or leave it out (nccl_profile_preflight: false)"
        )
    last = next((line for line in reversed(said) if "Error" in line or "error" in line), said[-1] if said else "")
    raise CollectiveError(
        f"rank {one.number} died in stage {one.stage!r} ({how}){': ' + last[:500] if last else ''}",
        {other.number: other.stage for other in running},
    )


def hang_words(running: list[Rank], patience_s: float) -> str:
    """Which rank did not leave which stage, and where the others wait for it."""
    least = min(one.step for one in running)
    behind = [one for one in running if one.step == least]
    if len(behind) == len(running):
        return f"no rank left stage {behind[0].stage!r} within {patience_s:.0f} s"
    stuck = ", ".join(f"rank {one.number} never left {one.stage!r}" for one in behind)
    others = ", ".join(f"rank {one.number} in {one.stage!r}" for one in running if one not in behind)
    return f"{stuck} (after {patience_s:.0f} s; waiting for it: {others})"


def _end(running: list[Rank]) -> None:
    """End what still runs and take note of all, so that no rank stays behind, not even as a zombie.

    Raises CollectiveError, naming them, for ranks that the kernel does not let go.
    """
    alive = [one for one in running if one.process.poll() is None]
    roots = [one.item for one in alive if one.item]
    table = procfs.processes() if roots else {}
    members = [item for root in roots for item in [root, *procfs.descendants(root.pid, table)]]
    ended = ending.end(roots, members, GRACE_S) if roots else []
    for one in running:
        if one.process.stdout is not None:
            one.process.stdout.close()
        if one.process.poll() is None and not one.item:
            one.process.kill()
    left = [one for one in ended if not one.gone]
    for one in running:
        if one.process.pid not in {item.pid for item in left}:
            one.process.wait()
    if left:
        raise CollectiveError(
            "ranks could not be ended: " + "; ".join(f"process {one.pid} {one.how}" for one in left)
            + "; the driver holds them, and only a reset of the GPUs or a reboot helps", hung=True,
        )  # fmt: skip


def _size(running: list[Rank], size: int) -> Size:
    seconds = [one.results[size][0] for one in running]
    known = [value for value in seconds if value is not None]
    return Size(size, max(known) if len(known) == len(running) else None, all(one.results[size][1] for one in running))


# --- numbers and words -----------------------------------------------------------------------------


def bandwidths(size: int, seconds: float, ranks: int) -> tuple[float, float]:
    """(algorithm, bus) bandwidth of an all-reduce in GB/s (10^9): the bus carries 2 (n - 1) / n of the message."""
    algorithm = size / seconds / 1e9
    return algorithm, algorithm * 2 * (ranks - 1) / ranks


def human(size: int) -> str:
    """Bytes in the largest unit that keeps them whole."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
