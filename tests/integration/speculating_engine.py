"""An engine whose speculation is known: with SGLang's arguments, it gives so many tokens a cycle, in such a time.

With any ``--speculative-...`` argument each cycle takes ``--cycle`` seconds and gives ``--tokens`` tokens, without one
it takes ``--step`` seconds and gives one. Its counters are those of SGLang, its worker has SGLang's title.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "playbooks" / "collections"))

from ansible_collections.groundstate.llm.plugins.module_utils.known_server import Connection, Job, Server, Settings
from ansible_collections.groundstate.llm.plugins.module_utils.self_check import new_loop
from ansible_collections.groundstate.llm.plugins.module_utils.wire import Wire

WORKER = ["sglang::scheduler", "-c", "import time\nwhile True: time.sleep(600)"]


class Speculating(Connection):
    """Answers as SGLang does where it speaks of speculation."""

    def handle(self, method: str, path: str, headers: dict[str, str], body: dict) -> None:
        if path != "/metrics":
            super().handle(method, path, headers, body)
            return
        done = [one for one in self.server.truths if one.complete]
        told = {
            "sglang:num_running_reqs": len(self.server.truths) - len(done),
            "sglang:prompt_tokens_total": sum(one.prompt_tokens for one in done),
            "sglang:generation_tokens_total": sum(one.tokens for one in done),
        }
        if self.settings.k > 1:
            told["sglang:spec_verify_calls_total"] = sum(one.chunks - 1 for one in done)
        self.reply("".join(f"{name} {value}.0\n" for name, value in told.items()), kind="text/plain")

    def ending(self, job: Job) -> bytes:
        cycles = job.truth.chunks - 1
        if self.settings.k == 1 or not cycles:
            return super().ending(job)
        accepted = job.sent - 1 - cycles
        told = {"spec_verify_ct": cycles, "spec_num_correct_drafts": accepted}
        told["spec_num_proposed_drafts"] = cycles * (self.settings.k - 1)
        told["spec_correct_drafts_histogram"] = [0] * (self.settings.k - 1) + [cycles]
        details = self.event({"id": "x", "choices": [], "sglext": {"spec_tokens_details": told}})
        return details + super().ending(job)


class SpeculatingServer(Server):
    """Its connections are those above."""

    async def _adopt(self, sock) -> None:
        with contextlib.suppress(OSError):
            await Wire.adopt(sock, lambda wire: Speculating(self, wire), self._tls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model-path", default="mock")
    parser.add_argument("--served-model-name", default="")
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--step", type=float, default=0.01)
    parser.add_argument("--cycle", type=float, default=0.06)
    parser.add_argument("--tokens", type=int, default=2)
    given, others = parser.parse_known_args()
    speculates = any(word.startswith("--speculative-") for word in others)
    settings = Settings(
        model=given.served_model_name or given.model_path,
        step=given.cycle if speculates else given.step,
        k=given.tokens if speculates else 1,
    )
    titles = [WORKER[0]] if given.tp_size == 1 else [f"{WORKER[0]}_TP{rank}" for rank in range(given.tp_size)]
    workers = [subprocess.Popen([title, *WORKER[1:]], executable=sys.executable) for title in titles]
    loop, _name = new_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.add_signal_handler(signal.SIGTERM, loop.stop)
        loop.run_until_complete(SpeculatingServer(settings).listen(given.port))
        print(json.dumps({"speculates": speculates, "step": settings.step, "k": settings.k}), flush=True)
        loop.run_forever()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


if __name__ == "__main__":
    main()
