# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""SGLang (names as of 0.5.23; log lines also as of 0.5.11)."""

from __future__ import annotations

from typing import Any, ClassVar

from ..multi_host import local_ranks
from .base import PYTHON, Engine, Gone, Phase, extra, flag, global_rank, program, python_of, whole

#: No count of one request comes to this; ratios of smaller ones are numbers.
_MOST = 2**53

#: Arguments that current versions parse and never read.
NO_EFFECT = {"num-continuous-decode-steps": "it is parsed and never read by SGLang (seen in 0.5.5 and 0.5.23)"}


class SGLang(Engine):
    name = "sglang"
    title = "SGLang"
    own_all_reduce = True
    parts = (
        (r"sglang::scheduler", "worker"),
        (r"sglang::", "helper"),
        (rf"{PYTHON}-m\s+sglang\.(?:launch_server|srt|bench)", "server"),
        (rf"(?:{PYTHON})?(?:\S*/)?sglang\s+serve\b", "server"),
    )
    phases = (
        Phase("reading arguments", r"server_args="),
        Phase("distributed init", r"Init (?:torch distributed|parallel) begin|sglang is using nccl=="),
        Phase(
            "loading weights",
            r"Load weight begin",
            r"(?:shards|Loader|Streamer|loader|InstantTensor):.*\| *(\d+)/(\d+) ",
        ),
        Phase("allocating KV cache", r"Load weight end"),
        Phase(
            "capturing graphs",
            r"Capture .*(?:cuda|CUDA) graph begin",
            r"(?:Capturing|Compiling) (?:batches|num tokens|prefill shape).*\| (\d+)/(\d+) ",
        ),
        Phase("starting HTTP", r"max_total_num_tokens="),
        Phase("warming up", r"Application startup complete"),
        Phase("up", r"The server is fired up and ready to roll"),
    )
    # The launcher then kills its whole tree with SIGKILL, and itself last.
    ends_itself_pattern = r"(?:Received sigquit|SIGQUIT received).*It usually means (?:the|one) child failed"
    # Rank 0 and the parent tell the phases; other ranks repeat them out of step.
    leader_pattern = r"^(?!\[[^]]* TP[1-9])"
    stamp_pattern = r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
    # It drains without bound while requests run, then allows 15 s for its own shutdown and reaps up to 60 s.
    term_grace_s = 90.0
    # /health generates a token once the server is up, and gives itself 20 s for it.
    health_timeout_s = 25.0
    metrics_path = "/metrics"
    metrics: ClassVar = {
        "running_requests": "sglang:num_running_reqs",
        "queued_requests": "sglang:num_queue_reqs",
        "accept_length": "sglang:spec_accept_length",
        "verify_calls": "sglang:spec_verify_calls_total",
        "kv_cache_use": "sglang:token_usage",
        "prompt_tokens": "sglang:prompt_tokens_total",
        "cached_tokens": "sglang:cached_tokens_total",
        "generated_tokens": "sglang:generation_tokens_total",
    }
    info_path = "/server_info"
    distribution = "sglang"
    kernel_distributions = ("sglang-kernel", "sgl-kernel")  # the second is its earlier name
    resolved_pattern = r"server_args=ServerArgs\((.+?)\)?$"
    # A seed that nobody gave is drawn anew by every start; ports are our choice.
    resolved_passing = frozenset({"random_seed", "port", "nccl_port", "dist_init_addr"})
    spans_hosts = True
    sets_nccl = frozenset({"NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_GRAPH_MIXING_SUPPORT"})
    flush_cache_path = "/flush_cache"
    tokenize_path = "/tokenize"
    # 0.5.5 has all of them, 0.5.11 most, 0.5.23 none.
    gone = (
        Gone("cuda-graph-max-bs", "0.5.23", "cuda-graph-max-bs-decode"),
        Gone("cuda-graph-bs", "0.5.23", "cuda-graph-bs-decode"),
        Gone("nsa-prefill-backend", "0.5.23", "dsa-prefill-backend"),
        Gone("nsa-decode-backend", "0.5.23", "dsa-decode-backend"),
        Gone("kt-amx-method", "0.5.11", "kt-method"),
        Gone("kt-amx-weight-path", "0.5.11", "kt-weight-path"),
        Gone("torchao-config", "0.5.23", "quantization", "with its own set of methods"),
        Gone("enable-double-sparsity", "0.5.11", why="remove it: double sparsity is gone"),
    )
    adjustments = (
        r"^\[[^]]*\] (?!server_args=)(.*\b(?:is|are|was) (?:\w+ )?(?:reset|adjusted|overridden|lowered|reduced) .*)",
        r"^\[[^]]*\] (?!server_args=)(.*\bis disabled because\b.*)",
        r"^\[[^]]*\] (Overriding .*)",
    )
    same_argument: ClassVar = {"tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size"}
    supports_ignore_eos = True
    supports_min_tokens = True
    # Versions that do not know it yet ignore it.
    speculation_fields: ClassVar = {"return_spec_tokens_details": True}

    def warnings(self, declaration: dict[str, Any]) -> list[str]:
        return [
            f"extra_args.{name} has no effect: {why}"
            for name, why in NO_EFFECT.items()
            if name in {key.replace("_", "-").lstrip("-") for key in declaration["extra_args"]}
        ]

    def parser_words(self, env_path: str) -> list[str]:
        return ["-m", "sglang.launch_server"]

    def argv(self, declaration: dict[str, Any], env_path: str, port: int) -> list[str]:
        words = program(declaration, [python_of(env_path), *self.parser_words(env_path)])
        words += ["--model-path", declaration["model"]]
        words += flag("served-model-name", declaration["served_model_name"] or None)
        words += flag("trust-remote-code", declaration["trust_remote_code"])
        if declaration["tensor_parallel"] != 1:
            words += ["--tp-size", str(declaration["tensor_parallel"])]
        if declaration["pipeline_parallel"] != 1:
            words += ["--pp-size", str(declaration["pipeline_parallel"])]
        together = declaration["multi_host"]
        if together:
            words += ["--nnodes", str(together["nodes"]), "--node-rank", str(together["rank"])]
            words += ["--dist-init-addr", f"{together['head']}:{together['port']}"]
        words += flag("mem-fraction-static", declaration["memory_fraction"] or None)
        words += flag("context-length", declaration["context_length"] or None)
        words += ["--port", str(port), "--host", declaration["host"]]
        words += _speculation(declaration["speculation"])
        return words + extra(declaration)

    def environment(self, declaration: dict[str, Any]) -> dict[str, str]:
        found = super().environment(declaration)
        if declaration["threads"]:
            found["OMP_NUM_THREADS"] = str(declaration["threads"])
        return found

    def problems(self, declaration: dict[str, Any]) -> list[str]:
        found = super().problems(declaration)
        speculation = declaration["speculation"]
        algorithm = str(speculation.get("algorithm", "")).upper()
        if algorithm.startswith(("EAGLE", "STANDALONE")) and not speculation.get("draft_model"):
            name = "EAGLE" if algorithm.startswith("EAGLE") else algorithm
            found.append(f"speculation.draft_model: {name} needs a draft model; SGLang crashes without one")
        return found

    def told_speculation(self, event: dict[str, Any]) -> dict[str, Any] | None:
        extension = event.get("sglext")
        told = extension.get("spec_tokens_details") if isinstance(extension, dict) else None
        if not isinstance(told, dict):
            return None
        counts = told.get("spec_correct_drafts_histogram")
        found = {
            "verify_calls": told.get("spec_verify_ct"),
            "accepted": told.get("spec_num_correct_drafts"),
            "draft_tokens": told.get("spec_num_proposed_drafts"),
        }
        every = [*found.values(), *(counts if isinstance(counts, list) else [])]
        if any(not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < _MOST for one in every):
            return None
        return {**found, "accepted_counts": counts or []}

    def draft_depth(self, speculation: dict[str, Any], arguments: dict[str, Any]) -> int | None:
        # draft_tokens counts the root of the tree, num_steps its depth below it; what was not declared, it chooses.
        depth = whole(speculation.get("num_steps")) or whole(arguments.get("speculative_num_steps"))
        tokens = whole(speculation.get("draft_tokens")) or whole(arguments.get("speculative_num_draft_tokens"))
        return depth or whole((tokens or 0) - 1)

    def resolved(self, info: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
        # The reply has every argument under its own name, and a few numbers that came of them.
        found = {name: value for name, value in info.items() if name != "internal_states"}
        states = info.get("internal_states")
        state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
        running = state.get("effective_max_running_requests_per_dp")
        if isinstance(running, int) and isinstance(found.get("max_running_requests"), int):
            found["max_running_requests"] = min(running, found["max_running_requests"])
        found["longest_request"] = min(
            (one for one in (info.get("max_total_num_tokens"), model.get("max_model_len")) if isinstance(one, int)),
            default=None,
        )
        return found

    def expected_workers(self, declaration: dict[str, Any]) -> int:
        return local_ranks(declaration)

    def uses_nccl(self, declaration: dict[str, Any]) -> bool:
        return declaration["gpus"] != []

    def worker_rank(self, title: str, declaration: dict[str, Any]) -> int | None:
        # With one rank the title has no _TP0.
        return global_rank(title, declaration) if title.startswith("sglang::scheduler") else None


def _speculation(speculation: dict[str, Any]) -> list[str]:
    if not speculation:
        return []
    return (
        flag("speculative-algorithm", speculation.get("algorithm"))
        + flag("speculative-draft-model-path", speculation.get("draft_model") or None)
        + flag("speculative-num-steps", speculation.get("num_steps") or None)
        + flag("speculative-eagle-topk", speculation.get("topk") or None)
        + flag("speculative-num-draft-tokens", speculation.get("draft_tokens") or None)
    )
