# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A deterministic streaming LLM server with a known truth, and with the traps that fool load generators.

The first token of a request goes out ``ttft`` seconds after the request arrived, then ``k`` tokens every ``step``
seconds; deadlines are absolute, so lateness does not add up. What was really sent, and when, is told by
``GET /mock/truth``; that is what a client's figures are compared with: ours before a baseline (calibration.py), any
other in tests/bench. Linux (timerfd).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import json
import os
import socket
import ssl
import struct
from dataclasses import asdict, dataclass, field
from typing import Callable

from .wire import Wire, now

TRAPS = {
    "": "none",
    "early_role": "a chunk that only names the role, at once, long before the first token (chat)",
    "reasoning": "the first half of the tokens as reasoning_content (chat)",
    "reasoning_vllm": "the first half of the tokens as reasoning (chat)",
    "comments": "keep-alive comments between the events and before the first",
    "crlf": "CRLF line ends in the event stream",
    "split": "every write in pieces of three bytes: splits characters, lines, chunk sizes",
    "stall": "stops after the first few tokens and never goes on",
    "reset": "resets the connection in the middle of the stream",
    "http_429": "refuses every generation with 429",
    "http_503": "refuses every generation with 503",
    "flaky": "refuses every third generation with 503",
    "no_usage": "streams without usage",
    "wrong_usage": "tells one token more than was asked for",
    "short": "ends after half of the tokens (a stop token)",
    "buffered": "holds all back and sends it in one piece at the end (a proxy)",
    "no_stream": "answers with one JSON document though a stream was asked for",
    "bad_chunking": "garbage where the size of a chunk should be",
    "bad_json": "an event whose data is not JSON",
    "stream_error": "an error event in the middle of the stream",
    "close": "closes the connection after every answer",
    "loading": "answers 503 on /health",
    "unready_model": "serves another model than the one that is asked for",
}


@dataclass
class Settings:
    """How the server behaves. Times in seconds."""

    ttft: float = 0.02
    step: float = 0.01
    k: int = 1  # tokens per chunk after the first
    trap: str = ""
    model: str = "mock"
    key: str = ""  # bearer token that is asked for
    context: int = 32768
    tokenize: bool = True
    template_tokens: int = 0  # tokens that the server adds to every text prompt


@dataclass
class Truth:
    """What was really sent for one generation. Times of the monotonic clock that perf_counter reads on Linux."""

    received_at: float  # when the last byte of the request arrived
    first_at: float = 0.0
    last_at: float = 0.0
    tokens: int = 0
    chunks: int = 0
    prompt: str = ""
    prompt_tokens: int = 0
    complete: bool = False


class Ticker:
    """Timers at absolute times, exact to microseconds: the event loop's own are rounded to milliseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.timerfd_create(1, 0o4000)  # CLOCK_MONOTONIC, non-blocking
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._armed = float("inf")
        loop.add_reader(self.fd, self._fire)

    def at(self, due: float, call: Callable[[], None]) -> None:
        """Call ``call`` at ``due`` (of the monotonic clock)."""
        self._number += 1
        heapq.heappush(self._heap, (due, self._number, call))
        if due < self._armed:
            self._arm(due)

    def close(self) -> None:
        self._loop.remove_reader(self.fd)
        os.close(self.fd)

    def _arm(self, due: float) -> None:
        self._armed = due
        nanos = max(1, int(due * 1e9))
        self._libc.timerfd_settime(
            self.fd, 1, struct.pack("qqqq", 0, 0, nanos // 1_000_000_000, nanos % 1_000_000_000), None
        )

    def _fire(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)
        self._armed = float("inf")
        while self._heap and self._heap[0][0] <= now() + 2e-5:
            heapq.heappop(self._heap)[2]()
        if self._heap and self._heap[0][0] < self._armed:
            self._arm(self._heap[0][0])


@dataclass
class Job:
    """One generation that is being streamed."""

    chat: bool
    wanted: int
    usage: bool
    truth: Truth
    sent: int = 0
    step: int = 0
    held: list[bytes] = field(default_factory=list)


def word(index: int) -> str:
    """The text of a token; some are not ASCII, so that splits cut characters."""
    return (" über", " 字", " plain", " 🦙", " word", " café")[index % 6]


def text_of(messages: list[dict]) -> str:
    """The text of a chat; a message's content is a text or a list of parts."""
    texts = []
    for message in messages:
        content = message.get("content") or ""
        texts.append(content if isinstance(content, str) else " ".join(part.get("text", "") for part in content))
    return " ".join(texts)


