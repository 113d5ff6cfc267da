"""What holds for the repository as a whole: one version, no traces of a machine, playbooks that say what they do."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from groundstate import __version__

ROOT = Path(__file__).resolve().parents[3]

# With a class of one letter in each, so that this file does not hold what it looks for.
TRACES = re.compile(
    r"/w[o]rk/(main|steering|shared|\.)|/f[a]rm/|/tmp/d[e]v/|/ro[o]t/\.pyenv"
    r"|p[y]pi\.org|files\.p[y]thonhosted|deb\.d[e]bian\.|registry\.n[p]mjs"
)
SECRETS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bhf_[A-Za-z0-9]{30,}\b|\bghp_[A-Za-z0-9]{30,}\b")


def files() -> list[Path]:
    """The files of the repository: what git tracks or would; all of them where there is no git."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        found = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    else:
        found = [path for path in ROOT.rglob("*") if not {".venv", ".git"} & set(path.relative_to(ROOT).parts)]
    return [path for path in found if path.is_file() and not path.is_symlink()]


def test_one_version():
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text())
    assert galaxy["version"] == __version__


def test_one_name_and_licence():
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (galaxy["namespace"], galaxy["name"]) == ("groundstate", "llm")
    assert galaxy["license"] == [project["license"]] == ["GPL-3.0-or-later"]
    assert galaxy["description"] == project["description"]
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("GNU GENERAL PUBLIC LICENSE")


@pytest.mark.parametrize("pattern", [TRACES, SECRETS], ids=["machine", "secret"])
def test_no_file_names_a_machine_a_registry_or_a_secret(pattern):
    found = []
    for path in files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_every_lock_pins_with_hashes_and_names_no_index():
    locks = sorted(ROOT.glob("requirements/*.txt"))
    assert [path.name for path in locks] == ["runtime.txt", "test.txt"]
    for path in locks:
        text = path.read_text().replace("\\\n", "")
        pins = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
        assert pins
        for pin in pins:
            assert re.match(r"[a-z0-9-]+==\S+ ", pin), pin
            assert "--hash=sha256:" in pin, pin


def test_the_runtime_lock_is_a_part_of_the_test_lock():
    def pins(name: str) -> set[str]:
        lines = (ROOT / "requirements" / name).read_text().splitlines()
        return {line.split()[0] for line in lines if re.match(r"[a-z0-9-]+==", line)}

    assert pins("runtime.txt") <= pins("test.txt")


def test_every_playbook_says_what_it_is_for():
    playbooks = sorted(ROOT.glob("playbooks/*.yml"))
    assert playbooks
    for path in playbooks:
        lines = path.read_text().splitlines()
        assert lines[0] == "---", path.name
        assert re.match(r"# \S+.{20,}", lines[1]), f"{path.name}: a comment under --- has to say what it does"


def test_scripts_can_be_run():
    for path in [*ROOT.glob("scripts/*.sh"), ROOT / ".ci" / "run"]:
        assert path.stat().st_mode & 0o100, path
        assert path.read_text().startswith("#!"), path


def test_the_modules_of_the_architecture_exist():
    """And the other way round: a module that the table leaves out is unknown to its readers."""
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Modules")[2].partition("\n## ")[0]
    declared = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    assert declared
    assert {path.stem for path in ROOT.glob("plugins/modules/*.py")} - {"__init__"} == declared
