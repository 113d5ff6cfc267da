"""Files that differ from what the wheels installed."""

from __future__ import annotations

import base64
import compileall
import hashlib
import os
import re
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.file_hashes import FileHashes
from ansible_collections.groundstate.llm.plugins.module_utils.fingerprint import distributions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def compared(site, cache=None):
    found = distributions.installed(str(site.path))
    hashes = FileHashes(str(site.path), str(cache) if cache else None)
    result = distributions.compare(str(site.path), found, hashes)
    hashes.save()
    return result


def test_lists_names_as_pep_503_and_versions(site):
    found = distributions.installed(str(site.path))
    assert {one.name: one.version for one in found} == {
        "sglang": "0.5.23",
        "typing-extensions": "4.15.0",
        "nvidia-nccl-cu13": "2.30.7",
        "nvidia-cuda": "13.0",
    }


def test_an_untouched_environment_differs_in_nothing(site):
    result = compared(site)
    assert (result.edited, result.missing, result.added, result.unreadable) == ({}, {}, {}, [])
    # 4 of sglang, its LICENSE in share/, 1 + 2 + 1 of the others and four METADATA files
    assert result.files == 13


def test_a_file_of_two_distributions_is_edited_only_when_it_is_that_of_neither(site):
    """As flashinfer-python and torch-c-dlpack-ext do, whose wheels both hold a build_backend.py of their own."""
    site.install("flashinfer-python", "0.6.8", {"build_backend.py": "of = 'flashinfer'\n"})
    site.install("torch-c-dlpack-ext", "0.1.5", {"build_backend.py": "of = 'torch'\n"})
    shared = site.path / "build_backend.py"
    for content in ("of = 'torch'\n", "of = 'flashinfer'\n"):
        shared.write_text(content)
        result = compared(site)
        assert (result.edited, result.missing, result.added) == ({}, {}, {})
    shared.write_text("of = 'mine'\n")
    assert compared(site).edited == {"build_backend.py": "torch-c-dlpack-ext"}
    shared.unlink()
    assert compared(site).missing == {"build_backend.py": "torch-c-dlpack-ext"}


def test_names_edited_missing_and_added_files_with_their_distribution(site):
    (site.path / "sglang/srt/managers/scheduler.py").write_text("y = 3\n")
    (site.path / "nvidia/nccl/lib/libnccl.so.2").write_text("other")
    (site.path / "sglang/srt/managers/io.py").unlink()
    (site.path / "sglang/srt/patch.py").write_text("import os\n")
    (site.path / "sglang/srt/new/deeper").mkdir(parents=True)
    (site.path / "sglang/srt/new/deeper/more.so").write_text("binary")
    (site.path / "nvidia/nccl/lib/extra.so").write_text("binary")
    (site.path / "sitecustomize.py").write_text("import sglang\n")
    (site.path / "zz_hook.pth").write_text("import zz\n")
    result = compared(site)
    assert result.edited == {
        "sglang/srt/managers/scheduler.py": "sglang",
        "nvidia/nccl/lib/libnccl.so.2": "nvidia-nccl-cu13",
    }
    assert result.missing == {"sglang/srt/managers/io.py": "sglang"}
    assert result.added == {
        "sglang/srt/patch.py": "sglang",
        "sglang/srt/new/deeper/more.so": "sglang",
        "nvidia/nccl/lib/extra.so": "nvidia-nccl-cu13",
        "sitecustomize.py": "",
        "zz_hook.pth": "",
    }
    assert set(result.hashes) == set(result.edited) | set(result.added)
    assert all(len(value) == 64 for value in result.hashes.values())


def test_an_edit_that_keeps_size_and_mtime_is_found(site, tmp_path):
    target = site.path / "sglang/srt/engine.py"
    compared(site, tmp_path / "cache")
    before = os.stat(target)
    target.write_text("x = 9\n")
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(target).st_mtime_ns == before.st_mtime_ns
    assert compared(site, tmp_path / "cache").edited == {"sglang/srt/engine.py": "sglang"}


def test_byte_code_scripts_installer_files_and_data_are_no_alarm(site):
    compileall.compile_dir(str(site.path), quiet=2)
    (site.path / "sglang/srt/stale.pyc").write_text("byte code")
    (site.path / "../../../bin/sglang").write_text("#!/the/environments/python\n")
    (site.path / "sglang-0.5.23.dist-info/INSTALLER").write_text("uv")
    (site.path / "sglang-0.5.23.dist-info/REQUESTED").write_text("")
    (site.path / "sglang/config.json").write_text("{}")
    (site.path / "_virtualenv.py").write_text("# made with the environment\n")
    result = compared(site)
    assert (result.edited, result.missing, result.added) == ({}, {}, {})


def test_packages_without_record_are_listed_and_their_files_are_not_called_added(site):
    site.install("vllm", "0.32.0+cpu", {"vllm/__init__.py": "", "vllm/worker.py": "w = 1\n"}, record=False)
    found = distributions.installed(str(site.path))
    assert [one.name for one in found if one.record is None] == ["vllm"]
    assert compared(site).added == {}


def test_a_linked_folder_is_not_followed_in_circles(site):
    os.symlink(site.path, site.path / "sglang" / "loop")
    result = compared(site)
    assert (result.edited, result.missing, result.added) == ({}, {}, {})


