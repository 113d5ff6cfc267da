"""Which processes a reset ends: examples of each rule, and random process forests."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import reset_plan
from ansible_collections.groundstate.llm.plugins.module_utils.holders import Hold
from ansible_collections.groundstate.llm.plugins.module_utils.procfs import Process
from ansible_collections.groundstate.llm.plugins.module_utils.reset_plan import Policy, Server, Traits, View, make_plan
from hypothesis import given, settings
from hypothesis import strategies as st

ME = 2
BOTH = Policy(asked=frozenset({0, 1}))
ONLY_0 = Policy(asked=frozenset({0}), every_gpu=False)


def process(pid: int, ppid: int = 1, state: str = "S", uid: int = 0, comm: str = "x") -> Process:
    return Process(pid, 100 + pid, ppid, ppid, state, comm, uid, f"{comm} {pid}")


def view(*processes: Process, traits=None, holds=None, servers=(), uid: int = 0) -> View:
    table = {one.pid: one for one in (process(1, 0), process(ME), *processes)}
    held = {pid: Hold(frozenset(gpus)) for pid, gpus in (holds or {}).items()}
    return View(table, traits or {}, held, tuple(servers), ME, uid)


def ends(plan: reset_plan.Plan) -> dict[int, str]:
    return {item.process.pid: item.kind for item in plan.end}


def left(plan: reset_plan.Plan) -> dict[int, str]:
    return {item.process.pid: item.kind for item in plan.left}


PYTHON = Traits(names=frozenset({"python3"}), python=True)
WORKER = Traits(engine=("sglang", "worker"))
SERVER = Traits(engine=("sglang", "server"))


def test_a_python_process_that_holds_the_gpu_is_stale_and_others_are_not_named():
    plan = make_plan(view(process(10), process(11), traits={10: PYTHON}, holds={10: {0}, 11: {0}}), BOTH)
    assert ends(plan) == {10: "python"}
    assert left(plan) == {11: "unnamed"}


def test_policy_all_names_every_holder():
    plan = make_plan(view(process(10), process(11), holds={10: {0}, 11: {1}}), replace(BOTH, name="all"))
    assert ends(plan) == {10: "holder", 11: "holder"}


def test_a_name_is_no_reason():
    traits = {10: PYTHON, 11: WORKER, 12: SERVER}
    plan = make_plan(view(process(10), process(11), process(12), traits=traits), replace(BOTH, name="all"))
    assert plan.end == []


def test_other_gpus_are_out_of_scope():
    plan = make_plan(view(process(10), process(11), traits={10: PYTHON, 11: PYTHON}, holds={10: {0}, 11: {1}}), ONLY_0)
    assert ends(plan) == {10: "python"}
    assert plan.left == []


def test_a_doubtful_holder_is_left_and_listed():
    seen = view(process(10), traits={10: PYTHON})
    plan = make_plan(replace(seen, holds={10: Hold(frozenset(), frozenset({0, 1}))}), ONLY_0)
    assert plan.end == []
    assert left(plan) == {10: "doubtful"}
    assert plan.left[0].gpus == (0, 1)
    protected = replace(seen, traits={10: Traits(names=frozenset({"Xorg"}))})
    assert left(make_plan(replace(protected, holds={10: Hold(frozenset(), frozenset({0, 1}))}), ONLY_0)) == {
        10: "protected"
    }


def test_the_server_of_an_engine_ends_with_its_worker_but_not_a_shell_above():
    seen = view(
        process(10, comm="bash"),
        process(11, 10),
        process(12, 11),
        process(13, 11),
        traits={11: SERVER, 12: WORKER, 13: Traits(engine=("sglang", "helper"))},
        holds={12: {0}},
    )
    plan = make_plan(seen, BOTH)
    assert ends(plan) == {11: "engine", 12: "engine"}
    assert [one.pid for one in plan.roots] == [11]
    assert [one.pid for one in plan.members] == [11, 12]


def test_the_server_of_another_engine_above_a_worker_is_not_its_server():
    seen = view(
        process(11),
        process(12, 11),
        process(13, 12),
        traits={11: SERVER, 12: Traits(engine=("vllm", "server")), 13: WORKER},
        holds={13: {0}},
    )
    assert ends(make_plan(seen, BOTH)) == {13: "engine"}


def test_protected_programs_are_left_whatever_the_policy():
    traits = {
        10: Traits(names=frozenset({"dcgm-exporter"})),
        11: Traits(names=frozenset({"python3", "gpu_exporter.py"})),
    }
    seen = view(
        process(10), process(11), process(12, comm="nvidia-persiste"), traits=traits, holds={10: {0}, 11: {0}, 12: {0}}
    )
    plan = make_plan(seen, replace(BOTH, name="all"))
    assert plan.end == []
    assert left(plan) == {10: "protected", 11: "protected", 12: "protected"}
    assert left(make_plan(seen, BOTH)) == left(plan)
    assert ends(make_plan(seen, replace(BOTH, name="all", protected=()))) == {10: "holder", 11: "holder", 12: "holder"}


def test_this_run_and_its_ancestors_are_left():
    seen = view(process(ME, 10), process(10), traits={ME: PYTHON, 10: PYTHON}, holds={ME: {0}, 10: {0}})
    plan = make_plan(seen, replace(BOTH, name="all"))
    assert plan.end == []
    assert left(plan) == {ME: "self", 10: "self"}


def test_other_containers_other_users_and_zombies_are_left():
    traits = {10: replace(PYTHON, same_namespace=False), 11: PYTHON, 12: PYTHON}
    seen = view(
        process(10, uid=7),
        process(11, uid=8),
        process(12, state="Z", uid=7),
        traits=traits,
        holds={10: {0}, 11: {0}, 12: {0}},
        uid=7,
    )
    plan = make_plan(seen, BOTH)
    assert plan.end == []
    assert left(plan) == {10: "namespace", 11: "user", 12: "zombie"}
    assert ends(make_plan(replace(seen, uid=0), BOTH)) == {11: "python"}


OURS = Server("ours", "new", root=20)


def test_a_server_of_ours_ends_with_everything_that_belongs_to_it():
    seen = view(
        process(20),
        process(21, 20),
        process(22),
        process(23),
        traits={22: Traits(marker=("ours", "new")), 23: Traits(marker=("ours", ""))},
        servers=[OURS],
    )
    plan = make_plan(seen, BOTH)
    assert ends(plan) == {20: "server", 21: "server", 22: "server", 23: "server"}
    assert plan.stop == [OURS]


def test_a_kept_server_is_left_wholly_alone_but_its_dead_starts_end():
    seen = view(
        process(20),
        process(21, 20),
        process(22),
        process(23),
        traits={21: WORKER, 22: Traits(marker=("ours", "")), 23: Traits(marker=("ours", "old"), python=True)},
        holds={21: {0}, 23: {0}},
        servers=[OURS],
    )
    plan = make_plan(seen, replace(BOTH, name="all", keep=frozenset({"ours"})))
    assert ends(plan) == {23: "orphan"}
    assert left(plan) == {21: "kept"}
    assert plan.kept == {20, 21, 22}
    assert plan.stop == []


def test_orphans_of_a_dead_root_end_even_when_the_server_is_to_be_kept():
    seen = view(
        process(22), process(24, 22), traits={22: Traits(marker=("ours", "new"))}, servers=[Server("ours", "new")]
    )
    plan = make_plan(seen, replace(BOTH, keep=frozenset({"ours"})))
    assert ends(plan) == {22: "orphan", 24: "orphan"}
    assert plan.stop == []


def test_orphans_of_a_server_whose_record_is_lost_end():
    assert ends(make_plan(view(process(22), traits={22: Traits(marker=("lost", "x"))}), BOTH)) == {22: "orphan"}


def test_a_supervisor_is_left_to_write_down_how_its_server_ended():
    seen = view(process(19), process(20, 19), servers=[replace(OURS, supervisor=19)])
    assert ends(make_plan(seen, BOTH)) == {20: "server"}


def test_a_server_of_ours_on_other_gpus_is_out_of_scope():
    held = view(process(20), process(21, 20), holds={21: {1}}, servers=[OURS])
    assert make_plan(held, ONLY_0).end == []
    declared = view(process(20), servers=[replace(OURS, gpus=frozenset({1}))])  # starting: holds nothing yet
    assert make_plan(declared, ONLY_0).end == []
    assert ends(make_plan(declared, BOTH)) == {20: "server"}


def test_an_unknown_policy_is_an_error():
    with pytest.raises(ValueError, match="unknown policy 'none': use one of stale, all, only"):
        make_plan(view(), Policy(name="none"))


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("Xorg", "Xorg"),
        ("X", "X"),
        ("nvidia-persiste", "nvidia-persistenced"),
        ("dcgm-exporter", "dcgm*"),
        ("xterm", ""),
    ],
)
def test_protected_patterns(name, pattern):
    assert reset_plan.protected_by([name], reset_plan.PROTECTED) == pattern


def test_only_what_is_named_and_holds_the_gpu_ends():
    seen = view(
        process(10),
        process(11, 10),
        process(12),
        process(13),
        process(14),
        process(15),
        traits={
            12: Traits(unit="vllm.service"),
            15: Traits(unit="other.service"),
            13: Traits(names=frozenset({"Xorg"})),
        },
        holds={11: {0}, 12: {0}, 13: {0}, 14: {1}, 15: {0}},
    )
    by_number = replace(BOTH, name="only", only=("10",))
    assert ends(make_plan(seen, by_number)) == {11: "holder"}  # 10 holds nothing: what it started does
    assert left(make_plan(seen, by_number)) == {12: "unnamed", 13: "protected", 14: "unnamed", 15: "unnamed"}
    assert ends(make_plan(seen, replace(BOTH, name="only", only=("vllm.service", "x 1[34]$")))) == {
        12: "holder",
        14: "holder",
    }
    assert ends(make_plan(seen, replace(ONLY_0, name="only", only=("14",)))) == {}


def test_only_ends_the_server_of_a_named_worker_when_it_is_named_too():
    seen = view(process(11), process(12, 11), traits={11: SERVER, 12: WORKER}, holds={12: {0}})
    assert ends(make_plan(seen, replace(BOTH, name="only", only=("12",)))) == {12: "engine"}
    assert ends(make_plan(seen, replace(BOTH, name="only", only=("11",)))) == {11: "engine", 12: "engine"}


def test_only_ends_a_server_of_ours_as_a_whole():
    seen = view(process(20), process(21, 20), process(22, 20), holds={21: {0}}, servers=[OURS])
    assert ends(make_plan(seen, replace(BOTH, name="only", only=("22",)))) == {20: "server", 21: "server", 22: "server"}
    assert ends(make_plan(seen, replace(BOTH, name="only", only=("nothing",)))) == {}
    assert make_plan(seen, replace(BOTH, name="only", only=("22",), keep=frozenset({"ours"}))).end == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [("4242", "pid"), ("vllm@1.service", "unit"), ("python3 .*train", "regex"), (".*\\.service$", "regex")],
)
def test_the_names_of_policy_only(name, kind):
    assert reset_plan.name_kind(name) == kind


@pytest.mark.parametrize(("name", "why"), [("1", "ancestor of all"), ("(", "nor a regular expression"), ("", "every")])
def test_names_that_are_refused(name, why):
    with pytest.raises(ValueError, match=why):
        reset_plan.name_kind(name)


def test_a_container_as_scope_leaves_all_others():
    inside, other = Traits(container="101", same_namespace=False), Traits(container="102", same_namespace=False)
    seen = view(
        process(10),
        process(11),
        process(12),
        traits={10: inside, 11: other, 12: PYTHON},
        holds={10: {0}, 11: {0}, 12: {0}},
    )
    plan = make_plan(seen, replace(BOTH, name="all", container="101"))
    assert ends(plan) == {10: "holder"}
    assert left(plan) == {11: "scope", 12: "scope"}
    assert "container 102, not of container 101" in plan.left[0].why
    assert "the host itself" in plan.left[1].why


# --- random forests --------------------------------------------------------------------------------

_NAMES = ["a", "b"]
_traits = st.builds(
    Traits,
    names=st.sampled_from([frozenset(), frozenset({"Xorg"}), frozenset({"python3"})]),
    engine=st.sampled_from([None, None, ("sglang", "server"), ("sglang", "worker"), ("vllm", "server")]),
    python=st.booleans(),
    marker=st.sampled_from([None, None, None, ("a", "new"), ("a", "old"), ("a", ""), ("b", "new"), ("lost", "x")]),
    same_namespace=st.sampled_from([True, True, True, None, False]),
    unit=st.sampled_from(["", "", "a.service", "b.service"]),
    container=st.sampled_from(["", "101", "101", "102"]),
)
_gpus = st.frozensets(st.sampled_from([0, 1]))


@st.composite
def forests(draw) -> tuple[View, Policy]:
    count = draw(st.integers(3, 14))
    table = {1: process(1, 0)}
    for pid in range(2, count + 2):
        # Parents anywhere below: pid order says nothing about age on a real host, but trees have no loops.
        table[pid] = process(
            pid, draw(st.integers(1, pid - 1)), draw(st.sampled_from("SSSRDZ")), draw(st.sampled_from([0, 0, 7]))
        )
    pids = st.sampled_from(sorted(table))
    holds = draw(st.dictionaries(pids, st.builds(Hold, gpus=_gpus), max_size=8))
    servers = tuple(
        Server(
            name, "new", root=draw(st.none() | pids), supervisor=draw(st.none() | pids), gpus=draw(st.none() | _gpus)
        )
        for name in draw(st.lists(st.sampled_from(_NAMES), unique=True))
    )
    asked = draw(_gpus)
    name = draw(st.sampled_from(reset_plan.POLICIES))
    numbers = pids.filter(lambda pid: pid > 1).map(str)
    only = st.lists(numbers | st.sampled_from(["a.service", "x [3-5]$", "^x 1", "nothing"]), min_size=1, max_size=3)
    policy = Policy(
        name=name,
        asked=asked,
        every_gpu=asked == {0, 1},
        keep=draw(st.frozensets(st.sampled_from(_NAMES))),
        only=tuple(draw(only)) if name == "only" else (),
        container=draw(st.sampled_from(["", "", "101"])),
    )
    traits = draw(st.dictionaries(pids, _traits))
    return View(table, traits, holds, servers, draw(pids), draw(st.sampled_from([0, 7]))), policy


def _ancestors(pid: int, table) -> list[int]:
    found = []
    while pid in table:
        found.append(pid)
        pid = table[pid].ppid
    return found


def _named(pid: int, seen: View, policy: Policy) -> bool:
    """Whether ``only`` names a process, in the words of the documentation."""
    return policy.name != "only" or any(
        name in map(str, _ancestors(pid, seen.table))
        or name == seen.traits.get(pid, Traits()).unit
        or (not name.isdigit() and re.search(name, seen.table[pid].cmdline))
        for name in policy.only
    )


def _untouchable(pid: int, seen: View, policy: Policy) -> bool:
    """What no policy may end, in the words of the documentation."""
    traits = seen.traits.get(pid, Traits())
    outside = traits.container != policy.container if policy.container else traits.same_namespace is False
    return (
        outside
        or pid in {1, *_ancestors(seen.me, seen.table)}
        or seen.table[pid].state == "Z"
        or "Xorg" in traits.names
        or (seen.uid != 0 and seen.table[pid].uid != seen.uid)
    )


def _owner(pid: int, seen: View) -> tuple[str, bool] | None:
    """(server, belongs to its live start), by the nearest evidence up the tree."""
    for one in _ancestors(pid, seen.table):
        recorded = [server for server in seen.servers if one in (server.root, server.supervisor)]
        if recorded:
            return recorded[-1].name, recorded[-1].root is not None
        marker = seen.traits.get(one, Traits()).marker
        if marker:
            live = any(
                s.name == marker[0] and s.root is not None and marker[1] in ("", s.start_id) for s in seen.servers
            )
            return marker[0], live
    return None


@settings(max_examples=400)
@given(forests())
def test_the_set_ended_is_the_set_that_the_policy_names(case):
    seen, policy = case
    plan = make_plan(seen, policy)
    planned = {item.process.pid for item in plan.end}
    held = {pid: hold.gpus for pid, hold in seen.holds.items()}
    supervisors = {server.supervisor for server in seen.servers}
    expected = set()
    for pid in seen.table:
        traits = seen.traits.get(pid, Traits())
        owner = _owner(pid, seen)
        mine = held.get(pid, frozenset())
        if _untouchable(pid, seen, policy):
            continue
        if owner is None:
            confirmed = policy.name in ("all", "only") or traits.engine or traits.python
            if mine & policy.asked and confirmed and _named(pid, seen, policy):
                expected.add(pid)
            continue
        name, live = owner
        if pid in supervisors:
            continue
        if not live:
            if _named(pid, seen, policy) and (policy.every_gpu or not mine or mine & policy.asked):
                expected.add(pid)
        elif name not in policy.keep:
            server = next(one for one in seen.servers if one.name == name)
            used = set(server.gpus or ())
            members = [other for other in seen.table if _owner(other, seen) == owner]
            used.update(*(held.get(other, ()) for other in members))
            if not any(_named(other, seen, policy) for other in members):
                continue
            if policy.every_gpu or not used or used & policy.asked:
                expected.add(pid)
    through = {
        ancestor
        for pid in expected
        if _owner(pid, seen) is None and (engine := seen.traits.get(pid, Traits()).engine)
        for place, ancestor in enumerate(_ancestors(pid, seen.table)[1:])
        if all(
            (seen.traits.get(one, Traits()).engine or ("",))[0] == engine[0] and _owner(one, seen) is None
            for one in _ancestors(pid, seen.table)[1 : place + 2]
        )
    }
    expected |= {pid for pid in through if _named(pid, seen, policy) and not _untouchable(pid, seen, policy)}
    assert planned == expected


@settings(max_examples=200)
@given(forests())
def test_whatever_the_forest_the_plan_is_safe_and_explained(case):
    seen, policy = case
    plan = make_plan(seen, policy)
    planned = [item.process.pid for item in plan.end]
    assert len(planned) == len(set(planned))
    assert not any(_untouchable(pid, seen, policy) for pid in planned)
    assert not set(planned) & plan.kept
    assert not set(planned) & {item.process.pid for item in plan.left}
    assert all(item.why and item.kind for item in [*plan.end, *plan.left])
    # Parents before children, and every planned process is below a root that is asked politely first.
    order = {pid: place for place, pid in enumerate(planned)}
    roots = {one.pid for one in plan.roots}
    for pid in planned:
        above = [one for one in _ancestors(pid, seen.table)[1:] if one in order]
        assert all(order[one] < order[pid] for one in above)
        assert pid in roots or seen.table[pid].ppid in order
    # Whoever holds a GPU in scope is ended, left with a reason, or a supervisor of ours, or of a server out of scope.
    listed = set(planned) | {item.process.pid for item in plan.left}
    for pid, hold in seen.holds.items():
        if hold.gpus & policy.asked and _owner(pid, seen) is None:
            assert pid in listed
