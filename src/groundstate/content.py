"""Where the collection lies that this package came with."""

from __future__ import annotations

from pathlib import Path

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
