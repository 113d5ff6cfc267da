"""What each node of a server over several hosts is told, and which declarations of one are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import argument_check, declaration, multi_host
from ansible_collections.groundstate.llm.plugins.module_utils.argument_check import Parser
from ansible_collections.groundstate.llm.plugins.module_utils.engine_parser import flags_of
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.procfs import Process

DATA = Path(__file__).resolve().parents[2] / "data" / "parsers"
HOSTS = ["gpu1", "gpu2"]


def make(engine="sglang", this="gpu1", hosts=HOSTS, **fields):
    together = {"hosts": hosts, "this": this, **fields.pop("multi_host", {})}
    raw = {"name": "s", "engine": engine, "model": "/m", "tensor_parallel": 16, "port": 8000, **fields}
    return declaration.complete({**raw, "multi_host": together})


def words(declared):
    return get_engine(declared["engine"]).argv(declared, "/e", 8000)


def part(found, begin, count):
    at = found.index(begin)
    return found[at : at + count]


@pytest.mark.parametrize(("this", "rank"), [("gpu1", "0"), ("gpu2", "1")])
def test_every_node_of_sglang_gets_its_rank_and_the_same_meeting_place(this, rank):
    found = words(make(this=this, multi_host={"head": "10.0.0.1"}))
    assert part(found, "--nnodes", 6) == ["--nnodes", "2", "--node-rank", rank, "--dist-init-addr", "10.0.0.1:29500"]
    assert part(found, "--tp-size", 2) == ["--tp-size", "16"]


def test_vllm_s_head_serves_and_the_others_are_headless():
    head = words(make("vllm", multi_host={"port": 29501}))
    other = words(make("vllm", "gpu2", multi_host={"port": 29501}))
    assert part(head, "--nnodes", 8) == [
        *("--nnodes", "2", "--node-rank", "0", "--master-addr", "gpu1", "--master-port", "29501"),
    ]
    assert "--headless" not in head
    assert "--headless" in other


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.23"), ("sglang", "0.5.5"), ("vllm", "0.32.0")])
@pytest.mark.parametrize("this", HOSTS)
def test_the_real_parsers_know_what_the_nodes_are_told(engine, version, this):
    raw = json.loads((DATA / f"{engine}-{version}.json").read_text())
    declared = make(engine, this, pipeline_parallel=2)
    flags = flags_of(get_engine(engine), words(declared))
    parser = Parser(raw["flags"], raw["flexible"], version)
    assert argument_check.check(get_engine(engine), declared, flags, parser) == ([], [])


def test_generic_fills_in_the_node():
    command = ["run", "{rank}/{nodes}", "{head}:{head_port}"]
    assert words(make("generic", "gpu2", command=command)) == ["run", "1/2", "gpu1:29500"]


def test_a_server_on_one_host_is_told_nothing_of_it():
    declared = declaration.complete({"name": "s", "engine": "sglang", "model": "/m"})
    assert declared["multi_host"] == {}
    assert "--nnodes" not in words(declared)
    assert multi_host.is_head(declared)
    assert multi_host.is_head({})  # as records were before there were several hosts


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (make(this="gpu3"), "multi_host.this: gpu3 is none of gpu1, gpu2"),
        (make(this=""), "multi_host.this: (empty) is none of"),
        (make(hosts=["gpu1", "gpu1"]), "names a host twice"),
        (make(hosts=[]), "multi_host.hosts: required"),
        (
            make(hosts=["gpu1", "gpu2", "gpu3"]),
            "16 ranks (tensor_parallel * pipeline_parallel) cannot be shared evenly",
        ),
        (make(multi_host={"port": 8000}), "is the port of the API too"),
        (make(multi_host={"port": 0}), "0 is not a TCP port"),
        (make("llama_cpp", tensor_parallel=1), "multi_host: llama.cpp runs on one host only"),
        (make(gpus=["0", "1"]), "8 ranks need as many GPUs, and gpus names 2"),
    ],
)
def test_what_cannot_be_is_refused(declared, told):
    assert [text for text in declaration.problems(declared) if told in text]


def test_a_good_declaration_has_no_problems():
    assert declaration.problems(make(gpus=[str(one) for one in range(8)])) == []


def test_an_unknown_field_is_refused():
    with pytest.raises(ValueError, match=r"multi_host\.nodes: no such field"):
        make(multi_host={"nodes": 2})


@pytest.mark.parametrize(
    ("engine", "titles", "ranks"),
    [
        ("sglang", ["sglang::scheduler_TP8", "sglang::scheduler_TP15", "sglang::detokenizer"], [8, 15]),
        ("sglang", ["sglang::scheduler_PP1_TP0", "sglang::scheduler_PP0_TP3"], [3, 16]),
        ("sglang", ["sglang::scheduler_DP1_PP1_TP2_EP2"], [18]),
        ("vllm", ["VLLM::Worker_PP1_TP0", "VLLM::Worker_TP7", "VLLM::EngineCore"], [7, 16]),
        ("vllm", ["VLLM::Worker_PP1_PCP1_TP0"], [16]),
    ],
)
def test_ranks_over_hosts_and_stages_are_told_apart(engine, titles, ranks):
    tree = [Process(number, 1, 0, 0, "S", "x", 0, title) for number, title in enumerate(titles, 100)]
    found = get_engine(engine).find_workers(tree, make(engine))
    assert sorted(found) == ranks


def test_each_host_has_its_share_of_the_workers():
    for engine in ("sglang", "vllm"):
        assert get_engine(engine).expected_workers(make(engine)) == 8
        assert get_engine(engine).expected_workers(make(engine, pipeline_parallel=2)) == 16
