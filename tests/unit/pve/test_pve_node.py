"""What is read of a node and of a container, and the sentences made of it."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import cuda_probe, gpu_access, nvidia
from ansible_collections.groundstate.llm.plugins.module_utils.pve import api, bootstrap, node, pvesh
from ansible_collections.groundstate.llm.plugins.module_utils.pve.shell import Shell
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(__file__).parents[2] / "data" / "nvidia_smi"
UPID = "UPID:pve1:000007D0:000036B0:6929A0C5:vzstart:129:root@pam:"


# --- pvesh ---------------------------------------------------------------------------------------


def test_answers_of_pvesh():
    assert pvesh.answer('{"memory":"512"}\n') == {"memory": "512"}
    assert pvesh.answer(f'extracting archive\nDone: 42\n"{UPID}"\n') == UPID
    assert pvesh.answer(f"{UPID}\n") == UPID
    assert pvesh.answer("") is None
    assert pvesh.answer("[\n]\n") == []


@pytest.mark.parametrize(
    ("text", "status", "message", "errors"),
    [
        (
            "400 Parameter verification failed.\ndev2: invalid format - format error\n"
            "dev2.mode: value does not match the regex pattern\n\npvesh set /nodes/pve1/lxc/129/config [OPTIONS]\n",
            400,
            "Parameter verification failed.",
            {"dev2": "mode: value does not match the regex pattern"},
        ),
        ("Device /dev/nvidia9 does not exist\n", 500, "Device /dev/nvidia9 does not exist", {}),
        (
            "Configuration file 'nodes/pve1/lxc/129.conf' does not exist\n",
            500,
            "Configuration file 'nodes/pve1/lxc/129.conf' does not exist",
            {},
        ),
        ("403 Permission check failed\n", 403, "Permission check failed", {}),
    ],
)
def test_errors_of_pvesh(text, status, message, errors):
    error = pvesh.error_of(text)
    assert (error.status, error.message, error.errors) == (status, message, errors)


@given(st.text())
def test_any_output_of_pvesh_is_read(text):
    pvesh.answer(text)
    assert 0 < pvesh.error_of(text).status < 1000


def test_upids():
    assert api.is_upid(UPID)
    assert not api.is_upid("UPID:pve1")
    assert not api.is_upid(None)


# --- the way in ----------------------------------------------------------------------------------

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGVM35Ng3HKbfNenMlcJ36YQIjKYsvGWKym"
LOOK = f"""system running
has python3
has sshd
key from="192.0.2.0/24",no-pty {KEY} old comment
key # a comment
key
host ecdsa-sha2-nistp256 AAAAE2VjZHNh root@pcie8
host ssh-ed25519 AAAAC3Nz root@pcie8
address 192.0.2.129
"""


def test_a_look_into_a_container():
    seen = bootstrap.parse(LOOK)
    assert (seen.system, seen.has, seen.keys) == ("running", {"python3", "sshd"}, {KEY})
    assert seen.host_keys == ["ecdsa-sha2-nistp256 AAAAE2VjZHNh", "ssh-ed25519 AAAAC3Nz"]
    assert seen.addresses == ["192.0.2.129"]


@pytest.fixture
def container(tmp_path, monkeypatch):
    """A pct that says what a file of answers says, line by line, and keeps what it was called with."""
    pct = tmp_path / "pct"
    pct.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nhere = {str(tmp_path)!r}\n"
        "script = sys.argv[sys.argv.index('-c') + 1]\n"
        "step = 'look' if 'is-system-running' in script else script.strip()[:12]\n"
        "open(here + '/calls', 'a').write(json.dumps([step, sys.argv[sys.argv.index('-c') + 3:]]) + '\\n')\n"
        "answers = json.load(open(here + '/answers'))\n"
        "if step == 'look':\n"
        "    sys.stdout.write(answers.pop(0) if len(answers) > 1 else answers[0])\n"
        "    json.dump(answers, open(here + '/answers', 'w'))\n"
    )
    pct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def run(answers, keys, check=False, timeout=5.0):
        (tmp_path / "answers").write_text(json.dumps(answers))
        (tmp_path / "calls").write_text("")
        found = bootstrap.ensure(Shell(), 129, keys, timeout, check, lambda _: None)
        calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
        return (*found, [call for call in calls if call[0] != "look"])

    return run


def test_only_what_is_missing_is_done(container):
    there = LOOK + "has service\n"
    seen, actions, calls = container([there], [KEY + " another comment"])
    assert (actions, calls) == ([], [])
    other = KEY.replace("AAAA", "BBBB", 1)
    bare = "system starting\naddress 192.0.2.129\n"
    steps = [bare, bare.replace("starting", "degraded"), there]
    seen, actions, calls = container(steps, [KEY, f"{other} x y"])
    assert actions == ["installed python3, sshd", "started sshd", "added 2 keys"]
    assert calls[-1][1] == [KEY, f"{other} x y"]
    assert seen.addresses == ["192.0.2.129"]
    _, actions, calls = container([LOOK], [other], check=True)
    assert (actions, calls) == (["started sshd", "added 1 keys"], [])


def test_what_a_container_says_is_no_argument_of_ssh():
    seen = bootstrap.parse(
        "address -oProxyCommand=id\naddress 192.0.2.129\naddress 2001:db8::1\naddress $(id)\n"
        f"host {KEY} x\nhost -oProxyCommand=id x\nhost @cert-authority * {KEY}\n"
    )
    assert seen.addresses == ["192.0.2.129", "2001:db8::1"]
    assert all(one.startswith("ssh-ed25519 ") for one in seen.host_keys)


def test_an_entry_may_be_a_whole_file_of_keys(container):
    other = KEY.replace("AAAA", "BBBB", 1)
    _seen, actions, calls = container([LOOK + "has service\n"], [f"# mine\n{KEY} a\n\n{other} b\n"])
    assert actions == ["added 1 keys"]
    assert calls[-1][1] == [f"{other} b"]


@pytest.mark.parametrize("vmid", [-5, 0, 99, 10**9])
def test_no_number_of_a_guest(vmid):
    with pytest.raises(ValueError, match="is no number of a guest"):
        bootstrap.ensure(Shell(), vmid, [], 1.0, True)


@pytest.mark.parametrize("page", ["<html>", {"errors": b"<html>"}, [1], 5, None])
def test_a_page_is_no_answer_of_pve(page):
    with pytest.raises(api.PveError, match="that is no Proxmox VE API"):
        api.as_object(page, "reading container 129", "root@pam")
    if page is not None:
        with pytest.raises(api.PveError, match="check api_host and api_port"):
            api.as_objects(page, "listing the nodes", "root@pam")


def test_what_keeps_us_out_is_told(container):
    with pytest.raises(bootstrap.ShellError, match="container 129 has no address after 0 s: check its networks"):
        container(["system running\n"], [], timeout=0)
    with pytest.raises(bootstrap.ShellError, match="is still starting after 0 s"):
        container(["system starting\naddress 192.0.2.1\n"], [], timeout=0)
    with pytest.raises(bootstrap.ShellError, match="still has no service after installing"):
        container([LOOK], [])
    with pytest.raises(ValueError, match="ssh_public_keys: 'nonsense' is no public key"):
        container([LOOK], ["nonsense"])


# --- the node ------------------------------------------------------------------------------------


def config_space(control: int, first: int = 0x0001) -> bytes:
    """A PCI configuration space whose second extended capability is access control, with this control register."""
    raw = bytearray(4096)
    raw[0x100:0x104] = (first | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    raw[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    raw[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(raw)


def test_acs_of_a_bridge():
    assert node.redirects(config_space(0x001D)) is True
    assert node.redirects(config_space(0x0004)) is True
    assert node.redirects(config_space(0x0001)) is False
    assert node.redirects(bytes(4096)) is None
    assert node.redirects(config_space(0x1D)[:64]) is None, "without root the kernel shows 64 bytes"
    looped = bytearray(config_space(0x1D, first=0x0001))
    looped[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert node.redirects(bytes(looped)) is None


@given(st.binary(max_size=600))
def test_any_configuration_space_is_read(raw):
    assert node.redirects(raw) in (True, False, None)


def test_bridges_above_gpus(tmp_path):
    root = tmp_path / "devices" / "pci0000:00" / "0000:00:01.0"
    switch = root / "0000:01:00.0"
    gpus = nvidia.parse((DATA / "h200.idle.xml").read_text()).gpus[:1]
    address = gpus[0].pci.lower()[4:]  # nvidia-smi writes eight digits of the domain
    leaf = switch / address
    leaf.mkdir(parents=True)
    (root / "config").write_bytes(config_space(0x1D))
    (tmp_path / "bus" / "pci" / "devices").mkdir(parents=True)
    (tmp_path / "bus" / "pci" / "devices" / address).symlink_to(leaf)
    found = node.bridges(list(gpus), str(tmp_path))
    assert [(one.address, one.redirects, one.gpus) for one in found] == [
        ("0000:01:00.0", None, [address]),
        ("0000:00:01.0", True, [address]),
    ]
    assert node.iommu("quiet", str(tmp_path)) == "off"
    (tmp_path / "class" / "iommu" / "dmar0").mkdir(parents=True)
    assert node.iommu("quiet iommu=pt", str(tmp_path)) == "passthrough"
    assert node.iommu("quiet intel_iommu=on", str(tmp_path)) == "translated"
    advice = node.advice("translated", found, 2)
    assert "ACS of bridge 0000:00:01.0" in advice[0]
    assert "iommu=pt" in advice[1]
    assert node.advice("translated", found, 1) == [] == node.advice("off", found[:1], 8)


def test_nodes_that_are_wrong(tmp_path):
    paths = [str(tmp_path / name) for name in ("nvidia0", "nvidiactl", "nvidia-uvm")]
    Path(paths[1]).write_text("")
    assert node.wrong_nodes(["/dev/null", *paths]) == ([paths[0], paths[2]], [paths[1]])


def test_registered_devices():
    text = "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  7 loop\n"
    assert node.registered(text) == {"mem", "nvidia", "nvidia-uvm"}


def test_the_unit_makes_the_nodes_before_containers_start():
    text = node.unit_text([0, 3], True)
    assert "\nBefore=pve-guests.service\n" in text
    starts = [line.partition("=")[2].split() for line in text.splitlines() if line.startswith("ExecStart=")]
    assert starts[0][1:] == ["-a", "nvidia", "nvidia_uvm", "nvidia_modeset"]
    assert [start[1:] for start in starts[1:]] == [["-c0", "-u", "-m"], ["-c3", "-u", "-m"]]


# --- the proof -----------------------------------------------------------------------------------


def test_what_opening_a_node_says(tmp_path, monkeypatch):
    assert gpu_access.opened("/dev/null").state == "open"
    assert gpu_access.opened(str(tmp_path / "gone")).state == "absent"
    (tmp_path / "plain").write_text("")
    assert gpu_access.opened(str(tmp_path / "plain")).state == "no_device"
    with pytest.MonkeyPatch.context() as patch:

        def refuse(*_):
            raise OSError(code, os.strerror(code))

        patch.setattr(gpu_access, "os", types.SimpleNamespace(**{**vars(os), "open": refuse}))
        states = {}
        for code in (1, 6, 13, 16):
            states[code] = gpu_access.opened("/dev/null")
    assert [one.state for one in states.values()] == ["forbidden", "no_driver", "denied", "error"]
    assert "EPERM" in states[1].why
    assert "devN" in states[1].why
    assert "ENXIO" in states[6].why


def test_versions(tmp_path):
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build  \nGCC version: 12\n"
    )
    assert gpu_access.kernel_version(str(version)) == "595.45.04"
    assert gpu_access.kernel_version(str(tmp_path / "gone")) == ""
    for name in ("libcuda.so.595.45.04", "libcuda.so.1", "libnvidia-ml.so.570.148.06"):
        (tmp_path / name).write_text("")
    assert gpu_access.userland_versions((str(tmp_path),)) == ["570.148.06", "595.45.04"]
    assert gpu_access.version_problem("595.45.04", ["595.45.04"]) == ""
    said = gpu_access.version_problem("595.45.04", ["570.148.06"])
    assert "the kernel runs driver 595.45.04, and the libraries here are of 570.148.06" in said
    assert "595.45.04.run --no-kernel-modules" in said
    assert "no NVIDIA driver is loaded" in gpu_access.version_problem("", ["595.45.04"])


@pytest.mark.parametrize(("kernel", "userland"), [("", []), ("", ["595.45.04"]), ("595.45.04", [])])
def test_where_cuda_computes_a_version_that_cannot_be_seen_is_no_problem(kernel, userland):
    """Seen on two H200 in a virtual machine without /proc/driver/nvidia, the libraries in a folder of their own."""
    assert gpu_access.version_problem(kernel, userland, works=True) == ""
    assert gpu_access.version_problem(kernel, userland) != ""
    assert "the kernel runs driver 595.45.04" in gpu_access.version_problem("595.45.04", ["570.1"], works=True)


def test_limits():
    assert gpu_access.limit_problems(1 << 30, None, 1 << 30, 1 << 26) == []
    shm, memlock = gpu_access.limit_problems(1 << 26, 1 << 23, 1 << 30, 1 << 26)
    assert shm == "/dev/shm has 64M, 1G are wanted: declare shm_size: 1G"
    assert memlock == "only 8M may be locked in memory: declare memlock: unlimited"


def said(**of) -> str:
    return json.dumps({"init": 0, "devices": [], "peers": [], **of})


@pytest.mark.parametrize(
    ("status", "out", "works", "why"),
    [
        (0, said(devices=[{"index": 0, "name": "H200", "error": ""}], peers=[[True]]), True, ""),
        (0, said(init=999, error="CUDA_ERROR_UNKNOWN (999)"), False, "cuInit failed with CUDA_ERROR_UNKNOWN (999)"),
        (0, said(init=None, library="libcuda.so.1: cannot open"), False, "no CUDA library: libcuda.so.1: cannot open"),
        (0, said(), False, "CUDA sees no GPU"),
        (0, said(devices=[{"index": 1, "name": "H200", "error": "X (2)"}]), False, "GPU 1: X (2)"),
        (None, "", None, "a CUDA call did not return within 9 s"),
        (-11, "", False, "ended by signal 11"),
        (1, "Traceback", None, "the CUDA probe failed"),
    ],
)
def test_what_cuda_says(status, out, works, why):
    found = cuda_probe.read(status, out, "", 9)
    assert found.works is works
    assert why in found.why


def test_peers():
    two = [{"index": index, "name": "H200", "error": ""} for index in range(2)]
    assert cuda_probe.read(0, said(devices=two, peers=[[True, True], [True, True]]), "", 9).peer_to_peer is True
    assert cuda_probe.read(0, said(devices=two, peers=[[True, False], [True, True]]), "", 9).peer_to_peer is False
    assert cuda_probe.read(0, said(devices=two[:1], peers=[[True]]), "", 9).peer_to_peer is None


def test_the_probe_itself_runs():
    """On a machine without the library it says so; with one, whatever it says is an answer and no crash of ours."""
    found = cuda_probe.run(60)
    assert found.works is True or found.why
    assert "Traceback" not in found.why
    assert "the CUDA probe failed" not in found.why


def test_torch_that_is_not_there(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    assert "No module named 'torch'" in cuda_probe.torch(str(python), 60)
    assert "cannot be run" in cuda_probe.torch("/no/such/python", 60)
