"""The sections, read from made folders that stand for /."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import servers
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import (
    conditions,
    gpus,
    hardware,
    kernel,
    model,
    server,
)

DATA = Path(__file__).parents[2] / "data" / "fingerprint"

CPUINFO = """processor\t: 0
model name\t: AMD EPYC 9654
physical id\t: 0
core id\t\t: 0
cpu MHz\t\t: 2400.000
microcode\t: 0xa101144
flags\t\t: fpu sse2 avx2 hypervisor

processor\t: 1
model name\t: AMD EPYC 9654
physical id\t: 0
core id\t\t: 0
cpu MHz\t\t: 3600.500
microcode\t: 0xa101144
flags\t\t: sse2 fpu hypervisor avx2

processor\t: 2
model name\t: AMD EPYC 9654
physical id\t: 1
core id\t\t: 0
cpu MHz\t\t: 1500.000
microcode\t: 0xa101144
flags\t\t: fpu sse2 avx2 hypervisor
"""


def tree(root: Path, content: dict[str, str]) -> str:
    """Write files below a folder that stands for /, and return it."""
    for path, text in content.items():
        where = root / path.lstrip("/")
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text)
    return str(root)


# --- hardware ----------------------------------------------------------------------------------------


def test_hardware_of_a_virtual_machine_with_two_sockets(tmp_path):
    root = tree(
        tmp_path,
        {
            "/proc/cpuinfo": CPUINFO,
            "/proc/meminfo": "MemTotal:       792000000 kB\nMemAvailable:  700000000 kB\n",
            "/proc/1/environ": "HOME=/\0container=lxc\0TERM=linux\0",
            "/sys/devices/system/node/node0/cpulist": "0-1\n",
            "/sys/devices/system/node/node10/cpulist": "2\n",
            "/sys/devices/system/node/node2/cpulist": "\n",
            "/sys/class/dmi/id/sys_vendor": "QEMU\n",
            "/sys/class/dmi/id/product_name": "Standard PC (Q35 + ICH9, 2009)\n",
        },
    )
    unknown: dict[str, str] = {}
    found = hardware.read(root, [], unknown)
    assert found["cpu"] == {
        "model": "AMD EPYC 9654",
        "sockets": 2,
        "cores": 2,
        "threads": 3,
        "microcode": "0xa101144",
        "flags_digest": hashlib.sha256(b"avx2 fpu hypervisor sse2").hexdigest()[:16],
    }
    assert found["memory_total_mib"] == 773440  # 792000000 / 1024, to the nearest 64
    assert [one["node"] for one in found["numa_nodes"]] == [0, 2, 10]
    assert found["virtualisation"] == {"vm": "kvm", "container": "lxc"}
    assert found["product"] == "QEMU Standard PC (Q35 + ICH9, 2009)"
    assert unknown == {}


def test_what_cannot_be_read_is_null_with_a_reason(tmp_path):
    unknown: dict[str, str] = {}
    found = hardware.read(str(tmp_path), None, unknown)
    assert found["cpu"]["model"] is None
    assert found["memory_total_mib"] is None
    assert found["numa_nodes"] is None
    assert found["product"] is None
    assert found["gpus"] is None
    assert set(unknown) == {
        "hardware.cpu",
        "hardware.memory_total_mib",
        "hardware.numa_nodes",
        "hardware.product",
        "hardware.virtualisation.vm",
    }
    assert "No such file" in unknown["hardware.cpu"]


def test_arm_has_other_words(tmp_path):
    text = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n"
    unknown: dict[str, str] = {}
    found = hardware.read(tree(tmp_path, {"/proc/cpuinfo": text}), [], unknown)
    assert found["cpu"]["model"] == "implementer 0x41 part 0xd4f variant 0x0"
    assert found["cpu"]["cores"] is None
    assert "hardware.cpu.cores" in unknown


def test_a_page_more_or_less_is_the_same_memory(tmp_path):
    sizes = set()
    for total in (24707312, 24707308, 24707000):
        root = tree(tmp_path / str(total), {"/proc/meminfo": f"MemTotal: {total} kB\n"})
        sizes.add(hardware.read(root, [], {})["memory_total_mib"])
    assert len(sizes) == 1


# --- GPUs --------------------------------------------------------------------------------------------


def test_gpus_of_a_real_h200():
    stable, passing = gpus.parse((DATA / "nvidia-smi.q.h200.xml").read_text())
    assert len(stable) == len(passing) == 1
    assert stable[0]["name"] == "NVIDIA H200"
    assert stable[0]["driver"] == "580.159.04"
    assert stable[0]["cuda"] == "13.0"
    assert stable[0]["pci"] == "00000000:00:06.0"
    assert stable[0]["vbios"] == "96.00.A5.00.1A"
    assert stable[0]["ecc_mode"] == "Enabled"
    assert stable[0]["power_limit"] == "700.00 W"
    assert stable[0]["clock_sm_max"] == "1980 MHz"
    assert stable[0]["pcie_width_max"] == "16x"
    assert passing[0]["temperature"] == "35 C"
    assert passing[0]["event_reasons"] == ["gpu_idle"]
    # Nothing that moves by itself may be among the stable values.
    assert not set(stable[0]) & {"temperature", "power_draw", "clock_sm", "memory_used", "utilisation"}


def test_a_server_on_the_gpu_moves_only_what_is_not_hashed():
    idle, loaded = (gpus.parse((DATA / f"nvidia-smi.q.h200{name}.xml").read_text()) for name in ("", ".loaded"))
    assert loaded[0] == idle[0]
    assert idle[1][0]["memory_used"] == "0 MiB"
    assert loaded[1][0]["memory_used"] == "72232 MiB"


def test_older_drivers_use_other_names():
    text = """<?xml version="1.0"?><nvidia_smi_log><driver_version>470.1</driver_version><gpu id="0:1:0.0">
    <power_readings><power_limit>250.00 W</power_limit><power_draw>N/A</power_draw></power_readings>
    <clocks_throttle_reasons><clocks_throttle_reason_sw_power_cap>Active</clocks_throttle_reason_sw_power_cap>
    </clocks_throttle_reasons></gpu></nvidia_smi_log>"""
    stable, passing = gpus.parse(text)
    assert stable[0]["power_limit"] == "250.00 W"
    assert stable[0]["vbios"] is None
    assert passing[0]["power_draw"] is None
    assert passing[0]["event_reasons"] == ["sw_power_cap"]


def script(path: Path, body: str) -> str:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "device", "expected", "reason"),
    [
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", True, None, "mismatch"),
        ("echo garbage", True, None, "no XML"),
        ("echo 'No devices were found'; exit 6", False, [], None),
    ],
)
def test_a_driver_that_does_not_answer_is_unknown_and_no_driver_is_none(
    tmp_path, monkeypatch, body, device, expected, reason
):
    program = script(tmp_path / "nvidia-smi", body)
    monkeypatch.setattr(gpus.nvidia, "find_program", lambda: program)
    (tmp_path / "dev").mkdir()
    if device:
        (tmp_path / "dev" / "nvidia0").write_text("")
    unknown: dict[str, str] = {}
    stable, passing = gpus.read(unknown, str(tmp_path / "dev"))
    assert stable == passing == expected
    assert (reason in unknown["hardware.gpus"]) if reason else not unknown


def test_devices_without_the_program_are_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus.nvidia, "find_program", lambda: None)
    unknown: dict[str, str] = {}
    assert gpus.read(unknown, str(tmp_path)) == ([], [])
    (tmp_path / "nvidia0").write_text("")
    assert gpus.read(unknown, str(tmp_path)) == (None, None)
    assert "not installed" in unknown["hardware.gpus"]


# --- kernel ------------------------------------------------------------------------------------------


def test_kernel_settings(tmp_path):
    (tmp_path / "dev/shm").mkdir(parents=True)
    root = tree(
        tmp_path,
        {
            "/proc/sys/kernel/osrelease": "6.8.12-9-pve\n",
            "/proc/cmdline": "quiet iommu=pt\n",
            "/etc/os-release": 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
            "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
            "/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor": "performance\n",
            "/sys/devices/system/cpu/cpuidle/current_driver": "acpi\n",
            "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "/sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
            "/proc/sys/kernel/numa_balancing": "1\n",
            "/proc/meminfo": "SwapTotal: 8388604 kB\n",
            "/proc/self/cgroup": "0::/\n",
            "/proc/self/status": "Cpus_allowed_list:\t0-2\n",
        },
    )
    unknown: dict[str, str] = {}
    found = kernel.read(root, "self", unknown)
    shm = os.statvfs(tmp_path / "dev/shm")
    assert found == {
        "release": "6.8.12-9-pve",
        "cmdline": "quiet iommu=pt",
        "os": "Debian GNU/Linux 12 (bookworm)",
        "governors": {"performance": 2, "powersave": 1},
        "transparent_hugepages": "madvise",
        "numa_balancing": "1",
        "turbo": False,
        "swap_total_mib": 8192,
        "shm_bytes": shm.f_blocks * shm.f_frsize,
        "limits": {"cpus": None, "memory_bytes": None, "cpuset": "0-2"},
    }
    assert unknown == {}


def test_the_lowest_limit_on_the_way_up_counts(tmp_path):
    root = tree(
        tmp_path,
        {
            "/proc/77/cgroup": "0::/lxc/129/system.slice/x.service\n",
            "/proc/77/status": "Cpus_allowed_list:\t0-31\n",
            "/sys/fs/cgroup/lxc/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/lxc/129/cpu.max": "1600000 100000\n",
            "/sys/fs/cgroup/lxc/129/memory.max": "549755813888\n",
            "/sys/fs/cgroup/lxc/129/system.slice/x.service/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/lxc/129/system.slice/x.service/memory.max": "max\n",
        },
    )
    assert kernel.limits(root, 77, {}) == {"cpus": 16.0, "memory_bytes": 549755813888, "cpuset": "0-31"}


def test_limits_of_the_first_version_of_control_groups(tmp_path):
    root = tree(
        tmp_path,
        {
            "/proc/77/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n",
            "/proc/77/status": "Cpus_allowed_list:\t0\n",
            "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "1073741824\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "150000\n",
            "/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
        },
    )
    assert kernel.limits(root, 77, {}) == {"cpus": 1.5, "memory_bytes": 1073741824, "cpuset": "0"}


def test_a_namespace_that_hides_the_way_up(tmp_path):
    root = tree(
        tmp_path,
        {
            "/proc/77/cgroup": "0::/../../user.slice\n",
            "/proc/77/status": "Cpus_allowed_list:\t0\n",
            "/sys/fs/cgroup/memory.max": "1048576\n",
        },
    )
    assert kernel.limits(root, 77, {})["memory_bytes"] == 1048576


# --- server ------------------------------------------------------------------------------------------


def record(**more) -> servers.ServerRecord:
    values = {
        "name": "smollm",
        "start_id": "aa",
        "engine": "llama_cpp",
        "argv": ["llama", "--port", "18000"],
        "environment": {"OMP_NUM_THREADS": "1", servers.START_VARIABLE: "aa", "SSH_CONNECTION": "1.2.3.4"},
        "pid": 5,
        "launched_at": 1.0,
    }
    return servers.ServerRecord(**{**values, **more})


def test_two_starts_of_the_same_server_are_the_same_section():
    first = server.read(record(), [], {"xllamacpp": "1"}, "xllamacpp", {})
    environment = {"OMP_NUM_THREADS": "1", servers.START_VARIABLE: "bb", "XDG_SESSION_ID": "77"}
    second = server.read(
        record(start_id="bb", pid=9, launched_at=2.0, environment=environment), [], {"xllamacpp": "1"}, "xllamacpp", {}
    )
    assert first == second
    assert first["version"] == "1"
    assert first["environment"] == {"OMP_NUM_THREADS": "1"}


def test_an_engine_without_distribution_has_no_version_and_a_reason():
    unknown: dict[str, str] = {}
    assert server.read(record(), [], {}, "", unknown)["version"] is None
    assert "not a Python distribution" in unknown["server.version"]
    assert server.read(None, [], {}, "", unknown) == {}
    assert "no server" in unknown["server"]


# --- model -------------------------------------------------------------------------------------------


def test_a_single_file_is_hashed_whole(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF" * 1000)
    os.symlink(tmp_path / "m.gguf", tmp_path / "link.gguf")
    found = model.read(str(tmp_path / "link.gguf"), None, {})
    assert found["config_hash"] == hashlib.sha256(b"GGUF" * 1000).hexdigest()
    assert found["config_hash_of"] == "file"
    assert found["files"] == [{"name": "link.gguf", "size": 4000}]


def test_of_a_huge_file_only_the_head_is_hashed(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(b"head" + b"x" * 100)
    monkeypatch.setattr(model, "WHOLE_FILE_LIMIT", 50)
    monkeypatch.setattr(model, "_HEAD", 4)
    unknown: dict[str, str] = {}
    assert model.read(str(tmp_path / "m.gguf"), None, unknown)["config_hash"] == hashlib.sha256(b"head").hexdigest()
    assert "only its head" in unknown["model.weights"]


def test_a_folder_lists_files_with_sizes_and_hashes_what_describes(tmp_path):
    config = json.dumps({"hidden_size": 7168})
    tree(
        tmp_path,
        {"config.json": config, "model-00001.safetensors": "w" * 50, "sub/tokenizer.json": "{}", ".cache/x.json": "{}"},
    )
    os.symlink("/nowhere", tmp_path / "model-00002.safetensors")
    unknown: dict[str, str] = {}
    found = model.read(str(tmp_path), None, unknown)
    assert [one["name"] for one in found["files"]] == ["config.json", "model-00001.safetensors", "sub/tokenizer.json"]
    assert "sha256" not in found["files"][1]
    assert found["files"][2]["sha256"] == hashlib.sha256(b"{}").hexdigest()
    assert found["config_hash"] == hashlib.sha256(config.encode()).hexdigest()
    assert found["total_bytes"] == len(config) + 52
    assert "link to nowhere" in unknown["model.files.model-00002.safetensors"]


@pytest.mark.parametrize(("path", "reason"), [("", "names no model"), ("/nowhere/model", "does not exist")])
def test_no_model_has_a_reason(path, reason):
    unknown: dict[str, str] = {}
    assert model.read(path, None, unknown)["files"] is None
    assert reason in unknown["model"]


# --- conditions --------------------------------------------------------------------------------------


def test_weights_are_hashed_when_asked_for_and_remembered(tmp_path, monkeypatch):
    folder, cache = tmp_path / "model", str(tmp_path / "cache")
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "w.safetensors").write_bytes(b"weights")
    os.utime(folder / "w.safetensors", (1, 1))
    unknown: dict[str, str] = {}
    [_config, weights] = model.read(str(folder), cache, unknown, weights=True)["files"]
    assert weights["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert unknown == {}
    assert "sha256" not in model.read(str(folder), cache, unknown)["files"][1]
    assert "hash_weights" in unknown["model.weights"]
    monkeypatch.setattr(model, "WHOLE_FILE_LIMIT", 3)
    large = model.read(str(folder / "w.safetensors"), None, {}, weights=True)
    assert (large["config_hash"], large["config_hash_of"]) == (weights["sha256"], "file")


def test_conditions(tmp_path):
    root = tree(
        tmp_path,
        {
            "/proc/cpuinfo": CPUINFO,
            "/proc/meminfo": "MemTotal: 1 kB\nMemAvailable: 2097152 kB\n",
            "/proc/uptime": "1189.50 2000.0\n",
            "/proc/loadavg": "0.64 0.63 0.34 1/100 99\n",
            "/sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
            "/sys/class/thermal/thermal_zone0/temp": "45500\n",
            "/sys/class/thermal/thermal_zone1/temp": "nonsense\n",
            "/sys/class/hwmon/hwmon3/name": "k10temp\n",
            "/sys/class/hwmon/hwmon3/temp1_label": "Tctl\n",
            "/sys/class/hwmon/hwmon3/temp1_input": "51000\n",
        },
    )
    assert conditions.read(root, []) == {
        "uptime_s": 1189.5,
        "container_uptime_s": None,
        "loadavg": [0.64, 0.63, 0.34],
        "memory_available_mib": 2048,
        "cpu_mhz": {"min": 1500.0, "mean": 2500.2, "max": 3600.5},
        "temperatures_c": {"x86_pkg_temp/0": 45.5, "k10temp/Tctl": 51.0},
        "gpus": [],
    }


def test_conditions_that_nothing_tells_are_null(tmp_path):
    assert set(conditions.read(str(tmp_path), None).values()) == {None}
