"""The error of our own client: what it reports against what the deterministic server really sent.

    python tests/bench/client_error.py [--concurrency 1 64 256] [--rounds 3]

The server runs in a process of its own. One row a concurrency; the median over the rounds, and their range.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "playbooks" / "collections"))

from ansible_collections.groundstate.llm.plugins.module_utils import endpoint, load, self_check, workload  # noqa: E402
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine  # noqa: E402
from ansible_collections.groundstate.llm.plugins.module_utils.http_client import Client  # noqa: E402
from ansible_collections.groundstate.llm.plugins.module_utils.prompt_source import PromptSource  # noqa: E402

TTFT_S, STEP_S = 0.2, 0.01


def measure(url: str, wanted: dict) -> load.Run:
    async def work():
        client = Client(url)
        try:
            target = endpoint.Endpoint(client, get_engine("vllm"), "mock", wanted)
            chosen = await PromptSource(target, wanted, "client-error").choose()
            return await load.Runner(target, wanted, chosen, load.Progress()).run()
        finally:
            await client.close()

    return self_check.run_in_loop(work)[0]


def one_round(concurrency: int, tokens: int, requests: int) -> dict[str, float]:
    """Errors in percent of one run against a fresh server, and what the client cost."""
    server = subprocess.Popen(
        [sys.executable, ROOT / "tests" / "tools" / "mock_llm.py", "--ttft", str(TTFT_S), "--step", str(STEP_S)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        wanted = workload.resolve(
            {
                "concurrency": [concurrency],
                "output_tokens": tokens,
                "repeats": 1,
                "requests": requests,
                "warmup_requests": 1,
                "warmup_cap_s": 0,
            }
        )
        cpu = time.process_time()
        done = measure(url, wanted)
        cpu = time.process_time() - cpu
        with urllib.request.urlopen(url + "/mock/truth") as reply:
            truths = json.load(reply)["requests"][-concurrency * requests :]
    finally:
        server.kill()
        server.communicate()
    samples = [one for repeat in done.repeats for one in repeat.samples]
    assert len(samples) == len(truths)
    assert all(one.ok for one in samples), [one.message for one in samples if not one.ok]
    true_ttft = statistics.mean(one["first_at"] - one["received_at"] for one in truths)
    true_tpot = statistics.mean((one["last_at"] - one["first_at"]) / (one["tokens"] - 1) for one in truths)
    ttft = statistics.mean(one.ttft_s for one in samples)
    tpot = statistics.mean(one.tpot_s for one in samples)
    return {
        "ttft_error_percent": (ttft / true_ttft - 1) * 100,
        "tpot_error_percent": (tpot / true_tpot - 1) * 100,
        "lag_p99_ms": done.client["loop_lag_p99_s"] * 1e3,
        "cpu_share": done.client["cpu_share"],
        "cpu_s_per_1000_tokens": cpu / (sum(one.tokens or 0 for one in samples) / 1000),
        "limited": float(done.client["limited"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    given = parser.parse_args()
    loop, name = self_check.new_loop()
    loop.close()
    print(f"Python {platform.python_version()}, {name}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"server: first token after {TTFT_S * 1e3:g} ms, then one every {STEP_S * 1e3:g} ms, {given.tokens} tokens\n")
    print("| streams | TTFT error % | TPOT error % | lag p99 ms | CPU share | CPU s per 1,000 tokens | limited |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for concurrency in given.concurrency:
        rounds = [one_round(concurrency, given.tokens, 5 if concurrency == 1 else 2) for _ in range(given.rounds)]

        def cell(key: str, digits: int = 2, rounds: list[dict[str, float]] = rounds) -> str:
            values = [one[key] for one in rounds]
            middle = statistics.median(values)
            return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"

        limited = sum(int(one["limited"]) for one in rounds)
        columns = [cell("ttft_error_percent"), cell("tpot_error_percent", 3), cell("lag_p99_ms"), cell("cpu_share")]
        columns += [cell("cpu_s_per_1000_tokens", 3), f"{limited} of {len(rounds)}"]
        print(f"| {concurrency} | " + " | ".join(columns) + " |", flush=True)


if __name__ == "__main__":
    main()
