"""The tiny model: the same bytes everywhere, and a folder that is whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils import model_folder, tiny_llama
from ansible_collections.groundstate.llm.plugins.module_utils.tiny_llama import Shape


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    return tiny_llama.model_files(Shape())


def test_the_bytes_of_seed_0_are_the_ones_they_have_always_been(made):
    # Baselines refer to this model by its hash: other bytes need another FORMAT.
    total = hashlib.sha256(b"".join(name.encode() + made[name] for name in sorted(made))).hexdigest()
    assert (tiny_llama.FORMAT, total) == (1, "f7fac0e19faf6c86c0484346077f1862b97a9cee9715f2964d23e7fa26051926")


def test_another_seed_gives_other_weights_and_the_same_tokenizer(made):
    other = tiny_llama.model_files(Shape(seed=1))
    assert [name for name in made if made[name] != other[name]] == ["model.safetensors"]
    assert Shape().hash() != Shape(seed=1).hash()


def read_safetensors(raw: bytes) -> tuple[dict, bytes]:
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def test_the_weights_file_is_laid_out_as_the_format_says(made):
    header, data = read_safetensors(made["model.safetensors"])
    assert struct.unpack("<Q", made["model.safetensors"][:8])[0] % 8 == 0
    assert header.pop("__metadata__") == {"format": "pt"}
    position = 0
    for item in header.values():
        count = 1
        for size in item["shape"]:
            count *= size
        assert item["data_offsets"] == [position, position + 2 * count]
        position += 2 * count
    assert position == len(data)
    config = json.loads(made["config.json"])
    assert header["lm_head.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]
    key_rows = config["num_key_value_heads"] * config["head_dim"]
    assert header["model.layers.1.self_attn.k_proj.weight"]["shape"] == [key_rows, config["hidden_size"]]


def test_random_weights_are_spread_evenly_around_zero():
    numbers = struct.unpack("<20000H", tiny_llama.random_tensor(0, "x", 20000, 0.5))
    values = [struct.unpack("<f", struct.pack("<I", one << 16))[0] for one in numbers]
    assert 0.49 < max(values) <= 0.5
    assert -0.5 <= min(values) < -0.49
    assert abs(sum(values) / len(values)) < 0.01


@pytest.mark.parametrize("vocabulary", [320, 1024, 2048])
def test_the_vocabulary_has_every_byte_and_only_merges_that_it_can_make(vocabulary):
    model = tiny_llama.tokenizer(Shape(vocabulary=vocabulary))["model"]
    tokens = model["vocab"]
    assert sorted(tokens.values()) == list(range(vocabulary))
    assert set(tiny_llama.byte_alphabet()) <= set(tokens)
    assert len(set(tiny_llama.byte_alphabet())) == 256
    for merge in model["merges"]:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= set(tokens)


def test_merges_are_learned_by_frequency_and_ties_are_decided():
    assert tiny_llama.train("ab ab ab cb", 2)[0] == ("a", "b")
    assert tiny_llama.train("xy zw", 1) == tiny_llama.train("zw xy", 1)
    assert tiny_llama.train("a", 5) == []


@pytest.mark.parametrize("shape", [Shape(layers=0), Shape(hidden=100), Shape(vocabulary=100), Shape(vocabulary=5000)])
def test_impossible_parameters_are_refused(shape):
    with pytest.raises(ValueError, match=r": use "):
        tiny_llama.model_files(shape)


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    path = str(tmp_path / "m")
    assert model_folder.manifest(path) is None
    model_folder.replace(path, {"a": b"1", "b": b"2"}, {"hash": "x"})
    known = model_folder.manifest(path)
    assert known["hash"] == "x"
    assert model_folder.intact(path, known)
    (tmp_path / "m" / "a").write_bytes(b"edited")
    assert not model_folder.intact(path, known)
    (tmp_path / "m.building").mkdir()
    (tmp_path / "m.building" / "rest of a killed call").touch()
    model_folder.replace(path, {"a": b"3"}, {"hash": "y"})
    assert sorted(os.listdir(path)) == ["a", model_folder.MANIFEST]
    assert model_folder.intact(path, model_folder.manifest(path))
    model_folder.remove(path)
    assert os.listdir(tmp_path) == []


def test_a_model_that_is_not_ours_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(ValueError, match="was not made by Groundstate"):
            model_folder.manifest(str(path))


def test_the_order_of_sets_reaches_no_byte():
    script = (
        "import sys; from ansible_collections.groundstate.llm.plugins.module_utils.tiny_llama import *\n"
        "import hashlib; print(hashlib.sha256(model_files(Shape())['tokenizer.json']).hexdigest())"
    )
    # Hash randomisation must not reach the order of anything.
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""
