"""What compare.yml plans, and refuses, before anything is started: the first step of the role, with real variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAN = {
    "state": "planned",
    "records_dir": "{{ groundstate_records_dir }}",
    "ways": "{{ __compare_ways }}",
    "covers": "{{ __compare_covers }}",
}
#: The result is never printed, and holds what the next tasks go by.
SHOWN = "{{ plan | to_json }}"
INVENTORY = {
    "ansible_connection": "local",
    "ansible_python_interpreter": sys.executable,
    "ml_env_lock": "one",
    "ml_env_path": "{{ groundstate_home }}/envs/{{ ml_env_lock }}",
    "llm_server": {"name": "mock", "engine": "vllm", "model": "/m", "gpus": [0]},
    "compare_patched_vs_pristine": False,
    "compare_custom_all_reduce": False,
    "compare_clocks": {},
}
LOCKED = {"persistence": True, "sm_mhz": 1500}


class Planner:
    """Plans for the host "h"; ``variables`` are in its inventory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.records = folder, folder / "records"

    def play(self, *tasks: dict, **variables) -> tuple[int, str]:
        told = {
            **INVENTORY,
            "groundstate_home": str(self.folder / "home"),
            "groundstate_records_dir": str(self.records),
            **variables,
        }
        (self.folder / "hosts.json").write_text(json.dumps({"all": {"hosts": {"h": {}}, "vars": told}}))
        constants = {"ansible.builtin.include_vars": {"file": str(ROOT / "roles/compare/vars/main.yml")}}
        play = {"hosts": "all", "gather_facts": False, "tasks": [constants, *tasks]}
        (self.folder / "play.json").write_text(json.dumps([play]))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        environment |= {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "default"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["ansible-playbook", str(self.folder / "play.json"), "-i", str(self.folder / "hosts.json")],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr

    def plan(self, **variables) -> dict:
        where = self.folder / "plan.json"
        keep = {"ansible.builtin.copy": {"content": SHOWN, "dest": str(where), "mode": "0600"}}
        code, output = self.play({"groundstate.llm.comparison": PLAN, "register": "plan"}, keep, **variables)
        assert code == 0, output
        return json.loads(where.read_text())

    def refused(self, **variables) -> str:
        """What is said, on one line."""
        code, output = self.play({"groundstate.llm.comparison": PLAN}, **variables)
        assert code == 2, output
        return " ".join(output.split())


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def test_clocks_and_environment_of_an_arm_may_be_made_of_other_variables(planner):
    patches = [{"file": "x.patch", "distribution": "vllm", "version": "1"}]
    plan = planner.plan(
        my_clocks={},
        my_patches=[],
        gpu_clocks="{{ my_clocks }}",
        ml_env_patches="{{ my_patches }}",
        compare_arms=[{"name": "a"}, {"name": "b", "vars": {"my_clocks": LOCKED, "my_patches": patches}}],
    )
    assert plan["env_differs"]
    assert plan["clocks"]
    assert plan["clocks_after"] == {"gpu_clocks": {}, "gpu_clocks_gpus": ["all"]}
    assert {"clocks sm_mhz", "variable ml_env_patches"} <= {one["what"] for one in plan["differences"]}


def test_clocks_of_the_inventory_hold_for_arms_that_have_none_and_come_back_after_those_that_have(planner):
    alike = [{"name": "a"}, {"name": "b", "vars": {"llm_server": {"port": 8001}}}]
    plan = planner.plan(gpu_clocks=LOCKED, compare_arms=alike)
    assert (plan["clocks"], plan["clocks_after"], plan["env_differs"]) == (True, {}, False)
    plan = planner.plan(gpu_clocks=LOCKED, compare_arms=[{"name": "a"}, {"name": "b", "clocks": {"sm_mhz": 900}}])
    assert plan["clocks_after"]["gpu_clocks"] == LOCKED
    plan = planner.plan(compare_arms=alike)
    assert (plan["clocks"], plan["clocks_after"]) == (False, {})


@pytest.mark.parametrize(
    "changed",
    [
        {"gpu_clocks": LOCKED},
        {"ml_env_pristine": "repair"},
        {"ml_env_patches": []},
        {"nccl_profile_places": ["conf"]},
        {"llm_server_launcher": "process"},
    ],
)
def test_a_changed_inventory_makes_another_comparison(planner, changed):
    arms = [{"name": "a"}, {"name": "b", "vars": {"llm_server": {"port": 8001}}}]
    first = planner.plan(compare_arms=arms)
    assert planner.plan(compare_arms=arms, ml_env_timeout_s=5)["id"] == first["id"], "nothing of what runs changed"
    assert planner.plan(compare_arms=arms, **changed)["id"] != first["id"]


def test_no_secret_is_in_the_document(planner):
    planner.plan(
        ml_env_hub_token="not-this-1",
        ml_env_index_url="https://me:not-this-2@index/simple",
        compare_arms=[{"name": "a"}, {"name": "b", "vars": {"ml_env_torch_index": "https://me:not-this-3@index/"}}],
    )
    [document] = planner.records.glob("h/comparisons/*/comparison.json")
    assert "not-this" not in document.read_text()


def test_a_second_comparison_in_one_run_is_refused_since_arms_of_the_first_would_be_its_inventory(planner):
    arms = [{"name": "a", "vars": {"ml_env_lock": "two"}}, {"name": "b", "vars": {"ml_env_lock": "three"}}]
    take = {
        "ansible.builtin.include_tasks": str(ROOT / "roles/compare/tasks/arm.yml"),
        "vars": {"__compare_arm": "a"},
    }
    first = {"groundstate.llm.comparison": PLAN, "register": "compare_plan_result"}
    second = {"groundstate.llm.comparison": PLAN, "register": "second"}
    code, output = planner.play(first, take, second, compare_arms=arms)
    assert code == 2, output
    assert "variables of arm a of another comparison hold until this ansible-playbook ends" in " ".join(output.split())
    # What was only planned, or shown, leaves nothing behind.
    code, output = planner.play(first, second, compare_arms=arms)
    assert code == 0, output


@pytest.mark.parametrize("others", ["{{ my_arms }}", None])
def test_a_template_of_an_arm_sees_its_own_arm(planner, others):
    server = {"model": "{{ ml_env_path }}/m", "env": "{{ my_env }}"}
    arms = [{"name": "old"}, {"name": "new", "vars": {"ml_env_lock": "two", "llm_server": server}}]
    plan = planner.plan(my_arms=arms, my_env={"LIBX": "{{ ml_env_path }}"}, compare_arms=others or arms)
    path = str(planner.folder / "home/envs/two")
    server = plan["variables"]["new"]["llm_server"]
    assert (server["model"], server["env"], server["name"]) == (f"{path}/m", {"LIBX": path}, "mock")
    [document] = planner.records.glob("h/comparisons/*/comparison.json")
    [_old, new] = json.loads(document.read_text())["arms"]
    assert new["declared"]["llm_server"] == {"model": f"{path}/m", "env": {"LIBX": path}}


def test_arms_that_a_template_makes_and_one_that_mentions_itself(planner):
    made = "{{ [{'name': 'a'}, {'name': 'b', 'vars': {'ml_env_lock': ml_env_lock ~ '2'}}] }}"
    assert planner.plan(compare_arms=made)["variables"]["b"] == {"ml_env_lock": "one2"}
    server = {"model": "{{ ml_env_path }}", "env": "{{ llm_server.env | combine({'B': '2'}) }}"}
    arms = [{"name": "a"}, {"name": "b", "vars": {"ml_env_lock": "{{ ml_env_lock }}3", "llm_server": server}}]
    server = {**INVENTORY["llm_server"], "env": {"A": "1"}}
    found = planner.plan(compare_arms=arms, llm_server=server)["variables"]["b"]
    assert found["ml_env_lock"] == "one3"
    assert found["llm_server"]["model"].endswith("/envs/one3")
    assert found["llm_server"]["env"] == {"A": "1", "B": "2"}
    arms = [
        {"name": "a"},
        {"name": "b", "vars": {"ml_env_lock": "{{ ml_env_python }}", "ml_env_python": "{{ ml_env_lock }}"}},
    ]
    assert "ml_env_lock cannot be resolved for an arm" in planner.refused(compare_arms=arms, ml_env_python="auto")


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"gpu_clocks": "1500"}, "arm b: gpu_clocks has to be a dictionary"),
        ({"nccl_profiles": [1]}, "arm b: nccl_profiles has to be a dictionary"),
    ],
)
def test_what_has_to_be_a_dictionary_is_told_in_one_sentence(planner, variables, told):
    arms = [{"name": "a"}, {"name": "b", "vars": variables}]
    assert told in planner.refused(compare_arms=arms)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"compare_patched_vs_pristine": True}, "no patches are declared (ml_env_patches)"),
        (
            {"compare_custom_all_reduce": True, "llm_server": {**INVENTORY["llm_server"], "engine": "llama_cpp"}},
            "engine llama_cpp has no all-reduce of its own that a flag turns off; vLLM and SGLang have",
        ),
        # As -e name=value gives them.
        ({"compare_custom_all_reduce": "false", "compare_patched_vs_pristine": "false"}, "none is given"),
    ],
)
def test_a_short_form_with_nothing_to_compare_is_refused_in_its_own_words(planner, variables, told):
    assert told in planner.refused(compare_arms=[], **variables)


