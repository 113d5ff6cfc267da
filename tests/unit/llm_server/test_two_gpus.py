"""SGLang on two H200, replayed: phases as they were reported live, two deaths while it served, one at its start."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import (
    control,
    death,
    diagnoses,
    kernel_log,
    phase_times,
    procfs,
    readiness,
    server_info,
    servers,
)
from ansible_collections.groundstate.llm.plugins.module_utils.declaration import complete
from ansible_collections.groundstate.llm.plugins.module_utils.diagnoses import diagnose
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.probe import Reply

LOGS = Path(__file__).parents[2] / "data" / "server_logs"
SGLANG = get_engine("sglang")
DECLARED = complete({"name": "s", "engine": "sglang", "model": "/models/tiny-llama", "tensor_parallel": 2})
REPORTED = json.loads((LOGS / "sglang.tp2.phases.json").read_text())
UP = "The server is fired up and ready to roll"
STARTS = {
    "first": "sglang.tp2.first.log",
    "eagle": "sglang.tp2.eagle-warm.log",
    "again": "sglang.tp2.killed-scheduler.log",
}


def start_lines(name: str) -> list[str]:
    """The log of a start, up to where it serves."""
    lines, _rest = readiness.split_lines((LOGS / STARTS[name]).read_text(encoding="utf-8"))
    last = next(number for number, line in enumerate(lines) if UP in line)
    return lines[: last + 1]


def scene(victim: str) -> list[dict]:
    return [json.loads(line) for line in (LOGS / f"sglang.tp2.kill-{victim}.jsonl").read_text().splitlines()]


# --- phases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STARTS)
def test_a_replay_finds_the_phases_that_were_reported_live(name):
    """From the log's own stamps, whole seconds; live, reading was at most 50 ms late."""
    phases = [one for one in REPORTED[name]["phases"] if one["name"] != "ready"]
    lines = start_lines(name)
    launched = SGLANG.line_time(lines[-1]) - phases[-1]["at_s"] + 0.5
    timeline, now = readiness.Timeline(), launched
    for line in lines:
        now = max(now, SGLANG.line_time(line) or now)
        timeline.feed(SGLANG, line, now - launched, launched)
    found = timeline.report()
    assert [one["name"] for one in found] == [one["name"] for one in phases]
    for one, live in zip(found, phases, strict=True):
        assert one["at_s"] == pytest.approx(live["at_s"], abs=1.6), one["name"]


def test_the_second_start_is_explained_by_the_first():
    """Kernels compiled and read from the disk the first time: the notes are those that were shown while it started."""
    told = phase_times.compare(REPORTED["again"]["phases"], REPORTED["first"])
    assert [one["note"] for one in told if one["note"]] == [
        "starting 10 s, was 24 s: page cache warm (0.0 GiB read from disk, was 1.1)",
        "capturing graphs 21 s, was 60 s: page cache warm (0.0 GiB read from disk, was 0.6)",
        "warming up 2 s, was 14 s",
    ]
    assert [one["note"] for one in told] == [one["note"] for one in REPORTED["again"]["phases"]]


@pytest.mark.parametrize("name", STARTS)
def test_a_start_that_went_well_shows_no_failure(name):
    assert diagnose(start_lines(name), engine=SGLANG) is None


# --- deaths --------------------------------------------------------------------------------------


#: In the order of the rows' states.
TITLES = ("python -m sglang.launch_server", "sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer")


def processes(row: dict) -> list[procfs.Process]:
    """The server's processes as they were seen."""
    return [
        procfs.Process(int(pid), 1, 1, 1, state, title[:15], 0, title)
        for (pid, state), title in zip(row["states"].items(), TITLES, strict=True)
        if state != "gone"
    ]


def test_while_the_model_list_still_answers_the_worker_is_missed():
    """2 ms after the kill of rank 1: /v1/models says 200, the launcher runs, and the rank is a zombie."""
    rows = scene("scheduler")
    seen = next(row for row in rows if row["what"] == "processes")
    models = next(row for row in rows if row["what"] == "models")
    assert models["answer"] == 200
    ranks = SGLANG.find_workers(processes(seen), DECLARED)
    assert list(ranks) == [0]
    found = {"workers_expected": 2, "workers": [{"state": item.state} for item in ranks.values()]}
    verdict = server_info.judge(found, server_info.Answers(health=Reply(200), models=Reply(200)), was_ready=True)
    assert verdict == ("incomplete", ["1 of 2 workers are gone; the server process still runs"])


def test_what_health_answered_after_the_kill_is_no_health():
    rows = scene("scheduler")
    first = next(row for row in rows if row["what"] == "health")
    complete_tree = {"workers_expected": 2, "workers": [{"state": "S"}, {"state": "S"}]}
    answers = server_info.Answers(health=Reply(0, error=first["answer"]))
    assert server_info.judge(complete_tree, answers, was_ready=True)[0] == "unreachable"


@pytest.fixture
def dead(tmp_path, monkeypatch):
    """Make a server that has died: its log, the status that its supervisor wrote, the kernel's log."""

    def make(log: str, status: str, kernel: list[str] | None = None) -> tuple[str, servers.ServerRecord]:
        monkeypatch.setattr(kernel_log, "_records", lambda _path: [(5.0, line) for line in kernel or []])
        monkeypatch.setattr(kernel_log, "_dmesg", lambda: None)
        folder = tmp_path / "servers" / "s"
        folder.mkdir(parents=True)
        (folder / "exit").write_text(status)
        (folder / "server.log").write_text(log)
        record = servers.ServerRecord(name="s", engine="sglang", pid=11121, pid_start=100)
        record.log, record.boot_id, record.declaration = str(folder / "server.log"), procfs.boot_id(), DECLARED
        record.argv = ["/env/bin/python", "-m", "sglang.launch_server"]
        return str(tmp_path), record

    return make


