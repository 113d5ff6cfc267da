# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A server as it is now: processes, GPUs, load, health, and what it made of its arguments. Changes nothing."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from . import control, engine_parser, files, holders, nvidia, procfs, resolved, server_env, server_metrics, servers
from .engines import get_engine
from .engines.base import Request
from .probe import Reply, ask
from .ready_file import Kept
from .servers import ServerRecord

#: The part of the log that tells of the start; a long life adds much that is not looked at.
LOG_BYTES = 4 * 1024 * 1024


@dataclass
class Answers:
    """What the server answered. Times in seconds; a reply that was not asked for is None."""

    health: Reply | None = None
    models: Reply | None = None
    info: Reply | None = None
    version: Reply | None = None
    completion: Reply | None = None
    before: dict[str, float] | None = None
    after: dict[str, float] | None = None
    between_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)


def gather(home: str, name: str, complete: bool, timeout_s: float, watch_s: float) -> dict[str, Any]:
    """All that the module returns of one server.

    ``complete``: whether it is asked for a completion of our own, for at most ``timeout_s`` seconds; without it, its
    counters are watched for ``watch_s`` seconds while requests run. Raises ValueError for a damaged record.
    """
    found = _gather(home, name, complete, timeout_s, watch_s)
    found["notes"] = notes(found)
    found["summary"] = summary(found)
    return found


def notes(found: dict[str, Any]) -> list[str]:
    """What came of the declaration otherwise than declared, as sentences."""
    told = [
        f"{one['what']}: declared {one['declared']}, it runs with {one['resolved']}" for one in found["differences"]
    ]
    return told + [f"the engine says: {text}" for text in found["adjustments"]]


def summary(found: dict[str, Any]) -> list[str]:
    """The result as lines for a person."""
    lines = list(found["why"])
    if found["uptime_s"] is not None:
        lines.append(
            f"engine    {found['engine']} {found['version'] or '(version unknown)'}, up {found['uptime_s']:.0f} s"
        )
        lines.append(f"model     {found['served_model_name']} at {found['base_url']}")
    if found["metrics"]:
        requests, accept, cache = found["requests"], found["accept_length"], found["kv_cache_use"]
        used = "unknown" if cache is None else f"{100 * cache:.1f} % in use"
        lines.append(f"requests  {_number(requests['running'])} running, {_number(requests['queued'])} queued")
        lines.append(f"KV cache  {used}" + (f", accept length {accept:.2f}" if accept else ""))
    for one in found["workers"]:
        memory = "" if one["gpu_memory_mib"] is None else f" ({one['gpu_memory_mib']} MiB)"
        gpus = f", GPU {', '.join(map(str, one['gpus']))}{memory}" if one["gpus"] else ""
        lines.append(f"worker    rank {one['rank']}, process {one['pid']}, {one['memory_mib']} MiB{gpus}")
    return lines + notes(found)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}"


