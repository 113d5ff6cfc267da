# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether an environment can compute on this host's GPUs: torch, CUDA, NCCL, kernels and the engine itself.

What is installed, what torch says of itself, what is mapped into its process and what the driver says are held against
each other. Everything of CUDA is called in a child that may hang or crash.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from . import fatbin, nvidia
from .fatbin import Code

OK, FAILED, UNKNOWN, SKIPPED = "ok", "failed", "unknown", "skipped"

# Imports torch without calling CUDA: what it was built with, and the libraries that the loader gave it.
_ABOUT = """
import json, re, sys
try:
    import torch
except BaseException as error:
    print("\\ngroundstate", json.dumps({"error": "%s: %s" % (type(error).__name__, error)}))
    sys.exit(0)
said = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)}
said["file"] = torch.__file__
try:
    said["archs"] = torch._C._cuda_getArchFlags()
except Exception:
    said["archs"] = None
try:
    version = torch.cuda.nccl.version()
    said["nccl"] = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
except Exception:
    said["nccl"] = None
with open("/proc/self/maps") as maps:
    paths = {line.split(None, 5)[5].strip() for line in maps if "/" in line}
said["mapped"] = sorted(path for path in paths if re.search(r"/lib(nccl|cudart|cublas|cudnn)[.\\w-]*[.]so", path))
print("\\ngroundstate", json.dumps(said))
"""
_NO_TORCH = "ModuleNotFoundError: No module named 'torch'"
# A computation on each GPU.
_DEVICES = """
import json, torch
found = []
for index in range(torch.cuda.device_count()):
    one = {"index": index, "name": torch.cuda.get_device_name(index)}
    one["capability"] = list(torch.cuda.get_device_capability(index))
    try:
        one["sum"] = float(torch.ones(1024, device="cuda:%d" % index).sum())
    except Exception as error:
        one["error"] = str(error).splitlines()[0]
    found.append(one)
print("\\ngroundstate", json.dumps(found))
"""


@dataclass(frozen=True)
class Check:
    """One question and its answer."""

    name: str
    verdict: str  # ok, failed, unknown (could not be told), skipped (does not apply)
    detail: str

    def line(self) -> str:
        return f"{self.name}: {self.verdict}: {self.detail}"


@dataclass
class Facts:
    """What was asked of the environment and of the driver."""

    about: dict[str, Any] = field(default_factory=dict)  # of torch; "error" when it cannot be imported
    devices: list[dict[str, Any]] | None = None  # None: could not be told
    devices_why: str = ""
    driver: str = ""
    driver_cuda: str = ""  # newest CUDA that the driver runs
    gpus: int | None = None  # that the driver sees
    gpus_why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def ask(python: str, environment: Mapping[str, str], timeout_s: float) -> Facts:
    """Ask the environment's interpreter and the driver. ``environment``: all variables that it gets."""
    answer = nvidia.query()
    facts = Facts(gpus_why=answer.why)
    if answer.report is not None:
        facts.driver, facts.driver_cuda = answer.report.driver, answer.report.cuda
        facts.gpus = len(answer.report.gpus)
    elif answer.available is False:
        facts.gpus = 0
    facts.about, why = _said(python, _ABOUT, environment, timeout_s)
    if not facts.about:
        facts.about = {"error": why}
    if facts.about.get("cuda") and "error" not in facts.about:
        facts.devices, facts.devices_why = _said(python, _DEVICES, environment, timeout_s)
        if facts.devices == {}:
            facts.devices = None
    return facts


def _said(python: str, program: str, environment: Mapping[str, str], timeout_s: float) -> tuple[Any, str]:
    """What a program printed as JSON; {} with the reason when it did not."""
    try:
        # Not -I: a sitecustomize that the server would load takes part, too; and no folder of ours on its path.
        status, out, err = nvidia.run([python, "-c", program], timeout_s, environment)
    except OSError as error:
        return {}, f"{python} cannot be run: {error.strerror}"
    if status is None:
        return {}, f"it did not answer within {timeout_s:g} s"
    found = re.search(r"^groundstate (.*)$", out, re.MULTILINE)
    if not found:
        last = (err.strip().splitlines() or ["nothing was said"])[-1]
        how = f"ended by signal {-status}" if status < 0 else f"status {status}"
        return {}, f"{how}: {last[:300]}"
    return json.loads(found.group(1)), ""


