# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A tiny Llama with random weights in the form of a model folder, from nothing but a seed.

It says nothing of use, but a real engine loads, shards and serves it like any other: for tests of everything around a
model, without a download. The same parameters give the same bytes with every Python.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
from array import array
from dataclasses import asdict, dataclass
from typing import Any

from . import files

FORMAT = 1  # part of the hash: raise it when the same parameters shall give other bytes

HEAD = 32  # dimensions of a head: the smallest that every engine has kernels for
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT = 2048

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# What the tokenizer learns its merges from: ordinary words, so that a prompt of words is some tokens a word.
TEXT = """
The quick brown fox jumps over the lazy dog while the engineers measure the machine. A server that has been started is
not yet ready: it loads the weights, compiles the kernels, warms the cache and only then answers the first request. The
time to the first token depends on the length of the prompt, the time per token on the memory bandwidth of the device.
When a measurement is repeated under the same conditions, the results should agree within the interval; when they do
not, something has changed, and the difference between the two states of the machine explains the difference between
the numbers. Write down the clocks, the temperature, the power limit, the driver, the version of every package and the
environment of every process. Never trust a number that nobody can measure again. There are many ways in which a
baseline can be wrong: another process was using the memory, the patched file was not loaded, the variables were set in
one place and not in the other, the first run was slower because of the empty cache, or the old value was simply the
best of several. A good report says what was declared, what was found, and how sure we are about it. Please explain to
me what happens if one of the workers is lost. The request is answered with an error, the other workers are stopped, and
after that the server can be started again. Hello world, this is a short story about a small language model that could
not say anything, because all of its parameters were random numbers between minus one and one. Once upon a time there
was a teacher who asked the children to count from one to ten and back: one two three four five six seven eight nine
ten. In the year 2026 it would take 128 or 256 tokens, 1024 at most, and about 0.5 seconds. Question and answer, user
and assistant, system and message, name and value, true and false, open and closed, input and output, left and right.
"""