class Connection:
    """One connection of a client: its requests one after the other."""

    def __init__(self, server: Server, wire: Wire) -> None:
        self.server, self.settings, self.wire = server, server.settings, wire
        self.buffer = bytearray()
        self.arrived_at = 0.0
        self.busy = False
        wire.on_data, wire.on_lost = self._data, self._lost
        server.connections += 1
        server.open.add(wire)

    def _lost(self, _error: Exception | None) -> None:
        self.server.open.discard(self.wire)

    def _data(self, when: float, data: bytes) -> None:
        self.arrived_at = when
        self.buffer += data
        self.pump()

    def pump(self) -> None:
        while not self.busy and not self.wire.closed:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
            fields = (line.partition(":") for line in lines[1:])
            headers = {name.strip().lower(): value.strip() for name, _colon, value in fields}
            length = int(headers.get("content-length", 0))
            if len(self.buffer) < end + 4 + length:
                return
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            method, path, _version = lines[0].split(" ")
            self.handle(method, path, headers, json.loads(body) if body else {})

    # --- plain answers -----------------------------------------------------------------------------

    def reply(self, value: object, status: str = "200 OK", kind: str = "application/json") -> None:
        raw = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        close = "connection: close\r\n" if self.settings.trap == "close" else ""
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(raw)}\r\n{close}\r\n"
        self.write(head.encode() + raw)
        if close:
            self.close()

    def close(self, reset: bool = False) -> None:
        self.server.open.discard(self.wire)
        if reset:
            self.wire.abort(reset=True)
        else:
            self.wire.close()

    def write(self, data: bytes) -> None:
        if self.settings.trap == "split":
            # One write call a piece; without Nagle most of them are handed over one by one.
            for place in range(0, len(data), 3):
                self.wire.write(data[place : place + 3])
        else:
            self.wire.write(data)

    def handle(self, method: str, path: str, headers: dict[str, str], body: dict) -> None:
        settings = self.settings
        if path == "/health":
            ready = settings.trap != "loading"
            self.reply(
                {"ok": True} if ready else {"error": "loading"}, "200 OK" if ready else "503 Service Unavailable"
            )
        elif settings.key and headers.get("authorization") != f"Bearer {settings.key}" and path.startswith("/v1"):
            self.reply({"error": {"message": "Invalid API key"}}, "401 Unauthorized")
        elif path == "/v1/models":
            name = "another" if settings.trap == "unready_model" else settings.model
            self.reply({"object": "list", "data": [{"id": name, "max_model_len": settings.context}]})
        elif path == "/tokenize" and settings.tokenize:
            text = body.get("prompt") or body.get("content") or ""
            self.reply({"tokens": [1] + [1000 + sum(one.encode()) * 7 % 9000 for one in text.split()]})
        elif path == "/flush_cache":
            self.server.flushes += 1
            self.reply({})
        elif path == "/metrics":
            done = [one for one in self.server.truths if one.complete]
            told = {
                "vllm:num_requests_running": len(self.server.truths) - len(done),
                "vllm:prompt_tokens_total": sum(one.prompt_tokens for one in done),
                "vllm:generation_tokens_total": sum(one.tokens for one in done),
            }
            lines = "".join(f'{name}{{model_name="{settings.model}"}} {value}.0\n' for name, value in told.items())
            self.reply(lines, kind="text/plain")
        elif path == "/mock/truth":
            self.reply(
                {"requests": [asdict(one) for one in self.server.truths], "connections": self.server.connections}
            )
        elif method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            self.generate(path.endswith("chat/completions"), body)
        else:
            self.reply({"error": "not found"}, "404 Not Found")

    # --- generations -------------------------------------------------------------------------------

    def generate(self, chat: bool, body: dict) -> None:
        trap, settings = self.settings.trap, self.settings
        self.server.generations += 1
        prompt = text_of(body["messages"]) if chat else body["prompt"]
        count = len(prompt) if isinstance(prompt, list) else len(prompt.split()) + settings.template_tokens
        wanted = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        truth = Truth(self.arrived_at, prompt=json.dumps(prompt)[:400], prompt_tokens=count)
        if trap in ("http_429", "http_503") or (trap == "flaky" and self.server.generations % 3 == 0):
            status = "429 Too Many Requests" if trap == "http_429" else "503 Service Unavailable"
            self.reply({"error": {"message": "overloaded on purpose"}}, status)
            return
        if count + wanted > settings.context:
            self.reply({"error": {"message": "context too short"}}, "400 Bad Request")
            return
        if not body.get("stream") or trap == "no_stream":
            usage = {"prompt_tokens": count, "completion_tokens": wanted, "total_tokens": count + wanted}
            choice = {"index": 0, "finish_reason": "length"}
            choice.update({"message": {"content": word(0) * wanted}} if chat else {"text": word(0) * wanted})
            self.reply({"choices": [choice], "usage": usage})
            return
        told = bool((body.get("stream_options") or {}).get("include_usage")) and trap != "no_usage"
        job = Job(chat, wanted // 2 if trap == "short" else wanted, told, truth)
        self.server.truths.append(truth)
        self.busy = True
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        opening = [head] if trap != "buffered" else []
        if trap == "buffered":
            job.held.append(head)
        if chat and trap == "early_role":
            opening.append(self.event(self.choice(job, {"role": "assistant", "content": ""}, "")))
        if trap == "comments":
            opening.append(self.chunk(b": keep-alive\n\n"))
        if trap == "stream_error":
            opening.append(self.event({"error": {"message": "out of memory on purpose", "code": 500}}))
        if opening:
            self.write(b"".join(opening))
        self.server.ticker.at(truth.received_at + settings.ttft, lambda: self.tick(job))

    def choice(self, job: Job, delta: dict, text: str, finish: str | None = None) -> dict:
        inner = {"index": 0, "finish_reason": finish, **({"delta": delta} if job.chat else {"text": text})}
        kind = "chat.completion.chunk" if job.chat else "text_completion"
        return {"id": "mock", "object": kind, "created": 0, "model": self.settings.model, "choices": [inner]}

    def chunk(self, data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data)

    def event(self, value: dict | bytes) -> bytes:
        data = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
        end = b"\r\n" if self.settings.trap == "crlf" else b"\n"
        return self.chunk(b"data: " + data + end + end)

    def tick(self, job: Job) -> None:
        if self.wire.closed:
            return
        settings, trap, truth = self.settings, self.settings.trap, job.truth
        many = 1 if job.step == 0 else min(settings.k, job.wanted - job.sent)
        text = "".join(word(job.sent + extra) for extra in range(many))
        name = "content"
        if trap.startswith("reasoning") and job.sent < job.wanted // 2:
            name = "reasoning_content" if trap == "reasoning" else "reasoning"
        data = self.event(self.choice(job, {name: text}, text))
        if trap == "comments":
            data += self.chunk(b": ping\n\n")
        if job.sent >= 3 and trap in ("stall", "reset", "bad_chunking", "bad_json"):
            self.break_off(trap)
            return
        when = now()
        truth.first_at = truth.first_at or when
        truth.last_at = when
        job.sent += many
        truth.tokens, truth.chunks = job.sent, truth.chunks + 1
        over = job.sent >= job.wanted
        if over:
            truth.complete = True
            data += self.ending(job)
        if trap == "buffered":
            job.held.append(data)
            data = b"".join(job.held) if over else b""
        self.write(data)
        if not over:
            job.step += 1
            self.server.ticker.at(truth.received_at + settings.ttft + job.step * settings.step, lambda: self.tick(job))
            return
        self.busy = False
        if trap == "close":
            self.close()
        self.pump()

    def ending(self, job: Job) -> bytes:
        data = self.event(self.choice(job, {}, "", "length"))  # an empty chunk with the reason: not a token
        if job.usage:
            told = job.sent + (self.settings.trap == "wrong_usage")
            usage = {
                "prompt_tokens": job.truth.prompt_tokens,
                "completion_tokens": told,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            data += self.event({**self.choice(job, {}, ""), "choices": [], "usage": usage})
        return data + self.event(b"[DONE]") + b"0\r\n\r\n"

    def break_off(self, trap: str) -> None:
        if trap == "reset":
            self.close(reset=True)
        elif trap == "bad_chunking":
            self.wire.write(b"zz top\r\n")
        elif trap == "bad_json":
            self.wire.write(self.event(b"{broken"))
        # stall: nothing more, for ever


class Server:
    """The listening server and what it saw."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.truths: list[Truth] = []
        self.connections = self.generations = self.flushes = 0
        self.open: set[Wire] = set()

    async def listen(self, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Serve on 127.0.0.1; the port."""
        loop = asyncio.get_running_loop()
        self.ticker = Ticker(loop)
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._socket.setblocking(False)
        loop.add_reader(self._socket, self._accept)
        return int(self._socket.getsockname()[1])

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _address = self._socket.accept()
                task = asyncio.get_running_loop().create_task(self._adopt(sock))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _adopt(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a client that does not trust our certificate is not our problem
            await Wire.adopt(sock, lambda wire: Connection(self, wire), self._tls)

    def stop(self) -> None:
        """Close everything; in the loop."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._socket.close()
        for task in self._tasks:
            task.cancel()
        for wire in list(self.open):
            wire.abort(reset=True)
        self.ticker.close()