def test_a_link_to_nowhere_counts_as_missing_and_a_strange_one_as_added(site):
    target = site.path / "sglang/srt/engine.py"
    target.unlink()
    os.symlink("/nowhere/at/all.py", target)
    os.symlink("/nowhere/at/all.py", site.path / "sglang/dangling.py")
    result = compared(site)
    assert result.missing == {"sglang/srt/engine.py": "sglang"}
    assert result.added == {"sglang/dangling.py": "sglang"}
    assert result.hashes == {"sglang/dangling.py": None}


def test_a_whole_added_package_shows_and_what_cannot_be_imported_does_not(site):
    for path in ("evil/__init__.py", "evil/deep/more.so", "nvidia/evil/x.py"):
        (site.path / path).parent.mkdir(parents=True, exist_ok=True)
        (site.path / path).write_text("import os\n")
    (site.path / "linked").symlink_to(site.path / "sglang")
    # What pip could not remove, eggs, editors, byte code, and data without code.
    for path in (
        "~glang/a.py",
        "old-1.0.egg/a.py",
        ".cache/a.py",
        "gone/__pycache__/a.pyc",
        "data/a.txt",
    ):
        (site.path / path).parent.mkdir(parents=True, exist_ok=True)
        (site.path / path).write_text("x = 1\n")
    result = compared(site)
    assert result.added == dict.fromkeys(["evil/__init__.py", "evil/deep/more.so", "nvidia/evil/x.py", "linked"], "")
    found = distributions.installed(str(site.path))
    assert distributions.compare(str(site.path), found, FileHashes(str(site.path), None), added=False).added == {}


def test_the_linked_folder_of_a_distribution_is_its_own(site, tmp_path):
    (site.path / "sglang").rename(tmp_path / "elsewhere")
    (site.path / "sglang").symlink_to(tmp_path / "elsewhere")
    result = compared(site)
    assert (result.edited, result.missing, result.added) == ({}, {}, {})


@pytest.mark.parametrize("algorithm", ["sha512", "sha384", "blake2b", "md5"])
def test_other_hashes_than_sha_256_are_compared_as_well(site, algorithm):
    record = site.path / "sglang-0.5.23.dist-info" / "RECORD"
    value = base64.urlsafe_b64encode(hashlib.new(algorithm, b"x = 1\n").digest()).rstrip(b"=").decode()
    record.write_text(re.sub(r"(engine\.py),sha256=[^,]*", rf"\1,{algorithm}={value}", record.read_text()))
    result = compared(site)
    assert (result.edited, result.unreadable) == ({}, [])
    (site.path / "sglang/srt/engine.py").write_text("x = 2\n")
    result = compared(site)
    assert result.edited == {"sglang/srt/engine.py": "sglang"}
    assert result.hashes == {"sglang/srt/engine.py": hashlib.sha256(b"x = 2\n").hexdigest()}


@pytest.mark.parametrize("algorithm", ["sha1000", "shake_128", "nonsense"])
def test_what_has_a_hash_that_nobody_can_compute_is_not_called_as_installed(site, algorithm):
    record = site.path / "sglang-0.5.23.dist-info" / "RECORD"
    record.write_text(re.sub(r"(engine\.py),sha256=", rf"\1,{algorithm}=", record.read_text()))
    result = compared(site)
    assert (result.edited, result.unreadable) == ({}, ["sglang/srt/engine.py"])


def test_a_damaged_record_is_not_fatal(site):
    info = site.path / "sglang-0.5.23.dist-info"
    (info / "RECORD").write_bytes(b'sglang/__init__.py,sha256=zzz,0\n"unclosed,\n\xff\xfe,\n,,\nsglang/srt/engine.py\n')
    result = compared(site)
    # A hash that is no hash differs from the file's; what the damaged list no longer has is not called edited.
    assert result.edited == {"sglang/__init__.py": "sglang"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda text: text.encode("utf-8", "ignore"))))
def test_no_record_whatever_is_in_it_is_fatal(site, content):
    (site.path / "sglang-0.5.23.dist-info" / "RECORD").write_bytes(content)
    (site.path / "sglang-0.5.23.dist-info" / "direct_url.json").write_bytes(content)
    (site.path / "sglang-0.5.23.dist-info" / "METADATA").write_bytes(content)
    result = compared(site)
    assert result.edited.keys().isdisjoint(result.missing)
    assert not result.added.keys() & result.edited.keys()


def test_egg_info_gives_name_and_version_but_cannot_be_verified(site):
    folder = site.path / "old_thing-1.2.egg-info"
    folder.mkdir()
    (folder / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: Old.Thing\nVersion: 1.2\n")
    (site.path / "single-3.egg-info").write_text("Metadata-Version: 1.0\nName: single\nVersion: 3\n")
    found = {one.name: one for one in distributions.installed(str(site.path))}
    assert (found["old-thing"].version, found["old-thing"].record) == ("1.2", None)
    assert found["single"].version == "3"


def test_credentials_never_stay_in_an_address():
    url = "https://user:token@git.example.com:8443/org/repo.git"
    assert distributions.without_credentials(url) == "https://git.example.com:8443/org/repo.git"
    assert distributions.without_credentials("file:///src/x") == "file:///src/x"


def test_the_cache_is_asked_the_second_time(site, tmp_path: Path, monkeypatch):
    # A file that was changed just now is not remembered: let it be long ago.
    monkeypatch.setattr("time.time_ns", lambda: os.stat(site.path).st_ctime_ns + 3_600_000_000_000)
    found = distributions.installed(str(site.path))
    counts = []
    for _ in range(2):
        hashes = FileHashes(str(site.path), str(tmp_path / "cache"))
        distributions.compare(str(site.path), found, hashes)
        hashes.save()
        counts.append(hashes.hashed)
    assert counts == [13, 0]
