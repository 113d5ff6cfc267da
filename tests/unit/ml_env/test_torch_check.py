"""Whether an environment can compute on the GPUs: what is installed, loaded, compiled and driven, held together."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import fatbin, torch_check
from ansible_collections.groundstate.llm.plugins.module_utils.fatbin import Code
from ansible_collections.groundstate.llm.plugins.module_utils.torch_check import Facts
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import imports
from hypothesis import given
from hypothesis import strategies as st

ENV = "/srv/envs/e.01234567"
NCCL = f"{ENV}/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"


def h200(index: int) -> dict:
    return {"index": index, "name": "NVIDIA H200", "capability": [9, 0], "sum": 1024.0}


@pytest.fixture
def facts() -> Facts:
    about = {
        "version": "2.14.1+cu130",
        "cuda": "13.0",
        "hip": None,
        "archs": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120",
        "nccl": "2.30.7",
        "mapped": [NCCL],
    }
    return Facts(about, [h200(0), h200(1)], "", "580.82.07", "13.0", 2)


@pytest.fixture
def versions() -> dict[str, str]:
    return {
        "torch": "2.14.1",
        "nvidia-nccl-cu13": "2.30.7",
        "nvidia-cuda-runtime": "13.0.96",
        "nvidia-cutlass-dsl-libs-cu12": "4",
    }


def judged(facts: Facts, versions: dict[str, str]) -> dict[str, tuple[str, str]]:
    return {one.name: (one.verdict, one.detail) for one in torch_check.judge(facts, versions, ENV)}


def test_a_torch_that_the_environment_sees_elsewhere_is_checked_as_well(facts):
    """A container's own torch, seen through include-system-site-packages or a .pth file."""
    facts.about["file"] = "/opt/torch/lib/python3.12/site-packages/torch/__init__.py"
    facts.about["mapped"] = ["/opt/torch/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"]
    found = judged(facts, {"sglang": "0.5.11"})
    assert found["torch"] == (
        "ok",
        "2.14.1+cu130, built for CUDA 13.0; not of this environment, which sees it in "
        "/opt/torch/lib/python3.12/site-packages/torch",
    )
    assert {verdict for verdict, _text in found.values()} == {"ok"}
    assert "/opt/torch" in found["NCCL"][1]
    (facts.devices or [])[1]["sum"] = 0.0
    assert judged(facts, {"sglang": "0.5.11"})["GPUs"][0] == "failed"


def test_an_environment_in_which_all_agrees(facts, versions):
    found = judged(facts, versions)
    assert {name: verdict for name, (verdict, _text) in found.items()} == dict.fromkeys(
        ["torch", "CUDA", "GPUs", "kernels of torch", "CUDA packages", "NCCL"], "ok"
    )
    assert found["GPUs"][1] == "torch computes on 2: NVIDIA H200 (9.0)"
    assert found["kernels of torch"][1] == "machine code for 9.0"


