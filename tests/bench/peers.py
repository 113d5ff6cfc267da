"""Our client beside other load generators: the same deterministic server, one run, errors against what it really sent.

    python tests/bench/peers.py --tokenizer DIR --ours PYTHON [--ours-uvloop PYTHON] [--vllm-rs PROGRAM]
        [--sglang-rs _bench.so] [--guidellm PROGRAM] [--aiperf PROGRAM] [--concurrency 1 64 256] [--repeats 3]

Only the tools whose path is given run. ``--ours``: an interpreter with ansible-core (and uvloop); ``--vllm-rs``: the
program ``vllm/vllm-rs`` in vLLM's wheel; ``--sglang-rs``: ``sglang/srt/rust_extensions/_bench*.so`` in SGLang's, loaded
by the Python it was built for (``--sglang-python``); the others are programs of their environments. ``--tokenizer``: a
folder with tokenizer.json, for the tools that want one.

The server has the first core, the tool the second. Start-up is the time from its launch until the server gets the
request that is measured first; CPU and memory are those of the tool with all its children.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODULE = "ansible_collections.groundstate.llm.plugins.modules.llm_benchmark"
TTFT_S, STEP_S, TOKENS, PROMPT = 0.2, 0.01, 128, 32
LOAD_SGLANG = (
    "import importlib.util as u, sys; s = u.spec_from_file_location('_bench', sys.argv[1]); "
    "m = u.module_from_spec(s); s.loader.exec_module(m); m.run_argv(['sglang-bench'] + sys.argv[2:])"
)


@dataclass
class Call:
    """How a tool is run, and how its mean TTFT and TPOT (seconds) are read from what it left."""

    argv: list[str]
    read: Callable[[str], dict[str, float]]  # its standard output -> {"ttft": s, "tpot": s}
    stdin: str = ""
    env: dict[str, str] | None = None


def ours(python: str, url: str, streams: int, requests: int, _folder: Path, _tokenizer: str) -> Call:
    workload = {"prompt_tokens": PROMPT, "output_tokens": TOKENS, "concurrency": [streams], "repeats": 1, "api": "chat"}
    workload.update(requests=requests // streams, warmup_requests=1, warmup_cap_s=0)
    arguments = {"base_url": url, "model": "mock", "engine": "vllm", "workload": workload, "sample": False}

    def read(out: str) -> dict[str, float]:
        (level,) = json.loads(out)["measurement"]["levels"]
        return {"ttft": level["ttft_s"]["mean"], "tpot": level["tpot_s"]["mean"]}

    environment = {"PYTHONPATH": str(ROOT / "playbooks" / "collections")}
    return Call([python, "-m", MODULE], read, json.dumps({"ANSIBLE_MODULE_ARGS": arguments}), environment)


def _vllm_result(path: Path) -> Callable[[str], dict[str, float]]:
    def read(_out: str) -> dict[str, float]:
        told = json.loads(path.read_text().splitlines()[-1])
        return {"ttft": told["mean_ttft_ms"] / 1e3, "tpot": told["mean_tpot_ms"] / 1e3}

    return read


def vllm_rs(program: str, url: str, streams: int, requests: int, folder: Path, tokenizer: str) -> Call:
    words = f"bench serve --backend openai-chat --base-url {url} --endpoint /v1/chat/completions --model mock"
    words += f" --dataset-name random --random-input-len {PROMPT} --random-output-len {TOKENS} --random-range-ratio 0"
    words += f" --num-prompts {requests} --max-concurrency {streams} --ignore-eos --temperature 0 --save-result"
    words += " --result-filename result.json --disable-tqdm"
    argv = [program, *words.split(), "--result-dir", str(folder), "--tokenizer", tokenizer]
    return Call(argv, _vllm_result(folder / "result.json"))


def sglang_rs(program: str, url: str, streams: int, requests: int, folder: Path, tokenizer: str) -> Call:
    python, _comma, library = program.partition(",")
    words = f"--backend sglang-oai-chat --base-url {url} --model mock --dataset-name random-ids --random-range-ratio 1"
    words += f" --random-input-len {PROMPT} --random-output-len {TOKENS} --num-prompts {requests}"
    words += f" --max-concurrency {streams} --disable-tqdm"
    result = folder / "result.jsonl"
    argv = [python, "-c", LOAD_SGLANG, library, *words.split(), "--tokenizer", tokenizer, "--output-file", str(result)]
    return Call(argv, _vllm_result(result))


def guidellm(program: str, url: str, streams: int, requests: int, folder: Path, tokenizer: str) -> Call:
    result = folder / "result.json"
    words = f"run --backend kind=openai_http,target={url},model=mock --profile kind=concurrent,streams={streams}"
    words += f" --constraint kind=max_requests,count={requests} --disable-console"
    words += f" --data kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={TOKENS}"
    argv = [program, *words.split(), "--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
    argv += ["--output", f"kind=json,path={result}"]

    def read(_out: str) -> dict[str, float]:
        told = json.loads(result.read_text())["benchmarks"][0]["metrics"]
        # What it calls "time per output token" has the time to first token in it; its "inter token latency" has not.
        names = {"ttft": "time_to_first_token_ms", "tpot": "inter_token_latency_ms"}
        return {ours: told[theirs]["successful"]["mean"] / 1e3 for ours, theirs in names.items()}

    return Call(argv, read)


def aiperf(program: str, url: str, streams: int, requests: int, folder: Path, tokenizer: str) -> Call:
    words = f"profile --model mock --url {url} --endpoint-type chat --streaming --concurrency {streams}"
    words += f" --request-count {requests} --isl {PROMPT} --osl {TOKENS} --extra-inputs ignore_eos:true"
    words += " --use-server-token-count --ui none --no-gpu-telemetry --no-server-metrics"
    argv = [program, *words.split(), "--tokenizer", tokenizer, "--artifact-dir", str(folder)]

    def read(_out: str) -> dict[str, float]:
        told = json.loads(next(folder.rglob("profile_export_aiperf.json")).read_text())
        names = {"ttft": "time_to_first_token", "tpot": "inter_token_latency"}
        return {ours: told[theirs]["avg"] / 1e3 for ours, theirs in names.items()}

    return Call(argv, read)


TOOLS = {"ours": ours, "ours_uvloop": ours, "vllm_rs": vllm_rs, "sglang_rs": sglang_rs}
TOOLS.update({"guidellm": guidellm, "aiperf": aiperf})


class Memory(threading.Thread):
    """The greatest sum of resident memory of a process and its descendants, in MiB, ten times a second."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root, self.peak, self.over = root, 0.0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.1):
            found, rest = 0, [self.root]
            while rest:
                pid = rest.pop()
                with contextlib.suppress(OSError, ValueError):
                    found += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    rest += [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            self.peak = max(self.peak, found * resource.getpagesize() / 2**20)


def pinned(core: int) -> Callable[[], None]:
    """Puts a child on one core, and before other work where we may."""
    cores = sorted(os.sched_getaffinity(0))

    def prepare() -> None:
        os.sched_setaffinity(0, {cores[core % len(cores)]})
        os.setsid()  # a scheduling group of its own, where the kernel makes one for each session
        with contextlib.suppress(OSError):
            os.nice(-15)
            Path("/proc/self/autogroup").write_text("-15")

    return prepare


def measure(tool: str, path: str, streams: int, requests: int, given: argparse.Namespace) -> dict[str, float]:
    """One run of one tool. Raises whatever shows that it did not work."""
    server = subprocess.Popen(
        [given.server, str(ROOT / "tests" / "tools" / "mock_llm.py"), "--ttft", str(TTFT_S), "--step", str(STEP_S)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=pinned(0),
    )
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        with tempfile.TemporaryDirectory() as folder:
            call = TOOLS[tool](path, url, streams, requests, Path(folder), given.tokenizer)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            begun = time.perf_counter()
            child = subprocess.Popen(
                call.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=folder,
                env={**os.environ, **(call.env or {})},
                preexec_fn=pinned(1),
            )
            memory = Memory(child.pid)
            memory.start()
            try:
                out, errors = child.communicate(call.stdin, timeout=given.timeout)
            finally:
                child.kill()
                memory.over.set()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if child.returncode:
                raise RuntimeError(f"status {child.returncode}: {' '.join((errors or out).split())[-400:]}")
            told = call.read(out)
        with urllib.request.urlopen(url + "/mock/truth") as reply:
            truths = [one for one in json.load(reply)["requests"] if one["tokens"] == TOKENS][-requests:]
    finally:
        server.kill()
        server.communicate()
    if len(truths) != requests:
        raise RuntimeError(f"{len(truths)} of {requests} requests were answered with {TOKENS} tokens")
    ttft = statistics.mean(one["first_at"] - one["received_at"] for one in truths)
    tpot = statistics.mean((one["last_at"] - one["first_at"]) / (TOKENS - 1) for one in truths)
    span = max(one["last_at"] for one in truths) - min(one["received_at"] for one in truths)
    ideal = requests / streams * (TTFT_S + (TOKENS - 1) * STEP_S)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "ttft_error": (told["ttft"] / ttft - 1) * 100,
        "tpot_error": (told["tpot"] / tpot - 1) * 100,
        "delivered": ideal / span * 100,
        "cpu_per_1000": cpu / (requests * TOKENS / 1000),
        "memory": memory.peak,
        "start": truths[0]["received_at"] - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    for name in TOOLS:
        parser.add_argument("--" + name.replace("_", "-"), default="")
    parser.add_argument("--sglang-python", default=sys.executable)
    parser.add_argument("--server", default=sys.executable, help="interpreter of the server")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--waves", type=int, default=2, help="requests of each stream (ten times that at one stream)")
    parser.add_argument("--timeout", type=float, default=240)
    given = parser.parse_args()
    if given.sglang_rs:
        given.sglang_rs = f"{given.sglang_python},{given.sglang_rs}"
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"server: first token after {TTFT_S * 1e3:g} ms, one every {STEP_S * 1e3:g} ms, {TOKENS} tokens\n")
    print("| streams | tool | TTFT error % | TPOT error % | delivered % | CPU s / 1,000 tokens | MiB | start-up s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    digits = {"ttft_error": 2, "tpot_error": 2, "delivered": 0, "cpu_per_1000": 3, "memory": 0, "start": 1}
    for streams in given.concurrency:
        requests = given.waves * (streams if streams > 1 else 5)
        runs: dict[str, list[dict[str, float]]] = {tool: [] for tool in TOOLS if getattr(given, tool)}
        failures: dict[str, str] = {}
        for _round in range(given.repeats):  # interleaved, so that a busy moment does not hit one tool only
            for tool in runs:
                try:
                    runs[tool].append(measure(tool, getattr(given, tool), streams, requests, given))
                except (RuntimeError, OSError, ValueError, KeyError, StopIteration, subprocess.TimeoutExpired) as error:
                    failures[tool] = f"{type(error).__name__}: {error}"
                print(f"{tool} at {streams}: {failures.get(tool) or runs[tool][-1]}", file=sys.stderr, flush=True)
        for tool, rows in runs.items():
            cells: list[Any] = []
            for key, places in digits.items():
                values = [row[key] for row in rows]
                cells.append(
                    f"{statistics.median(values):.{places}f} ({min(values):.{places}f} to {max(values):.{places}f})"
                    if values
                    else "-"
                )
            print(f"| {streams} | {tool.replace('_', '-')} | " + " | ".join(cells) + " |", flush=True)
        for tool, why in failures.items():
            print(f"\n{tool} at {streams}: {why}\n", flush=True)


if __name__ == "__main__":
    main()