def _gather(home: str, name: str, complete: bool, timeout_s: float, watch_s: float) -> dict[str, Any]:
    record = servers.load(home, name)
    if record is None:
        why = [f"no server {name!r} was launched below {home}"]
        nothing: dict[str, Any] = {
            "differences": [],
            "adjustments": [],
            "uptime_s": None,
            "metrics": {},
            "workers": [],
        }
        return {"state": "absent", "health": "absent", "why": why, **nothing}
    engine = get_engine(record.engine)
    found: dict[str, Any] = {
        **{
            key: getattr(record, key) for key in ("engine", "model", "served_model_name", "base_url", "start_id", "pid")
        },
        "server": name,
        "state": record.state,
        "workers_expected": engine.expected_workers(record.declaration),
        "workers": [],
        "uptime_s": None,
        "version": "",
        "requests": {"running": None, "queued": None},
        "metrics": {},
        "accept_length": None,
        "kv_cache_use": None,
        "differences": [],
        "adjustments": [],
        "probes": {},
    }
    if not record.running():
        stopped = record.state == "stopped"
        found["health"] = "stopped" if stopped else "dead"
        found["why"] = [] if stopped else [control.end_words(home, record)]
        return found
    found["workers"] = workers(record)
    found["uptime_s"] = round(max(0.0, time.time() - record.launched_at), 1)
    answers = asked(home, record, complete, timeout_s, watch_s)
    found["probes"] = {
        step: {"status": reply.status, "error": reply.error, "seconds": answers.seconds.get(step)}
        for step in ("health", "models", "completion")
        if (reply := getattr(answers, step)) is not None
    }
    found["version"] = version(record, answers)
    metrics = answers.after or {}
    found["metrics"] = metrics
    found["requests"] = {"running": metrics.get("running_requests"), "queued": metrics.get("queued_requests")}
    found["kv_cache_use"] = metrics.get("kv_cache_use")
    found["accept_length"] = accept_length(metrics)
    entry = model_entry(answers.models, record.served_model_name)
    info = answers.info.json if answers.info else None
    found["differences"] = resolved.differences(engine, record.declaration, record.argv, info, entry)
    found["adjustments"] = resolved.adjustments(engine, start_log(record))
    kept = Kept.load(servers.folder(home, name), record.start_id)
    found["health"], found["why"] = judge(found, answers, kept.ready)
    lost = kept.dead()
    if lost and found["health"] != "incomplete":
        found["health"] = "incomplete"
        found["why"] = [f"{one} has died; the server process still runs" for one in lost]
    return found


def workers(record: ServerRecord) -> list[dict[str, Any]]:
    """Each worker: rank, pid, state, memory (MiB) of its own and on GPUs, and the GPUs it holds."""
    engine = get_engine(record.engine)
    table = procfs.processes()
    root = table.get(record.pid)
    tree = ([root] if root else []) + procfs.descendants(record.pid, table)
    ranks = engine.find_workers(tree, record.declaration)
    answer = nvidia.query() if nvidia.device_nodes() else None
    gpus = answer.report.gpus if answer and answer.report else ()
    nodes = holders.scan([item.pid for item in ranks.values()]).nodes("/dev") if gpus else {}
    held = holders.holds(nodes, gpus, [one.index for one in gpus])
    found = []
    for rank, item in sorted(ranks.items()):
        hold = held.get(item.pid, holders.Hold())
        memory = hold.memory
        found.append(
            {
                "rank": rank,
                "pid": item.pid,
                "title": item.cmdline[:200],
                "state": item.state,
                "memory_mib": resident_mib(item.pid),
                "gpus": sorted(hold.gpus),
                "gpu_uuids": [one.uuid for one in gpus if one.index in hold.gpus],
                "gpu_memory_mib": None if memory is None else round(memory / nvidia.MIB),
            }
        )
    return found


def resident_mib(pid: int, proc: str = procfs.PROC) -> int | None:
    """Memory of a process that is in RAM, in MiB, shared pages included; None when it cannot be read."""
    try:
        with open(f"{proc}/{pid}/statm", encoding="ascii") as source:
            pages = int(source.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / nvidia.MIB)


def asked(home: str, record: ServerRecord, complete: bool, timeout_s: float, watch_s: float) -> Answers:
    """Ask a running server, one request at a time. A node that only computes has no HTTP server and is not asked."""
    engine = get_engine(record.engine)
    found = Answers()
    if not engine.serves(record.declaration):
        return found
    key = server_env.api_key(home, record)

    def send(step: str, request: Request) -> Reply:
        begin = time.monotonic()
        reply = ask(record.base_url, request, key)
        found.seconds[step] = round(time.monotonic() - begin, 3)
        return reply

    def metrics() -> dict[str, float] | None:
        if engine.metrics_path is None:
            return None
        reply = send("metrics", Request(engine.metrics_path, timeout_s=5.0))
        return server_metrics.parse(reply.text, engine.metrics) if reply.status == 200 else None

    found.health = send("health", engine.health_probe())
    if not found.health.status:
        return found
    found.models = send("models", Request(engine.models_path))
    if engine.info_path:
        found.info = send("info", Request(engine.info_path))
    if engine.version_path:
        found.version = send("version", Request(engine.version_path))
    found.before, begin = metrics(), time.monotonic()
    if complete and found.health.status in (200, 404):
        probe = engine.completion_probe(record.declaration)
        found.completion = send("completion", Request(probe.path, probe.body, timeout_s))
    elif (found.before or {}).get("running_requests"):
        time.sleep(watch_s)
    found.after = metrics()
    found.between_s = round(time.monotonic() - begin, 3)
    return found


