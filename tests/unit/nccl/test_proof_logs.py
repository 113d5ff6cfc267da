"""The proof with NCCL's own logs: what NCCL took counts, and where each value came from is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import nccl_log, procfs, proof, proof_table
from ansible_collections.groundstate.llm.plugins.module_utils.proof_sources import Sources, source_of

DATA = Path(__file__).resolve().parents[2] / "data" / "nccl"
BASE = (DATA / "rank0.base.log").read_text()
STORY = {
    "NCCL_ALGO": "Ring",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_NTHREADS": "512",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_PROTO": "LL",
}
ENGINE = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
LOST = procfs.Environment({}, False, "environ", "a process title overwrote /proc/PID/environ")
LIBRARY = "/opt/ml-env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"


def log_of(rank, text=BASE, ranks=2):
    """The captured log as this rank would have written it."""
    text = text.replace(":732:", f":{732 + rank}:").replace("rank 0 nranks 2", f"rank {rank} nranks {ranks}")
    return nccl_log.parse(text.splitlines())[732 + rank]


def worker(rank, log=None, environment=None, **fields):
    if environment is None:
        environment = procfs.Environment({**STORY, **ENGINE}, True, "memory")
    given = {
        "initial": procfs.Environment(STORY, True, "environ"),
        "log": log,
        "log_path": f"/s/nccl/gpuhost.{732 + rank}.log",
        "libraries": (LIBRARY,),
        "sources": Sources(STORY, frozenset(ENGINE)),
        **fields,
    }
    return proof.Seen(rank, 732 + rank, f"sglang::scheduler_TP{rank}", environment, **given)


def judge(workers, declared=STORY, expected=2, **more):
    more = {"engine_sets": ENGINE, "given": STORY, "want_logs": True, **more}
    return proof.judge(declared, workers, None, expected, **more)


def verdicts(made, rank):
    return {name: item["verdict"] for name, item in made.workers[rank]["variables"].items()}


def test_both_ranks_of_the_captured_start_are_proved_by_what_nccl_said():
    made = judge([worker(0, log_of(0)), worker(1, log_of(1))])
    assert (made.verdict, made.why, made.flags) == ("proved", [], [])
    for row in made.workers:
        assert {(item["by"], item["source"]) for item in row["variables"].values()} == {
            ("NCCL's log", "environment of the start")
        }
        assert row["set_by_engine"] == ENGINE
    table = "\n".join(proof_table.table(STORY, made))
    (line,) = [line for line in table.splitlines() if line.startswith("0     2.28.9")]
    assert line.split("  ")[-1] == "P2P/IPC x 32"
    assert "nvidia/nccl/lib/libnccl.so.2  2 of 2 ranks" in line
    assert "all workers: ALGO, BUFFSIZE, MAX_NCHANNELS, NTHREADS, P2P_LEVEL, PROTO from: environment" in table
    assert "rank 0 (pid 732): NCCL may use Ring with LL (Broadcast, Reduce, AllGather, ReduceScatter" in table
    assert "rank 0 (pid 732): NCCL used RING LL for AllReduce of 4 to 67108864 bytes" in table


def real(name, rank, environment):
    """A worker of a real start on two H200, with the log that it wrote."""
    (log,) = nccl_log.parse((DATA / name).read_text().splitlines()).values()
    return proof.Seen(
        rank, log.pid, f"sglang::scheduler_TP{rank}", environment, environment, log, f"/s/nccl/gpuhost.{log.pid}.log"
    )


def test_the_real_logs_of_both_ranks_prove_a_start_as_llm_server_makes_it():
    made = judge([real(f"rank{rank}.start.log", rank, LOST) for rank in (0, 1)])
    assert (made.verdict, made.why, made.flags) == ("proved", [], [])
    for row in made.workers:
        assert set(verdicts(made, row["rank"]).values()) == {"proved"}
        for one in row["communicators"]:
            assert (one["ranks"], one["nodes"], one["channels"]) == (2, 1, 16)
            assert list(one["transports"].values()) == [{"P2P/IPC": 16}]
        assert len(row["communicators"]) == 2
    zero, one = made.workers
    assert zero["communicators"][0]["enabled"]["AllReduce"] == {"protocols": ["LL"], "algorithms": ["Ring"]}
    assert one["communicators"][0]["enabled"] == {}, "only rank 0 says that"


def test_the_real_log_of_a_start_with_a_level_that_nccl_does_not_know():
    wrong = {**STORY, "NCCL_P2P_LEVEL": "sys"}
    has = procfs.Environment({**wrong, **ENGINE}, True, "memory")
    made = judge([real("rank0.sys.log", 0, has)], wrong, 1, given=wrong)
    assert made.verdict == "contradicted"
    bad = [name for name, verdict in verdicts(made, 0).items() if verdict != "proved"]
    assert bad == ["NCCL_P2P_LEVEL"]
    assert "NCCL_P2P_LEVEL=sys was not taken by NCCL" in made.why[0]
    chosen = made.workers[0]["communicators"][0]["chosen"]
    assert {(item["algorithm"], item["protocol"]) for item in chosen} == {("RING", "LL")}


def test_the_log_proves_what_the_environment_cannot_tell_any_more():
    # T1 with logs: the titles overwrote everything, memory may not be read.
    made = judge([worker(rank, log_of(rank), LOST, initial=LOST) for rank in (0, 1)])
    assert (made.verdict, made.why) == ("proved", [])


def test_one_log_of_eight_lacks_a_variable():
    # T2
    without = "\n".join(line for line in BASE.splitlines() if "NCCL_PROTO set" not in line)
    logs = [log_of(rank, without if rank == 5 else BASE, 8) for rank in range(8)]
    made = judge([worker(rank, logs[rank], LOST, initial=LOST) for rank in range(8)], expected=8)
    assert made.verdict == "contradicted"
    assert [row["verdict"] for row in made.workers] == ["proved"] * 5 + ["contradicted"] + ["proved"] * 2
    (why,) = made.why
    assert why.startswith("rank 5 (pid 737): NCCL_PROTO is not set (declared: 'LL'); ")


def test_a_variable_that_only_a_file_sets_is_attributed_to_the_file():
    # T3: unset in the environment, and still in force.
    bare = procfs.Environment(ENGINE, True, "memory")
    files = (("/etc/nccl.conf", STORY),)
    seen = [
        worker(
            rank,
            log_of(rank),
            # NCCL puts what it reads into the environment of its process.
            procfs.Environment({**STORY, **ENGINE}, True, "memory"),
            initial=bare,
            sources=Sources({}, frozenset(ENGINE), files),
        )
        for rank in (0, 1)
    ]
    made = judge(seen, given={})
    assert made.verdict == "proved"
    assert {item["source"] for row in made.workers for item in row["variables"].values()} == {"/etc/nccl.conf"}
    # ... and contradicts a profile that does not have it.
    made = judge(seen, {}, given={})
    assert made.verdict == "contradicted"
    (why,) = made.why
    assert why.startswith("ranks 0, 1: NCCL_ALGO is 'Ring' and not declared, ")
    assert why.endswith("it is from /etc/nccl.conf: correct it there, and restart the server")


def test_what_nccl_read_out_of_a_value_counts():
    # T4: a profile that says 16M.
    text = BASE.replace("BUFFSIZE set by environment to 16777216.", "BUFFSIZE set by environment to 16.")
    has = procfs.Environment({**STORY, "NCCL_BUFFSIZE": "16M"}, True, "memory")
    made = judge([worker(rank, log_of(rank, text), has) for rank in (0, 1)], {**STORY, "NCCL_BUFFSIZE": "16M"})
    assert made.verdict == "contradicted"
    item = made.workers[0]["variables"]["NCCL_BUFFSIZE"]
    assert (item["seen"], item["by"]) == ("16", "NCCL's log")
    assert "NCCL_BUFFSIZE is '16' (declared: '16M'); NCCL reads the declared value as that" in made.why[0]


def test_a_value_that_nccl_silently_passes_over_is_contradicted():
    text = "\n".join(line for line in BASE.splitlines() if "NCCL_P2P_LEVEL set" not in line)
    wrong = {**STORY, "NCCL_P2P_LEVEL": "sys"}
    has = procfs.Environment({**wrong, **ENGINE}, True, "memory")
    made = judge([worker(rank, log_of(rank, text), has) for rank in (0, 1)], wrong, given=wrong)
    assert made.verdict == "contradicted"
    assert verdicts(made, 0)["NCCL_P2P_LEVEL"] == "contradicted"
    assert verdicts(made, 0)["NCCL_PROTO"] == "proved"
    assert made.why[0].startswith("ranks 0, 1: NCCL_P2P_LEVEL=sys was not taken by NCCL; the worker has it, but")
    assert "'sys' is none of" in made.why[0], "the linter says why"


def test_an_environment_that_goes_over_the_profile_is_named():
    has = procfs.Environment({**STORY, **ENGINE, "NCCL_PROTO": "Simple"}, True, "memory")
    given = {**STORY, "NCCL_PROTO": "Simple"}
    made = judge([worker(0, None, has)], expected=1, want_logs=False, given=given, also_declared=["NCCL_PROTO"])
    assert made.why == [
        "rank 0 (pid 732): NCCL_PROTO is 'Simple' (declared: 'LL'); "
        "llm_server.env sets it to 'Simple' and goes over the profile: correct one of the two"
    ]


def test_a_variable_that_nccl_reads_only_with_its_feature_is_proved_by_the_environment():
    more = {**STORY, "NCCL_IB_HCA": "mlx5_0"}
    has = procfs.Environment({**more, **ENGINE}, True, "memory")
    made = judge([worker(rank, log_of(rank), has) for rank in (0, 1)], more, given=more)
    assert made.verdict == "proved"
    assert made.workers[0]["variables"]["NCCL_IB_HCA"]["by"] == "environment"


def test_a_refusal_is_a_contradiction_in_its_own_words():
    refusal = "gpuhost:732:732 [0] NCCL INFO Invalid NCCL_NTHREADS 100 (must be a multiple of 32)\n"
    text = refusal + BASE.replace("NTHREADS set by environment to 512.", "NTHREADS set by environment to 100.")
    declared = {"NCCL_NTHREADS": "100"}
    has = procfs.Environment(declared, True, "memory")
    made = judge([worker(rank, log_of(rank, text), has) for rank in (0, 1)], declared, also_declared=STORY)
    assert made.verdict == "contradicted"
    assert "NCCL says: Invalid NCCL_NTHREADS 100" in made.why[0]


def test_a_missing_log_leaves_it_unknown():
    made = judge([worker(0, log_of(0)), worker(1, None)])
    assert (made.verdict, made.workers[0]["verdict"], made.workers[1]["verdict"]) == ("unknown", "proved", "unknown")
    assert verdicts(made, 1)["NCCL_PROTO"] == "proved", "the environment has it"
    assert "NCCL wrote no log of this start (/s/nccl/gpuhost.PID.log)" in made.why[0]


def test_a_start_that_hangs_is_named():
    text = BASE[: BASE.index("Channel 00/16")].rpartition("\n")[0]
    made = judge([worker(rank, log_of(rank, text)) for rank in (0, 1)])
    assert made.verdict == "unknown"
    assert "NCCL began a communicator of 2 ranks and has not finished it (last line: NCCL_MAX_NCHANNELS" in made.why[0]


def test_logs_of_different_starts_do_not_prove_each_other():
    other = BASE.replace("0xa7d3edbee9974cba", "0x1").replace("0xe572026f96ed5be2", "0x2")
    made = judge([worker(0, log_of(0)), worker(1, log_of(1, other))])
    assert made.verdict == "unknown"
    assert "no communicator that joins all 2 workers" in made.why[0]
    same_rank = judge([worker(0, log_of(0)), worker(1, nccl_log.parse(BASE.splitlines())[732])])
    assert same_rank.verdict == "unknown", "two processes that say that they are rank 0"


def test_without_logs_the_environment_alone_is_judged():
    made = judge([worker(rank, None) for rank in (0, 1)], want_logs=False)
    assert made.verdict == "proved"
    assert made.workers[0]["variables"]["NCCL_PROTO"]["by"] == "environment"


def test_what_is_remarkable_is_flagged_and_no_verdict():
    net = BASE.replace("via P2P/IPC", "via NET/Socket/0")
    other = LIBRARY.replace("ml-env", "other")
    warned = log_of(1, net)
    warned.warnings.append("Cuda failure")
    made = judge([worker(0, log_of(0)), worker(1, warned, libraries=(LIBRARY, other))])
    assert made.verdict == "proved"
    flags = "\n".join(made.flags)
    assert "rank 1 (pid 733): NCCL talks over the network within one host (0 -> 1 via NET/Socket)" in flags
    assert "rank 1 (pid 733): NCCL warns: Cuda failure" in flags
    assert "rank 1 (pid 733) maps several libraries of NCCL" in flags
    assert "workers have different libraries of NCCL" in flags
    assert "workers have different transports: rank 0 (pid 732): P2P/IPC; rank 1" in flags
    assert all(f"note: {flag}" in proof_table.table(STORY, made) for flag in made.flags)


def test_a_file_that_the_environment_overrides_is_flagged():
    sources = Sources(STORY, frozenset(), (("/root/.nccl.conf", {"NCCL_PROTO": "Simple"}),))
    made = judge([worker(rank, log_of(rank), sources=sources) for rank in (0, 1)])
    assert made.verdict == "proved"
    assert "/root/.nccl.conf sets NCCL_PROTO=Simple, which the environment overrides" in made.flags[0]


FILES = (("/root/.nccl.conf", {"NCCL_ALGO": "Tree"}), ("/etc/nccl.conf", {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}))


@pytest.mark.parametrize(
    ("name", "value", "initial", "complete", "source"),
    [
        ("NCCL_PROTO", "LL", {}, True, "/etc/nccl.conf"),
        ("NCCL_ALGO", "Tree", {}, True, "/root/.nccl.conf"),
        ("NCCL_ALGO", "Ring", {}, True, "set inside the server (Python start-up or a wrapper)"),
        ("NCCL_NTHREADS", "64", {"NCCL_NTHREADS": "64"}, True, "set inside the server (Python start-up or a wrapper)"),
        ("NCCL_BUFFSIZE", "1", {"NCCL_BUFFSIZE": "1"}, True, "environment of the start"),
        ("NCCL_CUMEM_ENABLE", "0", {}, True, "the engine"),
        ("NCCL_CUMEM_ENABLE", "0", {"NCCL_CUMEM_ENABLE": "0"}, True, "the engine"),
        ("NCCL_NTHREADS", "64", {}, False, "not known"),
        ("NCCL_SHM_DISABLE", "1", {}, True, "Python start-up (pth of /env/bin/python)"),
    ],
)
def test_where_a_value_came_from(name, value, initial, complete, source):
    startup = ("Python start-up (pth of /env/bin/python)", {"NCCL_SHM_DISABLE": "1"})
    sources = Sources({"NCCL_BUFFSIZE": "1"}, frozenset(ENGINE), FILES, startup)
    assert source_of(name, value, procfs.Environment(initial, complete, "environ"), sources) == source
