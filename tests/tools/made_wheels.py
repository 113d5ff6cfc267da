"""Wheels for tests, made on the spot: one package with given files, and its line of a lock."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, code: str = "", data: dict[str, str] | None = None) -> str:
    """Make a wheel of one package; returns its line of a lock, with its hash. ``data``: path in the package -> text."""
    info = f"{name}-{version}.dist-info"
    content = {
        f"{name}/__init__.py": code,
        **{os.path.normpath(f"{name}/{path}"): text for path, text in (data or {}).items()},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        f"{len(text.encode())}\n"
        for path, text in content.items()
    )
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in content.items():
            archive.writestr(inside, text)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
