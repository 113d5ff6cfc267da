"""Complete models: what is missing or cut off is named, and nothing that a download left can crash the look."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import (
    file_hashes,
    model_files,
    page_cache,
    tiny_llama,
    weights,
)
from hypothesis import given
from hypothesis import strategies as st


def tensors(path: Path, *names: str, size: int = 64) -> None:
    """A safetensors file with tensors of so many bytes."""
    header = {
        name: {"dtype": "U8", "shape": [size], "data_offsets": [at * size, (at + 1) * size]}
        for at, name in enumerate(names)
    }
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"x" * size * len(names))


def gguf(tensor_type: int = 8, elements: int = 64, version: int = 3) -> bytes:
    """A GGUF file with a few settings and one tensor."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    pairs = text(b"general.name") + struct.pack("<I", 8) + text(b"tiny")
    pairs += text(b"tokens") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"b")
    pairs += text(b"scores") + struct.pack("<IIQ", 9, 6, 3) + b"\0" * 12
    info = text(b"w") + struct.pack("<IQIQ", 1, elements, tensor_type, 0)
    head = b"GGUF" + struct.pack("<IQQ", version, 1, 3) + pairs + info
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + b"x" * (elements // 32 * 34)


@pytest.fixture
def sharded(tmp_path) -> Path:
    """A model of two shards with an index, as the hub has them."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in (("config.json", "{}"), ("tokenizer.json", "{}"), ("tokenizer_config.json", "{}")):
        (folder / name).write_text(content)
    for number, names in ((1, ("a", "b")), (2, ("c",))):
        tensors(folder / f"model-{number:05d}-of-00002.safetensors", *names)
    index = {"a": 1, "b": 1, "c": 2}
    table = {name: f"model-{number:05d}-of-00002.safetensors" for name, number in index.items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    return folder


def problems(path: Path, **more) -> list[str]:
    return model_files.look(str(path), **more).problems


def test_a_whole_model_is_complete(sharded):
    found = model_files.look(str(sharded))
    assert found.problems == []
    assert sorted(found.shards) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert found.total_bytes == sum(one.stat().st_size for one in sharded.glob("*.safetensors"))


def test_the_tiny_model_that_we_make_is_complete(tmp_path):
    for name, raw in tiny_llama.model_files(tiny_llama.Shape()).items():
        (tmp_path / name).write_bytes(raw)
    assert problems(tmp_path) == []


@pytest.mark.parametrize("with_index", [True, False])
def test_a_missing_shard_is_named(sharded, with_index):
    os.unlink(sharded / "model-00002-of-00002.safetensors")
    if not with_index:
        os.unlink(sharded / "model.safetensors.index.json")
    assert problems(sharded) == ["model-00002-of-00002.safetensors is missing"]


def test_a_shard_that_was_cut_off_is_named_with_its_sizes(sharded):
    path = sharded / "model-00001-of-00002.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert problems(sharded) == [f"{path.name} was cut off: {len(whole) - 10} of {len(whole)} bytes"]
    path.write_bytes(whole + b"more")
    assert problems(sharded) == [f"{path.name} is damaged: 4 bytes more than its {len(whole)}"]
    for size in (0, 4, 20):
        path.write_bytes(whole[:size])
        assert "was cut off" in problems(sharded)[0]


def test_shards_that_were_mixed_up_are_seen(sharded):
    tensors(sharded / "model-00002-of-00002.safetensors", "other")
    assert problems(sharded) == ["model-00002-of-00002.safetensors lacks the tensor c that the index says is in it"]


def test_what_else_has_to_be_there(sharded):
    for name, why in (("config.json", "config.json is missing"), ("tokenizer.json", "there is no tokenizer")):
        kept = (sharded / name).read_bytes()
        os.unlink(sharded / name)
        assert why in problems(sharded)[0]
        (sharded / name).write_bytes(kept)
    os.unlink(sharded / "tokenizer.json")
    assert problems(sharded, need_tokenizer=False) == []
    (sharded / "config.json").write_text('{"cut": ')
    assert "config.json cannot be read" in problems(sharded, need_tokenizer=False)[0]


def test_configuration_alone_will_do_only_when_weights_are_made_up(sharded):
    for one in [*sharded.glob("*.safetensors"), sharded / "model.safetensors.index.json"]:
        os.unlink(one)
    assert problems(sharded, need_weights=False) == []
    (said,) = problems(sharded)
    assert "load-format: dummy" in said


def test_an_index_without_its_shards_is_not_configuration_alone(sharded):
    for one in sharded.glob("*.safetensors"):
        os.unlink(one)
    assert "model-00001-of-00002.safetensors is missing" in problems(sharded, need_weights=False)


def test_pointers_of_git_lfs_links_to_nowhere_and_leftovers(sharded):
    (sharded / "model-00001-of-00002.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:1\n"
    )
    (sharded / "blob").symlink_to(sharded / "nowhere")
    (sharded / "x.incomplete").touch()
    said = problems(sharded)
    assert "blob is a link to nowhere" in said
    assert "x.incomplete is what an interrupted download left: finish that, or remove it" in said
    assert any("Git LFS" in one for one in said)


def test_what_an_interrupted_download_left_beside_the_whole_file_means_nothing(sharded):
    (sharded / "config.json.part").touch()
    assert problems(sharded) == []
    (sharded / "config.json.aria2").touch()
    assert problems(sharded) == [
        "config.json.aria2 says that config.json was never downloaded whole: finish that, or remove both"
    ]


def test_snapshots_of_links_are_followed(sharded, tmp_path):
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for one in sharded.iterdir():
        (snapshot / one.name).symlink_to(one)
    assert problems(snapshot) == []


def test_an_index_that_is_hostile_or_damaged(sharded):
    index = sharded / "model.safetensors.index.json"
    for table in ({"a": "../../etc/passwd"}, {"a": "/etc/passwd"}):
        index.write_text(json.dumps({"weight_map": table}))
        assert problems(sharded) == [f"{table['a']} is missing"]
    for text in ("[]", '{"weight_map": 3}', "{}"):
        index.write_text(text)
        assert problems(sharded) == ["model.safetensors.index.json has no weight_map"]
    index.write_text('{"weight_map":')
    assert "model.safetensors.index.json cannot be read" in problems(sharded)[0]


def test_declared_hashes(sharded, tmp_path):
    name = "model-00001-of-00002.safetensors"
    right = hashlib.sha256((sharded / name).read_bytes()).hexdigest()
    assert problems(sharded, sha256={name: right.upper()}, cache=str(tmp_path / "cache")) == []
    (said,) = problems(sharded, sha256={name: "0" * 64})
    assert right in said
    assert problems(sharded, sha256={"no.bin": right}) == ["no.bin is missing"]


def test_hashes_of_two_models_in_one_folder_are_read_once(tmp_path, monkeypatch):
    folder = tmp_path / "models"
    folder.mkdir()
    now = file_hashes.time.time_ns()
    monkeypatch.setattr(file_hashes.time, "time_ns", lambda: now + 3_600_000_000_000)  # long after they were written
    reads = []
    read = file_hashes.sha256_file
    monkeypatch.setattr(file_hashes, "sha256_file", lambda path: reads.append(path) or read(path))
    right = hashlib.sha256(gguf()).hexdigest()
    for _run in range(2):
        for name in ("a.gguf", "b.gguf"):
            if not (folder / name).exists():
                (folder / name).write_bytes(gguf())
            assert problems(folder / name, sha256={name: right}, cache=str(tmp_path / "cache")) == []
    assert len(reads) == 2


def test_nothing_there(tmp_path):
    assert problems(tmp_path / "no") == [f"{tmp_path / 'no'} does not exist"]


def test_gguf_files(tmp_path):
    path = tmp_path / "m.gguf"
    whole = gguf()
    path.write_bytes(whole)
    assert problems(path) == []
    assert problems(tmp_path) == []  # the tokenizer and the configuration are in it
    path.write_bytes(whole[:-1])
    assert problems(path) == [f"m.gguf was cut off: {len(whole) - 1} of {len(whole)} bytes"]
    for size in (10, 40, 100):
        path.write_bytes(whole[:size])
        assert "was cut off" in problems(path)[0]
    path.write_bytes(b"ELF " + whole[4:])
    assert problems(path) == ["m.gguf is no GGUF file"]
    path.write_bytes(gguf(version=9))
    assert "version 9" in problems(path)[0]
    split = tmp_path / "big-00001-of-00002.gguf"
    split.write_bytes(whole)
    assert problems(split) == ["big-00002-of-00002.gguf is missing"]


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"data_offsets":[0,1e999]}}',
        b'{"a":{"data_offsets":[0,-1]}}',
        b'{"a":{"data_offsets":[0,"9"]}}',
        b'{"a":{"data_offsets":[0,%s]}}' % (b"9" * 4300),
        b'{"a":3}',
        b"[" * 200_000,
    ],
)
def test_a_header_that_cannot_be_is_damaged(tmp_path, header):
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert problems(tmp_path / "x.safetensors") == ["x.safetensors is damaged: its header cannot be read"]


def test_configuration_that_is_nested_without_end(sharded):
    for name in ("config.json", "model.safetensors.index.json"):
        (sharded / name).write_text("[" * 200_000)
        assert f"{name} cannot be read (its brackets are nested too deeply)" in problems(sharded)


def one_tensor(dimensions: int, value: int) -> bytes:
    info = struct.pack("<QsI", 1, b"w", dimensions) + struct.pack("<Q", value) * dimensions + struct.pack("<IQ", 0, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + info


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (one_tensor(200_000, (1 << 64) - 1), "a tensor of 200000 dimensions"),
        (one_tensor(4, (1 << 64) - 1), "sizes of "),
        # Empty strings, as many as an array may have.
        (b"GGUF" + struct.pack("<IQQQsIIQ", 3, 0, 1, 1, b"a", 9, 8, 1 << 24) + b"\0" * (2 << 20), "more than 1 MiB"),
    ],
)
def test_numbers_of_a_gguf_header_that_cannot_be_end_the_look(tmp_path, monkeypatch, content, told):
    monkeypatch.setattr(weights, "_MOST_READ", 1 << 20 if "MiB" in told else weights._MOST_READ)
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    assert problems(path)[0].startswith(f"x.gguf is damaged: its header holds {told}")


def test_of_very_many_missing_parts_some_are_named(sharded):
    for number in range(1, 40):
        (sharded / f"x{number:02d}-00001-of-99999.bin").write_bytes(b"x")
    said = [one for one in problems(sharded) if "missing" in one]
    assert len(said) == 21
    assert said[0] == "x01-00002-of-99999.bin is missing"
    assert said[-1].endswith("more files are missing")


def test_names_of_an_index_are_fit_to_be_shown(sharded):
    shard = "\x1b[2J" + "a" * 1000
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    assert problems(sharded) == ["a" * 251 + " is missing"]


@pytest.mark.parametrize("name", ["x.gguf", "x.safetensors", "x.bin", "config.json", "x.safetensors.index.json"])
def test_what_is_no_file_is_told_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    told = f"{name} cannot be read (it is no regular file)"
    assert told in problems(tmp_path)
    assert told in problems(tmp_path, sha256={name: "0" * 64})
    assert problems(tmp_path / name) == [f"{tmp_path / name} is no file and no folder"]


@given(st.binary(max_size=60), st.integers(0, 250), st.booleans())
def test_damaged_files_are_told_and_crash_nothing(tmp_path_factory, noise, at, as_gguf):
    folder = tmp_path_factory.mktemp("m")
    path = folder / ("x.gguf" if as_gguf else "x.safetensors")
    if as_gguf:
        path.write_bytes(gguf())
    else:
        tensors(path, "a", "b")
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + noise)
    said = weights.gguf(str(path)) if as_gguf else weights.safetensors(str(path))[0]
    if len(path.read_bytes()) < len(raw) and raw.startswith(path.read_bytes()):
        assert "cut off" in said


def test_the_page_cache_is_seen_and_filled(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(1 << 20))
    os.sync()
    with open(path, "rb") as source:
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert 0 <= page_cache.resident(str(path)) <= 1 << 20
    read, there = page_cache.warm([str(path)], 1 << 30)
    assert there == page_cache.resident(str(path)) == 1 << 20
    assert read <= 1 << 20
    assert page_cache.warm([str(path)], 0) == (0, 1 << 20)
    assert page_cache.resident(str(path), 0, 8192) == 8192


def test_the_read_speed_of_nothing_is_unknown(tmp_path):
    (tmp_path / "empty").touch()
    assert page_cache.read_speed([]) is None
    assert page_cache.read_speed([str(tmp_path / "empty")]) is None
