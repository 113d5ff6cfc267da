"""Workloads: defaults, and all problems at once."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import workload


def test_defaults_are_the_single_stream():
    found = workload.resolve({})
    assert found == workload.DEFAULTS
    assert workload.level_requests(found, 1) == 5
    assert workload.resolve(None) == found


def test_a_single_concurrency_and_whole_floats_are_taken():
    found = workload.resolve({"concurrency": 4, "prompt_tokens": 64.0, "warmup_cap_s": 3})
    assert (found["concurrency"], found["prompt_tokens"], found["warmup_cap_s"]) == ([4], 64, 3.0)
    assert isinstance(found["prompt_tokens"], int)
    assert isinstance(found["warmup_cap_s"], float)


def test_all_problems_are_named_at_once():
    bad = {
        "prompt_tokens": 3,
        "output_tokens": "many",
        "concurrency": [1, 1],
        "repeats": 2.5,
        "api": "embeddings",
        "promt": 1,
        "max_error_share": 1.5,
        "seed": True,
        "prefix_cache": "ignore",
        "prompts_file": 5,
    }
    with pytest.raises(workload.WorkloadError) as caught:
        workload.resolve(bad)
    for name in bad:
        assert f"{name}:" in str(caught.value)


@pytest.mark.parametrize("levels", [[], [0], [1.5], ["2"], [workload.MAX_CONCURRENCY + 1], "x"])
def test_impossible_levels_are_refused(levels):
    with pytest.raises(workload.WorkloadError, match="concurrency"):
        workload.resolve({"concurrency": levels})


def test_requests_of_a_level_are_streams_times_requests_times_repeats():
    assert workload.level_requests(workload.resolve({"requests": 2, "repeats": 3}), 8) == 48
