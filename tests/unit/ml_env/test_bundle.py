"""Bundles: whole ones are unpacked as they were made, everything else is refused naming the file."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import (
    bundle,
    interpreters,
    requirements,
    wheelhouse,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

TARGET = bundle.Target("cpython-311", "linux-x86_64")
LOCK = "engine==1.0 --hash=sha256:" + "a" * 64 + "\nhelper==2.1\n"


@pytest.fixture
def items():
    return requirements.parse(LOCK)


@pytest.fixture
def made(tmp_path, items) -> Path:
    """A bundle of two wheels."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "engine-1.0-py3-none-any.whl").write_bytes(b"engine" * 400)
    (wheels / "helper-2.1-py3-none-any.whl").write_bytes(b"helper")
    (wheels / "pip.log").write_text("no wheel")
    path = tmp_path / bundle.file_name("small", items, TARGET)
    bundle.write(str(path), "small", items, TARGET, str(wheels))
    return path


def rewrite(path: Path, change) -> None:
    """Take a bundle apart, let ``change`` edit [(entry, data)], and put it together."""
    with tarfile.open(path) as tar:
        parts = [(one, tar.extractfile(one).read() if one.isreg() else b"") for one in tar]
    parts = change(parts)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for entry, data in parts:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def unpack(path: Path, folder: Path | None) -> None:
    bundle.unpack(str(path), bundle.read_manifest(str(path)), str(folder) if folder else None)


def test_what_was_packed_comes_out(made, items, tmp_path):
    manifest = bundle.read_manifest(str(made))
    bundle.check(str(made), manifest, items, TARGET)
    unpack(made, tmp_path / "out")
    found = sorted(str(one.relative_to(tmp_path / "out")) for one in (tmp_path / "out").rglob("*") if one.is_file())
    assert found == [
        "requirements.txt",
        "wheels/engine-1.0-py3-none-any.whl",
        "wheels/helper-2.1-py3-none-any.whl",
    ]
    assert (tmp_path / "out/wheels/engine-1.0-py3-none-any.whl").read_bytes() == b"engine" * 400
    assert requirements.parse((tmp_path / "out/requirements.txt").read_text()) == items
    assert manifest.size == 2406 + len((tmp_path / "out/requirements.txt").read_bytes())


def test_the_same_wheels_give_the_same_bytes(made, items, tmp_path):
    before = made.read_bytes()
    bundle.write(str(made), "small", items, TARGET, str(tmp_path / "wheels"))
    assert made.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir() if one.name.endswith(".part")] == []


@pytest.mark.parametrize(
    ("target", "lock", "words"),
    [
        (bundle.Target("cpython-312", "linux-x86_64"), LOCK, "it is for cpython-311, the environment for cpython-312"),
        (bundle.Target("cpython-311", "linux-aarch64"), LOCK, "it is for linux-x86_64, the host is linux-aarch64"),
        (TARGET, LOCK.replace("2.1", "2.2"), "another lock"),
    ],
)
def test_a_bundle_for_something_else_is_refused(made, target, lock, words):
    with pytest.raises(bundle.Unusable, match=words):
        bundle.check(str(made), bundle.read_manifest(str(made)), requirements.parse(lock), target)


def test_another_lock_python_or_platform_has_another_name(items):
    names = {
        bundle.file_name("small", items, TARGET),
        bundle.file_name("small", requirements.parse(LOCK.replace("2.1", "2.2")), TARGET),
        bundle.file_name("small", items, bundle.Target("cpython-312", "linux-x86_64")),
        bundle.file_name("small", items, bundle.Target("cpython-311", "linux-aarch64")),
    }
    assert len(names) == 4
    assert bundle.file_name("small", list(reversed(items)), TARGET) in names


def damage(parts):
    return [(entry, data[:-1] + b"X" if entry.name.startswith("wheels/engine") else data) for entry, data in parts]


