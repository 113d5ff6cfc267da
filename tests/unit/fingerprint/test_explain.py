"""explain: whatever one thing differs is named first, whatever moves by itself beside it."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import gpus, under_load
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint.explain import explain

DATA = Path(__file__).parents[2] / "data" / "fingerprint"
STABLE, PASSING = gpus.parse((DATA / "nvidia-smi.q.h200.loaded.xml").read_text())

BASE = {
    "taken_at": 1_000_000.0,
    "sections": {
        "hardware": {
            "cpu": {
                "model": "EPYC",
                "sockets": 2,
                "cores": 64,
                "threads": 128,
                "microcode": "0x1",
                "flags_digest": "a",
            },
            "memory_total_mib": 512000,
            "numa_nodes": [{"node": 0, "cpus": "0-63"}, {"node": 1, "cpus": "64-127"}],
            "virtualisation": {"vm": "none", "container": "lxc"},
            "product": "Supermicro",
            "gpus": STABLE,
            "topology": {"GPU0-GPU1": "NV18", "GPU0 NUMA Affinity": "0"},
        },
        "kernel": {
            "release": "6.8",
            "cmdline": "quiet iommu=pt",
            "os": "Debian 12",
            "governors": {"performance": 128},
            "transparent_hugepages": "madvise",
            "numa_balancing": "0",
            "turbo": True,
            "swap_total_mib": 0,
            "shm_bytes": 64 << 30,
            "limits": {"cpus": 16.0, "memory_bytes": 1 << 38, "cpuset": "0-31"},
        },
        "python_env": {
            "python": "3.12.3",
            "implementation": "CPython",
            "customised": {"sitecustomize.py": "h1"},
            "distributions": {"sglang": "0.5.11", "torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9", "rich": "14.0"},
            "sources": {"flashinfer": "git+https://x@1"},
            "edited": ["sglang/srt/a.py"],
            "missing": [],
            "added": [],
            "owners": {"sglang/srt/a.py": "sglang"},
            "difference_hash": "d1",
            "editable": [{"name": "mine", "url": "file:///m", "commit": "c" * 40, "tree_hash": "t1", "changed": []}],
        },
        "server": {
            "engine": "sglang",
            "version": "0.5.11",
            "argv": ["python", "-m", "sglang.launch_server", "--tp-size", "2"],
            "environment": {"NCCL_PROTO": "LL", "HF_TOKEN": "sha256:1"},
            "declaration_hash": "x",
            "tensor_parallel": 2,
            "resolved": {"attention_backend": "'fa3'", "cuda_graph_max_bs": "256"},
            "nccl_mapped": {"/env/libnccl.so.2": "2.28.9+cuda13.0"},
        },
        "model": {
            "path": "/models/k2",
            "files": [{"name": "config.json", "size": 10, "sha256": "aa"}, {"name": "w.safetensors", "size": 9}],
            "config_hash": "aa",
            "config_hash_of": "config.json",
        },
    },
    "conditions": {
        "uptime_s": 900_000.0,
        "container_uptime_s": 800_000.0,
        "loadavg": [2.0, 2.0, 2.0],
        "memory_available_mib": 400_000,
        "cpu_mhz": {"min": 1500.0, "mean": 3000.0, "max": 3500.0},
        "temperatures_c": {"k10temp/Tctl": 50.0},
        "gpus": PASSING,
        "tenants": {"cpu": [{"name": "backup", "cores": 0.5}], "gpus": []},
    },
}
LOAD = {
    "clock_sm": 1980.0,
    "clock_memory": 3201.0,
    "temperature": 60.0,
    "cpu_mhz": 3000.0,
    "reasons": {"sw_power_cap": 0.1},
}
LOAD["accept_length"] = 2.4

# Digests and texts that stand beside what they are of, and values that are told in another item's sentence.
DERIVED = {"difference_hash", "declaration_hash", "config_hash_of", "url", "owners", "index"}


SAID = {
    "edited": "1 file of the environment differs from the wheel: --other",
    "missing": "is missing: --other",
    "added": "was added: --other",
    "tree_hash": "its code changed",
    "changed": "uncommitted files: none -> --other",
    "argv": "argument --other: not there -> set",
    "sha256": "config.json has other content",
    "name": "is no longer an editable install",
    "config_hash": "the content of its config.json changed",
}


def leaves(value, path=()):
    """Paths of all values; a list of words is one value."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            if key not in DERIVED:
                yield from leaves(part, (*path, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, part in enumerate(value):
            yield from leaves(part, (*path, index))
    else:
        yield path


def other(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 2 + 1
    if isinstance(value, list):
        return [*value, "--other"]
    return f"{value}-other" if value else "other"


def noisy(dice):
    """The same state a day later: what moves by itself has moved a little."""
    made = copy.deepcopy(BASE)
    made["taken_at"] += 86400
    now = made["conditions"]
    now["uptime_s"] += 86400
    now["container_uptime_s"] += 86400
    now["loadavg"] = [one + dice.uniform(-0.4, 0.4) for one in now["loadavg"]]
    now["memory_available_mib"] -= dice.randrange(20_000)
    now["cpu_mhz"]["mean"] *= dice.uniform(0.985, 1.015)
    now["temperatures_c"]["k10temp/Tctl"] += dice.uniform(-4, 4)
    now["tenants"]["cpu"][0]["cores"] += dice.uniform(-0.1, 0.1)
    for gpu in now["gpus"]:
        gpu["temperature"] = f"{36 + dice.randrange(6)} C"
        gpu["power_draw"] = f"{80 + 100 * dice.random():.2f} W"
        gpu["clock_sm"] = f"{dice.choice((345, 1980))} MHz"
        gpu["utilisation"] = f"{dice.randrange(100)} %"
        gpu["performance_state"] = dice.choice(("P0", "P8"))
        gpu["event_reasons"] = dice.choice(([], ["gpu_idle"]))
    load = copy.deepcopy(LOAD)
    load["clock_sm"] *= dice.uniform(0.99, 1.01)
    load["temperature"] += dice.uniform(-4, 4)
    load["reasons"]["sw_power_cap"] += dice.uniform(-0.03, 0.03)
    return made, load


def plant(made, path, value):
    *folders, last = path
    for name in folders:
        made = made[name]
    made[last] = value


def at(value, path):
    for name in path:
        value = value[name]
    return value


SECTION_LEAVES = list(leaves(BASE["sections"]))


def test_every_item_takes_part():
    assert len(SECTION_LEAVES) > 70


def test_nothing_but_noise_is_no_explanation():
    for seed in range(50):
        made, load = noisy(random.Random(seed))
        assert explain(BASE, made, LOAD, load) == []


@pytest.mark.parametrize("path", SECTION_LEAVES, ids=lambda path: ".".join(map(str, path)))
def test_a_planted_difference_is_the_first_explanation(path):
    dice = random.Random(".".join(map(str, path)))
    made, load = noisy(dice)
    old = at(BASE["sections"], path)
    plant(made["sections"], path, other(old))
    found = explain(BASE, made, LOAD, load)
    assert found, f"{path} is not told"
    # The sentence names the item, or the old or new value, or says it in words of its own.
    words = [str(path[-1]).replace("_", " "), str(path[-1]).split("_")[0], str(other(old)), SAID.get(path[-1])]
    assert any(word and word in found[0] for word in words), found
    if path[-1] != "name":  # another name: one is gone, another is there
        assert len(found) == 1, found


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("conditions", "loadavg"), [9.0, 8.0, 8.0], "load of the host 2.0 -> 9.0"),
        (("conditions", "memory_available_mib"), 1000, "available memory 400000 -> 1000 MiB"),
        (("conditions", "cpu_mhz"), {"min": 1500.0, "mean": 2400.0, "max": 3500.0}, "CPU clock 3000 -> 2400 MHz"),
        (("conditions", "temperatures_c"), {"k10temp/Tctl": 95.0}, "temperature k10temp/Tctl 50 -> 95 °C"),
        (("conditions", "uptime_s"), 600.0, "the host was restarted in between (up for 0.2 h)"),
        (("conditions", "container_uptime_s"), 600.0, "the container was restarted in between"),
        (
            ("conditions", "tenants", "gpus"),
            [{"gpu": 0, "name": "python3", "memory_mib": 4000}],
            "GPU 0 is shared with python3 (4000 MiB)",
        ),
        (
            ("conditions", "tenants", "cpu"),
            [{"name": "ffmpeg", "cores": 6.0}],
            "ffmpeg beside the server takes 0.0 -> 6.0",
        ),
        (("conditions", "gpus", 0, "pcie_width"), "8x", "GPU 0 pcie width: 16x -> 8x"),
        (("conditions", "gpus", 0, "pcie_generation"), "1", "GPU 0 pcie generation: 5 -> 1"),
        (("conditions", "gpus", 0, "temperature"), "83 C", "GPU 0 temperature"),
        (("conditions", "gpus", 0, "event_reasons"), ["sw_thermal_slowdown"], "sw_thermal_slowdown"),
    ],
)
def test_a_planted_condition_is_the_first_explanation(path, value, words):
    made, load = noisy(random.Random(str(path)))
    plant(made, path, value)
    assert words in explain(BASE, made, LOAD, load)[0]


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("clock_sm", 1605.0, "SM clock under load 1980 -> 1605 MHz"),
        ("clock_memory", 2600.0, "memory clock under load 3201 -> 2600 MHz"),
        ("cpu_mhz", 2000.0, "CPU clock under load 3000 -> 2000 MHz"),
        ("temperature", 86.0, "GPU temperature under load 60 -> 86 °C"),
        ("accept_length", 2.0, "accept length 2.4 -> 2 tokens"),
        ("reasons", {"sw_power_cap": 0.38}, "power cap reached 38 % of the time (before: 10 %)"),
        ("reasons", {"sw_power_cap": 0.1, "hw_slowdown": 0.2}, "slowed down by the hardware 20 % of the time"),
    ],
)
def test_what_was_seen_under_load_is_the_first_explanation(key, value, sentence):
    made, load = noisy(random.Random(key))
    load.update(clock_sm=1980.0)
    load[key] = value
    assert explain(BASE, made, LOAD, load) == [sentence]


