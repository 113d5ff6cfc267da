"""Whatever listens at a port or stands in a log may be anything: bounded in time and size, never a traceback."""

from __future__ import annotations

import json
import os
import socket
import threading
import time

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import (
    death,
    files,
    nccl_ras,
    phase_times,
    probe,
    readiness,
    ready_file,
    server_env,
    server_metrics,
    servers,
    waiting,
)
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.engines.base import Request

DEEP = "[" * 100_000


class Drip:
    """Accepts one client, sends a head, then a byte at a time until that is cut off."""

    def __init__(self, head: bytes, drop: bytes):
        self.head, self.drop = head, drop
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[:2]
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def serve(self) -> None:
        connection, _peer = self.listener.accept()
        with connection:
            try:
                connection.sendall(self.head)
                while True:
                    connection.sendall(self.drop)
                    time.sleep(0.02)
            except OSError:
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_error):
        self.listener.close()
        self.thread.join(10)
        assert not self.thread.is_alive(), "the client let go of it"


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    ],
)
def test_a_reply_that_drips_is_none(head, drop):
    with Drip(head, drop) as server:
        reply = probe.ask(f"http://127.0.0.1:{server.address[1]}", Request("/health", timeout_s=0.3))
    assert (reply.status, reply.error) == (0, "no reply within 0.3 s")


def test_a_health_service_that_drips_is_left_when_its_time_is_over():
    with Drip(b"NCCL version 2.28.9\n\nErrors\n", b"x") as service:
        text = nccl_ras.ask(service.address, timeout_s=0.3)
    assert nccl_ras.parse(text) == []


def test_json_that_is_nested_too_deeply_is_no_json():
    assert probe.Reply(200, DEEP).json is None
    with pytest.raises(ValueError, match="nested too deeply"):
        files.decode_json(DEEP)


@pytest.mark.parametrize("text", ["x:99999", "x:0", "x:²", "x:-1", ":" + "9" * 5000, "x:٣"])
def test_an_address_of_the_health_service_that_is_none(text):
    assert nccl_ras.address({"NCCL_RAS_ADDR": text}) == ("127.0.0.1", 28028)


def test_a_host_of_the_health_service_that_is_none():
    assert nccl_ras.ask(("x" * 300 + "\0", 28028), 0.1) == ""


def test_a_report_without_end_is_cut():
    said = "\nErrors\nINCOMPLETE\n" + "  x\n" * 200_000
    (one,) = nccl_ras.parse(said)
    assert len(one.text) <= 2000
    many = "\nErrors\n" + "INCOMPLETE\n  \x1b[31mx\n" * 1000
    assert len(nccl_ras.parse(many)) == 100
    assert nccl_ras.parse(many)[0].text == "x"


def test_numbers_that_are_none_in_metrics():
    names = {"drafts": "d", "running_requests": "r", "kv_cache_use": "k"}
    text = 'd 1e308\nd{a="b"} 1e308\nr -Inf\nr NaN\nr 3\nk 1e400\nk 0.5\n' + "d{" + "} " * 100_000 + "x\n"
    found = server_metrics.parse(text, names)
    assert found == {"kv_cache_use": 0.5, "running_requests": 3.0}
    told = server_metrics.compare({"drafts": 0.0}, {"drafts": 1e-300, "accepted_tokens": 1e18}, 0)
    json.dumps(told, allow_nan=False)


# --- logs ----------------------------------------------------------------------------------------


def test_lines_of_a_log_are_cut_and_without_colours(tmp_path):
    path = tmp_path / "server.log"
    path.write_bytes(b"\x1b[1;31mERROR\x1b[0m a\tb\x07\x1b]0;title\n" + b"x" * 100_000 + b"\n\xff\n")
    assert files.tail(str(path)) == ["ERROR a\tb]0;title", "x" * files.LONGEST_LINE, "\ufffd"]


def test_a_line_without_end_is_not_kept_as_a_whole():
    rest = ""
    for _ in range(20):
        lines, rest = readiness.split_lines("x" * 100_000, rest)
        assert lines == []
        assert len(rest) <= files.LONGEST_LINE
    lines, rest = readiness.split_lines("y\nnext\n", rest)
    assert (lines[0][0], lines[1], rest) == ("x", "next", "")
    assert len(lines[0]) <= files.LONGEST_LINE


@pytest.mark.parametrize("engine", ["sglang", "vllm", "llama_cpp", "generic"])
@pytest.mark.parametrize(
    "line",
    ["shards: " * 500_000, "server_args=ServerArgs(" + " " * 4_000_000 + "x", "INFO x] " + "Overriding " * 400_000],
)
def test_no_line_of_a_log_takes_the_square_of_its_length(engine, line):
    """With the whole line, each of these would take minutes to hours."""
    adapter = get_engine(engine)
    (cut,), _rest = readiness.split_lines(line + "\n")
    assert len(cut) <= files.LONGEST_LINE
    assert adapter.phase_of(cut) in {None, *(phase.name for phase in adapter.phases)}
    assert [adapter.progress_of(phase.name, cut) for phase in adapter.phases] == [None] * len(adapter.phases)
    assert isinstance(adapter.resolved_arguments(line) or {}, dict)


