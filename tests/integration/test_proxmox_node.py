"""proxmox_lxc on a node: through a shell and pvesh, with GPUs, raw lines and an older container brought over."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.groundstate.llm.plugins.module_utils.pve import ensure
from ansible_collections.groundstate.llm.plugins.module_utils.pve.api import PveError
from ansible_collections.groundstate.llm.plugins.module_utils.pve.pvesh import Pvesh
from ansible_collections.groundstate.llm.plugins.module_utils.pve.shell import Shell, ShellError
from ansible_collections.groundstate.llm.plugins.modules import proxmox_lxc

TOOL = Path(__file__).parents[1] / "tools" / "pvesh_on_api.py"
SPEC = {
    "node": "pve1",
    "vmid": 129,
    "hostname": "pcie8",
    "template": "local:vztmpl/debian-13.tar.zst",
    "rootfs": "local-lvm:8",
    "gpus": ["all"],
    "memlock": "unlimited",
    "shm_size": "1G",
}
GPUS = {"0000:41:00.0": 0, "0000:04:00.0": 1}  # by PCI address, the second one comes first
DEVICES = ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
SHM = "lxc.mount.entry: tmpfs dev/shm tmpfs rw,nosuid,nodev,mode=1777,size=1073741824,create=dir 0 0"


class Node:
    """A node of the API, and a folder with its files; its device nodes lead to a real character device."""

    def __init__(self, pve, root: Path, shell: Shell):
        self.pve = pve
        self.root = root
        self.api = Pvesh(shell, 60)
        pve.grant("nobody@pve", "/", "VM.Audit")
        pve.store_file("local", "debian-13.tar.zst", 126_000_000, "vztmpl")
        (root / "dev" / "nvidia-caps").mkdir(parents=True)
        for name in DEVICES:
            self.device(name)
        for pci, minor in GPUS.items():
            folder = root / "proc" / "driver" / "nvidia" / "gpus" / pci
            folder.mkdir(parents=True)
            (folder / "information").write_text(
                f"Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-{minor}\nBus Location: \t {pci}\nDevice Minor: \t {minor}\n"
            )

    def device(self, name: str) -> None:
        path = self.root / "dev" / name
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/null")

    @property
    def conf(self) -> Path:
        return self.root / "etc" / "pve" / "lxc" / "129.conf"

    def raw(self) -> list[str]:
        return [line for line in self.conf.read_text().splitlines() if line.startswith("lxc.")]

    def run(self, check: bool = False, **options) -> ensure.Result:
        checked = ArgumentSpecValidator(proxmox_lxc.argument_spec()).validate({**SPEC, **options})
        assert not checked.error_messages, checked.error_messages
        return ensure.ensure(checked.validated_parameters, self.api, check)

    def refused(self, **options) -> str:
        with pytest.raises(PveError) as caught:
            self.run(**options)
        return str(caught.value)


@pytest.fixture
def node(fakepve, fakepve_cafile, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    pvesh = folder / "pvesh"
    pvesh.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{TOOL}" "$@"\n')
    pvesh.chmod(0o755)
    root = tmp_path / "node with a blank"
    ticket, csrf = fakepve.issue_ticket("root@pam")
    told = {"url": fakepve.url, "ca": str(fakepve_cafile), "ticket": ticket, "csrf": csrf, "root": str(root)}
    monkeypatch.setenv("GROUNDSTATE_TEST_PVE", json.dumps(told))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Node(fakepve, root, Shell(root=str(root)))


def test_a_container_with_gpus_and_raw_lines(node):
    made = node.run()
    assert made.actions == ["created", "changed lxc.mount.entry, lxc.prlimit.memlock", "started"]
    config = node.pve.ct(129).config
    assert [config[f"dev{index}"].partition(",")[0] for index in range(5)] == [
        f"/dev/{name}" for name in ("nvidia1", "nvidia0", *DEVICES[2:])
    ]
    assert config["dev0"] == "/dev/nvidia1,gid=0,mode=0666"
    assert sorted(node.raw()) == sorted(["lxc.prlimit.memlock: unlimited", SHM])
    assert (made.pending, sorted(made.raw)) == ([], sorted(node.raw()))
    again = node.run()
    assert (again.actions, again.pending) == ([], [])
    # A GPU less, named by its address; and no limit any more, which a running container keeps until it starts again.
    changed = node.run(gpus=["41:00.0"], memlock="")
    assert changed.actions == ["changed lxc.prlimit.memlock", "changed description, dev0"]
    assert changed.pending == ["dev0", "lxc.prlimit.memlock"]
    assert node.raw() == [SHM]
    restarted = node.run(gpus=["41:00.0"], memlock="", restart="if_needed")
    assert (restarted.actions, restarted.pending) == (["restarted"], [])
    assert "dev0" not in config or not config["dev0"].startswith("/dev/nvidia1")
    left_away = {"memlock": None, "shm_size": None, "gpus": None}
    assert node.run(**left_away).actions == []


def test_an_older_container_is_brought_over(node):
    """From lines that allow majors and mount nodes, with one of somebody else's among them, to devN."""
    old = [
        "lxc.cgroup2.devices.allow: c 195:* rwm",
        "lxc.cgroup2.devices.allow: c 508:* rwm",
        "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file",
        "lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file",
    ]
    other = "lxc.cgroup2.devices.allow: c 10:200 rwm"
    node.pve.add_ct(129, "pcie8", config={"rootfs": "local-lvm:vm-129-disk-0,size=8G"})
    node.conf.parent.mkdir(parents=True)
    node.conf.write_text("arch: amd64\nhostname: pcie8\n" + "\n".join([*old, other]) + "\n\n[before]\narch: amd64\n")
    options = {"adopt": True, "state": "present", "memlock": None, "shm_size": None}
    would = node.run(check=True, **options)
    assert "changed lxc.cgroup2.devices.allow, lxc.mount.entry" in would.actions
    assert old[0] in would.before
    assert old[0] not in would.after
    assert node.raw() == [*old, other]
    node.run(**options)
    assert node.raw() == [other]
    assert "dev4" in node.pve.ct(129).config
    assert node.run(**options).actions == []


