"""A pipe in the place of a file of an environment waits for nobody: whoever read it would wait for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import files
from ansible_collections.groundstate.llm.plugins.module_utils.file_hashes import FileHashes
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import distributions, seen_folders

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def site(tmp_path) -> Path:
    folder = tmp_path / "lib" / "python3.11" / "site-packages"
    (folder / "engine-1.0.dist-info").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("name", ["METADATA", "RECORD", "direct_url.json"])
def test_in_the_metadata_of_a_distribution(site, name):
    os.mkfifo(site / "engine-1.0.dist-info" / name)
    (one,) = distributions.installed(str(site))
    assert (one.name, one.version, one.record, one.direct_url) == ("engine", "1.0", None, {})


@pytest.mark.parametrize("hashed", ["sha256=", "sha512="])
def test_among_the_files_of_a_distribution(site, hashed):
    os.mkfifo(site / "engine.py")
    (site / "engine-1.0.dist-info" / "RECORD").write_text(f"engine.py,{hashed}AAAA,4\n")
    found = distributions.compare(str(site), distributions.installed(str(site)), FileHashes(str(site), None))
    assert found.unreadable == ["engine.py"]
    assert not found.edited


def test_in_the_place_of_a_path_file(site):
    os.mkfifo(site / "more.pth")
    assert seen_folders.find(str(site.parents[2]), [str(site)]) == []


def test_in_the_place_of_a_file_of_ours(tmp_path):
    os.mkfifo(tmp_path / "state.json")
    with pytest.raises(OSError, match="it is no regular file"):
        files.read_json(str(tmp_path / "state.json"))
