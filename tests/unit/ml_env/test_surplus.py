"""Distributions that nobody declared: which, and removed without the files of others."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import distributions
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import surplus
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.drift import Drift
from made_wheels import wheel


@pytest.fixture
def site(tmp_path) -> Path:
    made = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    wheel(tmp_path, "engine", "1.0", "", {"../shared/a.py": "x = 1\n"})
    outside = {
        "../shared/a.py": "x = 1\n",
        "../shared/own/b.py": "",
        "../../../../bin/stranger": "",
        "../../../../../mine": "",
    }
    wheel(tmp_path, "stranger", "2.0", "", outside)
    for one in tmp_path.glob("*.whl"):
        with zipfile.ZipFile(one) as archive:
            for name in archive.namelist():
                path = made / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
    return made


def remove(site: Path, drifted: Drift, *without: str) -> list[str]:
    found = distributions.installed(str(site))
    gone = surplus.find(found, drifted, without)
    assert surplus.shared(found, gone) == [one for one in found if gone and one.name == "engine"]
    surplus.remove(str(site.parents[2]), str(site), found, gone)
    return [one.folder for one in gone]


def test_what_others_have_as_well_and_what_is_not_of_the_environment_stays(site, tmp_path):
    assert remove(site, Drift(extra={"stranger": "2.0"})) == ["stranger-2.0.dist-info"]
    left = sorted(str(one.relative_to(site)) for one in site.rglob("*.py"))
    assert left == ["engine/__init__.py", "shared/a.py"]
    assert [one.name for one in site.glob("*.dist-info")] == ["engine-1.0.dist-info"]
    assert not (site / "shared" / "own").exists()
    assert not (tmp_path / "env" / "bin" / "stranger").exists()
    assert (tmp_path / "mine").exists()


def test_another_version_is_surplus_and_the_right_one_and_second_names_of_ours_are_not(site):
    drifted = Drift(other={"stranger": ("1.0", "2.0"), "engine": ("1.0", "0.9 and 1.0")})
    assert remove(site, drifted, "stranger-2.0.dist-info") == []
    assert remove(site, drifted) == ["stranger-2.0.dist-info"]
