"""What is installed, held against what the manifest says."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.drift import Drift, drift

MANIFEST = {
    "distributions": {"engine": "1.0", "helper-cpu": "2.1+cpu", "gone": "3.0"},
    "extras": {"scripts": [], "links": [], "aliases": ["helper-2.1+cpu.dist-info"]},
}


@pytest.fixture
def site(tmp_path):
    for name in ("engine-1.0", "helper_cpu-2.1+cpu", "gone-3.0", "helper-2.1+cpu", "pip-24.0", "~ngine-0.9"):
        (tmp_path / f"{name}.dist-info").mkdir()
    (tmp_path / "engine").mkdir()
    return tmp_path


def test_what_was_installed_is_no_difference_nor_are_our_second_names_and_the_tools(site):
    found = drift(str(site), MANIFEST)
    assert found == Drift()
    assert not found
    assert found.lines() == []


def test_what_somebody_installed_and_removed_shows(site):
    (site / "gone-3.0.dist-info").rmdir()
    (site / "engine-1.0.dist-info").rename(site / "engine-2.0.dist-info")
    (site / "Big_Stranger-5.dist-info").mkdir()
    found = drift(str(site), MANIFEST)
    assert found == Drift({"gone": "3.0"}, {"engine": ("1.0", "2.0")}, {"big-stranger": "5"})
    assert found
    assert found.lines() == ["gone 3.0 is missing", "engine is 2.0, installed was 1.0", "big-stranger 5 was added"]


def test_a_second_version_beside_the_right_one_shows_in_either_order(site):
    for name in ("engine-0.5", "helper_cpu-9.0"):
        (site / f"{name}.dist-info").mkdir()
    assert drift(str(site), MANIFEST).other == {
        "engine": ("1.0", "0.5 and 1.0"),
        "helper-cpu": ("2.1+cpu", "2.1+cpu and 9.0"),
    }


def test_tools_that_were_locked_count(site):
    known = {**MANIFEST, "distributions": {**MANIFEST["distributions"], "pip": "25.0"}}
    assert drift(str(site), known).other == {"pip": ("25.0", "24.0")}


@pytest.mark.parametrize("manifest", [None, {}, {"distributions": None}, {"distributions": ["engine"]}])
def test_without_a_manifest_nothing_is_known(site, manifest):
    assert not drift(str(site), manifest)


def test_a_folder_of_packages_that_is_gone_lacks_all(tmp_path):
    assert set(drift(str(tmp_path / "no"), MANIFEST).missing) == {"engine", "helper-cpu", "gone"}
