# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which words are one token for a model, from the tokenizer's file in its folder. No tokenizer is run."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import files

#: How vocabularies write the space before a word: byte-level BPE, SentencePiece, tiktoken.
_SPACES = ("\u0120", "\u2581", " ")
_TIKTOKEN = ".tiktoken"
_LARGEST = 256 << 20  # bytes of such a file; those of large vocabularies have about 30 MiB


@dataclass
class Words:
    """Of some words, those that are one token with the space before them: word -> id.

    ``anywhere``: those that also are one token without it, as at the beginning of a text. ``source`` is the name of
    the file; ``why`` says why there are none.
    """

    ids: dict[str, int] = field(default_factory=dict)
    anywhere: list[str] = field(default_factory=list)
    source: str = ""
    why: str = ""


def read(folder: str, words: Iterable[str]) -> Words:
    """What the model in ``folder`` knows of ``words``. Never raises: what cannot be read is told in ``why``."""
    path = folder
    try:
        path = _file(folder)
        if not path:
            return Words(why=f"there is no tokenizer.json or tiktoken file in {folder or 'a folder of the model'}")
        vocabulary = _tiktoken(path) if _is_tiktoken(os.path.basename(path)) else _huggingface(path)
    except (OSError, ValueError) as error:
        return Words(why=f"{path} cannot be read: {error}")
    wanted = list(words)
    spellings = [{word: vocabulary[space + word] for word in wanted if space + word in vocabulary} for space in _SPACES]
    ids = max(spellings, key=len)
    found = Words(ids, [word for word in ids if word in vocabulary], os.path.basename(path))
    if not ids:
        found.why = f"{path} knows none of the common English words as one token"
    return found


def _is_tiktoken(name: str) -> bool:
    return name == "tiktoken.model" or name.endswith(_TIKTOKEN)


def _file(folder: str) -> str:
    """The file with the vocabulary; "" when there is none that we can read."""
    if not folder or not os.path.isdir(folder):
        return ""
    names = sorted(os.listdir(folder))
    return next((os.path.join(folder, name) for name in names if name == "tokenizer.json" or _is_tiktoken(name)), "")


def _huggingface(path: str) -> dict[str, int]:
    """Piece -> id of a tokenizer.json, its special tokens left out. Raises OSError, ValueError."""
    told = files.decode_json(files.read_regular(path, _LARGEST))
    try:
        pieces = told["model"]["vocab"]
        if isinstance(pieces, list):  # Unigram: [piece, score], the id is the place
            pieces = {piece[0]: number for number, piece in enumerate(pieces)}
        found = list(pieces.items())
        special = {one["content"] for one in told.get("added_tokens") or []}
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError("it is no tokenizer.json with a vocabulary") from None
    return {piece: number for piece, number in found if piece not in special and _is_id(number)}


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _tiktoken(path: str) -> dict[str, int]:
    """Piece -> id of a file with a base64 piece and its id in each line. Raises OSError, ValueError."""
    found = {}
    for line in files.read_regular(path, _LARGEST).decode("ascii").splitlines():
        parts = line.split()
        if not parts:
            continue
        try:
            piece, number = base64.b64decode(parts[0], validate=True), int(parts[1])
        except (binascii.Error, ValueError, IndexError):
            raise ValueError(f"{line.strip()[:60]!r} is not a piece and its id") from None
        found[piece.decode("utf-8", "replace")] = number
    return found
