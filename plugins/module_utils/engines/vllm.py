# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""vLLM, GPU and CPU build (names as of 0.32)."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable
from typing import Any, ClassVar

from ..multi_host import local_ranks, ranks
from ..procfs import Process
from .base import PYTHON, Engine, Gone, Phase, extra, flag, global_rank, program

#: Methods of speculation that are nothing without a model of their own.
_NEEDS_DRAFT = ("eagle", "eagle3", "medusa", "mlp_speculator", "draft_model")


class VLLM(Engine):
    name = "vllm"
    title = "vLLM"
    own_all_reduce = True
    parts = (
        (r"VLLM::Worker", "worker"),
        (r"VLLM::", "helper"),
        (rf"(?:{PYTHON})?(?:\S*/)?vllm\s+serve\b", "server"),
        (rf"{PYTHON}-m\s+vllm\.(?:entrypoints\.|scripts)", "server"),
    )
    phases = (
        Phase("reading arguments", r"non-default args:|vLLM API server version"),
        Phase("starting engine", r"Initializing a V1 LLM engine|Waiting for \d+ local, \d+ remote core engine"),
        Phase("distributed init", r"vLLM is using nccl==|world_size=\d+ rank=\d+|rank \d+ in world size"),
        Phase("loading weights", r"Starting to load model", r"(?:shards|loader|Streamer):.*\| *(\d+)/(\d+) "),
        Phase(
            "compiling",
            r"Using cache directory: .*torch\.compile|Dynamo bytecode transform|up model for the compilation",
        ),
        Phase("allocating KV cache", r"Model loading took|Loading weights took|Available KV cache memory"),
        Phase("capturing graphs", r"Capturing CUDA graph|Capturing cudagraphs", r"Capturing.*\| (\d+)/(\d+) "),
        Phase("starting HTTP", r"init engine .*took|Starting vLLM (?:API )?server"),
        Phase("up", r"Application startup complete"),
    )
    # Other ranks print the same lines out of step.
    leader_pattern = r"^(?!\(Worker_(?:\w*_)?TP[1-9])"
    stamp_pattern = r"\b(\d\d-\d\d \d\d:\d\d:\d\d) \["
    stamp_format = "%m-%d %H:%M:%S"
    term_grace_s = 30.0
    metrics_path = "/metrics"
    metrics: ClassVar = {
        "running_requests": "vllm:num_requests_running",
        "queued_requests": "vllm:num_requests_waiting",
        "drafts": "vllm:spec_decode_num_drafts_total",
        "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
        "accepted_at": "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
        "kv_cache_use": "vllm:kv_cache_usage_perc",
        "prompt_tokens": "vllm:prompt_tokens_total",
        "cached_tokens": "vllm:prefix_cache_hits_total",
        "generated_tokens": "vllm:generation_tokens_total",
    }
    version_path = "/version"
    resolved_pattern = r"Initializing a V1 LLM engine \(v[^)]*\) with config: (.+?)\s*$"
    distribution = "vllm"
    kernel_distributions = ("vllm",)
    spans_hosts = True
    # With a cumem graph pool, and with EPLB of a mixture of experts.
    sets_nccl = frozenset({"NCCL_GRAPH_REGISTER", "NCCL_MAX_CTAS"})
    tokenize_path = "/tokenize"
    # All of them were there once, and 0.32.0 has none of them.
    gone = (
        Gone("disable-log-requests", "0.32.0", why="remove it: requests are not logged any more by default"),
        Gone("guided-decoding-backend", "0.32.0", "structured-outputs-config"),
        Gone("task", "0.32.0", "runner or convert"),
        Gone("max-seq-len-to-capture", "0.32.0", "max-cudagraph-capture-size"),
        Gone("cuda-graph-sizes", "0.32.0", "cudagraph-capture-sizes"),
        Gone("override-pooler-config", "0.32.0", "pooler-config"),
        Gone("rope-scaling", "0.32.0", "hf-overrides", "as JSON"),
        Gone("rope-theta", "0.32.0", "hf-overrides", "as JSON"),
        Gone("worker-use-ray", "0.32.0", "distributed-executor-backend: ray"),
        Gone("speculative-model", "0.32.0", why="declare llm_server.speculation"),
        Gone("num-speculative-tokens", "0.32.0", why="declare llm_server.speculation"),
        Gone("swap-space", "0.32.0", why="remove it: preempted requests are computed again, not swapped"),
        Gone("num-scheduler-steps", "0.32.0", why="remove it: the scheduler has no such steps any more"),
        Gone("use-v2-block-manager", "0.32.0", why="remove it: there is only one block manager"),
        Gone("device", "0.32.0", why="remove it: the build decides the device"),
    )
    adjustments = (
        r"(?:WARNING|INFO) .*?\] (.*\b(?:Overriding|Auto-(?:en|dis)abl\w+|will be disabled|Falling back to)\b.*)",
        r"(?:WARNING|INFO) .*?\] (.*\b(?:is|are|was) (?:reset|adjusted|overridden|lowered|reduced) .*)",
    )
    # What memory was free for; what it is overridden with follows in the sentence, and was declared.
    adjustment_passing = r"(?<=num_gpu_blocks=)\d+"
    supports_ignore_eos = True
    supports_min_tokens = True
    api_key_variable = "VLLM_API_KEY"

    def parser_words(self, env_path: str) -> list[str]:
        return [os.path.join(env_path, "bin", "vllm"), "serve"]

    def argv(self, declaration: dict[str, Any], env_path: str, port: int) -> list[str]:
        words = program(declaration, self.parser_words(env_path))
        words += [declaration["model"], "--served-model-name", self.served_name(declaration)]
        words += flag("trust-remote-code", declaration["trust_remote_code"])
        if declaration["tensor_parallel"] != 1:
            words += ["--tensor-parallel-size", str(declaration["tensor_parallel"])]
        if declaration["pipeline_parallel"] != 1:
            words += ["--pipeline-parallel-size", str(declaration["pipeline_parallel"])]
        together = declaration["multi_host"]
        if together:
            words += ["--nnodes", str(together["nodes"]), "--node-rank", str(together["rank"])]
            words += ["--master-addr", together["head"], "--master-port", str(together["port"])]
            # Only the head has an API server; the others compute.
            words += flag("headless", together["rank"] != 0)
        words += flag("gpu-memory-utilization", declaration["memory_fraction"] or None)
        words += flag("max-model-len", declaration["context_length"] or None)
        words += ["--host", declaration["host"], "--port", str(port)]
        if declaration["speculation"]:
            words += ["--speculative-config", json.dumps(_speculative_config(declaration["speculation"]))]
        return words + extra(declaration)

    def problems(self, declaration: dict[str, Any]) -> list[str]:
        found = super().problems(declaration)
        speculation = declaration["speculation"]
        method = str(speculation.get("algorithm", "")).lower()
        if method in _NEEDS_DRAFT and not speculation.get("draft_model"):
            found.append(f"speculation.draft_model: {method} needs a draft model")
        return found

    def environment(self, declaration: dict[str, Any]) -> dict[str, str]:
        found = super().environment(declaration)
        found["VLLM_NO_USAGE_STATS"] = "1"
        if declaration["threads"]:
            found["OMP_NUM_THREADS"] = str(declaration["threads"])
        return found

    def line_time(self, line: str) -> float | None:
        # vLLM leaves out the year.
        found = re.search(self.stamp_pattern, line)
        if not found:
            return None
        try:
            return time.mktime(time.strptime(f"{time.localtime().tm_year}-{found.group(1)}", "%Y-%m-%d %H:%M:%S"))
        except (ValueError, OverflowError):
            return None

    def expected_workers(self, declaration: dict[str, Any]) -> int:
        return local_ranks(declaration)

    def uses_nccl(self, declaration: dict[str, Any]) -> bool:
        return declaration["gpus"] != []

    def worker_rank(self, title: str, declaration: dict[str, Any]) -> int | None:
        return global_rank(title, declaration) if title.startswith("VLLM::Worker") else None

    def find_workers(self, tree: Iterable[Process], declaration: dict[str, Any]) -> dict[int, Process]:
        items = list(tree)
        found = super().find_workers(items, declaration)
        if not found and ranks(declaration) == 1:
            # Without tensor parallelism the GPU build computes in the engine core itself.
            core = [item for item in items if item.cmdline.startswith("VLLM::EngineCore") and not item.zombie]
            found = {0: core[0]} if core else {}
        return found


def _speculative_config(speculation: dict[str, Any]) -> dict[str, Any]:
    """vLLM's words for our ``speculation``; other keys are passed through as they are."""
    rest = dict(speculation)
    method = str(rest.pop("algorithm", "")).lower()
    config: dict[str, Any] = {"method": method}
    if rest.get("draft_model"):
        config["model"] = rest["draft_model"]
    # num_steps is depth; without a tree it is also the number of drafted tokens.
    tokens = rest.get("draft_tokens") or rest.get("num_steps")
    if tokens:
        config["num_speculative_tokens"] = int(tokens)
    if method == "ngram":
        config.update({"prompt_lookup_max": 3, "prompt_lookup_min": 1})
    return config
