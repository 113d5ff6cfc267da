#!/usr/bin/env python3
"""Kill a part of a serving server with SIGKILL; tell for six seconds what health, models, processes and our module say.

usage: kill_and_watch.py HOME SERVER launcher|worker RESULT      (worker: that of the highest rank)

A completion is asked for all the time. One JSON object a line goes to RESULT, "t" is seconds since the kill; what
changed is printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from ansible_collections.groundstate.llm.plugins.module_utils import control, procfs, servers
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.waiting import Waiter

LEAD_S, WATCHED_S, GAP_S = 2.0, 6.0, 0.25


class Watch:
    """The observers of one kill."""

    def __init__(self, home: str, name: str) -> None:
        self.home, self.record = home, servers.load(home, name)
        self.rows: list[dict[str, Any]] = []
        self.begin, self.over = 0.0, threading.Event()
        tree = procfs.descendants(self.record.pid, procfs.processes())
        engine = get_engine(self.record.engine)
        self.workers = engine.find_workers(tree, self.record.declaration)
        parts = [item.pid for item in tree if engine.part(item.cmdline)]
        self.pids = list(dict.fromkeys([self.record.pid, *parts, *(item.pid for item in self.workers.values())]))

    def note(self, what: str, **more: Any) -> None:
        self.rows.append({"t": round(time.time() - self.begin, 3), "what": what, **more})

    def ask(self, what: str, path: str, body: dict[str, Any] | None = None, timeout: float = 4.0) -> None:
        asked_at = round(time.time() - self.begin, 3)
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self.record.base_url + path, data, {"Content-Type": "application/json"})
        answer: int | str
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                answer = reply.status
        except urllib.error.HTTPError as error:
            answer = error.code
        except OSError as error:
            answer = f"{type(error).__name__}: {getattr(error, 'reason', error)}"[:120]
        self.note(what, answer=answer, asked_at=asked_at)

    def load(self) -> None:
        body = {"model": self.record.served_model_name, "prompt": "1 2 3", "max_tokens": 256}
        body.update({"temperature": 0, "ignore_eos": True})
        while not self.over.is_set():
            self.ask("completion", "/v1/completions", body, 20.0)
            time.sleep(0.05)

    def ours(self) -> None:
        while not self.over.is_set():
            try:
                Waiter(self.home, self.record, write=False).run(3.0, 0.0)
            except control.ControlError as error:
                facts = {name: error.facts.get(name) for name in ("exit", "evidence", "diagnosis", "left")}
                self.note("our module", says=str(error)[:700], **facts)
                return
            time.sleep(0.1)

    def run(self, victim: str) -> None:
        self.begin = time.time() + LEAD_S
        threading.Thread(target=self.load, daemon=True).start()
        time.sleep(LEAD_S)
        pid = self.record.pid if victim == "launcher" else self.workers[max(self.workers)].pid
        os.kill(pid, signal.SIGKILL)
        self.begin = time.time()
        self.note("kill -9", pid=pid, victim=victim)
        threading.Thread(target=self.ours, daemon=True).start()
        while time.time() - self.begin < WATCHED_S:
            states = {pid: getattr(procfs.process(pid), "state", "gone") for pid in self.pids}
            self.note("processes", states=states)
            for what, path in (("health", "/health"), ("models", "/v1/models")):
                threading.Thread(target=self.ask, args=(what, path), daemon=True).start()
            time.sleep(GAP_S)
        self.over.set()


def main(home: str, name: str, victim: str, result: str) -> None:
    watch = Watch(home, name)
    watch.run(victim)
    rows = sorted(watch.rows, key=lambda one: one["t"])
    Path(result).write_text("".join(json.dumps(one) + "\n" for one in rows))
    last: dict[str, Any] = {}
    for one in rows:
        told = {key: value for key, value in one.items() if key not in ("t", "asked_at")}
        if told != last.get(one["what"]):
            print(json.dumps(one)[:420])
        last[one["what"]] = told
    os._exit(0)  # a request that nobody answers would be waited for


if __name__ == "__main__":
    main(*sys.argv[1:])
