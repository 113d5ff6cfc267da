"""How long a fingerprint takes for an environment of a serving stack's size.

    python tests/bench/fingerprint_time.py [--distributions 250] [--files 100000] [--bytes 4096] [--env PATH]

Makes an environment with as many distributions and files (RECORDs and all) in a temporary folder, and takes the
fingerprint three times: without a cache, with it, and after one edit. ``--env`` measures an existing environment as
well. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "playbooks" / "collections"))

from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import take  # noqa: E402


def make(root: Path, distributions: int, files: int, size: int) -> Path:
    """An environment as wheels would leave it; returns its site-packages."""
    site = root / "lib" / "python3.11" / "site-packages"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "python").symlink_to(sys.executable)
    each = files // distributions
    for number in range(distributions):
        name, rows = f"package{number}", []
        for index in range(each):
            folder = site / name / f"part{index // 40}"
            folder.mkdir(parents=True, exist_ok=True)
            content = (f"{name} {index}\n" * (size // 8))[:size].encode()
            (folder / f"module{index}.py").write_bytes(content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{name}/part{index // 40}/module{index}.py,sha256={digest},{size}\n")
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("".join(rows) + f"{name}-1.0.dist-info/RECORD,,\n")
    return site


def timed(home: Path, env: Path) -> tuple[float, float, dict]:
    """(wall seconds, CPU seconds, the fingerprint)."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = take.take(str(home), env_path=str(env))
    return time.perf_counter() - wall, time.process_time() - cpu, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--distributions", type=int, default=250)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=4096)
    parser.add_argument("--env", type=Path, help="an existing environment to measure as well")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        env = Path(folder) / "env"
        site = make(env, options.distributions, options.files, options.bytes)
        time.sleep(0.3)  # files written just now are not remembered
        for label in ("first, every file read", "second, from the cache", "after one edit"):
            if label.startswith("after"):
                (site / "package7" / "part0" / "module3.py").write_text("x = 1\n")
            wall, cpu, found = timed(Path(folder) / "home", env)
            counts = found["sections"]["python_env"]["counts"]
            rows.append({"environment": f"{options.distributions} distributions, {options.files} files", "run": label})
            rows[-1].update(wall_s=round(wall, 2), cpu_s=round(cpu, 2), edited=counts["edited"])
        if options.env:
            for label in ("first, every file read", "second, from the cache"):
                wall, cpu, found = timed(Path(folder) / "home", options.env)
                section = found["sections"]["python_env"]
                name = f"{section['count']} distributions, {section['files']} files (real)"
                rows.append({"environment": name, "run": label, "wall_s": round(wall, 2), "cpu_s": round(cpu, 2)})
                rows[-1]["edited"] = section["counts"]["edited"]
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