# --- judging -----------------------------------------------------------------------------------------


def judge(facts: Facts, versions: Mapping[str, str], environment: str) -> list[Check]:
    """The checks of torch. ``versions``: distribution -> version; ``environment``: its real folder."""
    about = facts.about
    if "torch" not in versions and about.get("error") == _NO_TORCH:
        return [Check("torch", SKIPPED, "it is not installed in this environment")]
    if "error" in about:
        return [Check("torch", FAILED, f"it cannot be imported: {about['error']}")]
    built = f"CUDA {about['cuda']}" if about["cuda"] else f"ROCm {about['hip']}" if about["hip"] else "CPUs"
    found = [Check("torch", OK, f"{about['version']}, built for {built}")]
    if "torch" not in versions:
        # Of the system (include-system-site-packages) or of a folder that a .pth file names: what the server gets.
        outside = f"not of this environment, which sees it in {os.path.dirname(about['file'])}"
        found = [Check("torch", OK, f"{about['version']}, built for {built}; {outside}")]
    elif not same_build(about["version"], versions["torch"]):
        text = f"{about['version']} is imported, {versions['torch']} is installed: another one comes first on its path"
        found[0] = Check("torch", FAILED, text)
    if not about["cuda"]:
        return [*found, Check("GPUs", SKIPPED, f"torch is built for {built}")]
    return [
        *found,
        _driver(facts),
        _devices(facts),
        _kernels("torch", parse_archs(about["archs"] or ""), facts),
        _cuda_packages(about["cuda"], versions),
        _nccl(about, versions, environment),
    ]


def same_build(said: str, installed: str) -> bool:
    """Whether what torch says of itself ("2.13.0+cpu") is the installed version, which may lack the local part."""
    return said == installed or said.partition("+")[0] == installed


def _major(version: str) -> int | None:
    found = re.match(r"\d+", version)
    return int(found.group()) if found else None


def _driver(facts: Facts) -> Check:
    built = facts.about["cuda"]
    if facts.gpus == 0 or not facts.driver_cuda:
        return Check(
            "CUDA", FAILED if facts.gpus == 0 else UNKNOWN, facts.gpus_why or "the driver names no CUDA version"
        )
    have, need = _major(facts.driver_cuda), _major(built)
    text = f"torch is built for {built}, driver {facts.driver} runs up to {facts.driver_cuda}"
    if have is None or need is None:
        return Check("CUDA", UNKNOWN, text)
    # Within a major version every driver runs what a newer toolkit of it built.
    if have < need:
        return Check(
            "CUDA", FAILED, f"{text}: update the driver to one that runs CUDA {need}, or use a lock for CUDA {have}"
        )
    return Check("CUDA", OK, text)


def _devices(facts: Facts) -> Check:
    if facts.devices is None:
        return Check("GPUs", FAILED, f"torch cannot use them: {facts.devices_why}")
    broken = [
        f"GPU {one['index']}: {one.get('error') or 'computed nonsense'}"
        for one in facts.devices
        if one.get("sum") != 1024.0
    ]
    if broken or not facts.devices:
        return Check("GPUs", FAILED, "; ".join(broken) or f"torch sees none, the driver {facts.gpus}")
    names = sorted({f"{one['name']} ({'.'.join(map(str, one['capability']))})" for one in facts.devices})
    text = f"torch computes on {len(facts.devices)}: {', '.join(names)}"
    if facts.gpus is not None and facts.gpus != len(facts.devices):
        return Check("GPUs", FAILED, f"{text}, but the driver sees {facts.gpus} (CUDA_VISIBLE_DEVICES?)")
    return Check("GPUs", OK, text)


def parse_archs(flags: str) -> set[Code]:
    """torch's "sm_80 sm_90a compute_120" as codes."""
    return {
        Code("sm" if kind == "sm" else "ptx", int(number))
        for kind, number in re.findall(r"\b(sm|compute)_(\d+)", flags)
    }


def capabilities(facts: Facts) -> list[tuple[int, int]]:
    """The different compute capabilities of the GPUs that torch sees."""
    return sorted({(one["capability"][0], one["capability"][1]) for one in facts.devices or []})


