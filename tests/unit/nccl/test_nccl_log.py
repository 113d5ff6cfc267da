"""NCCL's own log: real lines of two ranks, and the shapes that other versions give them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import nccl_log
from hypothesis import given, settings
from hypothesis import strategies as st

DATA = Path(__file__).resolve().parents[2] / "data" / "nccl"
STORY = {
    "NCCL_ALGO": ["Ring"],
    "NCCL_BUFFSIZE": ["16777216"],
    "NCCL_MAX_NCHANNELS": ["16"],
    "NCCL_NTHREADS": ["512"],
    "NCCL_P2P_LEVEL": ["SYS"],
    "NCCL_PROTO": ["LL"],
}
ENGINE = {"NCCL_CUMEM_ENABLE": ["0"], "NCCL_NVLS_ENABLE": ["0"]}


def read(name):
    """The one process of a captured log."""
    (log,) = nccl_log.parse((DATA / name).read_text().splitlines(keepends=True)).values()
    return log


@pytest.mark.parametrize("name", ["rank0.base.log", "rank0.eagle.log"])
def test_the_real_log_of_rank_0(name):
    log = read(name)
    assert log.host == "gpuhost"
    assert log.version == "2.28.9+cuda13.0"
    assert log.variables == {**STORY, **ENGINE}, "what NCCL took, without the full stops of its integers"
    assert (log.complete, log.refused, log.warnings) == (True, {}, [])
    assert [(one.call, one.rank, one.ranks, one.nodes) for one in log.communicators] == [
        ("ncclCommInitRank", 0, 2, 1),
        ("ncclCommInitRankConfig", 0, 2, 1),
    ], "torch's and pynccl's"
    for one in log.communicators:
        assert (one.channels, one.p2p_channels) == (16, 16)
        assert one.transports == {"0 -> 1": {"P2P/IPC": 16}}
        assert one.enabled["AllReduce"] == {"protocols": ["LL"], "algorithms": ["Ring"]}
        assert set(one.enabled) == {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"}
        assert {(key[1], key[2]) for key in one.chosen} == {("RING", "LL")}
    assert {key[0] for one in log.communicators for key in one.chosen} == {"AllReduce", "AllGather"}


@pytest.mark.parametrize(("name", "lines"), [("rank0.start.log", 8), ("rank1.start.log", 8), ("rank0.sys.log", 7)])
def test_starts_with_less_and_with_more_in_the_log(name, lines):
    log = read(name)
    assert (log.complete, log.refused, log.warnings, len(log.variables)) == (True, {}, [], lines)
    assert ("NCCL_P2P_LEVEL" in log.variables) == (lines == 8)


def test_sizes_of_the_collectives_stay_with_their_communicator():
    first, second = read("rank0.base.log").communicators
    low, high, _lines = first.chosen["AllReduce", "RING", "LL"]
    assert (low, high) == (4, 32768)
    assert second.chosen["AllReduce", "RING", "LL"][1] == 67108864


def test_both_ranks_name_the_same_communicators():
    zero, one = read("rank0.base.log"), read("rank1.base.log")
    assert [item.identity for item in one.communicators] == [item.identity for item in zero.communicators]
    assert [item.rank for item in one.communicators] == [1, 1]
    assert (one.pid, one.variables, one.complete) == (733, {**STORY, **ENGINE}, True)


def only(*lines):
    (log,) = nccl_log.parse(lines).values()
    return log


HEAD = "gpuhost:7:9 [1] NCCL INFO "
START = HEAD + "ncclCommInitRank comm 0x1 rank 1 nranks 8 cudaDev 1 nvmlDev 1 busId 70 commId 0x2 - Init START"


def test_warnings_with_stamps_and_with_and_without_the_function():
    log = only(
        "",
        "[2026-11-29 10:11:12] gpuhost:7:9 [1] init.cc:1820 NCCL WARN Cuda failure 'out of memory'",
        "",
        "[2026-11-29 10:11:12] gpuhost:7:9 [1] graph/tuning.cc:88 (parseList) NCCL WARN "
        'Unrecognized element token "Rings" when parsing "Rings"',
    )
    assert log.warnings[0] == "Cuda failure 'out of memory'"
    assert list(log.refused) == ["NCCL_ALGO or NCCL_PROTO"]


def test_values_that_nccl_does_not_take_are_kept_with_what_it_says():
    log = only(
        HEAD + "Invalid value 99999999999999999999 for NCCL_BUFFSIZE, using default 4194304.",
        HEAD + "NCCL_NTHREADS set by environment to 100.",
        HEAD + "Invalid NCCL_NTHREADS 100 (must be a multiple of 32)",
    )
    assert set(log.refused) == {"NCCL_BUFFSIZE", "NCCL_NTHREADS"}
    assert log.variables == {"NCCL_NTHREADS": ["100"]}


def test_a_value_that_changes_between_communicators_is_kept_twice():
    log = only(*(HEAD + f"NCCL_PROTO set by environment to {value}" for value in ("LL", "LL", "Simple")))
    assert log.variables == {"NCCL_PROTO": ["LL", "Simple"]}


def test_words_keep_their_full_stops_and_numbers_lose_them():
    log = only(
        HEAD + "NCCL_SOCKET_IFNAME set by environment to lo", HEAD + "NCCL_TOPO_FILE set by environment to /a/b."
    )
    assert log.variables == {"NCCL_SOCKET_IFNAME": ["lo"], "NCCL_TOPO_FILE": ["/a/b."]}


def test_a_start_that_hangs_is_not_complete():
    log = only(START, HEAD + "Channel 00/02 : 0 1 2 3")
    assert not log.complete
    assert log.last == "Channel 00/02 : 0 1 2 3"
    assert not only(START.replace("nranks 8", "nranks 1").replace("START", "COMPLETE")).complete, "one rank is none"


def test_transports_of_every_kind():
    log = only(
        START,
        HEAD + "comm 0x1 rank 1 nRanks 8 nNodes 1 localRanks 8 localRank 1 MNNVL 0",
        HEAD + "Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM/read",
        HEAD + "Channel 01/0 : 1[1] -> 2[2] via SHM/direct/direct",
        HEAD + "Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/0",
        HEAD + "Channel 00 : 1[1a000] -> 2[3d000] [send] via NET/IB/0/GDRDMA",
        HEAD + "24 coll channels, 0 nvls channels, 32 p2p channels, 4 p2p channels per peer",
        START.replace("START", "COMPLETE"),
    )
    (one,) = log.communicators
    assert one.transports == {"1 -> 2": {"P2P/CUMEM": 1, "SHM/direct": 1, "NET/IB": 1}, "0 -> 1": {"NET/Socket": 1}}
    assert (one.nodes, one.channels, one.p2p_channels) == (1, 24, 32)


def test_older_and_newer_lines_of_a_choice():
    log = only(
        START,
        HEAD + "AllReduce: 8 Bytes -> Algo 1 proto 2 time 12.3",
        HEAD + "AllReduce: 64 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3} cgaClusterSize 4",
    )
    assert log.communicators[0].chosen == {("AllReduce", "RING", "SIMPLE"): [8, 64, 2]}


def test_processes_are_told_apart_in_a_server_log():
    text = (DATA / "rank0.base.log").read_text().splitlines() + (DATA / "rank1.base.log").read_text().splitlines()
    mixed = ["[2026-11-29 10:00:00 TP0] Load weight begin.", *text, "INFO:     Application startup complete."]
    assert sorted(nccl_log.parse(mixed)) == [732, 733]


@pytest.mark.parametrize(
    ("declared", "logged", "same"),
    [
        ("16777216", "16777216", True),
        ("16M", "16", False),
        ("0x10", "16", True),
        ("LL", "LL", True),
        ("LL", "ll", False),
    ],
)
def test_a_declared_value_and_the_logged_one(declared, logged, same):
    assert nccl_log.same_value(declared, logged) is same


def test_the_log_is_asked_for_beside_what_the_user_set():
    wanted = nccl_log.variables("/h/servers/x", "start")
    assert wanted["NCCL_DEBUG_FILE"] == "/h/servers/x/nccl/%h.%p.log"
    assert nccl_log.beside({}, wanted) == wanted
    assert nccl_log.beside({"NCCL_DEBUG": "WARN"}, wanted) == {}
    assert nccl_log.beside({"NCCL_DEBUG_FILE": "/x"}, wanted) == {}
    assert "NCCL_DEBUG_SUBSYS" not in nccl_log.beside({"NCCL_DEBUG_SUBSYS": "ALL"}, wanted)
    assert nccl_log.variables("/h/servers/x", "off") == {}
    assert nccl_log.added_by_us(wanted, "/h/servers/x") == wanted
    assert nccl_log.added_by_us({**wanted, "NCCL_DEBUG_FILE": "/tmp/x"}, "/h/servers/x") == {}


@pytest.mark.parametrize(
    ("environment", "tells"),
    [
        ({}, False),
        ({"NCCL_DEBUG": "WARN"}, False),
        ({"NCCL_DEBUG": "INFO"}, True),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH"}, False),
        ({"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": "all"}, True),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "^ENV"}, False),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "^COLL"}, True),
    ],
)
def test_whether_a_log_names_the_variables(environment, tells):
    assert nccl_log.names_variables(environment) is tells


@given(st.lists(st.one_of(st.text(), st.sampled_from((DATA / "rank0.base.log").read_text().splitlines()))))
@settings(max_examples=150)
def test_any_lines_in_any_order_are_read(lines):
    for pid, log in nccl_log.parse(lines).items():
        assert pid == log.pid
        assert all(values for values in log.variables.values())


@given(st.integers(0, 200), st.data())
@settings(max_examples=60)
def test_a_log_that_is_still_being_written_never_proves_more(cut, data):
    text = (DATA / "rank0.base.log").read_text()
    lines = text[: data.draw(st.integers(0, min(len(text), 150 * (cut + 1))))].splitlines()
    for log in nccl_log.parse(lines).values():
        for name, values in log.variables.items():
            # The last line may be cut in the middle of its value.
            assert any((STORY | ENGINE)[name][0].startswith(value) for value in values)
