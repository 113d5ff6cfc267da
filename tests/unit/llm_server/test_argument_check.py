"""Command lines against what real parsers know (tests/data/parsers: printed by ask_parser in real environments)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import argument_check
from ansible_collections.groundstate.llm.plugins.module_utils.argument_check import Given, Parser
from ansible_collections.groundstate.llm.plugins.module_utils.declaration import complete
from ansible_collections.groundstate.llm.plugins.module_utils.engine_parser import flags_of
from ansible_collections.groundstate.llm.plugins.module_utils.engines import ENGINES, get_engine
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(__file__).resolve().parents[2] / "data" / "parsers"


def parser(name: str) -> Parser:
    raw = json.loads((DATA / f"{name}.json").read_text())
    return Parser(raw["flags"], raw["flexible"], name.partition("-")[2])


SGLANG, SGLANG_OLD, VLLM = parser("sglang-0.5.23"), parser("sglang-0.5.5"), parser("vllm-0.32.0")


def check(known: Parser, engine: str, **fields):
    declared = complete({"name": "s", "engine": engine, "model": "/m", **fields})
    words = flags_of(get_engine(engine), get_engine(engine).argv(declared, "/e", 8000))
    return argument_check.check(get_engine(engine), declared, words, known)


def problems(known: Parser, engine: str, **extra):
    found, warned = check(known, engine, extra_args=extra)
    assert warned == []
    return found


EAGLE = {"algorithm": "EAGLE3", "draft_model": "/d", "num_steps": 2, "topk": 1, "draft_tokens": 3}
FULL = {
    "served_model_name": "m",
    "tensor_parallel": 8,
    "threads": 2,
    "context_length": 4096,
    "memory_fraction": 0.88,
    "trust_remote_code": True,
    "speculation": EAGLE,
}


@pytest.mark.parametrize(("known", "engine"), [(SGLANG, "sglang"), (SGLANG_OLD, "sglang"), (VLLM, "vllm")])
def test_all_that_a_declaration_can_say_is_known_to_the_real_parser(known, engine):
    assert check(known, engine, **FULL) == ([], [])


def test_the_story_s_arguments_are_known():
    story = {"num-continuous-decode-steps": 4, "disable-custom-all-reduce": True}
    assert problems(SGLANG, "sglang", **story) == []


@pytest.mark.parametrize(
    ("known", "engine", "extra", "told"),
    [
        (
            SGLANG,
            "sglang",
            {"cuda-graph-max-bs": 4},
            "has no argument --cuda-graph-max-bs; use cuda-graph-max-bs-decode",
        ),
        (SGLANG, "sglang", {"mem-frac": 0.5}, "has no argument --mem-frac; did you mean --mem-fraction-static?"),
        (SGLANG, "sglang", {"atention-backend": "x"}, "did you mean --attention-backend?"),
        (
            SGLANG,
            "sglang",
            {"attention-backend": "tritn"},
            "does not know 'tritn' for --attention-backend; did you mean",
        ),
        (SGLANG, "sglang", {"watchdog-timeout": "soon"}, "takes a number for --watchdog-timeout, not 'soon'"),
        (SGLANG, "sglang", {"page-size": 1.5}, "takes a whole number for --page-size, not '1.5'"),
        (SGLANG, "sglang", {"page-size": True}, "takes one value for --page-size, not none"),
        (SGLANG, "sglang", {"disable-radix-cache": "yes"}, "takes no value for --disable-radix-cache, not yes"),
        (SGLANG, "sglang", {"tensor-parallel-size": 2}, "unused"),
        (SGLANG, "sglang", {"zzz": 1}, "remove it from extra_args, or see the engine's --help"),
        (VLLM, "vllm", {"disable-log-requests": True}, "remove it: requests are not logged any more by default"),
        (VLLM, "vllm", {"speculative-model": "/d"}, "declare llm_server.speculation"),
        (VLLM, "vllm", {"max-num-seq": 8}, "did you mean --max-num-seqs?"),
        (VLLM, "vllm", {"tp": 2}, "did you mean --tensor-parallel-size, -tp?"),
    ],
)
def test_what_the_parser_would_refuse_is_told_with_its_remedy(known, engine, extra, told):
    if told == "unused":
        found, _warned = check(known, engine, tensor_parallel=2, extra_args=extra)
        told = "it is another name of --tp-size, which is made from another field of the declaration"
    else:
        found = problems(known, engine, **extra)
    assert len(found) == 1
    assert found[0].startswith(f"extra_args.{next(iter(extra))}: ")
    assert told in found[0]


def test_values_of_every_shape_that_parsers_take():
    assert problems(SGLANG, "sglang", **{"cuda-graph-bs-decode": [1, 2, 4]}) == []
    assert problems(SGLANG, "sglang", **{"cuda-graph-bs-decode": ["a"]}) != []
    assert (
        problems(VLLM, "vllm", **{"compilation-config.level": 3, "no-enable-prefix-caching": True, "max_num_seqs": 8})
        == []
    )
    assert problems(VLLM, "vllm", **{"api-key=x": True}) == []
    assert problems(SGLANG, "sglang", **{"watchdog-timeout": -1}) == []


def test_a_flag_on_its_way_out_is_a_warning_in_the_engine_s_words():
    found, warned = check(SGLANG, "sglang", extra_args={"disable-cuda-graph": True})
    assert found == []
    assert warned == [
        "extra_args.disable-cuda-graph: SGLang 0.5.23 says of it: Deprecated. "
        "Use --cuda-graph-backend-{decode,prefill}=disabled instead."
    ]
    # A help text that speaks of something else that is deprecated is no reason to warn.
    assert check(VLLM, "vllm", extra_args={"allow-deprecated-quantization": True}) == ([], [])
    assert check(SGLANG, "sglang", extra_args={"smg-grpc-mode": True}) == ([], [])


@pytest.mark.parametrize(("version", "told"), [("0.5.5", 0), ("0.5.23", 1), ("0.6.0.post1", 1), ("", 0)])
def test_without_a_parser_the_table_speaks_for_versions_that_lack_the_flag(version, told):
    unasked = Parser(version=version, why="no Python there")
    found, warned = check(unasked, "sglang", extra_args={"cuda-graph-bs": 4, "zzz": 1})
    assert found == []
    assert len(warned) == told
    assert all("no longer has it; use cuda-graph-bs-decode" in one for one in warned)


def test_each_row_of_the_tables_is_true_of_the_real_parsers():
    newest = {"sglang": SGLANG, "vllm": VLLM}
    for engine, known in newest.items():
        for row in get_engine(engine).gone:
            assert known.find("--" + row.old) is None, row
            for name in row.new.partition(":")[0].split(" or ") if row.new else []:
                assert known.find("--" + name), row
    for row in get_engine("sglang").gone:
        assert SGLANG_OLD.find("--" + row.old), row
    for engine in ENGINES.values():
        assert len({row.old for row in engine.gone}) == len(engine.gone)
        assert all(row.new or row.why for row in engine.gone)


def test_flags_and_values_of_a_command_line():
    words = ["/e/bin/vllm", "serve", "/m", "--a", "1", "-5", "--b=x=y", "--c", "-tp", "2", "-0.5"]
    assert argument_check.given(words) == [
        Given("--a", ("1", "-5")),
        Given("--b", ("x=y",)),
        Given("--c", ()),
        Given("-tp", ("2", "-0.5")),
    ]


@given(st.dictionaries(st.from_regex(r"[a-z][a-z._-]{0,12}", fullmatch=True), st.text(max_size=6), max_size=4))
def test_whatever_is_declared_is_answered_in_sentences(extra):
    found, warned = check(VLLM, "vllm", extra_args=extra)
    assert all(isinstance(one, str) and ": " in one for one in found + warned)
