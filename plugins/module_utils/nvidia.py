# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the NVIDIA driver says of its GPUs: a pure parser of ``nvidia-smi -q -x`` and a bounded runner of the program.

The XML is the one form that all driver generations share; a field that a generation lacks is simply missing. A value
that the driver does not give ("N/A", "Insufficient Permissions", ...) is None. Memory is in bytes.
"""

from __future__ import annotations

# Pure code: there is no AnsibleModule here whose run_command it could call.
# pylint: disable=ansible-bad-function
import glob
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from xml.etree import ElementTree

PROGRAM = "nvidia-smi"
TIMEOUT_S = 30.0  # eight GPUs without persistence mode take about ten seconds to wake up
MIB = 1024 * 1024

# Places that are not always in the PATH of a non-interactive shell.
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/run/current-system/sw/bin")
_UNITS = {"B": 1, "KiB": 1024, "MiB": MIB, "GiB": 1024 * MIB, "%": 1}
_NUMBER = re.compile(r"^(\d+(?:\.\d+)?)\s*(\S*)$")


@dataclass(frozen=True)
class DriverProcess:
    """One line of the driver's own process list. In a container the pid may be the host's: confirm before use."""

    pid: int
    kind: str  # C (compute), G (graphics), C+G, M+C (MPS)
    name: str
    memory: int | None


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver sees it now."""

    index: int  # as nvidia-smi counts: the order of the PCI addresses
    uuid: str
    pci: str
    name: str
    minor: int | None  # the N of /dev/nvidiaN
    memory_total: int | None
    memory_reserved: int | None  # by the driver itself; not part of used on drivers that tell
    memory_used: int | None
    utilisation: int | None  # percent
    mig: bool | None
    processes: tuple[DriverProcess, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "processes": [asdict(one) for one in self.processes]}


