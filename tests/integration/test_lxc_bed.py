"""The test bed (tests/bed: a stand-in Proxmox node with real LXC containers), and the Molecule scenarios on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import procfs

ROOT = Path(__file__).resolve().parents[2]
BED = ROOT / "tests" / "bed"
TEMPLATE = "local:vztmpl/debian-13-standard_amd64.tar"
SCENARIOS = sorted(
    path.parent.name
    for path in ROOT.glob("extensions/molecule/*/molecule.yml")
    if "/tests/bed/" in path.read_text(encoding="utf-8")
)


@pytest.fixture(scope="session")
def usable() -> None:
    """Skip, with all that is missing, where the bed cannot be; fail where CI knows that it can (.ci/run)."""
    done = subprocess.run([BED / "bed.sh", "check"], capture_output=True, text=True, check=False)
    if done.returncode:
        told = f"no test bed on this machine: {done.stderr.strip()}"
        if os.environ.get("GROUNDSTATE_BED_REQUIRED") == "1":
            pytest.fail(told)
        pytest.skip(told)


class Bed:
    """A node of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "GROUNDSTATE_BED": str(folder)}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BED / "bed.sh", *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *words: str) -> str:
        """What a command on the node says; it has to work."""
        done = self.call("run", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        """What a command says that the node has to refuse."""
        done = self.call("run", *words)
        assert done.returncode != 0, done.stdout
        return done.stderr.strip()

    def config(self, vmid: str) -> dict[str, object]:
        return dict(json.loads(self.run("pvesh", "get", f"/nodes/pve1/lxc/{vmid}/config", "--current", "1")))


@pytest.fixture(scope="module")
def bed(usable: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    one = Bed(tmp_path_factory.mktemp("bed") / "node")
    up = one.call("up")
    assert up.returncode == 0, up.stdout + up.stderr
    yield one
    one.call("down")


BOOTED = """
for turn in $(seq 600); do
    [ "$(systemctl is-system-running 2>/dev/null)" != running ] || exit 0
    sleep 0.1
done
systemctl --failed
exit 1
"""


@pytest.fixture
def container(bed: Bed) -> Iterator[str]:
    """An unprivileged container with one GPU, booted to the end."""
    options = {
        "unprivileged": "1",
        "features": "nesting=1",
        "hostname": "gpu1",
        "net0": "name=eth0,bridge=vmbr0,ip=10.203.0.129/24",
        "dev0": "/dev/nvidia0,mode=0666",
        "start": "1",
    }
    bed.run("pct", "create", "129", TEMPLATE, *(f"--{name}={value}" for name, value in options.items()))
    bed.run("pct", "exec", "129", "--", "sh", "-c", BOOTED)
    yield "129"
    bed.call("run", "pct", "destroy", "129", "--force")


def groups() -> list[str]:
    """The control groups of beds, as far as the machine shows them."""
    return sorted(str(path) for path in Path("/sys/fs/cgroup").rglob("groundstate-bed-*"))


def test_what_the_machine_lacks_is_said(tmp_path: Path):
    for name in ("bash", "dirname", "id"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    # The script adds the administrator's folders to the path, where a complete machine has some of the programs.
    done = subprocess.run(
        ["/bin/bash", BED / "check.sh"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "missing: lxc-start: apt-get install lxc\n" in done.stderr
    assert "missing: mmdebstrap: apt-get install mmdebstrap\n" in done.stderr


@pytest.mark.slow  # The root file system may have to be built first: one to three minutes.
def test_a_container_boots_and_may_open_only_its_gpu(bed: Bed, container: str):
    assert "No such device or address" in bed.refused("pct", "exec", container, "--", "head", "-c1", "/dev/nvidia0")
    assert "Operation not permitted" in bed.refused("pct", "exec", container, "--", "mknod", "/root/n", "c", "195", "1")
    listed = bed.run("pct", "exec", container, "--", "sh", "-c", "stat -c '%n %a %u %g' /dev/nvidia*")
    assert listed == "/dev/nvidia0 666 0 0\n"


@pytest.mark.slow  # As above.
def test_what_a_running_container_cannot_take_waits_for_its_start(bed: Bed, container: str):
    bed.run("pct", "set", container, "--dev1", "/dev/nvidia-uvm", "--cores", "2", "--delete", "dev0")
    now = bed.config(container)
    assert (now["cores"], now["dev0"]) == (2, "/dev/nvidia0,mode=0666")
    assert "dev1" not in now
    told = bed.run("pct", "pending", container).splitlines()
    assert "new dev1: /dev/nvidia-uvm" in told
    assert "del dev0: /dev/nvidia0,mode=0666" in told
    bed.run("pct", "reboot", container)
    assert bed.config(container)["dev1"] == "/dev/nvidia-uvm"
    assert "dev0" not in bed.config(container)
    assert bed.run("pct", "exec", container, "--", "sh", "-c", "ls /dev/nvidia*") == "/dev/nvidia-uvm\n"
    assert "[pve:pending]" not in bed.run("cat", "/etc/pve/lxc/129.conf")


@pytest.mark.slow  # As above.
def test_refusals_are_those_of_proxmox(bed: Bed, container: str):
    for options, words in {
        ("--dev1", "/etc/passwd"): "dev1.path: invalid format - /etc/passwd is not a valid device path",
        ("--dev1", "/dev/nvidia0,mode=666"): "dev1.mode: value does not match the regex pattern",
        ("--dev1", "/dev/nvidia9"): "Device /dev/nvidia9 does not exist",
        ("--dev1", "/dev/nvidia-caps"): "/dev/nvidia-caps is not a device",
        ("--lxc.mount.entry", "x"): "Unknown option: lxc.mount.entry",
        ("--unprivileged", "0"): "unprivileged: unable to modify read-only option: 'unprivileged'",
    }.items():
        assert words in bed.refused("pct", "set", container, *options)
    assert "already exists on node 'pve1'" in bed.refused("pct", "create", container, TEMPLATE)
    assert "container is running" in bed.refused("pct", "destroy", container)
    bed.run("pct", "set", container, "--protection", "1")
    assert "protection mode enabled" in bed.refused("pct", "destroy", container, "--force")
    bed.run("pct", "set", container, "--protection", "0")
    assert bed.refused("pct", "config", "999") == "Configuration file 'nodes/pve1/lxc/999.conf' does not exist"


@pytest.mark.slow  # As above.
def test_a_file_edited_by_hand_keeps_what_it_says(bed: Bed, container: str):
    bed.run("sh", "-c", "printf '#a: b\\nlxc.prlimit.nofile: 4096\\nnonsense\\n' >>/etc/pve/lxc/129.conf")
    done = bed.call("run", "pct", "set", container, "--tags", "groundstate")
    assert "unable to parse config: nonsense" in done.stderr
    text = bed.run("cat", "/etc/pve/lxc/129.conf").splitlines()
    assert text[0] == "#a%3A b"
    assert text[-1] == "lxc.prlimit.nofile: 4096"
    assert "tags: groundstate" in text


@pytest.mark.slow  # As above.
def test_nothing_is_left_when_the_node_goes_down(usable: None, tmp_path: Path):
    before = groups()
    one = Bed(tmp_path / "node")
    try:
        assert one.call("up").returncode == 0
        init = int((tmp_path / "node" / "node").read_text(encoding="ascii").split()[0])
        one.run("pct", "create", "129", TEMPLATE, "--start", "1")
        assert one.call("up").returncode == 0, "a second time does no harm"
        assert (tmp_path / "node" / "node").read_text(encoding="ascii").split()[0] == str(init)
    finally:
        down = one.call("down")
    assert down.returncode == 0, down.stderr
    left = procfs.process(init)
    assert left is None or left.zombie, "the machine's own process 1 has only to bury it"
    assert not (tmp_path / "node").exists()
    assert groups() == before
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    assert "no node is up" in one.refused("true")


@pytest.mark.slow  # Two to five minutes each: real containers, a real engine, several starts of it.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(usable: None, scenario: str):
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
        "ANSIBLE_NOCOLOR": "1",
    }
    done = subprocess.run(
        [Path(sys.executable).with_name("molecule"), "test", "--scenario-name", scenario],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
