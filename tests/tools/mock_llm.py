"""A deterministic streaming LLM server with a known truth, and with the traps that fool load generators.

The first token of a request goes out ``ttft`` seconds after the request was read, then ``k`` tokens every ``step``
seconds; deadlines are absolute, so lateness does not add up. What was really sent, and when, is told by
``GET /mock/truth``; that is what a client's figures are compared with.

Run it alone (``python mock_llm.py --port 0``) or in a test: ``with Mock(trap="early_role") as mock: mock.url``.
Only the standard library; Linux (timerfd).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import heapq
import json
import os
import struct
import threading
import time
from dataclasses import asdict, dataclass, field

now = time.perf_counter

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

    received_at: float
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
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.timerfd_create(1, 0o4000)  # CLOCK_MONOTONIC, non-blocking
        self._heap: list[tuple[float, int, object]] = []
        self._number = 0
        self._armed = float("inf")
        loop.add_reader(self.fd, self._fire)

    def at(self, due: float, call) -> None:
        self._number += 1
        heapq.heappush(self._heap, (due, self._number, call))
        if due < self._armed:
            self._arm(due)

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


class Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server, self.settings = server, server.settings
        self.buffer = bytearray()
        self.transport: asyncio.Transport | None = None
        self.busy = False

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.server.connections += 1
        self.server.open.add(transport)

    def connection_lost(self, exc) -> None:
        self.server.open.discard(self.transport)
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.pump()

    def pump(self) -> None:
        while not self.busy and self.transport is not None:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
            headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines[1:])}
            length = int(headers.get("content-length", 0))
            if len(self.buffer) < end + 4 + length:
                return
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            method, path, _version = lines[0].split(" ")
            self.handle(method, path, headers, json.loads(body) if body else {})

    # --- plain answers -----------------------------------------------------------------------------

    def reply(self, value, status: str = "200 OK") -> None:
        raw = json.dumps(value).encode()
        close = "connection: close\r\n" if self.settings.trap == "close" else ""
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n{close}\r\n"
        self.write(head.encode() + raw)
        if close and self.transport:
            self.transport.close()

    def write(self, data: bytes) -> None:
        if self.transport is None:
            return
        if self.settings.trap == "split":
            # One write call a piece; TCP_NODELAY (asyncio's default) hands most of them over one by one.
            for place in range(0, len(data), 3):
                self.transport.write(data[place : place + 3])
        else:
            self.transport.write(data)

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
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        count = len(prompt) if isinstance(prompt, list) else len(prompt.split()) + settings.template_tokens
        wanted = int(body.get("max_tokens", 16))
        truth = Truth(now(), prompt=json.dumps(prompt)[:400], prompt_tokens=count)
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
        usage = bool((body.get("stream_options") or {}).get("include_usage")) and trap != "no_usage"
        job = Job(chat, wanted // 2 if trap == "short" else wanted, usage, truth)
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
        return {"id": "mock", "object": "chunk", "model": self.settings.model, "choices": [inner]}

    def chunk(self, data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data)

    def event(self, value: dict | bytes) -> bytes:
        data = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
        end = b"\r\n" if self.settings.trap == "crlf" else b"\n"
        return self.chunk(b"data: " + data + end + end)

    def tick(self, job: Job) -> None:
        if self.transport is None:
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
        if trap == "close" and self.transport is not None:
            self.transport.close()
        self.pump()

    def ending(self, job: Job) -> bytes:
        data = self.event(self.choice(job, {}, "", "length"))  # an empty chunk with the reason: not a token
        if job.usage:
            told = job.sent + (self.settings.trap == "wrong_usage")
            usage = {"prompt_tokens": job.truth.prompt_tokens, "completion_tokens": told}
            usage["prompt_tokens_details"] = {"cached_tokens": 0}
            data += self.event({"id": "mock", "choices": [], "usage": usage})
        return data + self.event(b"[DONE]") + b"0\r\n\r\n"

    def break_off(self, trap: str) -> None:
        assert self.transport is not None
        if trap == "reset":
            self.transport.abort()
        elif trap == "bad_chunking":
            self.transport.write(b"zz top\r\n")
        elif trap == "bad_json":
            self.transport.write(self.event(b"{broken"))
        # stall: nothing more, for ever


class Server:
    """The listening server and what it saw."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.truths: list[Truth] = []
        self.connections = self.generations = 0
        self.open: set = set()

    async def listen(self, port: int, tls=None) -> int:
        loop = asyncio.get_running_loop()
        self.ticker = Ticker(loop)
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", port, backlog=4096, ssl=tls)
        return self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        for transport in list(self.open):
            transport.abort()
        self._server.close()
        asyncio.get_running_loop().remove_reader(self.ticker.fd)
        os.close(self.ticker.fd)


class Mock:
    """The server in a thread of this process, for tests; ``truths`` may be read once the requests are over."""

    def __init__(self, tls=None, **settings) -> None:
        self.server = Server(Settings(**settings))
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Mock:
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self.server.listen(0, self._tls), self._loop).result(10)
        self.port = port
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    def __exit__(self, *_unused) -> None:
        async def stop() -> None:
            self.server.stop()
            await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def truths(self) -> list[Truth]:
        return self.server.truths


async def serve(port: int, settings: Settings) -> None:
    server = Server(settings)
    print(await server.listen(port), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0: a free one; the port is printed as the first line")
    defaults = Settings()
    for name, value in asdict(defaults).items():
        kind = (lambda text: text == "true") if isinstance(value, bool) else type(value)
        parser.add_argument("--" + name.replace("_", "-"), type=kind, default=value)
    given = vars(parser.parse_args())
    port = given.pop("port")
    if given["trap"] not in TRAPS:
        parser.error(f"unknown trap {given['trap']!r}; use one of {', '.join(TRAPS)}")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(port, Settings(**given)))


if __name__ == "__main__":
    main()
