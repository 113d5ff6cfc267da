"""What nvidia-smi says: real captures, hand-written oddities, a program that hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import nvidia
from ansible_collections.groundstate.llm.plugins.module_utils.nvidia import MIB, DriverProcess
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(__file__).parents[2] / "data" / "nvidia_smi"


def report(name: str) -> nvidia.Report:
    return nvidia.parse((DATA / name).read_text(encoding="utf-8"))


def program(folder: Path, body: str) -> str:
    """A stand-in for nvidia-smi."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A folder for /dev with one GPU node."""
    folder = tmp_path / "dev"
    folder.mkdir()
    (folder / "nvidia0").touch()
    (folder / "nvidiactl").touch()
    return folder


def test_a_real_idle_gpu():
    (gpu,) = report("h200.idle.xml").gpus
    assert report("h200.idle.xml").driver == "580.159.04"
    assert (gpu.index, gpu.minor, gpu.name) == (0, 0, "NVIDIA H200")
    assert gpu.uuid == "GPU-00000000-1111-2222-3333-444444444444"
    assert gpu.pci == "00000000:00:06.0"
    assert (gpu.memory_total, gpu.memory_reserved, gpu.memory_used) == (143771 * MIB, 616 * MIB, 0)
    assert (gpu.utilisation, gpu.mig, gpu.processes) == (0, False, ())


def test_a_real_loaded_gpu_names_its_process():
    (gpu,) = report("h200.loaded.xml").gpus
    assert gpu.memory_used == 72232 * MIB
    assert gpu.processes == (DriverProcess(527, "C", "sglang::scheduler", 72222 * MIB),)


def test_mig_and_values_that_may_not_be_seen():
    first, second = report("mig.xml").gpus
    assert first.mig is True
    assert first.memory_used == (1037 + 44) * MIB  # the sum of the instances: the whole is not shown
    assert first.memory_reserved is None
    assert first.utilisation is None
    assert first.processes == (DriverProcess(4242, "C", "python3", None),)
    assert second.mig is None
    assert second.memory_used is None
    assert (second.index, second.minor, second.utilisation) == (1, 3, 97)


def test_an_old_driver_lacks_fields():
    (gpu,) = report("old.xml").gpus
    assert (gpu.minor, gpu.memory_reserved, gpu.utilisation, gpu.mig) == (None, None, None, None)
    assert [(one.pid, one.kind) for one in gpu.processes] == [(900, "G"), (901, "M+C")]


def test_blackwell_and_values_that_are_not_available():
    first, second = report("blackwell.xml").gpus
    assert (first.name, first.minor, first.mig, first.utilisation) == ("NVIDIA B200", 2, False, 12)
    assert (first.memory_total, first.memory_reserved, first.memory_used) == (183359 * MIB, 741 * MIB, 1402 * MIB)
    assert [(one.pid, one.name, one.memory) for one in first.processes] == [
        (71, "VLLM::Worker_TP0", 700 * MIB),
        (72, "VLLM::Worker_TP1", 692 * MIB),
    ]
    assert (second.index, second.minor, second.mig, second.utilisation) == (1, 0, None, None)
    assert (second.memory_reserved, second.memory_used) == (None, 2 * MIB)
    # One whose number is not told is no process to speak of.
    assert second.processes == (DriverProcess(1234, "C+G", "Insufficient Permissions", None),)


def test_blackwell_with_mig():
    first, second = report("blackwell.mig.xml").gpus
    assert (first.mig, first.memory_used) == (True, 560 * MIB)  # the whole's own figure, where it is shown
    assert [(one.pid, one.memory) for one in first.processes] == [(81, 300 * MIB), (81, 50 * MIB)]
    # One instance is not told: the sum of the others would look like an idle GPU.
    assert (second.mig, second.memory_used, second.memory_reserved, second.processes) == (True, None, None, ())


def test_a_lost_gpu_beside_a_good_one():
    good, lost = report("lost.xml").gpus
    assert (good.memory_used, good.utilisation, good.mig) == (7 * MIB, 0, False)
    assert (lost.index, lost.minor, lost.mig, lost.memory_used, lost.utilisation) == (1, None, None, None, None)
    assert lost.processes == ()


