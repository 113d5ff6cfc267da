"""Every known failure with a line as engines write it."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.diagnoses import TABLE, diagnose

SEEN = {
    "unknown argument": "groundstate-llama-cpp: error: unrecognized arguments: --bogus 1",
    "wrong argument": "launch_server.py: error: argument --tp-size: invalid int value: 'x'",
    "out of GPU memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total",
    "out of memory for the KV cache": (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.1"
    ),
    "port in use": "0.00.003.286 E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 19101",
    "model missing": "groundstate-llama-cpp: error: model file not found: /nope",
    "remote code not trusted": "ValueError: ... Please pass the argument `trust_remote_code=True` to allow custom code",
    "module missing": "ModuleNotFoundError: No module named 'sgl_kernel'",
    "environment drifted": "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm",
    "NUMA binding": "AssertionError: Not enough allowed NUMA nodes to bind threads of 2 CPUWorkers",
}


@pytest.mark.parametrize("name", [row.name for row in TABLE])
def test_every_row_recognises_its_failure(name):
    found = diagnose(["INFO starting", SEEN[name], "more"])
    assert found["name"] == name
    assert found["line"] == SEEN[name].strip()
    assert found["remedy"]
    assert "{" not in found["cause"]


def test_the_cause_says_what_the_log_said():
    assert diagnose([SEEN["unknown argument"]])["cause"] == "the engine does not know the argument --bogus 1"
    assert "(2.50 GiB)" in diagnose([SEEN["out of GPU memory"]])["cause"]
    assert diagnose(["torch.OutOfMemoryError"])["cause"] == "a GPU has not enough free memory"


def test_an_unknown_failure_stays_unknown():
    assert diagnose(["INFO all is well", "Segmentation fault"]) is None
    assert diagnose([]) is None
