"""Settings of real GPUs, what they take, and the steps from what is to what is wanted and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import files, gpu_clocks, gpu_settings
from ansible_collections.groundstate.llm.plugins.module_utils.gpu_settings import Held, Settings
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(__file__).resolve().parents[2] / "data" / "nvidia_smi"


def real(name: str) -> Settings:
    return gpu_settings.parse((DATA / f"{name}.xml").read_text(encoding="utf-8"))[0]


def test_a_real_h200():
    gpu = real("h200.idle")
    assert (gpu.persistence, gpu.power_limit_w, gpu.power_least_w, gpu.power_most_w) == (True, 700.0, 200.0, 700.0)
    assert (gpu.sm_now, gpu.memory_now, gpu.memory_clocks) == (345, 3201, (2201, 3201))
    assert (gpu.sm_clocks[0], gpu.sm_clocks[-1], len(gpu.sm_clocks)) == (345, 1980, 110)


def test_what_a_gpu_does_not_tell_is_unknown():
    gpu = gpu_settings.parse("<nvidia_smi_log><gpu><persistence_mode>N/A</persistence_mode></gpu></nvidia_smi_log>")[0]
    assert (gpu.persistence, gpu.power_limit_w, gpu.sm_clocks, gpu.sm_now) == (None, None, (), None)
    # Then nothing can be said against a lock; the driver itself decides.
    assert gpu_settings.problems(gpu, {"sm_mhz": [1500, 1500]}) == []
    assert gpu_settings.problems(gpu, {"power_limit_w": 300.0})[0].endswith("leave power_limit_w out")


def test_older_drivers_name_the_power_limit_otherwise():
    gpu = gpu_settings.parse(
        "<nvidia_smi_log><gpu><persistence_mode>Disabled</persistence_mode><power_readings>"
        "<power_limit>250.00 W</power_limit><enforced_power_limit>240.00 W</enforced_power_limit>"
        "<min_power_limit>100.00 W</min_power_limit><max_power_limit>300.00 W</max_power_limit>"
        "</power_readings></gpu></nvidia_smi_log>"
    )[0]
    assert (gpu.persistence, gpu.power_limit_w, gpu.power_least_w, gpu.power_most_w) == (False, 250.0, 100.0, 300.0)


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ({"sm_mhz": 1500}, {"sm_mhz": [1500, 1500]}),
        ({"sm_mhz": ["1200", "1500"]}, {"sm_mhz": [1200, 1500]}),
        ({"sm_mhz": [0, 1500]}, {"sm_mhz": [0, 1500]}),
        ({"persistence": False, "power_limit_w": "450"}, {"persistence": False, "power_limit_w": 450.0}),
        ({"memory_mhz": None}, {}),
    ],
)
def test_forms_of_a_declaration(given_: dict[str, Any], wanted: dict[str, Any]):
    assert gpu_settings.wanted(given_) == wanted


@pytest.mark.parametrize(
    "wrong",
    [
        {"sm_mhz": 0},
        {"sm_mhz": [1500]},
        {"sm_mhz": [1500, 1600, 1700]},
        {"sm_mhz": [1600, 1500]},
        {"sm_mhz": -5},
        {"sm_mhz": 1500.5},
        {"sm_mhz": True},
        {"sm_mhz": 10**400},
        {"power_limit_w": 10**400},
        {"sm_mhz": {"min": 1}},
        {"memory_mhz": "fast"},
        {"power_limit_w": 0},
        {"power_limit_w": float("nan")},
        {"persistence": "yes"},
        {"sm_clock": 1500},
    ],
)
def test_wrong_declarations_are_named(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=f"gpu_clocks.*{next(iter(wrong))}"):
        gpu_settings.wanted(wrong)


def test_a_lock_between_two_clocks_may_be_served_by_the_next_one():
    gpu = replace(real("h200.idle"), sm_now=1500)
    assert gpu.above("sm_mhz", [1490, 1490]) is False
    assert gpu.above("sm_mhz", [1480, 1480]) is True
    assert replace(gpu, sm_now=None).above("sm_mhz", [1480, 1480]) is False


# --- there and back, with a driver that is only its answers ---

WISHES = st.fixed_dictionaries(
    {},
    optional={
        "persistence": st.booleans(),
        "power_limit_w": st.sampled_from([300.0, 450.0, 700.0]),
        "sm_mhz": st.sampled_from([[1500, 1500], [1200, 1800]]),
        "memory_mhz": st.just([3201, 3201]),
    },
)


class Driver:
    """Keeps what it is told."""

    def __init__(self, persistence: bool, power: float) -> None:
        self.gpu = replace(real("h200.idle"), persistence=persistence, power_limit_w=power)
        self.locks: dict[str, Any] = {}

    def make(self, step: gpu_settings.Step) -> None:
        if step.item in gpu_settings.LOCKS:
            self.locks[step.item] = step.value
        else:
            self.gpu = replace(self.gpu, **{step.item: step.value})

    @property
    def values(self) -> dict[str, Any]:
        found = {"persistence": self.gpu.persistence, "power_limit_w": self.gpu.power_limit_w}
        return {**found, **{item: self.locks.get(item) for item in gpu_settings.LOCKS}}


@given(
    persistence=st.booleans(),
    power=st.sampled_from([450.0, 700.0]),
    declarations=st.lists(st.tuples(WISHES, st.integers(0, 8)), max_size=4),
)
def test_every_way_leads_back(persistence: bool, power: float, declarations: list[tuple[dict[str, Any], int]]):
    """After any declarations, each of them killed after some of its steps, what was there before comes back."""
    driver = Driver(persistence, power)
    first, held = driver.values, gpu_settings.NOTHING
    for wishes, made in declarations:
        steps, after, notes = gpu_settings.plan(driver.gpu, wishes, held)
        assert notes == []  # nobody else sets anything here
        for step in steps[:made]:
            driver.make(step)
        if made >= len(steps):
            held = after
            assert driver.values == {**first, **wishes}
            assert [step.news for step in gpu_settings.plan(driver.gpu, wishes, held)[0]] == [
                item in gpu_settings.LOCKS and driver.gpu.persistence is False
                for item in gpu_settings.ITEMS
                if item in wishes and item in gpu_settings.LOCKS
            ]
        else:
            held = replace(gpu_clocks.both(held, after), known=False)
    steps, after, notes = gpu_settings.plan(driver.gpu, {}, held)
    for step in steps:
        driver.make(step)
    assert (driver.values, after, notes) == (first, Held({}, {}), [])


# --- what is kept on the host ---


def keep(home: Path, **more: Any) -> None:
    document = {
        "schema": 1,
        "loaded": gpu_clocks.loaded(),
        "done": True,
        "gpus": {"GPU-1": {"ours": {"sm_mhz": [1500, 1500], "power_limit_w": 300.0}, "before": {"sm_mhz": None}}},
        **more,
    }
    files.write_json(gpu_clocks.path(str(home)), document)


def test_locks_end_with_the_boot_and_the_load_of_the_driver(tmp_path: Path):
    assert gpu_clocks.locks(str(tmp_path)) == {}
    keep(tmp_path)
    assert gpu_clocks.locks(str(tmp_path)) == {"GPU-1": {"sm_mhz": [1500, 1500]}}
    boot, number = gpu_clocks.loaded()
    for other in (["another boot", number], [boot, number + 1]):
        keep(tmp_path, loaded=other)
        assert gpu_clocks.held(str(tmp_path)) == {}


def test_a_load_of_the_driver_is_told_by_its_folder(tmp_path: Path):
    assert gpu_clocks.loaded(str(tmp_path))[1] == 0
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    assert gpu_clocks.loaded(str(tmp_path))[1] > 0


@pytest.mark.parametrize("damage", [{"gpus": []}, {"gpus": {"GPU-1": None}}, {"loaded": None, "gpus": 5}])
def test_a_damaged_file_is_told_with_the_way_out(tmp_path: Path, damage: dict[str, Any]):
    keep(tmp_path, **damage)
    with pytest.raises(ValueError, match=r"is damaged .*nvidia-smi -rgc"):
        gpu_clocks.held(str(tmp_path))


def test_a_file_of_another_schema_is_refused(tmp_path: Path):
    keep(tmp_path, schema=2)
    with pytest.raises(ValueError, match="has schema 2, this version knows 1"):
        gpu_clocks.held(str(tmp_path))


@pytest.mark.parametrize(
    ("capabilities", "users", "words"),
    [
        ("000001ffffffffff", "0 0 4294967295", ""),
        ("00000000a80425fb", "0 0 4294967295", "CAP_SYS_ADMIN|only root"),
        ("000001ffffffffff", "0 100000 65536", "unprivileged container"),
    ],
)
def test_who_may_change_clocks(tmp_path: Path, capabilities: str, users: str, words: str):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(f"Name:\tpython3\nCapEff:\t{capabilities}\n")
    (tmp_path / "self/uid_map").write_text(f"         {users}\n")
    said = gpu_clocks.obstacle(str(tmp_path))
    assert any(word in said for word in words.split("|")) if words else said == ""
