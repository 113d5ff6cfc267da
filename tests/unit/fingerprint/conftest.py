"""A site-packages folder made as an installer would leave it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from pathlib import Path

import pytest


class Site:
    """A made environment: ``<root>/lib/python3.11/site-packages``."""

    def __init__(self, root: Path, below: str = "lib/python3.11/site-packages") -> None:
        self.root = root
        self.path = root / below
        self.path.mkdir(parents=True)

    def install(
        self, name: str, version: str, content: dict[str, str], *, record: bool = True, direct_url=None
    ) -> None:
        """Write a distribution: its files, METADATA, INSTALLER, direct_url.json and the RECORD of all of them."""
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        rows = []
        files = {
            **content,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: no\n",
        }
        for path, text in files.items():
            where = self.path / path
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_text(text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append([path, f"sha256={digest}", str(len(text))])
        (self.path / info / "INSTALLER").write_text("pip\n")
        rows.append([f"{info}/INSTALLER", "sha256=written-by-another-installer", "4"])
        rows.append([f"{info}/RECORD", "", ""])
        for path in content:
            if path.endswith(".py"):
                folder, _, base = path.rpartition("/")
                rows.append([f"{folder}/__pycache__/{base[:-3]}.cpython-311.pyc".lstrip("/"), "", ""])
        if direct_url is not None:
            (self.path / info / "direct_url.json").write_text(json.dumps(direct_url))
            rows.append([f"{info}/direct_url.json", "sha256=of-the-wheel", "1"])
        if record:
            text = io.StringIO()
            csv.writer(text).writerows(rows)
            (self.path / info / "RECORD").write_text(text.getvalue())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path / "env")
    made.install(
        "sglang",
        "0.5.23",
        {
            "sglang/__init__.py": "",
            "sglang/srt/engine.py": "x = 1\n",
            "sglang/srt/managers/scheduler.py": "y = 2\n",
            "sglang/srt/managers/io.py": "z = 3\n",
            "../../../bin/sglang": "#!/the/wheel/python\n",
            "../../../share/sglang/LICENSE": "free\n",
        },
    )
    made.install("Typing_Extensions", "4.15.0", {"typing_extensions.py": "t = 1\n"})
    made.install("nvidia-nccl-cu13", "2.30.7", {"nvidia/nccl/lib/libnccl.so.2": "nccl", "nvidia/nccl/__init__.py": ""})
    made.install("nvidia-cuda", "13.0", {"nvidia/cuda/__init__.py": "c = 1\n"})
    return made
