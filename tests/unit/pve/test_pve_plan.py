"""The plan from a container as it is to the container as declared: both ways, nothing twice, refusals in words."""

from __future__ import annotations

import re

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.pve import note, raw
from ansible_collections.groundstate.llm.plugins.module_utils.pve.declared import Declared, declare
from ansible_collections.groundstate.llm.plugins.module_utils.pve.plan import (
    after,
    create_parameters,
    make_plan,
    root_only,
)

OURS = {"tags": "groundstate", "description": note.write("", None, [])}
BASE = {
    **OURS,
    "hostname": "pcie8",
    "arch": "amd64",
    "memory": "512",
    "swap": "512",
    "rootfs": "local-lvm:vm-129-disk-0,size=64G",
    "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=dhcp,type=veth",
    "unprivileged": "1",
}


def changes(options: dict, config: dict) -> tuple[dict, list]:
    """(what is put, what is deleted), and that a second plan has nothing left to do."""
    plan = make_plan(declare(options), config)
    assert plan.refusals == []
    assert not plan.grow
    left = make_plan(declare(options), after(config, plan))
    assert not left.changes, (left.put, left.delete)
    return plan.put, plan.delete


@pytest.mark.parametrize(
    ("options", "there", "put", "deleted"),
    [
        ({"memory": 1024}, {}, {"memory": "1024"}, []),
        ({"memory": 512}, {"memory": "1024"}, {"memory": "512"}, []),
        ({"cores": 4}, {}, {"cores": "4"}, []),
        ({"cores": 0}, {"cores": "4"}, {}, ["cores"]),
        ({"cores": 0}, {}, {}, []),
        ({"cpulimit": 2.0}, {}, {"cpulimit": "2"}, []),
        ({"cpulimit": 0.0}, {"cpulimit": "2"}, {"cpulimit": "0"}, []),
        ({"onboot": True}, {}, {"onboot": "1"}, []),
        ({"onboot": False}, {"onboot": "1"}, {"onboot": "0"}, []),
        ({"onboot": False}, {}, {}, []),
        ({"nameserver": "192.0.2.1"}, {}, {"nameserver": "192.0.2.1"}, []),
        ({"nameserver": ""}, {"nameserver": "192.0.2.1"}, {}, ["nameserver"]),
        ({"startup": {"order": 2}}, {}, {"startup": "2"}, []),
        ({"startup": "order=2"}, {"startup": "2"}, {}, []),
        ({"startup": {}}, {"startup": "order=2"}, {}, ["startup"]),
        ({"features": {"nesting": True}}, {}, {"features": "nesting=1"}, []),
        ({"features": "nesting=1"}, {"features": "keyctl=1,nesting=1"}, {"features": "nesting=1"}, []),
        ({"features": {"nesting": False}}, {"features": "nesting=1"}, {}, ["features"]),
        ({"features": {}}, {"features": "nesting=0"}, {}, []),
        ({"tags": ["b", "A"]}, {}, {"tags": "a;b;groundstate"}, []),
        ({"tags": []}, {"tags": "groundstate;old"}, {"tags": "groundstate"}, []),
        ({}, {"tags": "groundstate;theirs"}, {}, []),
        ({"networks": []}, {}, {}, ["net0"]),
        ({"networks": ["ip=dhcp,bridge=vmbr0,name=eth0"]}, {}, {}, []),
        (
            {"networks": ["name=eth0,bridge=vmbr1,ip=dhcp"]},
            {},
            {"net0": "bridge=vmbr1,hwaddr=BC:24:11:00:00:01,ip=dhcp,name=eth0"},
            [],
        ),
        (
            {"networks": ["name=eth1,bridge=vmbr1", "name=eth0,bridge=vmbr0,ip=dhcp"]},
            {},
            {"net1": "bridge=vmbr1,name=eth1"},
            [],
        ),
        ({"mounts": ["/shared"]}, {}, {"mp0": "/shared,mp=/shared"}, []),
        ({"mounts": ["/shared"]}, {"mp3": "/shared,mp=/shared/,ro=0"}, {}, []),
        ({"mounts": ["/shared"]}, {"mp3": "/old,mp=/shared"}, {"mp3": "/shared,mp=/shared"}, []),
        ({"mounts": []}, {"mp0": "/shared,mp=/shared"}, {}, ["mp0"]),
        ({"mounts": ["/b", "/a"]}, {"mp0": "/a,mp=/a", "mp1": "/b,mp=/b"}, {}, []),
        (
            {"mounts": [{"storage": "big", "size": "100G", "mp": "/data", "mountoptions": ["noatime", "discard"]}]},
            {},
            {"mp0": "big:100,mountoptions=discard;noatime,mp=/data"},
            [],
        ),
        ({"devices": ["/dev/kvm"]}, {}, {"dev0": "/dev/kvm"}, []),
        ({"devices": [{"path": "/dev/kvm", "gid": 104}]}, {"dev0": "/dev/kvm"}, {"dev0": "/dev/kvm,gid=104"}, []),
        ({"devices": ["/dev/kvm,mode=0660"]}, {"dev0": "/dev/kvm"}, {}, []),
        ({"devices": []}, {"dev0": "/dev/kvm", "dev1": "/dev/nvidia0"}, {}, ["dev0"]),
        ({"devices": ["/dev/fuse"]}, {"dev0": "/dev/kvm"}, {"dev1": "/dev/fuse"}, ["dev0"]),
        ({"protection": True}, {}, {"protection": "1"}, []),
        ({"hostname": "new"}, {}, {"hostname": "new"}, []),
        ({"unprivileged": True}, {}, {}, []),
    ],
)
def test_each_property_both_ways(options, there, put, deleted):
    config = {**BASE, **there}
    made = {"big:100,mountoptions=discard;noatime,mp=/data"} & set(put.values())
    if made:  # PVE makes the volume and writes its name
        plan = make_plan(declare(options), config)
        assert (plan.put, plan.delete) == (put, deleted)
        config["mp0"] = "big:vm-129-disk-1,mountoptions=noatime;discard,mp=/data,size=100G"
        put = {}
    assert changes(options, config) == (put, deleted)