def test_the_issues_example_in_its_order():
    made = copy.deepcopy(BASE)
    names = ["sglang/srt/a.py", "sglang/srt/managers/scheduler.py", "sglang/srt/server_args.py"]
    made["sections"]["python_env"].update(edited=names, owners=dict.fromkeys(names, "sglang"))
    made["sections"]["kernel"]["release"] = "6.9"
    load = {**LOAD, "clock_sm": 1800.0, "reasons": {"sw_power_cap": 0.38}}
    assert explain(BASE, made, LOAD, load) == [
        "2 files of sglang differ from the wheel: sglang/srt/managers/scheduler.py, sglang/srt/server_args.py",
        "SM clock under load 1980 -> 1800 MHz",
        "power cap reached 38 % of the time (before: 10 %)",
        "release: 6.8 -> 6.9",
    ]


def test_a_light_package_explains_less_than_a_heavy_one():
    made = copy.deepcopy(BASE)
    made["sections"]["python_env"]["distributions"].update(rich="15.0", torch="2.12.0")
    made["sections"]["server"]["version"] = None
    assert explain(BASE, made) == [
        "packages: torch 2.11.0 -> 2.12.0",
        "packages: rich 14.0 -> 15.0",
        "version of sglang: 0.5.11 -> unknown",
    ]