def test_an_engine_with_an_all_reduce_of_its_own_is_planned(planner):
    plan = planner.plan(compare_arms=[], compare_custom_all_reduce="true")
    assert plan["arms"] == ["custom_all_reduce", "nccl_all_reduce"]


def test_patches_are_all_that_differs_between_patched_and_pristine(planner):
    patches = [{"file": "p.patch", "distribution": "engine", "version": "1.0"}]
    plan = planner.plan(compare_arms=[], compare_patched_vs_pristine=True, ml_env_patches=patches)
    assert {one["ml_env_pristine"] for one in plan["variables"].values()} == {"require"}
    assert [one["ml_env_patches"] for one in plan["variables"].values()] == [patches, []]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"tolerance": "2%"}, "compare_tolerance: 2% is no number: give the share of a rate as one, 0.02 for 2 %"),
        ({"tolerance": "2"}, "compare_tolerance: 2.0 is no share of a rate"),
        ({"looks": [5, 3]}, "compare_looks: [5, 3] is no plan: name numbers of blocks, ascending"),
        ({"looks": []}, "compare_looks: [] is no plan: name numbers of blocks, ascending"),
    ],
)
def test_looks_and_a_tolerance_that_cannot_be_are_refused_in_words(planner, asked, told):
    code, output = planner.play({"groundstate.llm.comparison": {**PLAN, **asked}}, compare_arms=[{"name": "a"}])
    assert code == 2, output
    assert told in " ".join(output.split())
