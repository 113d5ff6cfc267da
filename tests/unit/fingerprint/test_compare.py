"""Differences of two fingerprints in words, likeliest explanation first."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint.compare import arguments, differences

BASE = {
    "sections": {
        "hardware": {
            "cpu": {"model": "EPYC", "microcode": "0x1"},
            "memory_total_mib": 24128,
            "gpus": [{"index": n, "power_limit": "600 W", "driver": "580.1"} for n in range(3)],
        },
        "kernel": {"release": "6.8", "governors": {"performance": 2}, "limits": {"cpus": None}},
        "python_env": {
            "python": "3.11.7",
            "customised": {},
            "distributions": {"sglang": "0.5.23", "torch": "2.14.1"},
            "sources": {},
            "edited": [],
            "missing": [],
            "added": [],
            "owners": {},
            "difference_hash": None,
            "editable": [],
        },
        "server": {
            "engine": "sglang",
            "version": "0.5.23",
            "argv": ["python", "-m", "sglang.launch_server", "--tp-size", "8"],
            "environment": {"NCCL_PROTO": "LL"},
            "declaration_hash": "d1",
        },
        "model": {
            "path": "/m",
            "files": [{"name": "config.json", "size": 10, "sha256": "aa"}],
            "config_hash": "aa",
            "config_hash_of": "config.json",
        },
    }
}


def changed(path: str, value):
    made = copy.deepcopy(BASE)
    where = made["sections"]
    *folders, last = path.split(".")
    for name in folders:
        where = where[name]
    where[last] = value
    return made


def edited(*names: str, digest: str = "h1"):
    made = changed("python_env.edited", sorted(names))
    made["sections"]["python_env"]["owners"] = dict.fromkeys(names, "sglang")
    made["sections"]["python_env"]["difference_hash"] = digest
    return made


def test_nothing_changed_nothing_said():
    assert differences(BASE, copy.deepcopy(BASE)) == []


def test_edited_files_are_named_with_their_distribution():
    assert differences(BASE, edited("sglang/b.py", "sglang/a.py")) == [
        "2 files of sglang differ from the wheel: sglang/a.py, sglang/b.py"
    ]
    assert differences(BASE, edited("sglang/a.py")) == ["1 file of sglang differs from the wheel: sglang/a.py"]
    assert differences(edited("sglang/a.py"), BASE) == ["1 file of sglang is again as in the wheel: sglang/a.py"]


def test_a_second_edit_of_the_same_file_is_told():
    found = differences(edited("sglang/a.py"), edited("sglang/a.py", digest="h2"))
    assert found == ["files that differed from their wheels before were changed again, among: sglang/a.py"]


def test_many_files_are_cut():
    found = differences(BASE, edited(*(f"sglang/{n}.py" for n in range(9))))
    assert found[0].startswith("9 files of sglang differ from the wheel: sglang/0.py,")
    assert found[0].endswith("and 4 more")


def test_files_that_were_not_compared_are_no_difference():
    assert differences(BASE, changed("python_env.edited", None)) == []


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("server.argv", ["python", "-m", "sglang.launch_server", "--tp-size", "4"], "argument --tp-size: 8 -> 4"),
        ("server.argv", ["python", "-m", "sglang.launch_server"], "argument --tp-size: 8 -> not there"),
        ("server.environment", {"NCCL_PROTO": "Simple"}, "environment NCCL_PROTO: LL -> Simple"),
        ("server.version", None, "version of sglang: 0.5.23 -> unknown"),
        (
            "server.declaration_hash",
            "d2",
            "the declaration of the server changed in a way that its arguments do not show",
        ),
        ("python_env.distributions", {"sglang": "0.5.23", "torch": "2.15"}, "packages: torch 2.14.1 -> 2.15"),
        ("python_env.sources", {"sglang": "git+https://x@abc"}, "source of sglang: not there -> git+https://x@abc"),
        ("python_env.python", "3.12.1", "Python: 3.11.7 -> 3.12.1"),
        ("python_env.customised", {"sitecustomize.py": "h"}, "sitecustomize.py beside the standard library was added"),
        ("model.config_hash", "bb", "model: the content of its config.json changed"),
        ("model.files", [{"name": "config.json", "size": 11}], "model files: config.json 10 -> 11 bytes"),
        ("model.path", "/n", "model path: /m -> /n"),
        ("hardware.gpus", [], "number of GPUs: 3 -> 0"),
        ("hardware.gpus", None, "the GPUs could be read in one of the fingerprints only"),
        ("kernel.release", "6.9", "release: 6.8 -> 6.9"),
        ("kernel.limits", {"cpus": 4.0}, "limits cpus: no limit -> 4.0"),
        ("kernel.governors", {"powersave": 2}, "governors performance: 2 -> not there"),
        ("hardware.cpu", {"model": "EPYC", "microcode": "0x2"}, "cpu microcode: 0x1 -> 0x2"),
    ],
)
def test_one_planted_difference_gives_its_sentence(path, value, sentence):
    assert differences(BASE, changed(path, value))[0] == sentence


def test_the_same_change_on_several_gpus_is_one_sentence():
    cards = [{"index": n, "power_limit": "450 W" if n else "600 W", "driver": "580.1"} for n in range(3)]
    assert differences(BASE, changed("hardware.gpus", cards)) == ["GPU 1, 2 power limit: 600 W -> 450 W"]


def test_edited_files_come_first_and_hardware_last():
    made = edited("sglang/a.py")
    made["sections"]["hardware"]["memory_total_mib"] = 1
    made["sections"]["kernel"]["release"] = "7"
    made["sections"]["model"]["path"] = "/other"
    made["sections"]["server"]["environment"] = {}
    made["sections"]["python_env"]["distributions"] = {"sglang": "0.5.23"}
    words = [sentence.split(":")[0] for sentence in differences(BASE, made)]
    assert words == [
        "1 file of sglang differs from the wheel",
        "environment NCCL_PROTO",
        "packages",
        "model path",
        "release",
        "memory total mib",
    ]


def test_editable_installs():
    def state(**more):
        values = {"name": "sglang", "commit": "a" * 40, "tree_hash": "t1", "changed": []}
        return changed("python_env.editable", [{**values, **more}])

    assert differences(state(), state(commit="b" * 40)) == [
        f"editable install sglang: commit {'a' * 12} -> {'b' * 12}",
    ]
    assert differences(state(), state(tree_hash="t2", changed=["srt/x.py"])) == [
        "editable install sglang: its code changed (not committed: srt/x.py)"
    ]
    assert differences(BASE, state()) == ["sglang is now an editable install"]


def test_a_first_fingerprint_has_nothing_to_compare():
    assert differences({}, {}) == []


def test_arguments_are_read_as_flags_and_values():
    words = ["python", "x.py", "--a", "1", "--bare", "--list", "1", "2", "--with=eq", "--negative", "-1"]
    assert arguments(words) == {
        "word 0": "python",
        "word 1": "x.py",
        "--a": "1",
        "--bare": "set",
        "--list": "1 2",
        "--with": "eq",
        "--negative": "-1",
    }


def test_of_two_long_values_the_place_is_shown_where_they_differ():
    long = "{" + ", ".join(f"'option_{number}': None" for number in range(80)) + "}"
    sides = [{"config": long}, {"config": long.replace("60': N", "60': n")}]
    before, after = ({"sections": {"server": {"resolved": one}}} for one in sides)
    [text] = differences(before, after)
    assert text.startswith("resolved argument config: ... 'option_60': None, 'option_61'")
    assert " -> ... 'option_60': none, 'option_61'" in text
    assert len(text) < 300
    sides = [{"config": "1"}, {}]
    before, after = ({"sections": {"server": {"resolved": one}}} for one in sides)
    assert differences(before, after) == ["resolved argument config: 1 -> not there"]