@pytest.mark.parametrize(
    ("changes", "about", "more", "name", "verdict", "why"),
    [
        (
            {"driver": "550.54", "driver_cuda": "12.4"},
            {},
            {},
            "CUDA",
            "failed",
            "update the driver to one that runs CUDA 13",
        ),
        ({"driver_cuda": ""}, {}, {}, "CUDA", "unknown", "names no CUDA"),
        ({"driver_cuda": "13.3"}, {}, {}, "CUDA", "ok", "driver 580.82.07 runs up to 13.3"),
        ({"devices": None, "devices_why": "signal 11"}, {}, {}, "GPUs", "failed", "signal 11"),
        ({"devices": []}, {}, {}, "GPUs", "failed", "torch sees none, the driver 2"),
        ({"devices": [h200(0)]}, {}, {}, "GPUs", "failed", "the driver sees 2"),
        ({"devices": [h200(0), {**h200(1), "sum": 1.0}]}, {}, {}, "GPUs", "failed", "GPU 1: computed nonsense"),
        ({}, {"archs": "sm_100 sm_120"}, {}, "kernels of torch", "failed", "9.0, only sm_100, sm_120"),
        ({}, {"archs": "sm_75 compute_80"}, {}, "kernels of torch", "ok", "PTX for 9.0"),
        ({}, {"archs": None}, {}, "kernels of torch", "unknown", "nothing says"),
        ({}, {"nccl": "2.27.5"}, {}, "NCCL", "failed", "another libnccl"),
        ({}, {"mapped": ["/usr/lib/libnccl.so.2"]}, {}, "NCCL", "failed", "not the environment's own"),
        ({}, {"nccl": None}, {}, "NCCL", "skipped", "has none"),
        ({}, {}, {"nvidia-nccl-cu12": "2.30.7"}, "CUDA packages", "failed", "nvidia-nccl-cu12 beside"),
        (
            {},
            {},
            {"nvidia-cuda-runtime": "12.8.90"},
            "CUDA packages",
            "failed",
            "is 12.8.90, torch is built for CUDA 13.0",
        ),
        ({}, {}, {"torch": "2.13.0"}, "torch", "failed", "another one comes first"),
        ({}, {"error": "ImportError: libcudart"}, {}, "torch", "failed", "libcudart"),
        ({}, {"cuda": None, "version": "2.14.1+cpu"}, {}, "GPUs", "skipped", "built for CPUs"),
    ],
)
def test_what_does_not_agree_is_named(facts, versions, changes, about, more, name, verdict, why):
    changed = replace(facts, **changes, about={**facts.about, **about})
    found = judged(changed, {**versions, **more})
    assert found[name][0] == verdict, found
    assert why in found[name][1]


def test_no_gpu_and_no_torch(facts, versions):
    alone = replace(facts, devices=[], gpus=0, gpus_why="this host has no NVIDIA GPU", driver_cuda="")
    assert judged(alone, versions)["CUDA"] == ("failed", "this host has no NVIDIA GPU")
    none = Facts({"error": "ModuleNotFoundError: No module named 'torch'"})
    assert judged(none, {}) == {"torch": ("skipped", "it is not installed in this environment")}


# --- the questions, asked of a real interpreter ------------------------------------------------------


def torch_of(folder: Path, body: str) -> dict[str, str]:
    """A stand-in for torch on an interpreter's path; returns the environment."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(textwrap.dedent(body))
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}


TORCH = """
    import sys
    __version__ = "9.9"
    class version: cuda = "13.0"
    class _C:
        @staticmethod
        def _cuda_getArchFlags(): return "sm_90 compute_90"
    class cuda:
        class nccl:
            @staticmethod
            def version(): return (2, 30, 7)
        @staticmethod
        def device_count():
            {count}
    print("noise of an import")
