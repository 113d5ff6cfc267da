"""The client against the deterministic server: connections, time-outs, TLS, and what each trap is called."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.endpoint import Endpoint, EndpointError, held_back
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.http1 import HttpError
from ansible_collections.groundstate.llm.plugins.module_utils.http_client import Client
from ansible_collections.groundstate.llm.plugins.module_utils.workload import resolve
from mock_llm import Mock

TOKENS = 12


def ask(mock: Mock, count: int = 1, headers=None, **options):
    """``count`` requests one after the other, over one client; their samples."""
    engine = options.pop("engine", "vllm")
    load = resolve({"output_tokens": TOKENS, "request_timeout_s": options.pop("timeout_s", 10), **options})

    async def work():
        client = Client(mock.url, headers)
        try:
            endpoint = Endpoint(client, get_engine(engine), "mock", load)
            body = endpoint.body("one two three" if load["api"] == "chat" else [5, 6, 7], TOKENS)
            return [await endpoint.measure(body, TOKENS) for _ in range(count)]
        finally:
            await client.close()

    return asyncio.run(work())


def check(mock: Mock, headers=None, model="mock", **options):
    async def work():
        client = Client(mock.url, headers)
        try:
            return await Endpoint(client, get_engine("vllm"), model, resolve(options)).check()
        finally:
            await client.close()

    return asyncio.run(work())


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize(
    "trap", ["", "early_role", "reasoning", "reasoning_vllm", "comments", "crlf", "split", "close"]
)
def test_streams_that_are_odd_but_right_are_measured(api, trap):
    with Mock(trap=trap) as mock:
        samples = ask(mock, 2, api=api)
        truths = list(mock.truths)
    assert [sample.error for sample in samples] == ["", ""]
    for sample, truth in zip(samples, truths, strict=True):
        assert (sample.tokens, sample.chunks, sample.prompt_tokens) == (TOKENS, truth.chunks, truth.prompt_tokens)
        # The server is in this process: its clock is ours. Bytes cannot arrive before they were sent.
        assert sample.ttft_s >= truth.first_at - truth.received_at
        assert sample.ttft_s >= mock.server.settings.ttft - 1e-4  # its timer may fire so much early
        assert sample.sent_at <= truth.received_at
        assert sample.last_token_at >= truth.last_at
        assert sample.decode_tok_s == pytest.approx((TOKENS - 1) / (sample.e2e_s - sample.ttft_s))
        assert sample.tpot_s == pytest.approx(1 / sample.decode_tok_s)
        assert len(sample.gaps) == sample.chunks - 1
        assert sum(sample.gaps) == pytest.approx(sample.e2e_s - sample.ttft_s)


def test_several_tokens_a_chunk_do_not_change_the_rate_they_change_the_gap():
    with Mock(k=3, step=0.03, ttft=0.05) as mock:
        (sample,) = ask(mock)
    assert (sample.chunks, sample.tokens) == (5, TOKENS)  # 1 + 3 + 3 + 3 + 2
    assert sum(sample.gaps) / len(sample.gaps) > 2 * sample.tpot_s


@pytest.mark.parametrize(
    ("trap", "error", "words"),
    [
        ("http_429", "http_429", "overloaded on purpose"),
        ("http_503", "http_503", "overloaded on purpose"),
        ("no_usage", "no_usage", "usage"),
        ("wrong_usage", "wrong_usage", "13 tokens told, 12 asked for"),
        ("short", "short", "6 of 12 tokens (length)"),
        ("buffered", "not_streamed", "one moment"),
        ("no_stream", "not_streamed", "application/json"),
        ("bad_chunking", "malformed", "zz top"),
        ("bad_json", "malformed", "{broken"),
        ("stream_error", "server_error", "out of memory on purpose"),
        ("reset", "reset", "middle of the response"),
    ],
)
def test_each_failure_has_its_name_and_no_figures(trap, error, words):
    with Mock(trap=trap) as mock:
        (sample,) = ask(mock)
    assert sample.error == error
    assert words in sample.message
    assert not sample.ok
    assert (sample.ttft_s, sample.tpot_s, sample.decode_tok_s) == (None, None, None)


@pytest.mark.parametrize(
    ("times", "held"),
    [
        ([], True),
        ([1.0], True),
        ([1.0] * 513, True),
        ([2.478] * 300 + [2.480] * 100 + [2.483] * 113, True),  # vLLM, its front end starved: TTFT 2.5 s, 100,000 tok/s
        ([0.01] + [2.3] * 512, False),  # the same, after its first event: first and last token have their true times
        ([piece / 10 for piece in range(40) for _ in range(11)], False),  # a proxy that sends 4 KB at a time
        ([1.0] * 11 + [1.1] * 10, True),
        ([1.0] * 11 + [1.1] * 11, False),
        ([1.0] * 5 + [1.1] * 5 + [1.2] * 5, False),  # a short answer by speculation, each token an event
        ([1.0, 1.01, 1.01, 1.02], False),  # a busy machine, now and then
        ([1.0, 1.1], False),
    ],
)
def test_a_stream_in_a_few_pieces_was_held_back(times, held):
    assert held_back(times) is held


def test_a_stalled_stream_is_a_timeout():
    with Mock(trap="stall") as mock:
        (sample,) = ask(mock, timeout_s=0.4)
    assert sample.error == "timeout"
    assert "0.4 s" in sample.message


def test_a_failed_request_does_not_spoil_the_next():
    with Mock(trap="flaky") as mock:
        samples = ask(mock, 6)
    assert [sample.error for sample in samples] == ["", "", "http_503"] * 2


def test_connections_are_kept_and_opened_ahead():
    async def work(url: str):
        client = Client(url)
        await client.open(3)
        replies = [await client.request("GET", "/health") for _ in range(5)]
        await client.close()
        return replies

    with Mock() as mock:
        replies = asyncio.run(work(mock.url))
        assert mock.server.connections == 3
    assert {reply.status for reply in replies} == {200}
    assert {reply.connect_s for reply in replies} == {0.0}


def test_an_idle_connection_that_the_server_closed_is_replaced():
    async def work(url: str, mock: Mock):
        client = Client(url)
        assert (await client.request("GET", "/health")).status == 200
        for transport in list(mock.server.open):
            mock._loop.call_soon_threadsafe(transport.abort)
        reply = await client.request("GET", "/health")
        await client.close()
        return reply

    with Mock() as mock:
        assert asyncio.run(work(mock.url, mock)).status == 200
        assert mock.server.connections == 2


def test_nobody_listens():
    with Mock() as mock:
        url = mock.url

    async def work():
        await Client(url).request("GET", "/health")

    with pytest.raises(HttpError, match="cannot connect") as caught:
        asyncio.run(work())
    assert caught.value.kind == "connect"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", ""])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ValueError, match="not a URL"):
        Client(url)


def test_headers_cannot_smuggle_lines():
    with pytest.raises(ValueError, match="line break"):
        Client("http://host", {"authorization": "Bearer x\r\nhost: other"})


@pytest.fixture
def certificate(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 "
        f"-keyout {key} -out {cert}".split(),
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, str(cert)


def test_tls_checks_the_certificate_unless_told_otherwise(certificate):
    context, path = certificate

    async def work(url: str, **options) -> int:
        client = Client(url, **options)
        try:
            return (await client.request("GET", "/health")).status
        finally:
            await client.close()

    with Mock(tls=context) as mock:
        assert asyncio.run(work(mock.url, ca_path=path)) == 200
        assert asyncio.run(work(mock.url, validate=False)) == 200
        with pytest.raises(HttpError, match="certificate") as caught:
            asyncio.run(work(mock.url))
    assert caught.value.kind == "connect"


def test_a_server_that_fits_is_let_through_without_load():
    with Mock() as mock:
        assert check(mock)["id"] == "mock"
        assert mock.server.generations == 0


@pytest.mark.parametrize(
    ("settings", "call", "words"),
    [
        ({"trap": "loading"}, {}, "not ready: /health answers 503"),
        ({"key": "secret"}, {}, "refuses our key (401: Invalid API key)"),
        ({"key": "secret"}, {"headers": {"authorization": "Bearer wrong"}}, "refuses our key"),
        ({}, {"model": "other"}, "does not serve model 'other'; it serves: mock"),
        (
            {"context": 100},
            {},
            "256 tokens of context (prompt_tokens 128 + output_tokens 128), the server has 100",
        ),
    ],
)
def test_a_server_that_does_not_fit_is_refused_in_words(settings, call, words):
    with Mock(**settings) as mock, pytest.raises(EndpointError) as caught:
        check(mock, **call)
    assert words in str(caught.value)


def test_the_right_key_is_let_through():
    with Mock(key="secret") as mock:
        assert check(mock, headers={"authorization": "Bearer secret"})["id"] == "mock"


def test_a_proxy_that_is_set_is_named_when_a_connection_fails(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    with Mock() as mock:
        url = mock.url

    async def work():
        await Client(url).request("GET", "/health")

    with pytest.raises(HttpError, match="https_proxy is set, but a measurement never goes through a proxy"):
        asyncio.run(work())


def test_a_stream_over_tls_is_measured_like_any_other(certificate):
    context, path = certificate
    wanted = resolve({"output_tokens": TOKENS})

    async def work(url: str):
        client = Client(url, ca_path=path)
        try:
            endpoint = Endpoint(client, get_engine("vllm"), "mock", wanted)
            return [await endpoint.measure(endpoint.body([5, 6, 7], TOKENS), TOKENS) for _ in range(2)]
        finally:
            await client.close()

    with Mock(tls=context, trap="split") as mock:
        samples = asyncio.run(work(mock.url))
        truths = list(mock.truths)
    assert [sample.error for sample in samples] == ["", ""]
    for sample, truth in zip(samples, truths, strict=True):
        assert (sample.tokens, sample.chunks) == (TOKENS, truth.chunks)
        assert sample.ttft_s >= truth.first_at - truth.received_at
        assert sample.last_token_at >= truth.last_at
    assert mock.server.connections == 1


def test_a_slow_first_byte_is_time_to_first_token():
    with Mock(ttft=0.4, step=0.002) as mock:
        (sample,) = ask(mock)
        (truth,) = mock.truths
    assert sample.ttft_s >= 0.4 - 1e-4
    assert sample.ttft_s >= truth.first_at - truth.received_at
    assert sum(sample.gaps) == pytest.approx(sample.e2e_s - sample.ttft_s, abs=1e-6)