@pytest.mark.parametrize("text", ["", "NVIDIA-SMI has failed", "<html></html>", "<nvidia_smi_log><gpu>"])
def test_other_output_is_an_error(text):
    with pytest.raises(ValueError, match="nvidia-smi -q -x"):
        nvidia.parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72232 MiB", 72232 * MIB),
        ("1.5 GiB", 1536 * MIB),
        ("0", 0),
        ("7 %", 7),
        ("N/A", None),
        ("[N/A]", None),
        ("Insufficient Permissions", None),
        ("Requested functionality has been deprecated", None),
        ("12 parsecs", None),
        ("-8 C", None),
        (None, None),
        ("", None),
    ],
)
def test_quantities(text, value):
    assert nvidia.quantity(text) == value


@given(st.text())
def test_no_text_breaks_the_parsers(text):
    assert nvidia.quantity(text) is None or nvidia.quantity(text) >= 0
    assert isinstance(nvidia.parse_memory(text), dict)


def test_memory_query():
    text = "GPU-a, 0 MiB\nGPU-b, 74516 MiB\nGPU-c, [N/A]\n"
    assert nvidia.parse_memory(text) == {"GPU-a": 0, "GPU-b": 74516 * MIB, "GPU-c": None}


def test_selection_by_index_and_uuid():
    gpus = report("mig.xml").gpus
    assert [one.index for one in nvidia.select(gpus, ["all"])] == [0, 1]
    assert [one.index for one in nvidia.select(gpus, [gpus[1].uuid.upper(), "0"])] == [0, 1]
    assert nvidia.select(gpus, []) == []
    with pytest.raises(ValueError, match=r"no GPU 7 on this host; there: 0 \(GPU-aaaaaaaa"):
        nvidia.select(gpus, ["1", "7"])


# --- running the program ---


def test_no_driver_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(nvidia, "find_program", lambda: None)
    answer = nvidia.query(dev=str(tmp_path))
    assert answer.available is False
    assert "no NVIDIA GPU" in answer.why


def test_device_nodes_without_the_program_are_unknown(dev, monkeypatch):
    monkeypatch.setattr(nvidia, "find_program", lambda: None)
    answer = nvidia.query(dev=str(dev))
    assert answer.available is None
    assert "nvidia0 exists but nvidia-smi is not installed" in answer.why


def test_a_hung_program_is_bounded_and_unknown(tmp_path, dev):
    before = time.monotonic()
    # The shell's child inherits the pipes: killing only the shell would leave us waiting for it.
    answer = nvidia.query(0.3, program(tmp_path, "sleep 600 & wait"), str(dev))
    assert answer.available is None
    assert "did not answer in 0.3 s" in answer.why
    assert time.monotonic() - before < 60


def test_a_failing_driver_is_unknown_with_its_words(tmp_path, dev):
    path = program(tmp_path, "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    answer = nvidia.query(10, path, str(dev))
    assert answer.available is None
    assert "status 18: Failed to initialize NVML: Driver/library version mismatch" in answer.why


def test_a_driver_that_is_not_loaded_is_no_gpu(tmp_path):
    path = program(tmp_path, 'echo "couldn\'t communicate with the NVIDIA driver"; exit 9')
    answer = nvidia.query(10, path, str(tmp_path))
    assert answer.available is False
    assert "couldn't communicate" in answer.why


def test_a_working_program(tmp_path, dev):
    path = program(tmp_path, f"cat {DATA / 'h200.loaded.xml'}")
    answer = nvidia.query(10, path, str(dev))
    assert answer.available is True
    assert answer.gpus[0].memory_used == 72232 * MIB


def test_memory_of_a_failing_program_is_an_error(tmp_path):
    with pytest.raises(OSError, match="status 9: no driver"):
        nvidia.memory_used(10, program(tmp_path, "echo no driver >&2; exit 9"))
