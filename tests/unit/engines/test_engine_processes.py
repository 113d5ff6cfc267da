"""Which process is what: titles and command lines as they were seen."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.declaration import complete
from ansible_collections.groundstate.llm.plugins.module_utils.engines import classify, get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.procfs import Process


@pytest.mark.parametrize(
    ("cmdline", "expected"),
    [
        ("python3 -m sglang.launch_server --model-path /models/tiny-llama --tp-size 2", ("sglang", "server")),
        ("/opt/ml-env/bin/python3 -B -m sglang.launch_server --port 8000", ("sglang", "server")),
        ("/e/bin/python3 /e/bin/sglang serve --model-path /m", ("sglang", "server")),
        ("sglang::scheduler", ("sglang", "worker")),
        ("sglang::scheduler_TP0", ("sglang", "worker")),
        ("sglang::scheduler_DP0_TP1", ("sglang", "worker")),
        ("sglang::detokenizer", ("sglang", "helper")),
        ("/e/bin/python3.11 /e/bin/vllm serve /m --port 1", ("vllm", "server")),
        ("python -m vllm.entrypoints.openai.api_server --model m", ("vllm", "server")),
        ("VLLM::EngineCore", ("vllm", "helper")),
        ("VLLM::APIServer_1", ("vllm", "helper")),
        ("VLLM::Worker", ("vllm", "worker")),
        ("VLLM::Worker_TP0", ("vllm", "worker")),
        ("/e/bin/python /e/bin/groundstate-llama-cpp --model m", ("llama_cpp", "server")),
        ("/usr/local/bin/llama-server -m m.gguf", ("llama_cpp", "server")),
        # Others that only speak of an engine.
        ("grep sglang.launch_server", None),
        ("vim /e/bin/vllm serve.txt", None),
        ("bash -c python -m sglang.launch_server", None),
        ("/bin/sh -c out=$1 groundstate-supervisor /s /e/bin/groundstate-llama-cpp --model m", None),
        ("python -m pytest tests/vllm serve", None),
        ("tail -f groundstate-llama-cpp.log", None),
        ("/opt/ml-env/bin/python3 -B -c from multiprocessing.resource_tracker import main;main(36)", None),
        ("", None),
    ],
)
def test_classify(cmdline, expected):
    assert classify(cmdline) == expected


def tree(*titles, state="S"):
    return [Process(100 + n, 1, 1, 1, state, "x", 0, title) for n, title in enumerate(titles)]


def declared(engine, ranks=1, **more):
    return complete({"name": "s", "engine": engine, "model": "/m", "tensor_parallel": ranks, **more})


def ranks_of(engine, processes, declaration):
    found = get_engine(engine).find_workers(processes, declaration)
    return {rank: item.cmdline for rank, item in found.items()}


def test_sglang_workers():
    items = tree(
        "python3 -m sglang.launch_server", "sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer"
    )
    assert ranks_of("sglang", items, declared("sglang", 2)) == {0: "sglang::scheduler_TP0", 1: "sglang::scheduler_TP1"}
    assert ranks_of("sglang", tree("sglang::scheduler"), declared("sglang")) == {0: "sglang::scheduler"}
    assert get_engine("sglang").expected_workers(declared("sglang", 8)) == 8


def test_vllm_workers_and_the_engine_core_that_computes_itself():
    items = tree("python /e/bin/vllm serve /m", "VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1")
    assert ranks_of("vllm", items, declared("vllm", 2)) == {0: "VLLM::Worker_TP0", 1: "VLLM::Worker_TP1"}
    assert ranks_of("vllm", tree("x", "VLLM::EngineCore", "VLLM::Worker"), declared("vllm")) == {0: "VLLM::Worker"}
    assert ranks_of("vllm", tree("x", "VLLM::EngineCore"), declared("vllm")) == {0: "VLLM::EngineCore"}
    # With two ranks an engine core without workers is not complete.
    assert ranks_of("vllm", tree("x", "VLLM::EngineCore"), declared("vllm", 2)) == {}


def test_a_zombie_is_no_worker():
    assert ranks_of("sglang", tree("sglang::scheduler_TP0", state="Z"), declared("sglang")) == {}


def test_llama_cpp_is_its_own_worker():
    items = tree("/e/bin/python /e/bin/groundstate-llama-cpp --model m", "child")
    assert list(get_engine("llama_cpp").find_workers(items, declared("llama_cpp"))) == [0]
    spaced = "/a b/bin/python /a b/bin/groundstate-llama-cpp --model m"
    assert ranks_of("llama_cpp", tree(spaced, "child"), declared("llama_cpp")) == {0: spaced}
    other = declared("llama_cpp", command=["/opt/my-server"])
    assert ranks_of("llama_cpp", tree("/opt/my-server"), other) == {0: "/opt/my-server"}


def test_generic_promises_no_workers():
    declaration = declared("generic", command=["x"])
    assert get_engine("generic").expected_workers(declaration) == 0
    assert get_engine("generic").find_workers(tree("x"), declaration) == {}
