"""A stand-in server of one host of a fleet: what it does with a declaration is the host's own, and not declared.

``--variant NAME`` is what a declaration changes. The file ``--host`` (relative paths are below the server's folder, so
that all hosts have the same command line) says what this host makes of it: {NAME: {"step": seconds a token}}, or for
one that goes wrong {"die": true}, or {"environment": {...}} for variables that change on the way into the process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "playbooks" / "collections"))

DONE = "FLEET_ENGINE_EXECUTED"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--host", type=Path, required=True)
    options = parser.parse_args()
    told = json.loads(options.host.read_text()).get(options.variant, {})
    if told.get("die"):
        sys.exit("RuntimeError: this host cannot run it")
    if told.get("environment") and DONE not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **told["environment"], DONE: "1"})

    from ansible_collections.groundstate.llm.plugins.module_utils.known_server import Settings
    from ansible_collections.groundstate.llm.plugins.module_utils.self_check import new_loop
    from mock_llm import serve

    loop, _name = new_loop()
    loop.run_until_complete(serve(options.port, Settings(step=told.get("step", 0.02), model="fleet")))


if __name__ == "__main__":
    main()