def _kernels(name: str, codes: set[Code], facts: Facts) -> Check:
    label = f"kernels of {name}"
    wanted = capabilities(facts)
    if not codes:
        return Check(label, UNKNOWN, "nothing says for which GPUs they are compiled")
    if not wanted:
        return Check(label, SKIPPED, f"compiled for {fatbin.names(codes)}; there is no GPU to hold them against")
    how = {f"{one[0]}.{one[1]}": fatbin.covers(codes, one) for one in wanted}
    lacking = [one for one, said in how.items() if not said]
    if lacking:
        text = f"no code for compute capability {', '.join(lacking)}, only {fatbin.names(codes)}"
        return Check(label, FAILED, f"{text}: use a release that has it")
    return Check(label, OK, ", ".join(f"{said} for {one}" for one, said in how.items()))


def kernels(site: str, libraries: Mapping[str, Iterable[str]], facts: Facts) -> list[Check]:
    """One check for each distribution with kernels. ``libraries``: its name -> its .so files below ``site``."""
    found = []
    for name, paths in sorted(libraries.items()):
        codes: set[Code] = set()
        unread = []
        for path in paths:
            try:
                codes |= fatbin.read(os.path.join(site, path))
            except (OSError, ValueError) as error:
                unread.append(f"{path} cannot be read ({error})")
        found.append(
            Check(f"kernels of {name}", UNKNOWN, "; ".join(unread)) if unread else _kernels(name, codes, facts)
        )
    return found


_CUDA_NAME = re.compile(r"nvidia-[a-z-]+-cu(\d\d)$")


def _cuda_packages(built: str, versions: Mapping[str, str]) -> Check:
    """The libraries that came as packages have to be of the CUDA that torch was built for."""
    need = _major(built)
    other = sorted(
        name for name in versions for found in [_CUDA_NAME.match(name)] if found and int(found.group(1)) != need
    )
    runtime = versions.get("nvidia-cuda-runtime") or versions.get(f"nvidia-cuda-runtime-cu{need}")
    if runtime and _major(runtime) != need:
        return Check("CUDA packages", FAILED, f"nvidia-cuda-runtime is {runtime}, torch is built for CUDA {built}")
    # Some packages bring the same for two majors; only the libraries that torch loads must not be of another.
    loaded = [name for name in other if re.match(r"nvidia-(cuda-runtime|cublas|cudnn|nccl)-cu", name)]
    if loaded:
        text = f"{', '.join(loaded)} beside a torch for CUDA {built}: which of them is loaded is left to chance"
        return Check("CUDA packages", FAILED, f"{text}; remove those of the other version")
    return Check(
        "CUDA packages", OK, f"runtime {runtime}" if runtime else "none; torch brings its own, or the system has them"
    )


def _nccl(about: Mapping[str, Any], versions: Mapping[str, str], environment: str) -> Check:
    packages = {name: one for name, one in versions.items() if name.startswith("nvidia-nccl-cu")}
    mapped = [path for path in about["mapped"] if "/libnccl" in path]
    said = about["nccl"]
    if said is None:
        return Check("NCCL", SKIPPED, "this torch has none")
    text = f"torch says {said}" + "".join(f", {name} is {one}" for name, one in packages.items())
    text += "".join(f", mapped is {path}" for path in mapped)
    if packages and not any(_same_nccl(said, one) for one in packages.values()):
        return Check("NCCL", FAILED, f"{text}: another libnccl.so comes first (LD_LIBRARY_PATH, LD_PRELOAD)")
    outside = [path for path in mapped if not os.path.realpath(path).startswith(environment + "/")]
    if packages and outside:
        return Check("NCCL", FAILED, f"{text}: it is not the environment's own (LD_LIBRARY_PATH, LD_PRELOAD)")
    return Check("NCCL", OK, text)


def _same_nccl(one: str, other: str) -> bool:
    return one.split(".")[:3] == other.split(".")[:3]


def imports(python: str, environment: Mapping[str, str], program: str, names: list[str], timeout_s: float) -> Check:
    """Whether the engine can be imported. ``program``: prints what failed and exits with another status than 0."""
    try:
        status, out, err = nvidia.run([python, "-c", program, *names], timeout_s, environment)
    except OSError as error:
        return Check("imports", FAILED, f"{python} cannot be run: {error.strerror}")
    if status is None:
        return Check("imports", UNKNOWN, f"{', '.join(names)} took longer than {timeout_s:g} s")
    if status:
        last = (out.strip() or err.strip()).splitlines()
        return Check("imports", FAILED, last[-1][:500] if last else f"status {status}")
    return Check("imports", OK, ", ".join(names))
