"""The kernel's time of arrival: it does not depend on when we read, and never lies before the sending."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import wire
from ansible_collections.groundstate.llm.plugins.module_utils.wire import Wire


@pytest.fixture(scope="module", autouse=True)
def stamping():
    """The kernel begins to stamp a moment after the first socket asks for it; until then it stamps at the reading."""
    with socket.socket() as first:
        first.setsockopt(socket.SOL_SOCKET, wire.SO_TIMESTAMPNS, 1)
        time.sleep(0.5)
        yield


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _address = server.accept()
    return one, two


def run(work) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_late_reader_gets_the_time_of_arrival():
    got: list[tuple[float, bytes, float]] = []

    async def work() -> None:
        here, there = pair()
        end = await Wire.adopt(here, lambda made: None)
        end.on_data = lambda when, data: got.append((when, data, end.late_s))
        before = wire.now()
        there.send(b"first")
        after = wire.now()
        time.sleep(1.0)  # the loop cannot read meanwhile
        await asyncio.sleep(0.05)
        end.abort()
        there.close()
        (arrived,) = got
        if not end.stamped:
            pytest.skip("this kernel stamps nothing")
        assert before <= arrived[0] <= after + 0.5  # far below the second that the reader was late
        assert arrived[1] == b"first"
        assert arrived[2] > 0.4

    run(work)


def test_without_a_stamp_the_time_of_reading_is_taken(monkeypatch):
    monkeypatch.setattr(wire, "arrival", lambda ancillary: None)
    got: list[tuple[float, float]] = []

    async def work() -> None:
        here, there = pair()
        end = await Wire.adopt(here, lambda made: None)
        end.on_data = lambda when, data: got.append((when, end.late_s))
        there.send(b"x")
        time.sleep(0.2)
        read_from = wire.now()
        await asyncio.sleep(0.05)
        end.abort()
        there.close()
        assert got[0][0] >= read_from
        assert got[0][1] == 0.0

    run(work)


@pytest.mark.parametrize("age_s", [-5.0, wire.MAX_AGE_S + 5])
def test_a_clock_that_was_set_meanwhile_is_not_believed(age_s):
    stamp = time.time_ns() - int(age_s * 1e9)
    data = wire._TIMESPEC.pack(stamp // 1_000_000_000, stamp % 1_000_000_000)
    assert wire.arrival([(socket.SOL_SOCKET, wire.SO_TIMESTAMPNS, data)]) is None
    assert wire.arrival([(socket.SOL_SOCKET, wire.SO_TIMESTAMPNS, data[:8])]) is None
    assert wire.arrival([]) is None


def test_more_than_the_kernel_takes_at_once_arrives_whole():
    async def work() -> None:
        here, there = pair()
        there.setblocking(False)
        loop = asyncio.get_running_loop()
        end = await Wire.adopt(here, lambda made: None)
        sent = bytes(range(256)) * 40_000
        end.write(sent)
        end.write(b"and the end")
        got = bytearray()
        while len(got) < len(sent) + 11:
            got += await loop.sock_recv(there, 1 << 20)
        assert bytes(got) == sent + b"and the end"
        end.close()
        assert await loop.sock_recv(there, 10) == b""
        there.close()

    run(work)


def test_a_reset_and_an_end_are_told_apart():
    async def work() -> None:
        for reset, kind in ((True, ConnectionResetError), (False, type(None))):
            here, there = pair()
            lost = asyncio.get_running_loop().create_future()
            end = await Wire.adopt(here, lambda made: None)
            end.on_lost = lost.set_result
            other = await Wire.adopt(there, lambda made: None)
            other.abort(reset=reset)
            assert isinstance(await lost, kind)
            assert end.closed

    run(work)


def test_nobody_there_is_an_oserror():
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await Wire.connect("127.0.0.1", port)

    run(work)