KILLED = (LOGS / "sglang.tp2.killed-scheduler.log").read_text(encoding="utf-8")


def test_a_killed_scheduler_is_not_taken_for_a_killed_launcher(dead):
    """The launcher's 137 is its own doing; what was killed is the other rank, and by whom nobody knows."""
    story = death.tell(*dead(KILLED, "137 1\n"))
    assert story.words == (
        "killed by SIGKILL (exit status 137) by its own launcher, because one of its processes had failed"
    )
    assert story.diagnosis["name"] == "a rank was lost"
    assert "Read error [127.0.0.1]:10476: Connection reset by peer" in story.diagnosis["cause"]
    assert story.evidence == []
    assert story.log_tail[-2:] == [
        "[2026-11-29 20:36:17] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        "Killed",
    ]


def test_the_next_run_says_the_same_of_the_end_as_the_one_that_saw_it(dead):
    """It said "by somebody, or by the kernel" as the reason of a new start, of a server that had ended itself."""
    home, record = dead(KILLED, "137 1\n")
    assert control.end_words(home, record) == f"process 11121 has died: {death.tell(home, record).words}"
    assert "by its own launcher" in control.end_words(home, record)


def test_a_scheduler_that_the_kernel_killed_is_still_told_from_its_log(dead):
    line = (
        "Out of memory: Killed process 28356 (sglang::schedul) total-vm:91203012kB, anon-rss:80370088kB, file-rss:0kB, "
        "shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
    )
    story = death.tell(*dead(KILLED, "137 1\n", [line]))
    assert story.diagnosis["name"] == "killed for want of host memory"
    assert story.evidence == [f"the kernel killed it for want of memory: {line}"]


def test_a_killed_launcher_says_nothing_and_somebody_sent_the_signal(dead):
    warning = (
        "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to "
        "be 2 leaked semaphore objects to clean up at shutdown"
    )
    log = "\n".join([*start_lines("eagle"), warning, ""])
    story = death.tell(*dead(log, "137 1\n"))
    assert story.words == "killed by SIGKILL (exit status 137): by somebody, or by the kernel for want of memory"
    assert story.diagnosis == {}
    assert story.evidence == [
        "the kernel's log has no kill for want of memory since the launch: somebody sent the signal"
    ]
    # What was said on that machine, of the real process: the same.
    said = next(row["says"] for row in scene("launcher") if row["what"] == "our module")
    assert story.words in said
    assert "somebody sent the signal. No known failure is in the log." in said


def test_a_start_without_ninja_names_it(dead):
    """Not the tokenizer's remark about remote code, which every start of this model has."""
    log = (LOGS / "sglang.tp2.no-ninja.log").read_text(encoding="utf-8")
    assert re.search("Set --trust-remote-code", log)
    story = death.tell(*dead(log, "137 1\n"))
    assert story.diagnosis["name"] == "compiler missing"
    assert story.diagnosis["cause"].endswith("does not find ninja")
    assert "PATH" in story.diagnosis["remedy"]
    assert "by its own launcher" in story.words
    assert story.evidence == []


def test_a_compiler_of_another_gpu_is_the_cause(dead):
    """SGLang's own advice at the end of this log ("Possible solutions: ...") is of other failures."""
    home, record = dead((LOGS / "sglang.tp1.compiler.log").read_text(encoding="utf-8"), "137 1\n")
    found = death.tell(home, record).diagnosis
    assert found["name"] == "compiler does not know the GPU"
    assert "architecture compute_50" in found["cause"]
    assert "CUDA_HOME" in found["remedy"]
    flags = {"NVCC_APPEND_FLAGS": "-gencode=arch=compute_50,code=sm_50", "HF_HUB_OFFLINE": "1"}
    record.declaration = {**record.declaration, "env": flags}
    declared = death.tell(home, record).diagnosis
    assert declared["remedy"].startswith(
        "correct or remove llm_server.env.NVCC_APPEND_FLAGS (-gencode=arch=compute_50,"
    )


def test_an_unknown_failure_is_told_by_its_exception(dead, monkeypatch):
    """Five lines of advice and a signal are the end of this log; what it failed of is fifty lines above."""
    monkeypatch.setattr(diagnoses, "TABLE", ())
    log = (LOGS / "sglang.tp1.compiler.log").read_text(encoding="utf-8")
    said = death.tell(*dead(log, "137 1\n")).text("server.log")
    assert "in the log; the last exception there: Exception: Capture cuda graph failed: Ninja build failed." in said


def test_of_a_server_that_somebody_ended_no_exception_is_the_reason(dead, monkeypatch):
    monkeypatch.setattr(diagnoses, "TABLE", ())
    log = (LOGS / "sglang.tp1.compiler.log").read_text(encoding="utf-8").replace("Received sigquit", "")
    assert "the last exception" not in death.tell(*dead(log, "137 1\n")).text("server.log")


def test_the_signal_that_the_log_names_counts_although_the_launcher_ended_itself(dead):
    """One rank: SGLang itself said that its scheduler ended with -9."""
    log = (LOGS / "sglang.tp1.sigkilled-scheduler.log").read_text(encoding="utf-8")
    story = death.tell(*dead(log, "137 1\n"))
    assert story.diagnosis["cause"] == "a worker ended with exit code -9"
    assert "somebody sent the signal" in story.evidence[0]
