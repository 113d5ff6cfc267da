# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""llama.cpp's HTTP server, run in-process by the script ``groundstate-llama-cpp`` (xllamacpp)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, ClassVar

from ..procfs import Process
from .base import PYTHON, Engine, Gone, Phase, extra, flag, program

SCRIPT = "groundstate-llama-cpp"
#: Default of its --draft-tokens.
DRAFT_TOKENS = 8


class LlamaCpp(Engine):
    name = "llama_cpp"
    title = "llama.cpp"
    parts = ((rf"(?:{PYTHON})?(?:\S*/)?{SCRIPT}(?:\s|$)", "server"), (r"(?:\S*/)?llama-server(?:\s|$)", "server"))
    # Not anchored: the engine's own log threads write to the same file, also in the middle of a line of ours.
    phases = (
        Phase("loading model", r"\] loading model |load_model: loading model "),
        Phase("listening", r"\] listening on |init: listening on "),
    )
    stamp_pattern = r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{3})\]"
    stamp_resolution_s = 0.001
    term_grace_s = 10.0
    metrics_path = "/metrics"
    metrics: ClassVar = {
        "running_requests": "llamacpp:requests_processing",
        "queued_requests": "llamacpp:requests_deferred",
        "drafts": "llamacpp:spec_decode_num_drafts_total",
        "draft_tokens": "llamacpp:spec_decode_num_draft_tokens_total",
        "accepted_at": "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
        "accepted_tokens": "llamacpp:spec_decode_num_accepted_tokens_total",
        "prompt_tokens": "llamacpp:prompt_tokens_total",
        "generated_tokens": "llamacpp:tokens_predicted_total",
    }
    info_path = "/props"
    resolved_pattern = r"load_model: initializing, (n_slots = .+?)\s*$"
    distribution = "xllamacpp"
    tokenize_path = "/tokenize"
    tokenize_field = "content"
    # Names of llama-server, which people know and which our script does not have.
    gone = (
        Gone("ctx-size", "0", why="declare llm_server.context_length"),
        Gone("n-gpu-layers", "0", "gpu-layers"),
        Gone("ngl", "0", "gpu-layers"),
        Gone("ubatch-size", "0", "batch-size"),
    )
    supports_ignore_eos = True
    supports_min_tokens = False
    api_key_variable = "GROUNDSTATE_API_KEY"

    def problems(self, declaration: dict[str, Any]) -> list[str]:
        found = super().problems(declaration)
        algorithm = declaration["speculation"].get("algorithm")
        if algorithm and algorithm.lower() not in ("ngram", "draft"):
            found.append(f"speculation.algorithm {algorithm!r}: llama.cpp is run with 'ngram' or 'draft' only")
        if str(algorithm).lower() == "draft" and not declaration["speculation"].get("draft_model"):
            found.append("speculation.draft_model: 'draft' needs the file of a draft model")
        if declaration["tensor_parallel"] != 1:
            found.append(f"tensor_parallel {declaration['tensor_parallel']}: llama.cpp runs in one process; use 1")
        return found

    def parser_words(self, env_path: str) -> list[str]:
        return [os.path.join(env_path, "bin", SCRIPT)]

    def argv(self, declaration: dict[str, Any], env_path: str, port: int) -> list[str]:
        words = program(declaration, self.parser_words(env_path))
        words += ["--model", declaration["model"], "--alias", self.served_name(declaration)]
        words += ["--host", declaration["host"], "--port", str(port)]
        words += flag("threads", declaration["threads"] or None)
        words += flag("context-length", declaration["context_length"] or None)
        speculation = declaration["speculation"]
        if speculation:
            words += ["--speculation", str(speculation.get("algorithm", "")).lower()]
            words += flag("draft-model", speculation.get("draft_model") or None)
            words += flag("draft-tokens", speculation.get("draft_tokens") or None)
        return words + extra(declaration)

    def draft_depth(self, speculation: dict[str, Any], arguments: dict[str, Any]) -> int | None:
        return super().draft_depth(speculation, arguments) or DRAFT_TOKENS

    def resolved(self, info: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
        settings = info.get("default_generation_settings")
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        return {"parallel": info.get("total_slots"), "longest_request": context}

    def expected_workers(self, declaration: dict[str, Any]) -> int:
        return 1

    def find_workers(self, tree: Iterable[Process], declaration: dict[str, Any]) -> dict[int, Process]:
        items = list(tree)
        found = super().find_workers(items, declaration)
        if not found:
            # Another program was declared, or its path has spaces: the first of the tree is the one that was launched.
            found = {0: items[0]} if items and not items[0].zombie else {}
        return found

    def worker_rank(self, title: str, declaration: dict[str, Any]) -> int | None:
        # One process does everything: it is the server and rank 0.
        return 0 if self.part(title) == "server" else None
