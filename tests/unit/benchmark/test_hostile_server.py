"""The measuring client against a server that answers anything: an error in words, within bounds."""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import prompts
from ansible_collections.groundstate.llm.plugins.module_utils.endpoint import Endpoint, EndpointError
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.http_client import BODY_LIMIT, Client
from ansible_collections.groundstate.llm.plugins.module_utils.workload import WorkloadError, resolve


class Server:
    """Gives every client the same bytes, again and again where ``forever``, and counts them."""

    def __init__(self, reply: bytes, forever: bytes = b""):
        self.reply, self.forever, self.sent = reply, forever, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def serve(self) -> None:
        while True:
            try:
                connection, _peer = self.listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65536)
                    connection.sendall(self.reply)
                    while self.forever:
                        connection.sendall(self.forever)
                        self.sent += len(self.forever)
                except OSError:
                    pass

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_error):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)
        assert not self.thread.is_alive()


def check(server: Server, model: str = "mock"):
    async def work():
        client = Client(server.url)
        try:
            return await Endpoint(client, get_engine("generic"), model, resolve({})).check()
        finally:
            await client.close()

    return asyncio.run(work())


def reply(value) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (reply(b"[" * 100_000), "not a list of models"),
        (reply({"data": {"a": 1}}), "not a list of models"),
        (reply({"data": [{"id": 5, "aliases": 5}, {"id": "x", "aliases": {"a": 1}}]}), "it serves: 5, x"),
        (reply({"data": [{"id": "\x1b[31m" + "x" * 1000}] * 1000}), "it serves: xxx"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "not a content length"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n", "answers 302"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", "not a chunk size"),
    ],
)
def test_a_list_of_models_that_is_none(answer, says):
    with Server(answer) as server, pytest.raises(EndpointError, match=says) as caught:
        check(server)
    assert len(str(caught.value)) < 800
    assert "\x1b" not in str(caught.value)


def test_a_model_may_have_aliases():
    with Server(reply({"data": [{"id": "x", "aliases": ["mock"]}]})) as server:
        assert check(server)["id"] == "x"


def test_an_answer_without_end_is_not_kept():
    refused = pytest.raises(EndpointError, match=f"answered with more than {BODY_LIMIT} bytes")
    with Server(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536) as server, refused:
        check(server)
    assert server.sent < 4 * BODY_LIMIT


# --- prompts_file ----------------------------------------------------------------------------------


def test_a_prompts_file_that_is_none(tmp_path):
    with pytest.raises(IsADirectoryError):
        prompts.read_file(str(tmp_path))
    with pytest.raises(WorkloadError, match="/dev/zero has more than 256 MiB"):
        prompts.read_file("/dev/zero")
    deep = tmp_path / "a.jsonl"
    deep.write_text('{"prompt": ' + "[" * 100_000 + "\n")
    with pytest.raises(WorkloadError, match="line 1"):
        prompts.read_file(str(deep))


def test_only_line_ends_end_a_prompt(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes('\ufeff{"prompt": "a\u2028b\x85c"}\r\n{"prompt": "d"}'.encode())
    assert prompts.read_file(str(path)) == ["a\u2028b\x85c", "d"]
