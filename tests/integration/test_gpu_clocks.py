"""Locked clocks on a stand-in GPU host, whose driver keeps settings, forgets them and refuses as the real one does."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import files, gpu_clocks, nvidia
from gpu_host import ROOT, RUN_MODULE, Host, can_unshare

pytestmark = pytest.mark.skipif(not can_unshare(), reason="needs root and private mount and process namespaces")

NEW = {"persistence": False, "power": 700.0, "-lgc": None, "-lmc": None}
ALL = {"persistence": True, "sm_mhz": [1200, 1500], "memory_mhz": 3201, "power_limit_w": 450}
SET = {"persistence": True, "power": 450.0, "-lgc": [1200, 1500], "-lmc": [3201, 3201]}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    one = Host(tmp_path)
    yield one
    one.close()


def driver(host: Host) -> list[dict[str, Any]]:
    """What the driver has, GPU by GPU."""
    return files.read_json(str(host.bin / "settings.json")) or [NEW, NEW]


def sets(host: Host) -> list[str]:
    """The settings that were asked for."""
    lines = (host.bin / "calls").read_text(encoding="utf-8").splitlines()
    return [line.partition("GPU-stand-in-")[2] for line in lines if line.startswith("-i ")]


def state(host: Host) -> dict[str, Any] | None:
    return files.read_json(gpu_clocks.path(str(host.home)))


def ask(host: Host, check: bool = False, **given: Any) -> dict[str, Any]:
    result = host.direct("gpu_clocks", **given, **({"_ansible_check_mode": True} if check else {}))
    assert not result.get("failed"), result["msg"]
    return result


def refusal(host: Host, **given: Any) -> str:
    """Why it was refused; nothing may have changed."""
    before, kept = driver(host), state(host)
    result = host.direct("gpu_clocks", **given)
    assert result.get("failed"), result
    assert (driver(host), state(host)) == (before, kept)
    return result["msg"]


def test_set_and_put_back(host: Host):
    planned = ask(host, check=True, **ALL)
    assert planned["changed"] is True
    assert (driver(host), state(host), sets(host)) == ([NEW, NEW], None, [])

    done = ask(host, **ALL)
    assert done["actions"] == planned["actions"]
    assert done["diff"] == planned["diff"]
    assert "GPU 1 (Stand-in): SM clock locked to 1200-1500 MHz" in done["actions"]
    assert driver(host) == [SET, SET]
    # In the other order the driver would forget what comes before persistence mode.
    assert [line.split()[1] for line in sets(host)] == ["-pm", "-pl", "-lgc", "-lmc"] * 2

    again = ask(host, **ALL)
    assert (again["changed"], again["actions"]) == (False, [])
    assert again["gpus"][0]["held"] == {
        "persistence": True,
        "power_limit_w": 450.0,
        "sm_mhz": [1200, 1500],
        "memory_mhz": [3201, 3201],
    }
    assert ask(host, check=True, **ALL)["changed"] is False

    back = ask(host, state="restored")
    assert back["changed"] is True
    assert (driver(host), state(host)) == ([NEW, NEW], None)
    assert sets(host)[-1].split()[1:] == ["-pm", "0"]  # last: it makes the driver forget
    assert ask(host, state="restored")["changed"] is False


def test_one_gpu_and_a_smaller_declaration(host: Host):
    ask(host, gpus=["1"], **ALL)
    assert driver(host) == [NEW, SET]
    less = ask(host, gpus=["1"], persistence=True, power_limit_w=300)
    # What is no longer asked for goes back; what was there before the first change is still known.
    assert driver(host) == [NEW, {**NEW, "persistence": True, "power": 300.0}]
    assert len(less["actions"]) == 3
    ask(host, gpus=["GPU-stand-in-0"], persistence=True, sm_mhz=1500)
    assert driver(host)[0]["-lgc"] == [1500, 1500]
    assert driver(host)[1]["power"] == 300.0
    nothing = ask(host)  # an empty declaration
    assert nothing["changed"] is True
    assert driver(host) == [NEW, NEW]


def test_a_lock_that_somebody_released_is_set_again(host: Host):
    ask(host, persistence=True, sm_mhz=1500)
    found = driver(host)
    for one in found:
        one["-lgc"] = None
    files.write_json(str(host.bin / "settings.json"), found)
    # Idle, nothing tells of it: it is set all the same. Above the lock, the clock tells.
    assert ask(host, persistence=True, sm_mhz=1500)["changed"] is False
    assert [one["-lgc"] for one in driver(host)] == [[1500, 1500]] * 2
    files.write_json(str(host.bin / "settings.json"), found)
    host.tell_driver(clock_sm=1980)
    seen = ask(host, persistence=True, sm_mhz=1500)
    assert seen["actions"] == [f"GPU {index} (Stand-in): SM clock locked at 1500 MHz" for index in (0, 1)]
    assert [one["clock_sm_mhz"] for one in seen["gpus"]] == [1500, 1500]


def test_what_somebody_else_set_stays(host: Host):
    ask(host, gpus=["0"], persistence=True, power_limit_w=450)
    host.run("nvidia-smi", "-i", "GPU-stand-in-0", "-pl", "500")
    back = ask(host, state="restored")
    assert "somebody else set it" in back["notes"][0]
    assert (len(back["notes"]), state(host)) == (1, None)
    assert sets(host)[-1].split()[1:] == ["-pm", "0"]


def test_a_host_without_gpus(module, tmp_path: Path):
    """Like the machine that runs this: nothing can be set, nothing has to be put back, and nothing is made."""
    if nvidia.query().available:
        pytest.skip("this machine has GPUs")
    home = str(tmp_path / "home")
    refused = module("gpu_clocks", home=home, persistence=True)
    assert refused["msg"].startswith("the GPUs cannot be asked: ")
    back = module("gpu_clocks", home=home, state="restored")
    assert (back["failed"], back["changed"]) == (False, False)
    assert not (tmp_path / "home").exists()


def test_values_that_a_gpu_does_not_take(host: Host):
    said = refusal(host, persistence=True, sm_mhz=2400, memory_mhz=1593, power_limit_w=900)
    assert "sm_mhz is 2400, but GPU 0 (Stand-in) has 210 to 1980 MHz" in said
    assert "memory_mhz is 1593, but GPU 0 (Stand-in) has 810, 3201 MHz" in said
    assert "power_limit_w is 900, but GPU 1 (Stand-in) takes 200 to 700 W" in said
    assert "add persistence: true" in refusal(host, sm_mhz=1500)
    assert "the lower one first" in refusal(host, persistence=True, sm_mhz=[1800, 1200])
    assert "no GPU 7 on this host" in refusal(host, gpus=["7"], persistence=True)
    assert "leave out sm_mhz" in refusal(host, state="restored", sm_mhz=1500)
    host.tell_driver(watts="N/A")
    assert "has no power limit that can be set" in refusal(host, persistence=True, power_limit_w=400)
    assert sets(host) == []


def limited(host: Host, *wrapper: str) -> str:
    """What the module says when it runs with less rights."""
    given = json.dumps({"home": str(host.home), "persistence": True, "sm_mhz": 1500})
    out = host.run(*wrapper, sys.executable, "-c", RUN_MODULE, "gpu_clocks", given, check=False)
    result = json.loads(out.splitlines()[-1])
    assert result["failed"] is True
    assert driver(host) == [NEW, NEW]
    assert sets(host) == []
    return result["msg"]


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_containers_that_may_not(host: Host):
    without = limited(host, "setpriv", "--bounding-set=-sys_admin")
    assert "without the capability CAP_SYS_ADMIN" in without
    assert "on the host that the container runs on" in without
    assert "unprivileged container" in limited(host, "unshare", "--user", "--map-root-user")


def test_a_driver_that_forbids(host: Host):
    host.tell_driver(forbidden=True)
    said = refusal(host, persistence=True, sm_mhz=1500)
    assert "GPU 0 (Stand-in): the persistence mode cannot be set: the driver forbids it" in said
    assert "Insufficient Permissions" in said
    assert "Everything is as it was before" in said


def test_what_a_gpu_does_not_support_is_undone(host: Host):
    host.tell_driver(unsupported=["-lmc"])
    said = refusal(host, **ALL)
    assert "GPU 0 (Stand-in): the memory clock cannot be set: this GPU or its driver does not support it" in said
    assert "leave memory_mhz out" in said
    assert any(" -lgc " in line for line in sets(host))  # it had come so far
    assert driver(host) == [NEW, NEW]


def test_a_setting_that_is_taken_and_not_made(host: Host):
    host.tell_driver(ignored=["-pl"])
    given = json.dumps({"home": str(host.home), "persistence": True, "power_limit_w": 450})
    short = RUN_MODULE.replace(
        "with patch",
        "from ansible_collections.groundstate.llm.plugins.module_utils import gpu_clocks\n"
        "gpu_clocks._SETTLE_S = 0\nwith patch",
    )
    result = json.loads(host.run(sys.executable, "-c", short, "gpu_clocks", given, check=False).splitlines()[-1])
    assert "the driver took the setting, but the power limit is 700 W" in result["msg"]
    assert driver(host) == [NEW, NEW]


@pytest.mark.parametrize("number", [1, 2, 4, 8])
def test_killed_half_way(host: Host, number: int):
    """Whatever was made of the eight settings, they are put back."""
    host.tell_driver(kill_at=number)
    given = json.dumps({"home": str(host.home), **ALL})
    assert host.run(sys.executable, "-c", RUN_MODULE, "gpu_clocks", given, check=False) == ""
    assert len(sets(host)) == number
    host.tell_driver()
    if number == 4:  # the same command goes on where it was
        assert ask(host, **ALL)["changed"] is True
        assert driver(host) == [SET, SET]
    ask(host, state="restored")
    assert (driver(host), state(host)) == ([NEW, NEW], None)


def test_killed_while_it_puts_back(host: Host):
    ask(host, **ALL)
    host.tell_driver(kill_at=8 + 3)
    given = json.dumps({"home": str(host.home), "state": "restored"})
    assert host.run(sys.executable, "-c", RUN_MODULE, "gpu_clocks", given, check=False) == ""
    host.tell_driver()
    ask(host, state="restored")
    assert (driver(host), state(host)) == ([NEW, NEW], None)


def test_reset_and_teardown_put_back(host: Host):
    ask(host, **ALL)
    kept = host.direct("gpu_reset", keep_clocks=True)
    assert (kept["changed"], kept["clocks"]) == (False, [])
    planned = host.direct("gpu_reset", _ansible_check_mode=True)
    assert planned["changed"] is True
    assert driver(host) == [SET, SET]
    done = host.direct("gpu_reset")
    assert done["clocks"] == planned["clocks"]
    assert "GPU 0 (Stand-in): SM clock released" in done["clocks"]
    assert (driver(host), state(host)) == ([NEW, NEW], None)

    ask(host, **ALL)
    host.tell_driver(forbidden=True)
    said = host.direct("host_teardown")
    assert said["failed"] is True
    assert state(host) is not None  # else nobody would know any more
    host.tell_driver()
    assert host.direct("host_teardown", _ansible_check_mode=True)["clocks"]
    gone = host.direct("host_teardown")
    assert "GPU 1 (Stand-in): power limit 450 W -> 700 W" in gone["clocks"]
    assert driver(host) == [NEW, NEW]
    assert not host.home.exists()


def test_the_fingerprint_tells_of_a_lock(host: Host):
    before = host.direct("host_fingerprint")["fingerprint"]
    ask(host, persistence=True, sm_mhz=1500)
    after = host.direct("host_fingerprint")["fingerprint"]
    assert "clock_sm_locked" not in before["sections"]["hardware"]["gpus"][0]
    assert after["sections"]["hardware"]["gpus"][0]["clock_sm_locked"] == "1500 MHz"
    assert before["state_hash"] != after["state_hash"]


def test_the_role_in_a_play(host: Host, tmp_path: Path):
    play = tmp_path / "play.yml"
    tasks = [
        {"ansible.builtin.import_role": {"name": "groundstate.llm.gpu_clocks"}},
        {"ansible.builtin.assert": {"that": "gpu_clocks_result is changed"}},
        {"ansible.builtin.import_role": {"name": "groundstate.llm.gpu_state"}},
        {"ansible.builtin.assert": {"that": "gpu_state_result is not changed"}},
        {"ansible.builtin.import_role": {"name": "groundstate.llm.gpu_clocks", "tasks_from": "restore"}},
        {"ansible.builtin.assert": {"that": "gpu_clocks_result.actions | length == 4"}},
    ]
    variables = {
        "ansible_python_interpreter": sys.executable,
        "groundstate_home": str(host.home),
        "gpu_clocks": {"persistence": "{{ true }}", "sm_mhz": "{{ 1500 }}"},
    }
    play.write_text(
        json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": tasks}]), encoding="utf-8"
    )
    host.run(
        "env",
        f"ANSIBLE_CONFIG={ROOT / 'ansible.cfg'}",
        "ansible-playbook",
        "-i",
        "localhost,",
        "-c",
        "local",
        str(play),
    )
    assert (driver(host), state(host)) == ([NEW, NEW], None)
