# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One OpenAI-compatible server as a measurement sees it: is it fit to be measured, and one timed request."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from . import files, server_metrics, stats
from .engines.base import Engine
from .http1 import HttpError
from .http_client import Client, Response
from .openai_stream import Stream, count, error_text
from .wire import now

#: Token events of the first moment, and their share of all, above which the first token was held back with others: time
#: to first token is wrong then, and the rate twice too high. A cycle of speculation gives a few at once by right.
FIRST_EVENTS, FIRST_SHARE = 10, 0.5


class EndpointError(Exception):
    """The server cannot be measured as declared; the message says why and what to do."""


@dataclass
class Sample:
    """One request. Times in seconds; ``error`` is "" for a request whose answer was complete and as long as asked."""

    sent_at: float = 0.0
    error: str = ""  # connect, timeout, reset, malformed, http_<code>, server_error, no_usage, short, ...
    message: str = ""
    ttft_s: float | None = None
    e2e_s: float | None = None
    tpot_s: float | None = None
    decode_tok_s: float | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    chunks: int = 0
    connect_s: float = 0.0
    gaps: list[float] = field(default_factory=list)
    text: str = ""  # the answer, until its repetition is known
    repetition: tuple[float | None, float | None] = (None, None)  # of the prompt and of the answer, see repetition.py
    speculation: dict[str, Any] | None = None  # what the engine told of it, see speculation_window.py

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def last_token_at(self) -> float:
        return self.sent_at + (self.e2e_s or 0.0)

    def as_row(self, origin: float) -> dict[str, Any]:
        """What is kept of it; ``sent_s`` counts from ``origin``."""
        return {
            "sent_s": self.sent_at - origin,
            "ok": self.ok,
            "error": self.error,
            "message": self.message[:300],
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "e2e_s": self.e2e_s,
            "decode_tok_s": self.decode_tok_s,
            "tokens": self.tokens,
            "chunks": self.chunks,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "gap_mean_s": stats.mean(self.gaps) if self.gaps else None,
            "gap_p99_s": stats.percentile(self.gaps, 99),
            "connect_s": self.connect_s,
        }


def judge(sample: Sample, response: Response, stream: Stream, asked: int) -> None:
    """Fill a sample from a complete response; sets ``error`` for one that must not be averaged in."""
    sample.sent_at, sample.connect_s = response.sent_at, response.connect_s
    sample.tokens, sample.prompt_tokens = stream.completion_tokens, stream.prompt_tokens
    sample.cached_tokens, sample.chunks = stream.cached_tokens, len(stream.times)
    sample.text, sample.speculation = "".join(stream.texts), stream.speculation
    if response.status != 200:
        sample.error = f"http_{response.status}"
        sample.message = reply_text(response)
    elif stream.error:
        sample.error, sample.message = "server_error", stream.error
    elif "text/event-stream" not in response.headers.get("content-type", ""):
        kind = response.headers.get("content-type", "no content type")
        sample.error, sample.message = "not_streamed", f"the answer is no event stream but {kind}"
    elif stream.completion_tokens is None:
        sample.error, sample.message = "no_usage", "the stream told no usage.completion_tokens"
    elif stream.completion_tokens < asked:
        why = stream.finish_reason or "no reason given"
        sample.error, sample.message = "short", f"{stream.completion_tokens} of {asked} tokens ({why})"
    elif stream.completion_tokens > asked:
        sample.error, sample.message = "wrong_usage", f"{stream.completion_tokens} tokens told, {asked} asked for"
    elif held_back(stream.times):
        # One chunk, or many in one piece: something between (or the server) held the stream back.
        together = len(stream.times) > 1 and stream.times[-1] > stream.times[0]
        which = f"the first of {asked} tokens arrived with others" if together else f"all {asked} tokens arrived"
        sample.error, sample.message = "not_streamed", f"{which} at one moment"
    if sample.error:
        return
    first, last, after = stream.times[0], stream.times[-1], asked - 1
    sample.ttft_s = first - response.sent_at
    sample.e2e_s = last - response.sent_at
    sample.tpot_s = (sample.e2e_s - sample.ttft_s) / after
    sample.decode_tok_s = after / (last - first)
    sample.gaps = [later - earlier for earlier, later in zip(stream.times, stream.times[1:])]