@dataclass(frozen=True)
class Report:
    """One answer of nvidia-smi."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]
    text: str = field(default="", repr=False)  # all of it, for those who want more than is read here


@dataclass(frozen=True)
class Answer:
    """Whether this host has GPUs: True, False, or None for "could not tell", and why."""

    available: bool | None
    why: str
    report: Report | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.report.gpus if self.report else ()


# --- parsing -------------------------------------------------------------------------------------


def quantity(text: str | None) -> int | None:
    """ "72232 MiB" -> bytes, "7 %" -> 7, "0" -> 0; anything that is no number with a known unit -> None."""
    found = _NUMBER.match((text or "").strip())
    if not found:
        return None
    factor = _UNITS.get(found.group(2), 1 if not found.group(2) else None)
    return None if factor is None else int(float(found.group(1)) * factor)


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _memory(node: ElementTree.Element, what: str) -> int | None:
    return quantity(node.findtext(f"fb_memory_usage/{what}"))


def _used(node: ElementTree.Element) -> int | None:
    """Memory in use; where MIG hides the whole GPU's figure, the sum over its instances."""
    whole = _memory(node, "used")
    if whole is not None:
        return whole
    parts = [_memory(one, "used") for one in node.iterfind("mig_devices/mig_device")]
    known = [one for one in parts if one is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _processes(node: ElementTree.Element) -> tuple[DriverProcess, ...]:
    found = []
    for one in node.iterfind("processes/process_info"):
        pid = quantity(one.findtext("pid"))
        if pid is not None:
            found.append(
                DriverProcess(
                    pid, _text(one, "type"), _text(one, "process_name"), quantity(one.findtext("used_memory"))
                )
            )
    return tuple(found)


def parse(text: str) -> Report:
    """The report in the output of ``nvidia-smi -q -x``. Raises ValueError when it is not one."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"the output of nvidia-smi -q -x is not XML: {error}") from error
    if root.tag != "nvidia_smi_log":
        raise ValueError(f"the output of nvidia-smi -q -x starts with <{root.tag}>, expected <nvidia_smi_log>")
    gpus = []
    for index, node in enumerate(root.iterfind("gpu")):
        mode = _text(node, "mig_mode/current_mig")
        gpus.append(
            Gpu(
                index=index,
                uuid=_text(node, "uuid"),
                pci=node.get("id") or _text(node, "pci/pci_bus_id"),
                name=_text(node, "product_name"),
                minor=quantity(node.findtext("minor_number")),
                memory_total=_memory(node, "total"),
                memory_reserved=_memory(node, "reserved"),
                memory_used=_used(node),
                utilisation=quantity(node.findtext("utilization/gpu_util")),
                mig={"Enabled": True, "Disabled": False}.get(mode),
                processes=_processes(node),
            )
        )
    return Report(_text(root, "driver_version"), _text(root, "cuda_version"), tuple(gpus), text)


def parse_memory(text: str) -> dict[str, int | None]:
    """uuid -> bytes in use, from ``--query-gpu=uuid,memory.used --format=csv,noheader``."""
    found = {}
    for line in text.splitlines():
        uuid, separator, used = line.partition(",")
        if separator:
            found[uuid.strip()] = quantity(used)
    return found


def parse_capabilities(text: str) -> dict[str, str]:
    """uuid -> compute capability ("9.0"), from ``--query-gpu=uuid,compute_cap --format=csv,noheader``."""
    found = {}
    for line in text.splitlines():
        uuid, separator, capability = line.partition(",")
        if separator and re.fullmatch(r"\s*\d+\.\d+\s*", capability):
            found[uuid.strip()] = capability.strip()
    return found


def select(gpus: Iterable[Gpu], wanted: Iterable[str]) -> list[Gpu]:
    """The GPUs named by index or UUID; ``all`` names every one. Raises ValueError that lists the unknown names."""
    known = list(gpus)
    names = [str(one).strip() for one in wanted]
    if "all" in names:
        return known
    table = {key.lower(): one for one in known for key in (str(one.index), one.uuid)}
    unknown = [name for name in names if name.lower() not in table]
    if unknown:
        there = ", ".join(f"{one.index} ({one.uuid})" for one in known) or "none"
        raise ValueError(f"no GPU {', '.join(unknown)} on this host; there: {there}")
    chosen = {table[name.lower()].index for name in names}
    return [one for one in known if one.index in chosen]


# --- running -------------------------------------------------------------------------------------


def find_program(name: str = PROGRAM) -> str | None:
    """Path of nvidia-smi, or None."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_FOLDERS))


def run(argv: list[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> tuple[int | None, str, str]:
    """Run a program for at most ``timeout_s`` seconds: (status, stdout, stderr); status None when it hung.

    ``environment`` is all that it gets; without it, ours in the C locale.

    A program in uninterruptible sleep (a sick driver) cannot be killed; it is left behind rather than waited for.
    Raises OSError when it cannot be started.
    """
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "LC_ALL": "C"} if environment is None else dict(environment),
    )
    try:
        out, err = child.communicate(timeout=timeout_s)
        return child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        try:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate(timeout=1.0)
        except (OSError, subprocess.TimeoutExpired):
            pass  # reported as hung all the same
        return None, "", ""


def device_nodes(dev: str = "/dev") -> list[str]:
    """The GPU device nodes that exist here (/dev/nvidia0, ...)."""
    return sorted(path for path in glob.glob(f"{dev}/nvidia[0-9]*") if path.rpartition("nvidia")[2].isdigit())


def query(timeout_s: float = TIMEOUT_S, program: str | None = None, dev: str = "/dev") -> Answer:
    """Ask the driver for everything. Raises nothing: what went wrong is in ``why``."""
    nodes = device_nodes(dev)
    path = program or find_program()
    if path is None:
        if nodes:
            return Answer(None, f"{nodes[0]} exists but nvidia-smi is not installed: install the driver's utilities")
        return Answer(False, "no nvidia-smi and no /dev/nvidia*: this host has no NVIDIA GPU")
    try:
        status, out, err = run([path, "-q", "-x"], timeout_s)
    except OSError as error:
        return Answer(None, f"{path} cannot be run: {error}")
    if status is None:
        return Answer(
            None,
            f"{path} did not answer in {timeout_s:g} s: the driver hangs (see dmesg for Xid lines); reboot the host",
        )
    try:
        report = parse(out)
    except ValueError as error:
        said = " ".join((err or out).split())[:200]
        if not nodes:
            return Answer(False, f"no /dev/nvidia* on this host, and {path} says: {said or f'exit status {status}'}")
        return Answer(None, f"{path} failed with status {status}: {said or error}")
    if not report.gpus:
        return Answer(False, "the driver reports no GPUs", report)
    return Answer(True, "", report)


def capabilities(timeout_s: float = TIMEOUT_S, program: str | None = None) -> dict[str, str]:
    """uuid -> compute capability; {} when the driver does not tell (those before 510 do not know the question)."""
    path = program or find_program()
    try:
        status, out, _err = run([path or PROGRAM, "--query-gpu=uuid,compute_cap", "--format=csv,noheader"], timeout_s)
    except OSError:
        return {}
    return parse_capabilities(out) if status == 0 else {}


def memory_used(timeout_s: float = TIMEOUT_S, program: str | None = None) -> dict[str, int | None]:
    """uuid -> bytes in use, by the cheapest query there is. Raises OSError when the driver does not answer."""
    path = program or find_program()
    if path is None:
        raise OSError("nvidia-smi is not installed")
    status, out, err = run([path, "--query-gpu=uuid,memory.used", "--format=csv,noheader"], timeout_s)
    if status is None:
        raise OSError(f"{path} did not answer in {timeout_s:g} s")
    if status != 0:
        raise OSError(f"{path} failed with status {status}: {' '.join((err or out).split())[:200]}")
    return parse_memory(out)