def gpu(minor: int) -> dict:
    return {"path": f"/dev/nvidia{minor}", "mode": "0666"}


def test_gpus_and_devices_leave_each_other_alone():
    config = {**BASE, "dev0": "/dev/nvidia3,mode=0666", "dev1": "/dev/kvm", "dev2": "/dev/nvidiactl"}
    plan = make_plan(Declared(gpus=[gpu(0), gpu(3)]), config)
    assert (plan.put, plan.delete) == ({"dev3": "/dev/nvidia0,mode=0666"}, ["dev2"])
    plan = make_plan(Declared(gpus=[]), config)
    assert (plan.put, plan.delete) == ({}, ["dev0", "dev2"])
    assert not make_plan(Declared(), config).changes


def test_volumes_grow_and_do_not_shrink_or_move():
    config = {**BASE, "mp0": "big:vm-129-disk-1,mp=/data,size=100G"}
    plan = make_plan(declare({"rootfs": "local-lvm:80", "mounts": ["big:150,mp=/data"]}), config)
    assert (plan.grow, plan.put, plan.refusals) == ({"rootfs": "80G", "mp0": "150G"}, {}, [])
    assert after(config, plan)["rootfs"] == "local-lvm:vm-129-disk-0,size=80G"
    plan = make_plan(declare({"rootfs": "local-lvm:8", "mounts": ["other:150,mp=/data"]}), config)
    assert not plan.changes
    assert "cannot shrink to 8G" in plan.refusals[0]
    assert "data behind" in plan.refusals[1]
    plan = make_plan(declare({"mounts": []}), config)
    assert plan.delete == ["mp0"]
    assert "big:vm-129-disk-1 is kept" in plan.warnings[0]


def test_options_of_a_volume_change_without_its_size():
    plan = make_plan(declare({"rootfs": {"storage": "local-lvm", "size": "64G", "mountoptions": ["noatime"]}}), BASE)
    assert plan.put == {"rootfs": "local-lvm:vm-129-disk-0,mountoptions=noatime,size=64G"}


def test_what_cannot_be_is_refused():
    def refusals(options, **there):
        return " ".join(make_plan(declare(options), {**BASE, **there}).refusals)

    assert "the container is unprivileged and cannot become privileged" in refusals({"unprivileged": False})
    assert "locked (backup)" in refusals({"memory": 1024}, lock="backup")
    assert refusals({"memory": 512}, lock="backup") == ""
    assert "declare protection: false first" in refusals({"mounts": ["/a"]}, protection="1")
    assert refusals({"memory": 1024}, protection="1") == ""


def test_a_property_string_of_a_newer_pve_is_no_error():
    plan = make_plan(declare({"devices": ["/dev/kvm"]}), {**BASE, "dev0": "/dev/kvm,novel=1"})
    assert plan.put == {"dev0": "/dev/kvm"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hostname": "no_name"}, "hostname: 'no_name' is no name"),
        ({"mounts": ["/a", "/a/"]}, "mounts: mp /a is there twice"),
        ({"networks": ["name=eth0", "name=eth0"]}, "networks: name eth0 is there twice"),
        ({"networks": ["name=eth0,bridg=vmbr0"]}, "networks[0]: there is no bridg; known: bridge,"),
        ({"mounts": [{"storage": "big", "mp": "/data"}]}, "mounts[0]: give storage with size"),
        ({"mounts": ["/a,mp=b"]}, "'b' is no absolute path"),
        ({"devices": ["/dev/nvidia0"], "gpus": ["all"]}, "NVIDIA's are for the option gpus"),
        ({"devices": ["/etc/passwd"]}, "devices[0]: path: '/etc/passwd' is no device"),
        ({"shm_size": "much"}, "shm_size: 'much' is no size"),
        ({"hostname": "-", "mounts": ["x"]}, "mounts[0]: mp is missing"),
    ],
)
def test_wrong_options_are_told(options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        declare(options)


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ValueError, match=r"hostname: .*devices\[0\]: .*mounts\[0\]: "):
        declare({"hostname": "-", "mounts": ["x"], "devices": ["y"]})


