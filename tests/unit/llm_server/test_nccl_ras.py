"""NCCL's health service: a report that it really wrote (addresses replaced), asked over a real socket."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from ansible_collections.groundstate.llm.plugins.module_utils import nccl_ras
from hypothesis import given
from hypothesis import strategies as st

REPORT = (Path(__file__).parents[2] / "data" / "server_logs" / "nccl-ras.txt").read_text(encoding="utf-8")


class Service:
    """Answers one client: waits for its line, sends the reply in two parts, closes."""

    def __init__(self, reply: str):
        self.reply, self.asked = reply.encode(), b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[:2]
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def serve(self) -> None:
        connection, _peer = self.listener.accept()
        with connection:
            while not self.asked.endswith(b"\n"):
                self.asked += connection.recv(100)
            connection.sendall(self.reply[:50])
            connection.sendall(self.reply[50:])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_error):
        self.listener.close()
        self.thread.join(5)


def test_a_report_over_a_socket_names_the_missing_ranks():
    with Service(REPORT) as service:
        text = nccl_ras.ask(service.address)
    assert service.asked == b"verbose status\n"
    processes, missing, mismatch = nccl_ras.parse(text)
    assert processes.named == ("Process 60004 on node 192.0.2.13 managing GPU 0",)
    assert missing.ranks == (1,)
    assert missing.words() == (
        "INCOMPLETE: Missing communicator data from 1 rank "
        "(Rank 1 -- GPU 0 managed by process 60004 on node 192.0.2.13)"
    )
    assert (mismatch.status, mismatch.ranks) == ("MISMATCH", (12, 13))


def test_a_job_that_is_well_has_nothing_to_say():
    head = REPORT[: REPORT.index("Errors\n======")]
    assert nccl_ras.parse(f"{head}Errors\n======\n\nWarnings\n========\n\n") == []


def test_what_is_no_ras_is_not_believed():
    with Service("HTTP/1.1 400 Bad Request\r\n\r\n") as service:
        assert nccl_ras.ask(service.address) == ""
    closed = service.address  # nobody listens there any more
    assert nccl_ras.ask(closed) == ""


def test_where_it_listens():
    assert nccl_ras.address({}) == ("127.0.0.1", 28028)
    assert nccl_ras.address({"NCCL_RAS_ADDR": "localhost:28100"}) == ("localhost", 28100)
    assert nccl_ras.address({"NCCL_RAS_ADDR": "[::1]:28100"}) == ("::1", 28100)
    assert nccl_ras.address({"NCCL_RAS_ADDR": "nonsense"}) == ("127.0.0.1", 28028)


@given(st.lists(st.sampled_from([*REPORT.splitlines(), "Errors", "x", "  y", "INCOMPLETE"]), max_size=30))
def test_no_report_breaks_it(lines):
    for one in nccl_ras.parse("\n".join(["", *lines])):
        assert one.status
        assert one.text