def lose(parts):
    return [part for part in parts if not part[0].name.startswith("wheels/helper")]


def smuggle(name: str, kind: bytes = tarfile.REGTYPE):
    def change(parts):
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd"
        return [*parts, (entry, b"")]

    return change


def twice(parts):
    return [*parts, parts[-1]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (damage, "wheels/engine-1.0-py3-none-any.whl is damaged"),
        (lose, "incomplete, it lacks wheels/helper-2.1-py3-none-any.whl"),
        (smuggle("../evil"), r"\.\./evil is not in its manifest"),
        (smuggle("/evil"), "/evil is not in its manifest"),
        (smuggle("wheels/engine-1.0-py3-none-any.whl", tarfile.SYMTYPE), "not in its manifest, or is in it twice"),
        (smuggle("manifest.json"), "manifest.json is not in its manifest, or is in it twice"),
        (twice, "not in its manifest, or is in it twice"),
    ],
    ids=["damaged", "lost", "above", "absolute", "link", "second-manifest", "twice"],
)
def test_what_does_not_match_the_manifest_is_named(made, tmp_path, change, words):
    rewrite(made, change)
    for folder in (tmp_path / "deep" / "out", None):
        with pytest.raises(bundle.Unusable, match=words):
            unpack(made, folder)
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    "listed",
    [
        {"../evil.whl": {"sha256": "", "size": 0}},
        {"wheels/../../evil.whl": {"sha256": "", "size": 0}},
        {"wheels/..": {"sha256": "", "size": 0}},
        {"/wheels/evil.whl": {"sha256": "", "size": 0}},
        {"wheels/a\\b.whl": {"sha256": "", "size": 0}},
        {"wheels/a.whl": {"sha256": "x"}},
        {"wheels/a.whl": None},
        None,
    ],
)
def test_a_manifest_that_lists_what_no_bundle_has_is_refused(made, listed):
    def change(parts):
        manifest = json.loads(parts[0][1])
        manifest["files"] = listed if listed is None else {**manifest["files"], **listed}
        return [(parts[0][0], json.dumps(manifest).encode()), *parts[1:]]

    rewrite(made, change)
    with pytest.raises(bundle.Unusable, match="manifest cannot be read"):
        bundle.read_manifest(str(made))


