#!/usr/bin/env python3
"""What a comparison has come to, in a few lines.

usage: comparison_state.py COMPARISON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ansible_collections.groundstate.llm.plugins.plugin_utils import comparison_lines, comparisons, speculation_lines


def main(path: str) -> None:
    document = json.loads(Path(path).read_text())
    rates = ", ".join(f"{one['arm']} {one['value']:.1f}" for one in document["starts"])
    print(f"state {document['state']}, {len(document['starts'])} starts: {rates}")
    if document["speculation"]:
        print("\n".join(speculation_lines.lines(document["speculation"])))
    elif document["state"] in comparisons.FINISHED:
        print("\n".join(comparison_lines.result(document, path)))
    else:
        print("not over: call the script again with the same KEEP")


if __name__ == "__main__":
    main(*sys.argv[1:])
