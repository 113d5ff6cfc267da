"""Which differences were declared: with the arguments that SGLang itself printed, with and without EAGLE-3."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.groundstate.llm.plugins.module_utils.engines import get_engine
from ansible_collections.groundstate.llm.plugins.module_utils.resolved import adjustments
from ansible_collections.groundstate.llm.plugins.plugin_utils import arm_state, difference_lines

ROOT = Path(__file__).resolve().parents[3]
LOGS = ROOT / "tests" / "data" / "server_logs"
COVERS = yaml.safe_load((ROOT / "roles" / "compare" / "vars" / "main.yml").read_text())["__compare_covers"]
MAX_RUNNING = "resolved argument max_running_requests"
SERVER = {"name": "k", "engine": "sglang", "model": "/models/tiny-llama", "tensor_parallel": 2}
EAGLE = {"algorithm": "EAGLE3", "draft_model": "/models/tiny-eagle3", "num_steps": 2, "topk": 1, "draft_tokens": 3}


def asked(**more):
    return arm_state.declared({"llm_server": {**SERVER, **more}}, {})


def ran(log: str, **more):
    """A start as its record tells it: the arguments and sentences of a real log."""
    engine = get_engine("sglang")
    lines = (LOGS / log).read_text().splitlines()
    resolved = next(found for line in lines if (found := engine.resolved_arguments(line)) is not None)
    del resolved["eplb_rebalance_layers_per_chunk"]  # in the middle of it the captured lines are cut
    flat = asked(**more)
    argv = [word for what, value in flat.items() if what.startswith("argument ") for word in (what[9:], value)]
    record = {
        "fingerprints": {"before": {"sections": {"server": {"engine": "sglang", "argv": argv, "resolved": resolved}}}},
        "measurement": {"workload": {"output_tokens": 128}},
        "comparison": {"adjustments": adjustments(engine, lines)},
    }
    return arm_state.ran(record)


def eagle(allow=()):
    pairs = (
        (asked(), asked(speculation=EAGLE)),
        (ran("sglang.tp2.base.log"), ran("sglang.tp2.eagle.log", speculation=EAGLE)),
    )
    return arm_state.differences("eagle", *pairs, COVERS, allow)


def test_the_limit_that_eagle_lowers_silently_stands_in_the_way_and_nothing_else():
    rows = eagle()
    [stops] = arm_state.undeclared(rows)
    assert stops["what"] == MAX_RUNNING
    assert (stops["reference"], stops["value"]) == ("None", "48")
    assert "Max running requests is reset to 48" in stops["why"], "the engine's own words are beside it"
    covered = {row["what"]: row["why"] for row in rows if row["declared"]}
    assert covered["argument --speculative-algorithm"] == "declared"
    # Nobody declared it; it came with the speculation that was declared.
    assert "follows from argument --speculative" in covered["resolved argument speculative_draft_model_revision"]
    text = difference_lines.refusal(rows, "base")
    assert f"NOT DECLARED  {MAX_RUNNING}: None in base, 48 in eagle" in text
    assert f'compare_allow: ["{MAX_RUNNING}"]' in text
    assert "If it was repaired on the host: -e compare_anew=true" in text


def test_what_the_refusal_names_can_be_pasted():
    """Sentences of an engine have apostrophes, quotes and colons."""
    what = 'the engine says: FlashInfer can\'t use "x": falling back to Triton \u2026'
    rows = arm_state.differences("b", ({}, {}), ({}, {what: "yes"}), COVERS, [])
    told = difference_lines.refusal(rows, "a").partition("compare_allow: ")[2]
    assert yaml.safe_load(told) == [what]
    assert arm_state.undeclared(arm_state.differences("b", ({}, {}), ({}, {what: "yes"}), COVERS, [what])) == []


@pytest.mark.parametrize("allow", [[MAX_RUNNING], ["resolved argument max_running*"]])
def test_what_is_accepted_is_no_obstacle_and_says_by_what(allow):
    rows = eagle(allow)
    assert arm_state.undeclared(rows) == []
    [row] = [row for row in rows if row["what"] == MAX_RUNNING]
    assert f"accepted by compare_allow: {allow[0]}" in row["why"]


def test_declaring_the_limit_declares_what_the_engine_resolves_it_to():
    limited = {"extra_args": {"max-running-requests": 48}, "speculation": EAGLE}
    pairs = (asked(), asked(**limited)), (ran("sglang.tp2.base.log"), ran("sglang.tp2.eagle.log", **limited))
    assert arm_state.undeclared(arm_state.differences("eagle", *pairs, COVERS, [])) == []


def test_equal_arms_do_not_differ():
    base = ran("sglang.tp2.base.log")
    [row] = arm_state.differences("b", (asked(), asked()), (base, base), COVERS, [])
    # Of a log alone nothing else is known, and that is no difference either.
    assert row["declared"]
    assert row["what"].startswith("not compared: environment, packages, edited files, ")


def flat(**sections):
    sections = {"server": {"engine": "sglang", "argv": [], "environment": {}, "resolved": {"a": "1"}}, **sections}
    measured = {"workload": {"output_tokens": 8}}
    return arm_state.ran({"fingerprints": {"before": {"sections": sections}}, "measurement": measured})


def stops(base, other, declared=({}, {})):
    rows = arm_state.differences("b", declared, (base, other), COVERS, [])
    return [row["what"] for row in arm_state.undeclared(rows)]


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        ({"python_env": {"distributions": {"torch": "2.9"}, "edited": ["sglang/x.py"]}}, ["file sglang/x.py", ""]),
        ({"python_env": {"distributions": {"torch": "2.10"}, "edited": []}}, ["package torch"]),
        ({"kernel": {"governors": {"performance": 8}}}, ["kernel governors performance"]),
        ({"hardware": {"gpus": [{"power_limit": "300 W"}]}}, ["hardware gpus 0 power limit"]),
        ({"model": {"path": "/other"}}, ["model path"]),
    ],
)
def test_whatever_else_changed_between_the_starts_stands_in_the_way(sections, what):
    base = flat(
        python_env={"distributions": {"torch": "2.9"}, "edited": []},
        kernel={"governors": {"performance": 4}},
        hardware={"gpus": [{"power_limit": "600 W"}]},
        model={"path": "/m"},
    )
    changed = {
        "python_env": {"distributions": {"torch": "2.9"}, "edited": []},
        "kernel": {"governors": {"performance": 4}},
        "hardware": {"gpus": [{"power_limit": "600 W"}]},
        "model": {"path": "/m"},
        **sections,
    }
    assert stops(base, flat(**changed)) == [one for one in what if one]


def test_a_value_that_cannot_be_told_on_one_side_is_no_difference():
    assert stops(flat(kernel={"turbo": True}), flat(kernel={"turbo": None})) == []


def test_a_whole_part_that_only_one_side_tells_stands_in_the_way():
    """It was no difference, without a word: what one start hid was not compared."""
    told = flat(python_env={"distributions": {"torch": "2.9"}})
    dumb = flat(
        server={"engine": "sglang", "argv": [], "environment": {}, "resolved": None}, python_env={"distributions": {}}
    )
    for sides in ((told, dumb), (dumb, told)):
        rows = arm_state.undeclared(arm_state.differences("b", ({}, {}), sides, COVERS, []))
        assert {row["what"] for row in rows} == {"resolved arguments", "packages"}
    table = difference_lines.table(rows, "a")
    assert "NOT DECLARED  resolved arguments: not known in a, known in b (not declared)" in table
    # Accepted by their name, by what they hold, or since the environments differ.
    assert not arm_state.undeclared(
        arm_state.differences("b", ({}, {}), (told, dumb), COVERS, ["resolved argument *", "packages"])
    )
    assert stops(told, dumb, ({"variable ml_env_lock": 1}, {"variable ml_env_lock": 2})) == []
    assert stops(told, dumb, ({"engine": "sglang"}, {"engine": "llama_cpp"})) == []


def test_another_engine_covers_neither_gpus_nor_kernel_that_cannot_be_told():
    told, dumb = flat(hardware={"gpus": []}, kernel={"release": "6"}), flat(hardware={"gpus": None})
    assert stops(told, dumb, ({"engine": "sglang"}, {"engine": "vllm"})) == ["GPUs", "kernel"]


def test_what_no_start_tells_is_said_in_one_line_and_stands_in_nobodys_way():
    dumb = flat(server={"engine": "generic", "argv": ["x"], "environment": {}, "resolved": None, "nccl_mapped": {}})
    rows = [row for arm in "bc" for row in arm_state.differences(arm, ({}, {}), (dumb, dumb), COVERS, [])]
    assert arm_state.undeclared(rows) == []
    [line] = difference_lines.table(rows, "a")
    assert line.startswith("not compared: resolved arguments, packages, ")
    assert line.endswith(" (neither start tells it)")
    assert difference_lines.not_compared(rows) == [line]


def test_a_log_of_nccl_that_only_one_side_has_stands_in_the_way_but_for_a_single_worker():
    two, silent = seen_by_workers(), seen_by_workers(logged=False)
    assert stops(two, silent) == ["NCCL's log"]
    # The profile of one arm lets NCCL log something else.
    assert stops(two, silent, ({}, {"environment NCCL_DEBUG": "WARN"})) == []
    assert stops(two, seen_by_workers(ranks=1, logged=False)) == []


def test_another_environment_brings_another_version_and_another_engine_everything():
    base, other = (
        flat(python_env={"distributions": {"torch": "2.9"}}),
        flat(python_env={"distributions": {"torch": "3"}}),
    )
    assert stops(base, other) == ["package torch"]
    assert stops(base, other, ({"variable ml_env_path": "/a"}, {"variable ml_env_path": "/b"})) == []
    vllm = flat(server={"engine": "vllm", "argv": ["vllm"], "resolved": {"z": "1"}})
    assert stops(base, vllm, ({"engine": "sglang"}, {"engine": "vllm"})) == []


def test_the_port_and_our_own_marks_are_no_difference():
    def one(port, mark):
        environment = {"GROUNDSTATE_START": mark}
        return flat(server={"argv": ["p", "--port", port], "environment": environment, "resolved": {"a": "1"}})

    assert stops(one("1", "x"), one("2", "y")) == []


def test_a_declared_difference_that_did_not_take_effect_stands_in_the_way():
    """Both arms ran the same: whatever that compares, it is not what was declared."""
    base = ran("sglang.tp2.base.log")
    rows = arm_state.differences("eagle", (asked(), asked(speculation=EAGLE)), (base, base), COVERS, [])
    stops = arm_state.undeclared(rows)
    assert "argument --speculative-algorithm" in {row["what"] for row in stops}
    assert all("declared, and both ran with" in row["why"] for row in stops)
    both = asked(**{"speculation": EAGLE})
    assert stops_of(both, both, {"workload output_tokens": 8}, {"workload output_tokens": 9}) == [
        "workload output_tokens"
    ]


def stops_of(base, other, *declared):
    rows = arm_state.differences("b", declared, (base, other), COVERS, [])
    return [row["what"] for row in arm_state.undeclared(rows)]


def seen_by_workers(transport="P2P/IPC", ranks=2, logged=True, source="memory", **variables):
    """A start whose workers have these variables, as the proof saw them."""
    told = {name: {"seen": value} for name, value in variables.items()}
    workers = [
        {
            "source": source,
            "variables": told,
            "undeclared": {},
            "set_by_engine": {"NCCL_CUMEM_ENABLE": "0"},
            "nccl_version": "2.28.9+cuda13.0" if logged else "",
            "communicators": [{"transports": {"0 -> 1": {transport: 16}}}] if logged else [],
        }
        for _rank in range(ranks)
    ]
    sections = {"server": {"engine": "sglang", "argv": [], "resolved": {}}}
    measured = {"workload": {}}
    record = {"fingerprints": {"before": {"sections": sections}}, "measurement": measured}
    return arm_state.ran({**record, "proof": {"workers": workers}})


def test_the_environment_of_the_workers_is_what_was_declared_or_stands_in_the_way():
    plain, ll = seen_by_workers(), seen_by_workers(NCCL_PROTO="LL")
    assert stops(plain, ll) == ["worker environment NCCL_PROTO"]
    assert stops(plain, ll, ({}, {"environment NCCL_PROTO": "LL"})) == []
    assert stops(plain, seen_by_workers(NCCL_PROTO=None)) == []


def test_workers_that_nobody_may_read_are_not_known_to_be_the_same():
    hidden = seen_by_workers(source="none", NCCL_PROTO=None)
    assert stops(seen_by_workers(), hidden) == ["workers' environment"]
    assert stops(hidden, hidden) == []


def test_another_transport_between_the_gpus_stands_in_the_way():
    assert stops(seen_by_workers(), seen_by_workers("SHM")) == ["NCCL transport"]


def test_a_declaration_tells_arguments_profile_workload_and_clocks():
    profiles = {"mine": {"variables": {"NCCL_PROTO": "LL"}}}
    found = arm_state.declared(
        {
            "llm_server": {**SERVER, "speculation": {"algorithm": "EAGLE3", "draft_model": "/d"}, "env": {"A": "1"}},
            "nccl_profile_name": "mine",
            "baseline_workload": {"output_tokens": 9},
            "gpu_clocks": {"sm_mhz": 1980},
            "pcie8_speculation": {"x": 1},
        },
        profiles,
    )
    expected = {
        "argument --speculative-algorithm": "EAGLE3",
        "environment A": "1",
        "environment NCCL_PROTO": "LL",
        "NCCL profile": "mine",
        "workload output_tokens": 9,
        "clocks sm_mhz": 1980,
        "variable pcie8_speculation": {"x": 1},
    }
    assert {what: found.get(what) for what in expected} == expected


def test_the_table_shows_obstacles_first_and_counts_what_is_many():
    base = flat(python_env={"distributions": {f"p{number}": "1" for number in range(30)}}, kernel={"release": "6"})
    other = flat(python_env={"distributions": {f"p{number}": "2" for number in range(30)}}, kernel={"release": "7"})
    rows = arm_state.differences(
        "b", ({"variable ml_env_lock": 1}, {"variable ml_env_lock": 2}), (base, other), COVERS, []
    )
    lines = difference_lines.table(rows, "a")
    assert lines[0].startswith("NOT DECLARED  kernel release: 6 in a, 7 in b")
    assert "... and 24 more differences of b in packages" in lines
    assert len(lines) < 12


def test_the_document_keeps_what_the_arm_ran_with():
    kept = arm_state.resolved(ran("sglang.tp2.eagle.log", speculation=EAGLE))
    assert kept["engine"] == "sglang"
    assert kept["arguments"]["--speculative-algorithm"] == "EAGLE3"
    assert kept["engine_arguments"]["max_running_requests"] == "48"