@pytest.mark.parametrize("text", ["² 1", "9" * 5000, "٣ 1", "-1", "", "SIG", "256 x"])
def test_an_exit_file_with_anything_in_it(text):
    assert readiness.exit_words(text)
    assert readiness.exit_signal(text) >= 0


def test_a_list_of_many_models_is_told_in_short():
    probes = readiness.Probes(get_engine("sglang"), {"served_model_name": "mine", "model": "/m"})
    probes.take(200, None, "", 1.0)
    probes.take(200, {"data": [{"id": "\x1b[31m" + "x" * 100}] * 10_000}, "", 1.0)
    assert probes.last.endswith(", not mine")
    assert len(probes.last) < 300
    assert "\x1b" not in probes.last


# --- files of a server ---------------------------------------------------------------------------

GOOD = {"elapsed_s": 3.0, "ready_at": 5.0, "phases": [{"name": "starting", "at_s": 0.0, "seconds": 3.0}]}


@pytest.mark.parametrize(
    "damage",
    [
        {"elapsed_s": "3"},
        {"elapsed_s": float("nan")},
        {"ready_at": "now"},
        {"ready_at": float("inf")},
        {"phases": [{"name": "starting", "at_s": 0.0, "seconds": "3"}]},
        {"phases": [{"name": ["x"], "at_s": 0.0}]},
        {"phases": [{"name": "starting", "at_s": None}]},
        {"phases": [7]},
    ],
)
def test_damaged_earlier_starts_are_done_without(tmp_path, damage):
    path = tmp_path / phase_times.FILE
    path.write_text(json.dumps({"bad": {**GOOD, **damage}, "good": GOOD}))
    assert phase_times.last_start(str(tmp_path), "bad") == {}
    assert phase_times.last_start(str(tmp_path), "good") == GOOD
    phase_times.remember(str(tmp_path), "new", GOOD)
    assert set(json.loads(path.read_text())) == {"good", "new"}


@pytest.mark.parametrize(
    "damage",
    [
        {"log_offset": -5},
        {"elapsed_s": float("nan")},
        {"active_s": float("inf")},
        {"probes": {"health": "x"}},
        {"phases": [{"name": "starting", "at_s": "0"}]},
        {"phases": [{"name": "starting", "at_s": 0.0, "disk_bytes": "x"}]},
        {"memory": {"folder": 5}},
        {"memory": {"folder": "/", "limit": "x"}},
    ],
)
def test_numbers_of_a_damaged_ready_file_are_not_counted_with(tmp_path, damage):
    record = servers.ServerRecord(name="local", start_id="s1", engine="llama_cpp", log="/nowhere")
    whole = ready_file.Kept(elapsed_s=3.5, watched_from_s=0.2, active_s=3.0, phases=[{"name": "starting", "at_s": 0.0}])
    folder = servers.folder(str(tmp_path), "local")
    whole.save(folder, "s1")
    path = os.path.join(folder, ready_file.FILE)
    found = files.read_json(path)
    with open(path, "w", encoding="utf-8") as out:
        json.dump({**found, **damage}, out)
    waiter = waiting.Waiter(str(tmp_path), record)
    assert waiter.kept == ready_file.Kept()
    waiter.save(False)
    assert files.read_json(path)["log_offset"] == 0


def test_a_file_of_brackets_is_no_json(tmp_path):
    (tmp_path / "x.json").write_text(DEEP)
    with pytest.raises(ValueError, match=r"x.json is not valid JSON"):
        files.read_json(str(tmp_path / "x.json"))


def test_a_log_that_is_no_text_has_no_known_failure(tmp_path):
    path = tmp_path / "server.log"
    path.write_bytes(os.urandom(200_000) + b"\n" + b"CUDA " * 300_000)
    record = servers.ServerRecord(name="local", start_id="s1", engine="sglang", log=str(path))
    known, lines = death.look(record)
    assert known is None
    assert all(len(line) <= files.LONGEST_LINE for line in lines)


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e300])
def test_what_is_no_patience_is_told(value):
    with pytest.raises(ValueError, match=r"watch_s: .* is no number of seconds"):
        readiness.check_seconds(timeout_s=5.0, watch_s=value)


def test_a_user_without_an_entry_is_called_by_its_number():
    assert server_env.account(2**31 - 7, {"HOME": "/work"}) == ("2147483641", "/work")
    assert server_env.account(2**31 - 7, {}) == ("2147483641", "/")
    assert server_env.account(0, {"HOME": "/elsewhere"}) == ("root", "/root")