"""


@pytest.mark.parametrize(
    ("count", "timeout", "devices", "why"),
    [
        ("return 0", 60, [], ""),
        ("import os; os.abort()", 60, None, "ended by signal 6"),
        ("raise RuntimeError('no driver')", 60, None, "RuntimeError: no driver"),
        ("import time; time.sleep(600)", 3, None, "did not answer within 3 s"),
    ],
)
def test_calls_into_cuda_may_fail_crash_and_hang(tmp_path, count, timeout, devices, why):
    environment = torch_of(tmp_path, TORCH.replace("{count}", count))
    facts = torch_check.ask(sys.executable, environment, timeout)
    assert facts.about["nccl"] == "2.30.7"
    assert facts.about["archs"] == "sm_90 compute_90"
    assert facts.devices == devices
    assert why in facts.devices_why


def test_a_torch_that_cannot_be_imported_says_why(tmp_path):
    facts = torch_check.ask(sys.executable, torch_of(tmp_path, "import nothing_of_this_name\n"), 60)
    assert "nothing_of_this_name" in facts.about["error"]
    assert facts.devices is None


def test_the_import_of_an_engine():
    def asked(*names: str) -> torch_check.Check:
        return torch_check.imports(sys.executable, dict(os.environ), imports.PROGRAM, list(names), 60)

    assert asked("json", "json:dumps").verdict == "ok"
    failed = asked("json:nothing")
    assert failed.verdict == "failed"
    assert "json:nothing: AttributeError" in failed.detail


# --- code in libraries -------------------------------------------------------------------------------


def library(*entries: tuple[int, int, int], gap: int = 0) -> bytes:
    """An ELF file whose .nv_fatbin has a container for each (kind, arch, payload size)."""
    body = b""
    for kind, arch, size in entries:
        entry = struct.pack("<HHIQIIHHI", kind, 0x101, 64, size, 0, 0, 0, 0, arch).ljust(64, b"\0") + b"x" * size
        body += struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry + b"\0" * gap
    strings = b"\0.nv_fatbin\0.shstrtab\0"
    sections = [(0, 0, 0), (1, 64, len(body)), (12, 64 + len(body), len(strings))]
    table = b"".join(
        struct.pack("<IIQQQQ", name, 1, 0, 0, offset, size).ljust(64, b"\0") for name, offset, size in sections
    )
    head = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack(
        "<QIHHHHHH", 64 + len(body) + len(strings), 0, 64, 0, 0, 64, 3, 2
    )
    return head + body + strings + table


def test_the_code_of_a_library_is_read(tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(library((2, 80, 96), (2, 90, 8), (1, 90, 0), gap=8))
    found = fatbin.read(str(path))
    assert found == {Code("sm", 80), Code("sm", 90), Code("ptx", 90)}
    assert fatbin.names(found) == "sm_80, sm_90, ptx_90"


def test_a_library_without_any_and_a_file_that_is_none(tmp_path):
    assert fatbin.read(sys.executable) == set()
    (tmp_path / "x.so").write_text("no library")
    with pytest.raises(ValueError, match="ELF"):
        fatbin.read(str(tmp_path / "x.so"))


@pytest.mark.parametrize(
    ("codes", "capability", "how"),
    [
        ({Code("sm", 80)}, (8, 6), "machine code"),
        ({Code("sm", 86)}, (8, 0), ""),
        ({Code("sm", 80)}, (9, 0), ""),
        ({Code("ptx", 80)}, (9, 0), "PTX"),
        ({Code("ptx", 120)}, (9, 0), ""),
        ({Code("sm", 120)}, (12, 0), "machine code"),
        (set(), (9, 0), ""),
    ],
)
def test_on_which_gpus_code_runs(codes, capability, how):
    assert fatbin.covers(codes, capability) == how


def test_the_kernels_of_a_distribution_are_all_of_its_libraries_together(tmp_path, facts):
    (tmp_path / "old.so").write_bytes(library((2, 80, 8)))
    (tmp_path / "new.so").write_bytes(library((2, 90, 8)))
    (tmp_path / "bad.so").write_bytes(b"bad")

    def check(*names: str) -> tuple[str, str]:
        (found,) = torch_check.kernels(str(tmp_path), {"k": names}, facts)
        return found.verdict, found.detail

    assert check("old.so", "new.so") == ("ok", "machine code for 9.0")
    assert check("old.so") == ("failed", "no code for compute capability 9.0, only sm_80: use a release that has it")
    assert check("new.so", "bad.so")[0] == "unknown"


@given(st.binary(max_size=200), st.integers(0, 400))
def test_damaged_libraries_end_in_an_error_or_a_result(tmp_path_factory, noise, at):
    raw = library((2, 80, 96), (1, 90, 8))
    path = tmp_path_factory.mktemp("elf") / "x.so"
    path.write_bytes(raw[:at] + noise + raw[at + len(noise) :])
    with contextlib.suppress(ValueError):
        assert all(isinstance(one, Code) for one in fatbin.read(str(path)))