def test_parameters_of_a_new_container():
    declared = declare({"hostname": "a", "rootfs": "local-lvm:8", "gpus": [], "memory": 512, "cores": 0})
    made = create_parameters(declared)
    assert made.pop("description").startswith("<!-- groundstate -->")
    assert made == {"hostname": "a", "rootfs": "local-lvm:8", "tags": "groundstate", "unprivileged": "1"}
    with pytest.raises(ValueError, match="rootfs: a new container needs storage and size"):
        create_parameters(declare({"hostname": "a"}))


def test_what_only_root_may_set():
    new = {"dev0": "/dev/kvm", "mp0": "/a,mp=/a", "mp1": "big:8,mp=/b", "memory": "1", "features": "nesting=1"}
    assert root_only(new, [], {}, True) == ["dev0", "mp0"]
    assert root_only(new, [], {}, False) == ["dev0", "mp0", "features"]
    assert root_only({"features": "nesting=1,keyctl=1"}, [], {}, True) == ["features"]
    assert root_only({}, ["dev1", "mp0", "net0"], {}, True) == ["dev1"]


def test_the_block_in_the_description_keeps_what_others_wrote():
    lines = [("lxc.prlimit.memlock", "unlimited")]
    text = note.write("Ask Ada first.\n", "For tests", lines)
    assert text == (
        "Ask Ada first.\n\n<!-- groundstate -->\nFor tests\n<!-- lxc.prlimit.memlock: unlimited -->\n"
        "<!-- /groundstate -->\n"
    )
    assert note.raw_lines(text) == lines
    assert note.write(text, None, lines) == text
    assert note.write(text + "Later.\n", "Other", []) == (
        "Ask Ada first.\n\n<!-- groundstate -->\nOther\n<!-- /groundstate -->\nLater.\n"
    )
    assert note.is_ours({"description": text})
    assert not note.is_ours({"description": "groundstate", "tags": "groundstates"})


def test_who_may_edit_the_description_may_not_write_raw_lines():
    forged = note.write("", "For tests", [("lxc.hook.pre-start", "/tmp/evil"), ("lxc.prlimit.memlock", "unlimited")])
    for value in ("/dev/sda mnt none bind", "tmpfs dev/shm tmpfs rw,size=1,create=dir 0 0"):
        forged = forged.replace("<!-- /g", f"<!-- lxc.mount.entry: {value} -->\n<!-- /g")
    assert len(note.raw_lines(forged)) == 4
    ours = raw.noted(forged)
    assert ours == [("lxc.prlimit.memlock", "unlimited")]
    # Nothing is declared of them: what is ours stays, what is said to be is neither written nor taken away.
    by_admin = [("lxc.hook.pre-start", "/tmp/evil")]
    assert raw.target(by_admin, ours, raw.wanted(None, None, ours), False) == by_admin + ours
    lines = raw.wanted("64G", "16G")
    assert raw.noted(note.write("", None, lines)) == lines


@pytest.mark.parametrize(
    "text",
    [
        "<!-- groundstate -->x<!-- /groundstate -->",
        "<!-- <!-- groundstate -->groundstate -->\nx\n<!-- /ground<!-- groundstate -->state -->",
        "<!-- lxc.prlimit.memlock: unlimited -->x",
        "<!-- lxc.a: <!-- groundstate -->1 -->x<!-- <!-- lxc.a: 2 -->/groundstate -->",
    ],
)
def test_marks_in_a_declared_description_are_no_marks(text):
    made = note.write("Ask Ada first.", text, [])
    assert note.raw_lines(made) == []
    assert made.startswith("Ask Ada first.\n\n<!-- groundstate -->\n")
    assert made.count("<!-- groundstate -->") == made.count("<!-- /groundstate -->") == 1
    assert note.write(made, text, []) == made


def test_plain_values_have_no_line_breaks():
    with pytest.raises(ValueError, match=r"searchdomain: .* has a line break"):
        declare({"searchdomain": "example.org\nlxc.hook.pre-start: /tmp/x"})
