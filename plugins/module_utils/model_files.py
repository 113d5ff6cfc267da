# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a model is complete before a server tries to load it: every file that is missing or cut off, by name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import files, weights
from .file_hashes import FileHashes, open_regular

_INDEX = ".index.json"
_LARGEST_JSON = 256 << 20  # the index of 200,000 tensors has about 20 MiB
#: Parts of one model.
NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})(?P<kind>\.\w+)$")
_MOST_PARTS = 200_000  # of all models in a folder; a model has some hundred
_NAMED = 20  # missing files that are named; the others are counted
#: File names of which one has to be there for a tokenizer.
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model", "spiece.model")
#: How files with weights end.
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
# Weights in other formats, and what is no weights for all its name.
_LEFT = (".incomplete", ".part", ".aria2")  # of interrupted downloads
_NO_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt")


@dataclass
class Found:
    """What was found at a model's path."""

    path: str
    problems: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # names of files that are there and not what they should be
    shards: list[str] = field(default_factory=list)  # paths of the files with weights, below the folder
    total_bytes: int = 0  # of these
    root: str = ""  # the folder that the names are below
    missing: set[str] = field(default_factory=set)  # names of files that are not there

    @property
    def complete(self) -> bool:
        return not self.problems


def look(
    path: str,
    need_weights: bool = True,
    need_tokenizer: bool = True,
    sha256: Mapping[str, str] | None = None,
    cache: str | None = None,
) -> Found:
    """Look at a model's file or folder. ``sha256``: name -> hash (hex) that the file has to have.

    ``need_weights`` False: a folder of configuration only will do (weights are made up by the server).
    """
    found = Found(path, root=path if os.path.isdir(path) else os.path.dirname(path))
    if os.path.isdir(path):
        _folder(found, need_weights, need_tokenizer)
    elif os.path.isfile(path):
        found.shards = [os.path.basename(path)]
        _numbered(found, found.shards, set(os.listdir(found.root or ".")))
    else:
        what = "is a link to nowhere" if os.path.islink(path) else "does not exist"
        found.problems.append(f"{path} " + ("is no file and no folder" if os.path.exists(path) else what))
        return found
    _sizes(found, _mapped(found))
    for name in found.shards:
        full = os.path.join(found.root, name)
        found.total_bytes += os.path.getsize(full) if os.path.exists(full) else 0
    _hashes(found, sha256 or {}, cache)
    found.problems += _listed(found.missing)
    return found


def _listed(missing: Iterable[str]) -> list[str]:
    # A name may be one that an index made up: of any length, with what a terminal would obey.
    names = sorted(missing)
    told = [f"{files.plain(name, 255)} is missing" for name in names[:_NAMED]]
    return told + ([f"and {len(names) - _NAMED} more files are missing"] if len(names) > _NAMED else [])


def _folder(found: Found, need_weights: bool, need_tokenizer: bool) -> None:
    names = set(os.listdir(found.path))
    for name in sorted(names):
        full = os.path.join(found.path, name)
        if os.path.islink(full) and not os.path.exists(full):
            found.problems.append(f"{name} is a link to nowhere")
        elif name.endswith(_LEFT):
            _left(found, name, names)
    found.shards = sorted(name for name in names if name.endswith(WEIGHTS) and name not in _NO_WEIGHTS)
    if all(name.endswith(".gguf") for name in found.shards) and found.shards:
        need_tokenizer = False  # it is in the file, and so is the configuration
    elif "config.json" not in names and "params.json" not in names:
        found.problems.append("config.json is missing")
    for name in sorted(names & {"config.json", "tokenizer_config.json", "generation_config.json"}):
        _json(found, name)
    if need_tokenizer and not names & set(TOKENIZERS):
        found.problems.append(f"there is no tokenizer (one of {', '.join(TOKENIZERS)})")
    if not need_weights and not found.shards and not any(name.endswith(_INDEX) for name in names):
        return
    if not found.shards and need_weights:
        found.problems.append(
            "there are no weights: copy them there, or start the server with load-format: dummy, which makes them up"
        )
    _numbered(found, found.shards, names)


