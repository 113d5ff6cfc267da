"""Where the collection lies that this package came with."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from pathlib import Path
from typing import Any

COLLECTION = "groundstate.llm"


def collections_root() -> Path:
    """The folder that holds ansible_collections/groundstate/llm: site-packages, or playbooks/collections of a checkout.

    Raises FileNotFoundError when it is in neither place.
    """
    here = Path(__file__).resolve()
    for root in (here.parents[1], here.parents[2] / "playbooks" / "collections"):
        if (root / "ansible_collections" / "groundstate" / "llm" / "playbooks").is_dir():
            return root
    raise FileNotFoundError(f"the collection {COLLECTION} is not beside {here.parent}: install the package again")


def inventories() -> dict[str, Path]:
    """The packaged inventories: name -> folder."""
    folder = collections_root() / "ansible_collections" / "groundstate" / "llm" / "inventories"
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/hosts.yml"))}


def plugin(name: str) -> Any:
    """A module of the collection's plugins, such as "module_utils.files". FileNotFoundError when it is not there."""
    root = str(collections_root())
    if root not in sys.path:  # a checkout keeps its collection elsewhere
        sys.path.insert(0, root)
    return importlib.import_module(f"ansible_collections.{COLLECTION}.plugins.{name}")


def cache_folder() -> Path:
    """What the command line remembers for the user and can do without. It may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "groundstate"


def text_of(path: Path, limit: int, errors: str = "strict") -> str:
    """The text of a file that somebody named, which may be anything. ``errors``: as for ``bytes.decode``.

    Raises OSError when it cannot be read, or is longer than ``limit`` bytes (a device never ends), UnicodeDecodeError.
    """
    with path.open("rb") as source:
        raw = source.read(limit + 1)
    if len(raw) > limit:
        raise OSError(errno.EFBIG, f"File is larger than {limit >> 20} MiB", str(path))
    return raw.decode("utf-8-sig", errors)