@settings(max_examples=60)
@given(cut=st.integers(min_value=0, max_value=10_239))
def test_a_bundle_that_was_cut_off_is_refused(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("cut")
    wheels = folder / "wheels"
    wheels.mkdir()
    (wheels / "engine-1.0-py3-none-any.whl").write_bytes(b"engine" * 1000)
    (wheels / "helper-2.1-py3-none-any.whl").write_bytes(b"h")
    path = folder / "b.tar"
    bundle.write(str(path), "small", requirements.parse(LOCK), TARGET, str(wheels))
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    assume(whole[cut:].strip(b"\0"))  # without padding at the end it may still be whole
    with pytest.raises(bundle.Unusable, match=re.escape(str(path))):
        unpack(path, None)


def test_any_bytes_are_no_bundle(tmp_path):
    path = tmp_path / "b.tar"
    for data in (b"", b"x" * 4096, b"PK\x03\x04" + b"\0" * 2000):
        path.write_bytes(data)
        with pytest.raises(bundle.Unusable, match="no bundle"):
            bundle.read_manifest(str(path))


def order(**changes) -> wheelhouse.Order:
    return wheelhouse.Order("/srv", "small", LOCK, **changes)


def test_pip_is_asked_for_the_hosts_python_and_platform(items):
    words = wheelhouse.tags(bundle.Target("cpython-312", "linux-aarch64"), order(glibc="2.31"))
    pairs = list(zip(words[::2], words[1::2], strict=True))
    assert ("--python-version", "3.12") in pairs
    assert [value for key, value in pairs if key == "--abi"] == ["cp312", "abi3", "none"]
    platforms = [value for key, value in pairs if key == "--platform"]
    assert platforms[0] == "manylinux_2_31_aarch64"
    assert "manylinux2014_aarch64" in platforms
    assert not [one for one in platforms if "2_34" in one or "x86" in one]


@pytest.mark.parametrize(
    "wrong",
    [
        *[{"python": version} for version in ("3", "3.11.2", "3.1", "3.7", "3.99")],  # YAML makes 3.1 of 3.10
        *[{"glibc": version} for version in ("2", "2.3", "2.4")],
        {"platform": "win-amd64"},
    ],
)
def test_what_no_host_has_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        wheelhouse.target(order(**wrong))


def test_what_the_lock_is_not_for_is_refused():
    with pytest.raises(ValueError, match=r"python '3.11': the lock needs ==3.12.\*"):
        wheelhouse.target(order(python="3.11", python_range="==3.12.*"))
    with pytest.raises(ValueError, match="'linux-x86_64': the lock is for linux-aarch64"):
        wheelhouse.target(order(platform="linux-x86_64", lock_platform="linux-aarch64"))


def test_undeclared_it_is_the_running_python_and_platform_or_the_only_ones_of_the_lock(monkeypatch):
    python = interpreters.Interpreter("/p", "/p", "3.11.7", "cpython-311", "linux-x86_64")
    monkeypatch.setattr(interpreters, "running", lambda: python)

    def made(python_range: str, platform: str) -> tuple[str, str]:
        found = wheelhouse.target(order(python_range=python_range, lock_platform=platform))
        return found.tag, found.platform

    assert made("", "") == ("cpython-311", "linux-x86_64")
    assert made(">=3.10,<3.15", "linux") == ("cpython-311", "linux-x86_64")
    assert made("==3.12.*", "linux-aarch64") == ("cpython-312", "linux-aarch64")
    assert made(">=3.12.4,<3.13", "") == ("cpython-312", "linux-x86_64")
    with pytest.raises(ValueError, match="ml_env_bundle_python"):
        made(">=3.12", "linux")


@pytest.mark.parametrize(
    ("marker", "holds"),
    [
        ('python_version >= "3.12"', True),
        ('python_version < "3.12"', False),
        ("python_full_version < '3.12'", False),
        ("python_full_version >= '3.12.4'", True),  # for some of the hosts
        ("platform_machine == 'aarch64' and sys_platform == 'linux'", True),
        ("platform_machine == 'x86_64'", False),
        ("sys_platform == 'win32'", False),
        ("platform_python_implementation != 'PyPy'", True),
        ("extra == 'gpu'", False),
    ],
)
def test_markers_are_those_of_the_hosts(marker, holds):
    items = requirements.parse(f"engine==1.0 ; {marker} --hash=sha256:aa --hash=sha256:bb\nhelper==2.1\n")
    needed = wheelhouse._needed(items, bundle.Target("cpython-312", "linux-aarch64"))
    engine = ["engine==1.0 --hash=sha256:aa --hash=sha256:bb"] if holds else []
    assert [one.text for one in needed] == [*engine, "helper==2.1"]


def test_what_is_no_marker_is_said():
    items = requirements.parse("engine==1.0 ; python_versoin > '3'\n")
    with pytest.raises(ValueError, match=r"engine: .*is no marker"):
        wheelhouse._needed(items, TARGET)


def test_what_a_killed_run_left_is_cleared_away_and_what_another_is_making_is_not(tmp_path):
    left = tmp_path / ".bundle-abc_123"
    (left / "wheels").mkdir(parents=True)
    (left / "wheels" / "big.whl").write_text("x")
    (tmp_path / ".bundle-of-mine").mkdir()
    with wheelhouse._scratch(str(tmp_path)) as (first, _):
        assert not left.exists()
        with wheelhouse._scratch(str(tmp_path)) as (second, _):
            assert Path(first).is_dir()
            assert first != second
    assert [one.name for one in tmp_path.iterdir()] == [".bundle-of-mine"]