def _left(found: Found, name: str, names: set[str]) -> None:
    whole = name.rpartition(".")[0]
    if whole not in names:
        found.problems.append(f"{name} is what an interrupted download left: finish that, or remove it")
    elif name.endswith(".aria2"):  # a note beside the file itself, which has its full size from the beginning
        found.problems.append(f"{name} says that {whole} was never downloaded whole: finish that, or remove both")
        found.broken.append(whole)
    # All others are renamed when they are done: beside the file that somebody got otherwise they mean nothing.


def _numbered(found: Found, shards: list[str], names: set[str]) -> None:
    """Names the parts of "model-00001-of-00004" that are not there."""
    matches = [match for match in map(NUMBERED.match, shards) if match]
    there = set(shards)
    for stem, total, kind in sorted({(match["stem"], match["total"], match["kind"]) for match in matches}):
        if len(found.missing) > _MOST_PARTS:
            break  # many files that all claim to be one of many: it is told already
        wanted = {f"{stem}-{number:05d}-of-{total}{kind}" for number in range(1, int(total) + 1)}
        found.missing |= wanted - names
        there |= wanted & names
    found.shards = sorted(there)


def _json(found: Found, name: str) -> Any:
    try:
        return files.decode_json(files.read_regular(os.path.join(found.root, name), _LARGEST_JSON))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        found.problems.append(f"{name} cannot be read ({why})")
        found.broken.append(name)
        return None


def _mapped(found: Found) -> dict[str, set[str]]:
    """Shard -> tensors that an index says are in it; what an index cannot say is a problem."""
    mapped: dict[str, set[str]] = {}
    if not os.path.isdir(found.path):
        return mapped
    for name in sorted(os.listdir(found.path)):
        if not name.endswith(_INDEX):
            continue
        raw = _json(found, name)
        table = raw.get("weight_map") if isinstance(raw, dict) else None
        if raw is not None and not isinstance(table, dict):
            found.problems.append(f"{name} has no weight_map")
        for tensor, shard in (table if isinstance(table, dict) else {}).items():
            mapped.setdefault(str(shard), set()).add(tensor)
    for shard in sorted(mapped):
        # A name out of an index may be anything.
        inside = not os.path.isabs(shard) and ".." not in shard.split("/")
        if not inside or not os.path.exists(os.path.join(found.root, shard)):
            found.missing.add(shard)
            del mapped[shard]
    found.shards = sorted({*found.shards, *mapped})
    return mapped


def _sizes(found: Found, mapped: Mapping[str, set[str]]) -> None:
    for name in sorted(found.shards):
        full = os.path.join(found.root, name)
        try:
            tensors: frozenset[str] | None = None
            if name.endswith(".safetensors"):
                wrong, tensors = weights.safetensors(full)
            elif name.endswith(".gguf"):
                wrong = weights.gguf(full)
            else:
                with open_regular(full) as source:
                    wrong = "" if source.read(1) else "is empty"
        except FileNotFoundError:
            continue  # a link to nowhere: told already
        except OSError as error:
            wrong = f"cannot be read ({error.strerror})"
        if wrong:
            found.problems.append(f"{name} {wrong}")
            found.broken.append(name)
            continue
        lacking = sorted(mapped.get(name, set()) - (tensors or frozenset())) if tensors is not None else []
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            found.problems.append(
                f"{name} lacks the tensor {files.plain(lacking[0], 255)}{more} that the index says is in it"
            )
            found.broken.append(name)


def _hashes(found: Found, wanted: Mapping[str, str], cache: str | None) -> None:
    if not wanted:
        return
    hashes = FileHashes(found.root, cache)
    for name, value in sorted(wanted.items()):
        actual = hashes.one(name)
        if actual is None and os.path.exists(os.path.join(found.root, name)):
            text = f"{name} cannot be read ({hashes.why[name]})"
            found.broken.append(name)
            if text not in found.problems:
                found.problems.append(text)
        elif actual is None:
            found.missing.add(name)
        elif actual != value.lower():
            found.broken.append(name)
            found.problems.append(f"{name} has the SHA-256 {actual}, declared is {value.lower()}")
    hashes.save()