@dataclass(frozen=True)
class Shape:
    """The parameters of a tiny model."""

    seed: int = 0
    layers: int = 2
    hidden: int = 128
    vocabulary: int = 1024

    @property
    def heads(self) -> int:
        return self.hidden // HEAD

    @property
    def kv_heads(self) -> int:
        return max(1, self.heads // 2)

    @property
    def intermediate(self) -> int:
        return 2 * self.hidden

    def check(self) -> None:
        """Raises ValueError for what no engine would load, or what would not be tiny."""
        problems = []
        if not 1 <= self.layers <= 64:
            problems.append(f"layers {self.layers}: use 1 to 64")
        if self.hidden % (2 * HEAD) or not 2 * HEAD <= self.hidden <= 4096:
            problems.append(f"hidden {self.hidden}: use a multiple of {2 * HEAD} up to 4096")
        if self.vocabulary % 64 or not 320 <= self.vocabulary <= 2048:
            problems.append(f"vocabulary {self.vocabulary}: use a multiple of 64 from 320 to 2048")
        if problems:
            raise ValueError("; ".join(problems))

    def hash(self) -> str:
        """Identity of the model that these parameters give."""
        return files.digest([FORMAT, asdict(self)])


# --- tokenizer -----------------------------------------------------------------------------------


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level BPE vocabulary (GPT-2's mapping)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {}
    shifted = 256
    for value in range(256):
        if value in plain:
            table[value] = chr(value)
        else:
            table[value] = chr(shifted)
            shifted += 1
    return [table[value] for value in range(256)]


def train(text: str, merges: int) -> list[tuple[str, str]]:
    """The first merges that byte-pair encoding learns from a text; ties go to the smaller pair, so it is determined.

    Fewer than asked for when no pair is left to merge.
    """
    alphabet = byte_alphabet()
    words: dict[tuple[str, ...], int] = {}
    for word in re.findall(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+", " ".join(text.split())):
        symbols = tuple(alphabet[value] for value in word.encode("utf-8"))
        words[symbols] = words.get(symbols, 0) + 1
    learned: list[tuple[str, str]] = []
    while len(learned) < merges:
        pairs: dict[tuple[str, str], int] = {}
        for symbols, count in words.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] = pairs.get(pair, 0) + count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        learned.append(best)
        words = _merge(words, best)
    return learned


def _merge(words: dict[tuple[str, ...], int], pair: tuple[str, str]) -> dict[tuple[str, ...], int]:
    merged: dict[tuple[str, ...], int] = {}
    for symbols, count in words.items():
        out: list[str] = []
        index = 0
        while index < len(symbols):
            if symbols[index : index + 2] == pair:
                out.append(pair[0] + pair[1])
                index += 2
            else:
                out.append(symbols[index])
                index += 1
        merged[tuple(out)] = merged.get(tuple(out), 0) + count
    return merged


def tokenizer(shape: Shape) -> dict[str, Any]:
    """tokenizer.json: special tokens, the 256 bytes, then what was learned; filled up to the vocabulary's size."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *sorted(byte_alphabet())])}
    merges: list[str] = []
    for left, right in train(TEXT, shape.vocabulary - len(vocabulary)):
        merges.append(f"{left} {right}")
        vocabulary.setdefault(left + right, len(vocabulary))
    for number in range(len(vocabulary), shape.vocabulary):
        vocabulary[f"<|unused{number}|>"] = number
    added = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, token in enumerate(SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


# --- weights -------------------------------------------------------------------------------------


def bfloat16(value: float) -> int:
    """The 16 bits of a number as bfloat16, cut off."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16


def random_tensor(seed: int, name: str, count: int, scale: float) -> bytes:
    """Little-endian bfloat16 numbers, evenly spread over ±scale, determined by seed and name.

    From a hash, not from ``random``, whose numbers are not promised to stay the same.
    """
    table = [bfloat16((2 * value - 255) / 255 * scale) for value in range(256)]
    stream = hashlib.shake_128(f"{FORMAT} {seed} {name}".encode()).digest(count)
    numbers = array("H", [table[value] for value in stream])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def tensors(shape: Shape) -> list[tuple[str, list[int]]]:
    """Names and shapes of all weights, in the order of the file."""
    hidden, kv = shape.hidden, shape.kv_heads * HEAD
    found: list[tuple[str, list[int]]] = [("model.embed_tokens.weight", [shape.vocabulary, hidden])]
    for layer in range(shape.layers):
        head = f"model.layers.{layer}"
        found += [
            (f"{head}.input_layernorm.weight", [hidden]),
            (f"{head}.self_attn.q_proj.weight", [hidden, hidden]),
            (f"{head}.self_attn.k_proj.weight", [kv, hidden]),
            (f"{head}.self_attn.v_proj.weight", [kv, hidden]),
            (f"{head}.self_attn.o_proj.weight", [hidden, hidden]),
            (f"{head}.post_attention_layernorm.weight", [hidden]),
            (f"{head}.mlp.gate_proj.weight", [shape.intermediate, hidden]),
            (f"{head}.mlp.up_proj.weight", [shape.intermediate, hidden]),
            (f"{head}.mlp.down_proj.weight", [hidden, shape.intermediate]),
        ]
    return [*found, ("model.norm.weight", [hidden]), ("lm_head.weight", [shape.vocabulary, hidden])]


def safetensors(shape: Shape) -> bytes:
    """model.safetensors: length, header, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, sizes in tensors(shape):
        count = 1
        for size in sizes:
            count *= size
        if len(sizes) == 1:
            piece = struct.pack("<H", bfloat16(1.0)) * count  # a norm: leaves its input as it is
        else:
            piece = random_tensor(shape.seed, name, count, (3.0 / sizes[-1]) ** 0.5)
        header[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + data


# --- the folder ----------------------------------------------------------------------------------


def model_files(shape: Shape) -> dict[str, bytes]:
    """Name -> content of all files of the model folder. Raises ValueError for impossible parameters."""
    shape.check()
    tokens = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[2], "pad_token": SPECIAL[0]}
    numbers = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": CONTEXT,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
        **numbers,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        **tokens,
    }
    documents = {
        "config.json": config,
        "generation_config.json": numbers,
        "tokenizer.json": tokenizer(shape),
        "tokenizer_config.json": settings,
        "special_tokens_map.json": tokens,
    }
    made = {name: (json.dumps(value, indent=2) + "\n").encode() for name, value in documents.items()}
    made["model.safetensors"] = safetensors(shape)
    return made