def judge(found: dict[str, Any], answers: Answers, was_ready: bool) -> tuple[str, list[str]]:
    """(health, why): ``healthy``, ``starting``, ``incomplete``, ``unreachable``, ``sick``, ``hung`` or ``busy``.

    ``found`` is the result so far (workers, metrics); ``was_ready`` whether this start has ever been ready.
    """
    missing = found["workers_expected"] - sum(one["state"] not in ("Z", "X") for one in found["workers"])
    if missing > 0 and was_ready:
        return "incomplete", [
            f"{missing} of {found['workers_expected']} workers are gone; the server process still runs"
        ]
    if missing > 0:
        return "starting", [f"{missing} of {found['workers_expected']} workers are not there yet"]
    health = answers.health
    if health is None:
        return "healthy", []  # it serves nothing itself: its workers are all there is to look at
    if not health.status:
        # It takes connections and answers none: SGLang's health request waits for a token.
        silent = "hung" if health.error.startswith("no reply") else "unreachable"
        return (silent if was_ready else "starting"), [f"health: {health.error}"]
    if health.status not in (200, 404):
        return ("sick" if was_ready else "starting"), [f"health: HTTP {health.status}"]
    moved = progress(answers)
    running = (answers.after or answers.before or {}).get("running_requests") or 0
    if answers.completion is not None and answers.completion.status == 200:
        return "healthy", []
    if answers.completion is not None and answers.completion.status:
        return "sick", [f"a completion of our own: HTTP {answers.completion.status}"]
    if answers.completion is not None:
        what = f"health answers {health.status}, and a completion of our own: {answers.completion.error}"
        if moved:
            return "busy", [f"{what}; {moved:.0f} tokens were made for other requests meanwhile"]
        return "hung", [f"{what}; no token was made meanwhile"]
    if running and moved == 0:
        what = f"health answers {health.status}, {running:.0f} requests run"
        return "hung", [f"{what}, and no token was made in {answers.between_s:g} s"]
    return "healthy", []


def progress(answers: Answers) -> float | None:
    """Tokens (read or made) between the two looks at the counters; None when there are no counters."""
    names = ("prompt_tokens", "generated_tokens", "drafts")
    before, after = answers.before, answers.after
    if before is None or after is None or not any(name in before and name in after for name in names):
        return None
    return sum(abs(after[name] - before[name]) for name in names if name in before and name in after)


def version(record: ServerRecord, answers: Answers) -> str:
    """The engine's version: by itself, else by what is installed; "" when unknown."""
    for reply in (answers.version, answers.info):
        told = reply.json if reply and reply.status == 200 else None
        if isinstance(told, dict) and isinstance(told.get("version"), str):
            return files.plain(str(told["version"]), 100)
    wanted = get_engine(record.engine).distribution
    return engine_parser.installed(record.env_path).get(wanted, "") if record.env_path else ""


def accept_length(metrics: dict[str, float]) -> float | None:
    """Tokens per verified draft since the launch, or in the engine's last interval; None without speculation."""
    if metrics.get("drafts", 0.0) >= 1.0:
        return round(1.0 + metrics.get("accepted_tokens", 0.0) / metrics["drafts"], 3)
    return metrics.get("accept_length") or None


def model_entry(models: Reply | None, name: str) -> dict[str, Any]:
    """Our model's entry of the model list; {} when it is not there."""
    told = models.json if models and models.status == 200 else None
    data = told.get("data") if isinstance(told, dict) else None
    for one in data if isinstance(data, list) else []:
        if isinstance(one, dict) and one.get("id") == name:
            return one
    return {}


def start_log(record: ServerRecord) -> list[str]:
    """Lines of the log of this start, from its beginning."""
    try:
        with open(record.log, "rb") as source:
            lines = source.read(LOG_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [files.plain(line) for line in lines]
