"""GPUs to device nodes, and the raw lines of ID.conf, those of an older way of passing GPUs through included."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import nvidia
from ansible_collections.groundstate.llm.plugins.module_utils.pve import passthrough, raw
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(__file__).parents[2] / "data"
GPUS = nvidia.parse((DATA / "nvidia_smi" / "h200.idle.xml").read_text()).gpus

OLD = """#hand-made
arch: amd64
hostname: pcie8
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.cgroup2.devices.allow: c 508:* rwm
lxc.cgroup2.devices.allow: c 10:200 rwm
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
lxc.mount.entry: /dev/net/tun dev/net/tun none bind,create=file

[before-upgrade]
arch: amd64
lxc.cgroup2.devices.allow: c 195:* rwm
"""
OTHERS = [
    ("lxc.cgroup2.devices.allow", "c 10:200 rwm"),
    ("lxc.mount.entry", "/dev/net/tun dev/net/tun none bind,create=file"),
]
MEMLOCK = ("lxc.prlimit.memlock", "unlimited")


def test_gpus_by_any_name_and_their_nodes():
    first = GPUS[0]
    short = first.pci.lower().partition(":")[2]  # as lspci writes it
    for name in ("0", first.uuid, first.pci, first.pci.lower(), short, "all"):
        assert passthrough.choose(GPUS, [name])[0] == first, name
    assert passthrough.paths([first]) == [
        f"/dev/nvidia{first.minor}",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    assert passthrough.paths([first], True, ["/dev/nvidia-caps/nvidia-cap1"])[-2:] == [
        "/dev/nvidia-modeset",
        "/dev/nvidia-caps/nvidia-cap1",
    ]
    assert passthrough.paths([]) == []


def information(pci: str, uuid: str, minor: int) -> str:
    """A file of /proc/driver/nvidia/gpus, as the driver writes it."""
    return (
        f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 186\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.a5.00.01\n"
        f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nBus Location: \t {pci}\nDevice Minor: \t {minor}\n"
    )


def test_gpus_from_proc_count_by_pci_address():
    text = information("0000:41:00.0", "GPU-b", 0) + information("0000:04:00.0", "GPU-a", 1)
    gpus = passthrough.from_proc(text)
    assert [(one.index, one.uuid, one.minor) for one in gpus] == [(0, "GPU-a", 1), (1, "GPU-b", 0)]
    assert passthrough.paths(passthrough.choose(gpus, ["1"]))[0] == "/dev/nvidia0"
    assert passthrough.from_proc("cat: '/proc/driver/nvidia/gpus/*/information': No such file\n") == []


@given(st.text())
def test_any_text_of_proc_can_be_read(text):
    assert passthrough.from_proc(text) == []


def test_the_node_follows_the_minor_number_not_the_index():
    moved = [nvidia.Gpu(**{**GPUS[0].__dict__, "minor": 5})]
    assert passthrough.paths(passthrough.choose(moved, [GPUS[0].pci]))[0] == "/dev/nvidia5"


def test_a_gpu_that_is_not_there():
    with pytest.raises(ValueError, match=r"no GPU at PCI address 0000:ff:00.0 on this node; there: 0"):
        passthrough.choose(GPUS, ["0000:ff:00.0"])
    with pytest.raises(ValueError, match="no GPU 9 on this host"):
        passthrough.choose(GPUS, ["9"])
    with pytest.raises(ValueError, match="tells no minor number"):
        passthrough.paths([nvidia.Gpu(**{**GPUS[0].__dict__, "minor": None})])


def test_only_devices_are_passed_through():
    modes = {
        "/dev/nvidia0": stat.S_IFCHR | 0o666,
        "/dev/nvidia-caps": stat.S_IFDIR | 0o755,
        "/dev/nvidia1": stat.S_IFREG | 0o644,
        "/dev/nvidia2": stat.S_IFBLK | 0o600,
        "/dev/sda": stat.S_IFBLK | 0o600,
        "/dev/nvidia-uvm": None,
    }
    found = passthrough.refusals(modes, modes)
    assert [text.partition(" is ")[0] for text in found] == [
        "/dev/nvidia-caps",
        "/dev/nvidia1",
        "/dev/nvidia2",
        "/dev/nvidia-uvm",
    ]
    assert "a directory" in found[0]
    assert "a plain file" in found[1]
    assert "nvidia-modprobe -c0 -u" in found[3]


def test_lines_by_hand_go_and_those_of_others_stay():
    lines = raw.lines_of(OLD)
    assert raw.target(lines, [], [MEMLOCK], True) == [*OTHERS, MEMLOCK]
    assert raw.target(lines, [], [], False) == lines
    text = raw.write(OLD, [*OTHERS, MEMLOCK])
    assert raw.lines_of(text) == [*OTHERS, MEMLOCK]
    assert text.startswith("#hand-made\narch: amd64\nhostname: pcie8\nlxc.cgroup2")
    assert text.endswith("\n\n[before-upgrade]\narch: amd64\nlxc.cgroup2.devices.allow: c 195:* rwm\n")


def test_a_major_that_is_given_out_is_theirs_only_beside_their_mounts():
    lines = [("lxc.cgroup2.devices.allow", "c 508:* rwm"), ("lxc.cgroup.devices.allow", "c 195:0 rw")]
    assert raw.by_hand(lines) == [lines[1]]


def test_our_lines_both_ways():
    shm = raw.wanted(None, "64G")[0]
    assert raw.target(OTHERS, [], [MEMLOCK, shm], True) == [*OTHERS, MEMLOCK, shm]
    assert raw.target([*OTHERS, MEMLOCK, shm], [MEMLOCK, shm], [MEMLOCK], True) == [*OTHERS, MEMLOCK]
    assert raw.target([*OTHERS, MEMLOCK], [MEMLOCK], [], True) == OTHERS
    # A limit that somebody else wrote: kept while none is declared, replaced by one that is.
    theirs = ("lxc.prlimit.memlock", "1024")
    assert raw.target([theirs], [], [], True) == [theirs]
    assert raw.target([theirs], [], [MEMLOCK], True) == [MEMLOCK]
    assert raw.target([("lxc.mount.entry", "tmpfs dev/shm/ tmpfs size=1G 0 0")], [], [shm], True) == [shm]
    assert raw.wanted("8G", None) == [("lxc.prlimit.memlock", str(8 << 30))]


def test_what_a_running_container_lacks_or_still_has():
    made = [("lxc.mount.entry", "/var/lib/lxc/129/passthrough/dev/nvidia0 dev/nvidia0 none bind,create=file")]
    by_hand = ("lxc.mount.entry", "/dev/nvidia0 dev/nvidia0 none bind,optional,create=file")
    assert raw.pending([MEMLOCK], [*made, MEMLOCK]) == []
    assert raw.pending([MEMLOCK], made) == ["lxc.prlimit.memlock"]
    assert raw.pending([], [*made, MEMLOCK, by_hand]) == ["lxc.mount.entry", "lxc.prlimit.memlock"]


keys = st.sampled_from(["lxc.prlimit.memlock", "lxc.mount.entry", "lxc.cgroup2.devices.allow", "lxc.apparmor.profile"])
values = st.one_of(
    st.from_regex(r"[a-z0-9:*/]{1,12}( [a-z0-9/,=]{1,12}){0,3}", fullmatch=True),
    st.just("/dev/nvidia0 dev/nvidia0 none bind"),
    st.sampled_from(["c 195:* rwm", "c 511:0 rw", "tmpfs dev/shm tmpfs size=1G 0 0"]),
)
raw_lines = st.lists(st.tuples(keys, values), max_size=6, unique=True)


@given(raw_lines, raw_lines, st.booleans())
def test_the_target_is_reached_in_one_step(lines, want, migrate):
    want = [line for line in want if line not in raw.by_hand(want)]
    once = raw.target(lines, [], want, migrate)
    assert set(want) <= set(once)
    assert raw.lines_of(raw.write(OLD, once)) == once
    if len({raw._speaks_of(line) for line in want}) == len(want):
        assert raw.target(once, want, want, migrate) == once


@given(st.text())
def test_any_file_can_be_read(text):
    lines = raw.lines_of(text)
    assert raw.lines_of(raw.write(text, lines)) == lines
