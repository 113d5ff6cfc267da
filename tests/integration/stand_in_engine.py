"""A server that fails as told, with SGLang's log lines, titles and requests: for faults no real engine has on demand.

``--script '{"die_in": "loading weights", ...}'`` or ``--script @FILE`` (the file may change without the declaration).
Keys, each but ``step_s`` off by default:

    step_s        seconds a phase takes, or {phase: seconds} (others 0.05)
    die_in, how   phase in which it ends, with this exit status or "KILL"; its workers end with it
    said          lines that it writes before it dies (a Python traceback otherwise)
    hang_in       phase in which it does nothing any more
    hold_in, hold phase that goes on as long as this file is there
    spin_in       phase in which it only burns processor time
    lose_in, lose_worker  phase in which the worker of this rank is killed, the server lives on ("completion": at the
                  first own completion)
    early         answer /v1/models from the beginning, and /health with 503 until it is up
    bind_late     open its socket at the end of "up" only
    hang_completion  never answer a completion
    tokens        tokens of a completion (2)
    nccl_logs     ranks that write NCCL's log
    detokenizer   start SGLang's other process, too
    leave         part of the names of shared memory that each worker leaves: two files that it has open, and a
                  semaphore of loky, with its process number in the name, that nobody has open
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import nccl_said

LINES = {
    "reading arguments": "[{now}] server_args=ServerArgs(model_path='x')",
    "distributed init": "[{now} TP0] Init torch distributed begin.",
    "loading weights": "[{now} TP0] Load weight begin. avail mem=138.34 GB",
    "allocating KV cache": "[{now} TP0] Load weight end. elapsed=0.16 s",
    "capturing graphs": "[{now} TP0] Capture cuda graph begin. This can take up to several minutes.",
    "starting HTTP": "[{now} TP0] max_total_num_tokens=1422254",
    "warming up": "[{now}] INFO:     Application startup complete.",
    "up": "[{now}] The server is fired up and ready to roll!",
}
WORKERS_FROM = "loading weights"
SLEEP = "import time; time.sleep(600)"
TRACEBACK = ["Traceback (most recent call last):", "ModuleNotFoundError: No module named 'flashinfer'"]


class StandIn:
    """One start, from its first line to its end."""

    def __init__(self, model: str, port: int, workers: int, script: dict) -> None:
        self.model, self.port, self.count, self.script = model, port, workers, script
        self.workers: list[subprocess.Popen] = []
        self.up = self.listening = False

    def listen(self) -> None:
        if not self.listening:
            self.listening = True
            server = ThreadingHTTPServer(("127.0.0.1", self.port), self.handler())
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def reply(self, status: int, value: object) -> None:
                raw = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def do_GET(self) -> None:
                if self.path == "/health":
                    self.reply(200 if stand_in.up else 503, {})
                else:
                    self.reply(200, {"data": [{"id": stand_in.model}]})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if stand_in.script.get("lose_in") == "completion":
                    stand_in.lose_worker()
                if stand_in.script.get("hang_completion"):
                    time.sleep(600)
                usage = {"completion_tokens": stand_in.script.get("tokens", 2)}
                self.reply(200, {"choices": [{"text": " 5"}], "usage": usage})

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler

    def lose_worker(self) -> None:
        self.workers[self.script["lose_worker"]].kill()

    def seconds(self, phase: str) -> float:
        step = self.script.get("step_s", 0.05)
        return step.get(phase, 0.05) if isinstance(step, dict) else step

    def pass_phase(self, phase: str) -> None:
        if phase == WORKERS_FROM:
            for rank in range(self.count):
                title = f"sglang::scheduler_TP{rank}"
                code = SLEEP
                if "leave" in self.script:
                    loky = f"open(f'/dev/shm/sem.loky-{{os.getpid()}}-{self.script['leave']}', 'w').close()"
                    names = [f"/dev/shm/psm_{self.script['leave']}{number}" for number in (rank, rank + self.count)]
                    code = f"import os; held = [open(one, 'w') for one in {names}]; {loky}; {SLEEP}"
                self.workers.append(subprocess.Popen([title, "-c", code], executable=sys.executable))
                if rank in self.script.get("nccl_logs", ()):
                    nccl_said.write(os.environ, self.workers[-1].pid, rank)
            if self.script.get("detokenizer"):
                title = "sglang::detokenizer"
                self.workers.append(subprocess.Popen([title, "-c", SLEEP], executable=sys.executable))
        late = self.script.get("bind_late", False)
        if self.script.get("early") or (phase == "warming up" and not late):
            self.listen()
        self.up = phase == "up"
        print(LINES[phase].format(now=time.strftime("%Y-%m-%d %H:%M:%S")), flush=True)
        time.sleep(self.seconds(phase))
        while self.script.get("hold_in") == phase and os.path.exists(self.script["hold"]):
            time.sleep(0.05)
        if self.script.get("lose_in") == phase:
            self.lose_worker()
        if self.script.get("die_in") == phase:
            self.die()
        if self.script.get("hang_in") == phase:
            time.sleep(600)
        while self.script.get("spin_in") == phase:
            pass
        if self.up and late:
            self.listen()

    def die(self) -> None:
        self.end()
        how = self.script.get("how", 1)
        if how == "KILL":
            os.kill(os.getpid(), signal.SIGKILL)
        print("\n".join(self.script.get("said", TRACEBACK)), flush=True)
        sys.exit(how)

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


def script(text: str) -> dict:
    return json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--model-path")
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--script", type=script, default={})
    options, _others = parser.parse_known_args()
    stand_in = StandIn(options.model_path, options.port, options.tp_size, options.script)
    for phase in LINES:
        stand_in.pass_phase(phase)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            time.sleep(1)
    finally:
        stand_in.end()


if __name__ == "__main__":
    main()
