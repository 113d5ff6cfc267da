"""A bundle that an attacker made, and two makers of one bundle at once."""

from __future__ import annotations

import io
import json
import os
import tarfile

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import cuda_probe
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import bundle, requirements

ITEMS = requirements.parse("anyio==4.0.0 --hash=sha256:" + "a" * 64 + "\n")
TARGET = bundle.Target("cpython-311", "linux-x86_64")


def forged(path, text: bytes) -> str:
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo(bundle.MANIFEST)
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    return str(path)


def manifest(**files) -> bytes:
    listed = {bundle.LOCK: {"sha256": "a" * 64, "size": 1}, **files}
    return json.dumps({"schema": 1, "lock": "x", "key": "k", "tag": "t", "platform": "p", "files": listed}).encode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (manifest(**{"wheels/a.whl": {"sha256": "a", "size": 1 << 40}}), "larger than the bundle"),
        (manifest(**{"wheels/a.whl": {"sha256": "a", "size": -1}}), "without size and hash"),
        (manifest(**{"wheels/a.whl": {"sha256": "a", "size": True}}), "without size and hash"),
        (manifest(**{"wheels/a.whl": None}), "cannot be read"),
        (manifest(**{"wheels/../../a.whl": {"sha256": "a", "size": 1}}), "it lists"),
    ],
)
def test_a_forged_manifest_is_refused_in_one_sentence(tmp_path, text, says):
    with pytest.raises(bundle.Unusable, match=says):
        bundle.read_manifest(forged(tmp_path / "x.tar", text))


def test_a_link_that_somebody_laid_beside_a_bundle_is_not_followed(tmp_path):
    wheels, target, victim = tmp_path / "wheels", tmp_path / "x.tar", tmp_path / "victim"
    wheels.mkdir()
    (wheels / "a-1-py3-none-any.whl").write_bytes(b"wheel")
    victim.write_text("precious")
    os.symlink(victim, f"{target}.part")
    made = bundle.write(str(target), "x", ITEMS, TARGET, str(wheels))
    assert bundle.read_manifest(str(target)) == made
    assert victim.read_text() == "precious"
    assert target.stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim", "wheels", "x.tar", "x.tar.part"]


@pytest.mark.parametrize("said", ["", "5\n", "not json\n", "[]\n", '{"sum": "8"}\n', "[" * 100_000])
def test_a_torch_that_says_anything_is_told(tmp_path, said):
    python = tmp_path / "python"
    (tmp_path / "said").write_text(said)
    python.write_text(f"#!/bin/sh\ncat '{tmp_path}/said'\n")
    python.chmod(0o755)
    told = cuda_probe.torch(str(python), 10.0)
    assert told.startswith("torch computed nonsense: ")
    assert len(told) < 400


@pytest.mark.parametrize(
    "headers",
    [
        {"GNU.sparse.map": "abc"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
        {"GNU.sparse.size": "x", "GNU.sparse.map": "1,2"},
        {"size": "abc"},
    ],
    ids=str,
)
@pytest.mark.parametrize("where", [bundle.MANIFEST, bundle.LOCK])
def test_headers_with_numbers_that_are_none_are_a_damaged_bundle(tmp_path, headers, where):
    path = str(tmp_path / "b.tar")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in ((bundle.MANIFEST, manifest()), (bundle.LOCK, b"x")):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.pax_headers = headers if name == where else {}
            tar.addfile(entry, io.BytesIO(data))
    with pytest.raises(bundle.Unusable, match="copy it again"):
        bundle.unpack(path, bundle.read_manifest(path), None)
