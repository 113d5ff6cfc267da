#!/usr/bin/env python3
"""Make a lock of SGLang that is small enough to be carried to a host without a network, and the wheels for its bundle.

usage: make.py SITE OUT      (needs pip, an index, 500 MB in OUT; the wheels are some 100 MB)

SITE is the folder of that host in which torch, triton and what comes with them are (site-packages): the environment
sees them through a .pth file, which a wheel of its own brings. OUT/lock is what ml_env_lock names,
OUT/wheels what ml_env_find_links names. sglang-kernel is made smaller: code for Hopper alone, no FlashAttention-3 (the
server needs --attention-backend triton), as another version (+slim), so that nobody takes it for the published one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
GLIBC = (5, 12, 17, 24, 27, 28, 31, 34, 35)
LEFT_OUT = re.compile(r"^(sgl_kernel/(flash_ops|sm100/)|lib/|.*\.a$)")
LOCK = {
    "description": "SGLang 0.5.11 for a host that has torch 2.11 for CUDA 13",
    "python": "==3.12.*",
    "platform": "linux-x86_64",
    "scripts": [],
    "links": {},
    "dist_info_aliases": [],
    "forbidden": [],
    "imports": ["torch", "sglang.srt.server_args:ServerArgs"],
    "cuda": "13.0",
    "compute_capability": "9.0",
    "size_mib": 400,
}
#: SGLang imports them at start and needs nothing of them to serve a text model.
STUBS = {
    "IPython/__init__.py": b"",
    "IPython/display.py": b"HTML = None\n\n\ndef display(*args, **kwargs):\n    pass\n",
    "modelscope/__init__.py": b"",
}


def write_wheel(path: Path, info: str, content: Mapping[str, bytes]) -> None:
    """Write a wheel of these files with their RECORD."""
    rows = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}\n")
        archive.writestr(f"{info}/RECORD", "".join(rows) + f"{info}/RECORD,,\n")


def host_wheel(folder: Path, site: str) -> None:
    """A wheel whose .pth file lets the environment see the packages of the host."""
    info = "host_torch-2.11.dist-info"
    content = {
        "host_torch.pth": f"{site}\n".encode(),
        **STUBS,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: host-torch\nVersion: 2.11\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: make.py\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    write_wheel(folder / "host_torch-2.11-py3-none-any.whl", info, content)


def slim_kernel(source: Path, folder: Path) -> None:
    """The wheel of sglang-kernel without what LEFT_OUT says."""
    name, version, tags = source.stem.split("-", 2)
    old, new = f"{name}-{version}.dist-info", f"{name}-{version}+slim.dist-info"
    with zipfile.ZipFile(source) as archive:
        content = {
            item.filename.replace(old, new): archive.read(item)
            for item in archive.infolist()
            if not item.is_dir() and not LEFT_OUT.match(item.filename) and item.filename != f"{old}/RECORD"
        }
    told = content[f"{new}/METADATA"]
    content[f"{new}/METADATA"] = re.sub(rb"(?m)^Version: .*$", f"Version: {version}+slim".encode(), told, count=1)
    write_wheel(folder / f"{name}-{version}+slim-{tags}.whl", new, content)


def download(folder: Path) -> None:
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC]
    platforms += [f"manylinux{year}_x86_64" for year in ("2014", "2010", "1")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    command += ["--python-version", "3.12", "--implementation", "cp", "-r", str(HERE / "pins.txt")]
    subprocess.run([*command, *(word for one in platforms for word in ("--platform", one))], check=True)


def locked(wheels: Path) -> Iterator[str]:
    for path in sorted(wheels.glob("*.whl")):
        name, version = path.stem.split("-")[:2]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        yield f"{name.replace('_', '-').lower()}=={version} --hash=sha256:{digest}\n"


def main(site: str, out: str) -> None:
    wheels, fetched, lock = (Path(out) / name for name in ("wheels", "fetched", "lock"))
    for folder in (wheels, fetched, lock):
        folder.mkdir(parents=True, exist_ok=True)
    download(fetched)
    for path in fetched.glob("*.whl"):
        if path.name.startswith("sglang_kernel-"):
            slim_kernel(path, wheels)
        else:
            (wheels / path.name).write_bytes(path.read_bytes())
    host_wheel(wheels, site)
    (lock / "requirements.txt").write_text("".join(locked(wheels)))
    (lock / "lock.yml").write_text("---\n" + json.dumps(LOCK, indent=2) + "\n")  # JSON is YAML


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