def held_back(times: list[float]) -> bool:
    """Whether the first token's event (times in seconds, as they came) arrived with so many that it must have waited.

    When only what follows the first token comes in pieces, first and last still tell time to first token and rate.
    """
    if not times or times[-1] <= times[0]:
        return True
    first = times.count(times[0])
    return first > FIRST_EVENTS and first > FIRST_SHARE * len(times)


def reply_text(response: Response) -> str:
    """The server's own words in an error reply, cut to a line."""
    text = response.body.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        text = error_text(files.decode_json(text)) or text
    return files.plain(" ".join(text.split()), 300)


class Endpoint:
    """A server, its model and how it is asked. ``extras`` of the engine make answers exactly as long as asked."""

    def __init__(self, client: Client, engine: Engine, model: str, workload: dict[str, Any]) -> None:
        self.client, self.engine, self.model, self.workload = client, engine, model, workload
        self.chat = workload["api"] == "chat"
        self.path = engine.chat_path if self.chat else engine.completions_path
        self.timeout_s: float = workload["request_timeout_s"]

    # --- fit to be measured ------------------------------------------------------------------------

    async def check(self) -> dict[str, Any]:
        """Reachable, ready, right key, right model, enough context. Makes no load.

        Returns the entry of the model list. Raises EndpointError.
        """
        where = f"{self.client.host}:{self.client.port}"
        if self.workload["prefix_cache"] == "flush" and self.engine.flush_cache_path is None:
            raise EndpointError(
                f"prefix_cache: {self.engine.title} has no request that empties its prefix cache; use defeat or keep"
            )
        health = await self._get(self.engine.health_path)
        if health.status not in (200, 404, 401, 403):  # 404: there is no such probe; a key is checked below
            raise EndpointError(
                f"the server at {where} is not ready: {self.engine.health_path} answers {health.status} "
                f"({reply_text(health)}); wait for it (llm_server_ready) and try again"
            )
        reply = await self._get(self.engine.models_path)
        if reply.status in (401, 403):
            raise EndpointError(
                f"the server at {where} refuses our key ({reply.status}: {reply_text(reply)}); set api_key to the key "
                "that the server was started with"
            )
        entries = _model_entries(reply)
        if entries is None:
            raise EndpointError(
                f"{self.engine.models_path} of the server at {where} answers {reply.status} "
                f"({reply_text(reply)}), not a list of models; is it an OpenAI-compatible server?"
            )
        for entry in entries:
            aliases = entry.get("aliases")
            if self.model == entry.get("id") or (isinstance(aliases, list) and self.model in aliases):
                self._check_context(entry)
                return entry
        served = files.plain(", ".join(str(one.get("id")) for one in entries), 300) or "none"
        raise EndpointError(f"the server at {where} does not serve model {self.model!r}; it serves: {served}")

    async def _get(self, path: str) -> Response:
        try:
            return await self.client.request("GET", path, timeout_s=min(30.0, self.timeout_s))
        except HttpError as error:
            raise EndpointError(f"the server does not answer: {error}; does it run, is this its address?") from error

    def _check_context(self, entry: dict[str, Any]) -> None:
        meta = entry.get("meta")
        limit = count(entry.get("max_model_len")) or count(meta.get("n_ctx") if isinstance(meta, dict) else None)
        if self.workload["prompts_file"]:
            return  # lengths are the file's; the server refuses what is too long for it
        wanted = self.workload["prompt_tokens"] + self.workload["output_tokens"]
        if limit and wanted > limit:
            raise EndpointError(
                f"the workload needs {wanted} tokens of context (prompt_tokens {self.workload['prompt_tokens']} + "
                f"output_tokens {self.workload['output_tokens']}), the server has {limit}; raise the server's "
                "context_length or make the workload smaller"
            )

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text as the server sees it. Raises EndpointError when it cannot tell."""
        request = self.engine.tokenize_request(text, self.model)
        if request is None:
            raise EndpointError(f"engine {self.engine.name} has no request for token ids that we know")
        body = json.dumps(request.body).encode()
        try:
            reply = await self.client.request("POST", request.path, body, min(60.0, self.timeout_s))
        except HttpError as error:
            raise EndpointError(f"{request.path}: {error}") from error
        try:
            tokens = files.decode_json(reply.body).get("tokens") if reply.status == 200 else None
        except (ValueError, AttributeError):
            tokens = None
        if not isinstance(tokens, list) or any(count(one) is None for one in tokens):
            # SGLang before September 2026 fails on its own reply when the tokenizer states no greatest length.
            raise EndpointError(f"{request.path} answers {reply.status} without token ids ({reply_text(reply)[:100]})")
        return tokens

    async def count_prompt(self, prompt: str | list[int]) -> int:
        """How many tokens the server counts in a prompt (asks for one token). Raises EndpointError."""
        try:
            reply = await self.client.request("POST", self.path, self.body(prompt, 1, stream=False), self.timeout_s)
        except HttpError as error:
            raise EndpointError(f"a request to count the tokens of a prompt failed: {error}") from error
        try:
            told = count(files.decode_json(reply.body)["usage"]["prompt_tokens"]) if reply.status == 200 else None
        except (ValueError, KeyError, TypeError):
            told = None
        if told is None:
            raise EndpointError(
                f"{self.path} answers {reply.status} without usage.prompt_tokens ({reply_text(reply)}); the length of "
                "prompts cannot be known on this server"
            )
        return told

    # --- what the server tells besides answers ------------------------------------------------------

    async def metrics(self) -> dict[str, float] | None:
        """The server's own metrics by our names; None where it tells none."""
        if self.engine.metrics_path is None:
            return None
        try:
            reply = await self.client.request("GET", self.engine.metrics_path, timeout_s=min(10.0, self.timeout_s))
        except HttpError:
            return None
        if reply.status != 200:
            return None
        return server_metrics.parse(reply.body.decode("utf-8", "replace"), self.engine.metrics) or None

    async def flush_cache(self) -> None:
        """Empty the prefix cache. Raises EndpointError when it cannot be done."""
        path = str(self.engine.flush_cache_path)  # check() has refused engines without one
        try:
            reply = await self.client.request("POST", path, timeout_s=min(30.0, self.timeout_s))
        except HttpError as error:
            raise EndpointError(f"the prefix cache could not be emptied: {error}") from error
        if reply.status != 200:
            raise EndpointError(f"the prefix cache could not be emptied: {path} answers {reply.status}")

    # --- one timed request -------------------------------------------------------------------------

    def body(self, prompt: str | list[int], tokens: int, stream: bool = True) -> bytes:
        """The request as JSON; made before the clock starts."""
        asked: dict[str, Any] = {
            "model": self.model,
            "max_tokens": tokens,
            "temperature": self.workload["temperature"],
            "stream": stream,
        }
        if self.workload["temperature"] > 0:
            asked["seed"] = self.workload["seed"]
        if stream:
            asked["stream_options"] = {"include_usage": True}
            asked.update(self.engine.speculation_fields)
        if self.chat:
            asked["messages"] = [{"role": "user", "content": prompt}]
        else:
            asked["prompt"] = prompt
        asked.update(self.engine.benchmark_extras(tokens))
        return json.dumps(asked).encode()

    async def measure(self, body: bytes, tokens: int) -> Sample:
        """Send one request and time its stream; never raises for a request that failed."""
        sample, stream = Sample(sent_at=now()), Stream(self.engine.told_speculation)
        try:
            response = await self.client.request("POST", self.path, body, self.timeout_s, stream.feed)
        except HttpError as error:
            sample.error, sample.message = error.kind, str(error)
            sample.tokens, sample.chunks = stream.completion_tokens, len(stream.times)
        except ValueError as error:
            sample.error, sample.message = "malformed", str(error)
        else:
            judge(sample, response, stream, tokens)
        return sample


def _model_entries(reply: Response) -> list[dict[str, Any]] | None:
    if reply.status != 200:
        return None
    try:
        data = files.decode_json(reply.body)["data"]
    except (ValueError, KeyError, TypeError):
        return None
    return [one for one in data if isinstance(one, dict)] if isinstance(data, list) else None
