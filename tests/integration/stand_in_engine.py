"""A server that fails as told, with SGLang's log lines, titles and requests: for faults no real engine has on demand.

``--script '{"die_in": "loading weights", ...}'``; keys: die_in (phase), how (exit status, or "KILL"), hang_in (phase),
lose_worker (rank, at the first completion), hang_completion, step_s, nccl_logs (ranks that write NCCL's log).
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
SLEEP = "import time; time.sleep(600)"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--model-path")
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--script", type=json.loads, default={})
    options, _others = parser.parse_known_args()
    script = options.script
    workers: list[subprocess.Popen] = []
    state = {"up": False}

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: int, value: object) -> None:
            raw = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def do_GET(self) -> None:
            if self.path == "/health":
                self.reply(200 if state["up"] else 503, {})
            else:
                self.reply(200, {"data": [{"id": options.model_path}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if "lose_worker" in script:
                workers[script["lose_worker"]].kill()
            if script.get("hang_completion"):
                time.sleep(600)
            self.reply(200, {"choices": [{"text": " 5"}], "usage": {"completion_tokens": 2}})

        def log_message(self, *_arguments: object) -> None:
            pass

    for phase, line in LINES.items():
        if phase == "loading weights":
            for rank in range(options.tp_size):
                title = f"sglang::scheduler_TP{rank}"
                workers.append(subprocess.Popen([title, "-c", SLEEP], executable=sys.executable))
                if rank in script.get("nccl_logs", ()):
                    nccl_said.write(os.environ, workers[-1].pid, rank)
        if phase == "warming up":
            server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
            threading.Thread(target=server.serve_forever, daemon=True).start()
        state["up"] = phase == "up"
        print(line.format(now=time.strftime("%Y-%m-%d %H:%M:%S")), flush=True)
        time.sleep(script.get("step_s", 0.05))
        if script.get("die_in") == phase:
            for worker in workers:
                worker.kill()
            if script.get("how") == "KILL":
                os.kill(os.getpid(), signal.SIGKILL)
            print("Traceback (most recent call last):\nModuleNotFoundError: No module named 'flashinfer'", flush=True)
            sys.exit(script.get("how", 1))
        if script.get("hang_in") == phase:
            time.sleep(600)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            time.sleep(1)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


if __name__ == "__main__":
    main()
