"""The proof: proved, contradicted and unknown are kept apart, worker by worker."""

from __future__ import annotations

from ansible_collections.groundstate.llm.plugins.module_utils import procfs, proof, proof_table

STORY = {
    "NCCL_ALGO": "Ring",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_NTHREADS": "512",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_PROTO": "LL",
}
ROOT = proof.Seen(None, 611, "python3 -m sglang.launch_server", procfs.Environment(STORY, True, "environ"))


def worker(rank, variables, complete=True, why=""):
    """A worker whose environment was read from memory, or overwritten."""
    source = "memory" if complete else "environ"
    return proof.Seen(
        rank, 732 + rank, f"sglang::scheduler_TP{rank}", procfs.Environment(dict(variables), complete, source, why)
    )


def eight(changed=None, rank=5):
    """Eight workers with the story's profile, one of which differs."""
    return [worker(one, changed if changed is not None and one == rank else STORY) for one in range(8)]


def test_all_of_eight_workers():
    made = proof.judge(STORY, eight(), ROOT, 8)
    assert (made.verdict, made.why) == ("proved", [])
    assert [row["rank"] for row in made.workers] == list(range(8))
    assert made.root["pid"] == 611
    for row in made.workers:
        assert {item["verdict"] for item in row["variables"].values()} == {"proved"}


def test_one_worker_of_eight_lacks_a_variable():
    # T2: rank 5 has all but NCCL_PROTO.
    made = proof.judge(STORY, eight({k: v for k, v in STORY.items() if k != "NCCL_PROTO"}), ROOT, 8, given=STORY)
    assert made.verdict == "contradicted"
    assert [row["verdict"] for row in made.workers] == ["proved"] * 5 + ["contradicted"] + ["proved"] * 2
    (why,) = made.why
    assert why.startswith("rank 5 (pid 737): NCCL_PROTO is not set (declared: 'LL'); ")
    assert "something inside changes it" in why


def test_another_value_than_the_declared_one():
    # T4: NCCL read 16 out of 16M.
    made = proof.judge({"NCCL_BUFFSIZE": "16777216"}, [worker(0, {"NCCL_BUFFSIZE": "16M"})], None, 1, given={})
    assert made.verdict == "contradicted"
    item = made.workers[0]["variables"]["NCCL_BUFFSIZE"]
    assert (item["declared"], item["seen"], item["verdict"]) == ("16777216", "16M", "contradicted")
    assert "NCCL_BUFFSIZE is '16M' (declared: '16777216')" in made.why[0]
    assert "restart it" in made.why[0], "the server was started before the profile was written"


def test_an_overwritten_environment_is_unknown_and_never_absent():
    # T1: nothing is left, or only what was set late.
    lost = worker(0, {}, complete=False, why="a process title overwrote /proc/PID/environ")
    partial = worker(1, {"NCCL_PROTO": "LL"}, complete=False, why="a process title overwrote /proc/PID/environ")
    made = proof.judge(STORY, [lost, partial], ROOT, 2)
    assert made.verdict == "unknown"
    assert {item["verdict"] for item in made.workers[0]["variables"].values()} == {"unknown"}
    assert made.workers[1]["variables"]["NCCL_PROTO"]["verdict"] == "proved"
    assert made.workers[1]["verdict"] == "unknown"
    assert "a process title overwrote" in made.why[0]
    assert made.why[0].startswith("rank 0 (pid 732): unknown: NCCL_ALGO, NCCL_BUFFSIZE")
    assert made.why[1].startswith("rank 1 (pid 733): unknown: ")
    assert "NCCL_PROTO" not in made.why[1]


def test_a_wrong_value_in_an_overwritten_environment_is_still_a_contradiction():
    made = proof.judge(STORY, [worker(0, {"NCCL_PROTO": "Simple"}, complete=False, why="lost")], None, 1)
    assert made.verdict == "contradicted"


def test_missing_workers_leave_it_unknown():
    made = proof.judge(STORY, [worker(0, STORY)], ROOT, 2)
    assert made.verdict == "unknown"
    assert made.why == ["1 of 2 workers were found (rank 0): look into the server's log for the others"]
    made = proof.judge(STORY, [], ROOT, 0)
    assert made.verdict == "unknown"
    assert "no worker of the server was found" in made.why[0]