def test_what_is_no_device_is_refused_before_anything_is_changed(node):
    (node.root / "dev" / "nvidia1").unlink()
    (node.root / "dev" / "nvidia1").write_text("")
    (node.root / "dev" / "nvidia-uvm").unlink()
    said = node.refused(devices=["/dev/nowhere"])
    assert "/dev/nvidia1 is a plain file, not a device" in said
    assert "/dev/nvidia-uvm is not on the node: load the module" in said
    assert "/dev/nowhere is not on the node" in said
    assert "/dev/nvidia-caps is a directory" in node.refused(gpus=None, devices=["/dev/nvidia-caps"])
    assert node.pve.ct(129) is None


def test_gpus_that_are_not_there(node):
    with pytest.raises(
        ValueError, match=r"no GPU at PCI address 0000:99:00.0 on this node; there: 0000:04:00.0, 0000:41"
    ):
        node.run(gpus=["0000:99:00.0"])
    for pci in GPUS:
        (node.root / "proc" / "driver" / "nvidia" / "gpus" / pci / "information").unlink()
    if not any(os.access(f"{folder}/nvidia-smi", os.X_OK) for folder in os.environ["PATH"].split(os.pathsep)):
        assert "the role proxmox_node_gpu brings the driver up" in node.refused()


def test_errors_of_pvesh_are_sentences(node):
    assert "cores=9999: value must have a maximum value" in node.refused(cores=9999)
    said = node.refused(template="local:vztmpl/gone.tar.zst")
    assert "creating container 129 failed" in said
    assert "does not exist" in said


def test_a_command_survives_the_shell_at_the_other_end_of_ssh(node):
    """ssh hands the command over as one text, which a shell takes apart again."""
    node.api.shell = Shell(("sh", "-c"), root=str(node.root))
    made = node.run(description='It\'s "mine"; $HOME `id` \\ *', gpus=["0"], state="present")
    assert made.actions == ["created", "changed lxc.mount.entry, lxc.prlimit.memlock"]
    assert 'It\'s "mine"; $HOME `id` \\ *\n' in node.pve.ct(129).config["description"]
    assert SHM in node.raw()


def test_a_file_that_changed_meanwhile_is_not_overwritten(node):
    node.run(state="present")
    text = node.conf.read_text()
    with pytest.raises(ShellError, match="it was changed meanwhile: run this again"):
        node.api.shell.replace_conf(129, text + "x", "mine\n")
    assert node.conf.read_text() == text
    node.api.shell.replace_conf(129, text, "it's $mine\n\\n\n")
    assert node.conf.read_text() == "it's $mine\n\\n\n"
    assert [path.name for path in node.conf.parent.iterdir()] == ["129.conf"]


def test_no_pvesh(node, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert "pvesh" in node.refused()
