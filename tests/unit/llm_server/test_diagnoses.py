"""Every known failure, by the lines that engines, torch, NCCL and transformers really write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.diagnoses import diagnose
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.known_failures import TABLE
from hypothesis import given
from hypothesis import strategies as st

LOGS = Path(__file__).parents[2] / "data" / "server_logs"
LOADING = "[2026-11-29 13:35:30 TP0] Load weight begin. avail mem=138.34 GB"


def seen() -> list[tuple[str, str]]:
    """(name of the row, line of a real log), from the file."""
    found, name = [], ""
    for line in (LOGS / "failures.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            name = line[3:]
        elif not line.startswith("# "):
            found.append((name, line))
    return found


SEEN = seen()
OOM = next(line for name, line in SEEN if name == "out of GPU memory")
#: Only in a phase: with the line that begins it.
IN_PHASE = [
    ("out of GPU memory for the weights", [LOADING, OOM]),
    (
        "out of GPU memory for the weights",
        [
            LOADING,
            "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free memory for "
            "weights, increasing --tensor-parallel-size, or using --quantization.",
        ],
    ),
]


@pytest.mark.parametrize(("name", "line"), SEEN)
def test_a_failure_is_recognised_among_other_lines(name, line):
    found = diagnose(["INFO starting", line, "Traceback (most recent call last):", "  File x, line 1"])
    assert found["name"] == name
    assert found["line"] == line.strip()[:500]
    assert found["remedy"]
    assert not re.search(r"\{\d?\}", found["cause"] + found["remedy"])


@pytest.mark.parametrize(("name", "lines"), IN_PHASE)
def test_a_failure_of_a_phase(name, lines):
    assert diagnose(lines, engine=get_engine("sglang"))["name"] == name


def test_every_row_has_a_line_that_was_really_seen():
    assert {row.name for row in TABLE} == {name for name, _lines in (*SEEN, *IN_PHASE)}


@pytest.mark.parametrize("name", ["sglang.tp2.base.log", "sglang.tp2.eagle.log"])
def test_a_start_that_went_well_shows_no_failure(name):
    """With warnings about configs, remote code, imports and limits that mean nothing."""
    text = (LOGS / name).read_text(encoding="utf-8")
    assert diagnose(re.split(r"[\r\n]+", text), engine=get_engine("sglang")) is None


def test_a_warning_about_a_limit_is_no_failure():
    """vLLM writes it at every start where the hard limit is low."""
    warning = (
        "WARNING 11-29 19:54:10 [system_utils.py:255] Found ulimit of 20000 and failed to automatically increase with "
        "error current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many "
        "open files`. Consider increasing with ulimit -n"
    )
    assert diagnose([warning]) is None
    assert diagnose([warning, "OSError: [Errno 24] Too many open files"])["name"] == "too many open files"


def test_the_captured_death_of_a_scheduler():
    text = (LOGS / "sglang.tp1.sigkilled-scheduler.log").read_text(encoding="utf-8")
    found = diagnose(re.split(r"[\r\n]+", text), engine=get_engine("sglang"))
    assert (found["name"], found["cause"]) == ("worker died", "a worker ended with exit code -9")


def test_the_cause_comes_before_what_follows_from_it():
    lines = [dict(SEEN)["/dev/shm too small"], "RuntimeError: NCCL error: unhandled system error", SEEN[-1][1]]
    assert diagnose(lines)["name"] == "/dev/shm too small"
    assert diagnose(lines[1:])["name"] == "NCCL error"


def test_the_cause_says_what_the_log_said():
    assert diagnose([SEEN[0][1]])["cause"] == "the engine does not know the argument --bogus 1"
    assert "(270.00 MiB)" in diagnose([OOM])["cause"]
    assert diagnose(["torch.OutOfMemoryError"])["cause"] == "a GPU has not enough free memory"


def test_an_unknown_failure_stays_unknown():
    assert diagnose(["INFO all is well", "Segmentation fault"]) is None
    assert diagnose([]) is None


@given(st.lists(st.text(max_size=60), max_size=8))
def test_no_log_breaks_it(lines):
    found = diagnose(lines, {"memory_fraction": 0.9, "tensor_parallel": 2}, get_engine("sglang"), 10.0)
    assert found is None or found["remedy"]


# --- numbers -------------------------------------------------------------------------------------


def remedy(*lines: str, model_gib: float = 0.0, engine: str = "sglang", **declaration) -> str:
    return diagnose(list(lines), declaration, get_engine(engine), model_gib)["remedy"]


def oom(asked: str = "8.00 GiB", free: str = "2.00 GiB", mine: str = "77.00 GiB") -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of "
        f"80.00 GiB of which {free} is free. Including non-PyTorch memory, this process has {mine} memory in use."
    )


def test_weights_that_need_more_gpus():
    # 240 GiB on GPUs of 80, of which 85 % can be weights: 3.5, and heads are split by powers of two.
    assert "set llm_server.tensor_parallel to 4" in remedy(LOADING, oom(), model_gib=240.0, tensor_parallel=2)
    assert "240.0 GiB, 120.0 GiB for each of 2 GPUs of 80.0 GiB" in remedy(
        LOADING, oom(), model_gib=240.0, tensor_parallel=2
    )
    # They would fit: no number is invented.
    assert "gpu_info" in remedy(LOADING, oom(), model_gib=100.0, tensor_parallel=2)


def test_memory_that_others_hold():
    assert "other processes hold 58.0 GiB of this GPU's 80.0" in remedy(LOADING, oom(mine="20.00 GiB"))
    assert "other processes hold 58.0 GiB" in remedy(oom(mine="20.00 GiB"), memory_fraction=0.9)


def test_graphs_that_need_more_than_was_left():
    graphs = (
        "[2026-11-29 13:35:41 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=2.00 GB"
    )
    # 6 of 80 GiB are lacking: 0.90 - 0.075 - 0.01
    told = remedy(LOADING, graphs, oom(), memory_fraction=0.9)
    assert "6.00 GiB are lacking of 80.0: set llm_server.memory_fraction to 0.81 (now 0.9)" in told
    assert "lower llm_server.memory_fraction" in remedy(graphs, oom())  # not declared: nothing to compute from


def test_sglang_without_room_for_the_kv_cache():
    after = "[2026-11-29 13:35:31 TP0] Load weight end. elapsed=9 s, type=X, avail mem=34.59 GB, mem usage=103.75 GB."
    message = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    # 1 - 34.59 / 138.34 = 0.75, and 0.05 for the cache
    assert "set llm_server.memory_fraction to 0.80 or more (now 0.7)" in remedy(
        LOADING, after, message, memory_fraction=0.7
    )
    full = after.replace("34.59", "4.00")
    assert "use more GPUs" in remedy(LOADING, full, message, memory_fraction=0.97)
    assert remedy(message) == "raise llm_server.memory_fraction"
    told = next(line for _name, line in SEEN if "Raise --mem-fraction-static above 0.921" in line)
    assert "memory_fraction to 0.98 or more" in remedy(told)


def test_vllm_s_own_numbers():
    lines = dict(SEEN)
    assert remedy(lines["context too long for the KV cache"], engine="vllm") == (
        "set llm_server.context_length to 16528 or less (now 40960), or free 3.35 GiB more for it"
    )
    assert "set llm_server.memory_fraction to 0.48 or less (now 0.9)" in remedy(lines["GPU memory is taken"])
    assert "set llm_server.context_length to 2048 or less (now 8192)" in remedy(
        lines["context longer than the model's"]
    )
