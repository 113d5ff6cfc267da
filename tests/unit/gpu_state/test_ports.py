"""Ports: real sockets in every state that a server's port can be in."""

from __future__ import annotations

import os
import re
import socket

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import ports

KERNEL = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


@pytest.fixture
def taken():
    """A bound TCP socket that does not listen; listen() on it makes it a listener."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
        yield one


def test_a_listener_is_named_with_its_process(taken):
    taken.listen()
    port = taken.getsockname()[1]
    (use,) = ports.who_has(port)
    assert (use.port, use.state, use.pid) == (port, "listening", os.getpid())
    assert use.cmdline
    assert ports.who_has(port, "127.0.0.1")[0].pid == os.getpid()


def test_a_bound_socket_that_does_not_listen_is_found(taken):
    (use,) = ports.who_has(taken.getsockname()[1])
    assert use.state == "bound"
    # Kernels before 6.8 cannot tell whose it is.
    assert use.pid == (os.getpid() if KERNEL >= (6, 8) else None)


def test_whose_it_is_may_be_unknown(taken, monkeypatch):
    for answer in (None, set(), {1}):
        monkeypatch.setattr(ports.sock_diag, "bound", lambda port, answer=answer: answer)
        assert ports.who_has(taken.getsockname()[1]) == [ports.PortUse(taken.getsockname()[1], "bound", None, "")]


@pytest.mark.skipif(KERNEL < (6, 8), reason="the kernel does not tell of bound sockets")
def test_the_kernel_tells_bound_sockets_of_both_families():
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")):
        with socket.socket(family) as one, socket.socket(family) as other:
            one.bind((address, 0))
            other.bind((address, 0))
            assert ports.sock_diag.bound(one.getsockname()[1]) == {os.fstat(one.fileno()).st_ino}


def test_a_broken_answer_of_the_kernel_is_unknown(monkeypatch):
    monkeypatch.setattr(ports.sock_diag, "_dump", lambda question: [b"short"])
    assert ports.sock_diag.bound(80) is None


def test_a_listener_on_another_address_does_not_matter(taken):
    taken.listen()
    assert ports.who_has(taken.getsockname()[1], "127.0.0.2") == []


def test_time_wait_is_free(taken):
    taken.listen()
    port = taken.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        server, _peer = taken.accept()
        server.close()  # the side that closes first keeps TIME_WAIT, and its local port is the server's
        assert client.recv(1) == b""
    taken.close()
    assert ports.who_has(port) == []
    (told,) = ports.tell(port)
    assert (told["state"], told["pid"], told["unit"]) == ("time_wait", None, "")


def test_a_free_port_can_be_bound_and_skips_the_taken(taken):
    port = taken.getsockname()[1]
    first = ports.free_port(port)
    assert first > port
    second = ports.free_port(port, taken={first})
    assert second > first
    with socket.socket() as one:
        one.bind(("127.0.0.1", second))


def test_no_free_port_is_an_error():
    with pytest.raises(ValueError, match="no free TCP port from 65535"):
        ports.free_port(65535, taken={65535})


@pytest.mark.parametrize("number", [0, -1, 65536])
def test_a_number_that_is_no_port_is_an_error(number):
    with pytest.raises(ValueError, match="not a TCP port"):
        ports.who_has(number)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost", ""])
def test_a_host_that_can_be_listened_on(host):
    assert ports.unusable(host) == ""


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("no.such.host.invalid", "does not resolve"),
        ("x" * 70, "does not resolve"),
        ("192.0.2.1", "cannot be listened on here"),
    ],
)
def test_a_host_that_cannot_be_listened_on(host, why):
    assert why in ports.unusable(host)