def test_what_the_engine_sets_is_shown_and_no_drift():
    extra = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
    made = proof.judge(STORY, [worker(0, {**STORY, **extra})], ROOT, 1, engine_sets=extra)
    assert made.verdict == "proved"
    assert made.workers[0]["set_by_engine"] == extra
    last = proof_table.table(STORY, made)[-1]
    assert last == "rank 0 (pid 732): set by the engine: NCCL_CUMEM_ENABLE=0, NCCL_NVLS_ENABLE=0"


def test_stock_means_that_nothing_is_set():
    harmless = {"NCCL_VERSION": "2.28.9-1", "PATH": "/bin"}
    made = proof.judge({}, [worker(0, harmless)], None, 1)
    assert (made.verdict, made.why) == ("proved", [])
    made = proof.judge({}, [worker(0, {**harmless, "NCCL_PROTO": "LL"})], None, 1)
    assert made.verdict == "contradicted"
    assert made.workers[0]["undeclared"] == {"NCCL_PROTO": "LL"}
    assert "NCCL_PROTO is 'LL' and not declared; declare it in" in made.why[0]
    made = proof.judge({}, [worker(0, {"NCCL_DEBUG": "INFO"})], None, 1, also_declared={"NCCL_DEBUG": "INFO"})
    assert made.verdict == "proved"
    made = proof.judge({}, [worker(0, {}, complete=False, why="lost")], None, 1)
    assert made.verdict == "unknown", "what cannot be read may hold anything"


def test_a_server_that_was_started_with_another_profile():
    made = proof.judge({}, [worker(0, STORY)], None, 1, given=STORY)
    assert made.verdict == "contradicted"
    (why,) = made.why
    assert "NCCL_ALGO is 'Ring' and not declared, NCCL_BUFFSIZE is" in why
    assert why.endswith("the server was started with another profile: write the declared one and restart it")


def test_the_same_failure_of_all_workers_is_said_once():
    made = proof.judge(STORY, [worker(one, {}) for one in range(8)], ROOT, 8)
    (why,) = made.why
    assert why.startswith("ranks 0, 1, 2, 3, 4, 5, 6, 7: NCCL_ALGO is not set (declared: 'Ring'), NCCL_BUFFSIZE is")
    lost = procfs.Environment({}, False, "environ", "/proc/%d/mem: not permitted")
    made = proof.judge({}, [proof.Seen(None, pid, "x", lost) for pid in (7, 8)], None, 0)
    (why,) = made.why
    assert why.startswith("pids 7, 8: unknown: whether anything undeclared is set; /proc/%d/mem: not permitted: run as")


def test_a_command_line_is_shown_by_the_names_of_its_programs():
    line = "/opt/ml/bin/python3 /opt/ml/bin/groundstate-llama-cpp --model /srv/model.gguf --port 18000"
    made = proof.judge({}, [proof.Seen(0, 7, line, procfs.Environment({}, True, "memory"))], None, 1)
    assert "  groundstate-llama-cpp --m...  memory" in proof_table.table({}, made)[1]


def test_the_table_is_one_line_a_process_with_the_declared_values_on_top():
    made = proof.judge(STORY, eight({**STORY, "NCCL_P2P_LEVEL": "sys"}, rank=1)[:2], ROOT, 2)
    titles, declared, first, second, root = proof_table.table(STORY, made)[:5]
    assert titles.split() == [
        *("rank", "pid", "process", "read", "from"),
        *("ALGO", "BUFFSIZE", "MAX_NCHANNELS", "NTHREADS", "P2P_LEVEL", "PROTO"),
    ]
    assert declared.split() == ["declared", "Ring", "16777216", "16", "512", "SYS", "LL"]
    assert first.split() == ["0", "732", "sglang::scheduler_TP0", "memory", *["proved"] * 6]
    assert second.split() == ["1", "733", "sglang::scheduler_TP1", "memory", *["proved"] * 4, "contradicted", "proved"]
    assert root.split()[:2] == ["-", "611"]
    assert root[titles.index("PROTO") :] == "has it", "no verdict: it is no worker"
    column = titles.index("P2P_LEVEL")
    assert second[column:].startswith("contradicted")
    assert declared[column:].startswith("SYS")


def test_the_root_that_is_a_worker_is_shown_once():
    only = proof.Seen(0, 611, "groundstate-llama-cpp --model m", procfs.Environment({}, True, "memory"))
    made = proof.judge({}, [only], proof.Seen(None, 611, only.title, only.environment), 1)
    assert made.root is None
    table = proof_table.table({}, made)
    assert len(table) == 2
    assert table[1].endswith("none")