# --- under load --------------------------------------------------------------------------------------


def machine(*gpus):
    """What the sampler says of a level (``levels[].machine`` of a measurement)."""
    found = []
    for index, (clock, reasons) in enumerate(gpus):
        spread = {"min": clock - 10, "median": clock, "max": clock + 10}
        found.append({"index": index, "n": 5, "sm_mhz": spread, "reasons": reasons})
    return {"n": 5, "host": {"load1": {"min": 1.0, "median": 2.0, "max": 3.0}}, "gpus": found}


def test_the_slowest_gpu_of_the_headlines_level_counts():
    first = {"machine": machine((1900.0, {}), (1700.0, {"gpu_idle": 1})), "server_metrics": {"accept_length": 2.1}}
    measurement = {"levels": [first, {"machine": machine((900.0, {"sw_power_cap": 1.0}))}]}
    expected = {"clock_sm": 1700.0, "load": 2.0, "reasons": {}, "accept_length": 2.1}
    assert under_load.summary(measurement) == expected


def test_without_samples_the_drivers_counters_tell():
    after = copy.deepcopy(BASE)
    after["taken_at"] += 10
    after["conditions"]["gpus"][0]["event_counters"]["sw_therm_slowdown"] += 4_000_000
    pair = {"before": BASE, "after": after}
    assert under_load.summary({}, pair)["reasons"]["sw_thermal_slowdown"] == pytest.approx(0.4)
    assert under_load.throttled({}, pair) == [
        "the GPUs slowed down to protect themselves 40 % of the time (sw thermal slowdown)"
    ]
    assert under_load.throttled({}, {"before": BASE, "after": {}}) == []
