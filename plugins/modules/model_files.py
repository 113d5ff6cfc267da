#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: model_files
short_description: Complete model files, their read speed, and the page cache
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Tells of each model, before a server tries to load it, whether all its files are there and whole. Missing shards and
    files that were cut off are named. Only headers are read for that, which takes milliseconds.
  - Gets what is missing from the hub or from a peer, when a source is given.
  - Measures once how fast the weights are read from their disk, and can read them into the page cache.
options:
  models:
    description: The models.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: The folder, or the GGUF or safetensors file. The parts of one file belong together.
        type: path
        required: true
      tokenizer:
        description: Whether a tokenizer has to be there. Draft models of speculative decoding have none.
        type: bool
        default: true
      sha256:
        description: Hashes that files have to have, by name. They are kept until a file changes.
        type: dict
        default: {}
      repo:
        description: Repository of the hub that what is missing comes from. A file has the same name there.
        type: str
        default: ""
      revision:
        description: Commit, tag or branch of it. A commit is the only one that stays the same.
        type: str
        default: ""
      rsync_from:
        description:
          - Folder that what is missing or wrong comes from, C(host:/path) or a path, for rsync over ssh.
          - For a model that is a file, the folder that holds one of this name, or the file itself.
          - Links that lead out of the folder, as in snapshots of the hub's cache, are copied as what they lead to.
        type: str
        default: ""
  dummy:
    description:
      - Whether the server makes the weights up (C(load-format) C(dummy)). Only then a folder without any is complete.
    type: bool
    default: false
  measure:
    description: Measure the read speed, once for each model; up to 1 GiB of the largest file is read from the disk.
    type: bool
    default: true
  warm:
    description: Read the weights into the page cache, as far as four fifths of the available memory hold them.
    type: bool
    default: false
  policy:
    description: V(require) fails when a model is not complete, V(warn) warns, V(report) only returns what was found.
    type: str
    choices: [require, warn, report]
    default: require
  env_path:
    description: Environment whose C(huggingface_hub) downloads. Needed with a C(repo).
    type: path
    default: ""
  token:
    description: Token for the hub. Without it, the environment's own settings count.
    type: str
    default: ""
  home:
    description: Folder on the host that holds all that Groundstate writes there.
    type: path
    default: ~/.local/state/groundstate
  timeout_s:
    description: Seconds that getting one model may take.
    type: int
    default: 7200
attributes:
  check_mode:
    support: full
    description: Looks, says what would be fetched, and neither measures nor warms.
  diff_mode:
    description: There is nothing to show of weights.
    support: none
"""

EXAMPLES = r"""
- name: Refuse to start a server on a model that was copied half-way
  groundstate.llm.model_files:
    models:
      - path: /models/qwen3-32b

- name: Get a model from a peer, and have it in memory before the server starts
  groundstate.llm.model_files:
    models:
      - path: /models/qwen3-32b
        rsync_from: gpu1:/models/qwen3-32b
    warm: true
"""

RETURN = r"""
models:
  description: What was found, one for each model.
  type: list
  elements: dict
  returned: always
  contains:
    path:
      description: The model.
      type: str
    complete:
      description: Whether all files are there and whole.
      type: bool
    problems:
      description: What is missing or cut off, one sentence each.
      type: list
      elements: str
      sample: ["SmolLM2-135M-Instruct.Q4_1.gguf was cut off: 98358336 of 98362432 bytes"]
    shards:
      description: Names of the files with weights.
      type: list
      elements: str
    total_mib:
      description: Their size.
      type: int
    read_mib_s:
      description: MiB/s with which they are read from their disk, once measured. Null when that could not be measured.
      type: float
    cached_share:
      description: Share of them that is in the page cache. Null when that could not be told.
      type: float
    fetched:
      description: Whether files were fetched, or would be in check mode.
      type: bool
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import files, model_fetch, model_files, page_cache
from ..module_utils.model_files import Found
from ..module_utils.preflight import facts

_SPEEDS = "model-speed.json"


def read_speed(found: Found, home: str, measure: bool) -> float | None:
    """The speed that was measured once for these files, measured now when there is none."""
    path = os.path.join(home, "cache", _SPEEDS)
    paths = [os.path.join(found.root, name) for name in found.shards]
    key = files.digest([os.path.realpath(found.path), found.total_bytes, os.stat(found.root or ".").st_dev])[:16]
    try:
        raw = files.read_json(path)
    except (OSError, ValueError):
        raw = None  # it only saves time
    known = raw if isinstance(raw, dict) else {}
    if key not in known and measure:
        speed = page_cache.read_speed(paths)
        if speed is None:
            return None
        known[key] = {"path": found.path, "mib_s": round(speed, 1), "at": round(time.time())}
        files.write_json(path, known)
    return known[key]["mib_s"] if key in known else None


def cached_share(found: Found) -> float | None:
    """Share of the weights that is in the page cache."""
    parts = [page_cache.resident(os.path.join(found.root, name)) for name in found.shards]
    if not found.total_bytes or None in parts:
        return None
    return round(sum(one or 0 for one in parts) / found.total_bytes, 3)


def one_model(module: AnsibleModule, wanted: dict) -> dict:
    """Look at a model, get what it lacks, measure and warm it."""
    params = module.params
    path, home = wanted["path"].rstrip("/"), params["home"]
    source = model_fetch.Source(wanted["repo"], wanted["revision"], wanted["rsync_from"])
    hashes = {name: str(value) for name, value in wanted["sha256"].items()}

    def look() -> Found:
        return model_files.look(path, not params["dummy"], wanted["tokenizer"], hashes, os.path.join(home, "cache"))

    found = look()
    fetched = bool(found.problems) and bool(source.repo or source.rsync_from)
    if fetched and not module.check_mode:
        fetched = model_fetch.fetch(
            source, path, home, params["env_path"], params["token"], float(params["timeout_s"]), found.broken
        )
        found = look()
    speed = share = None
    if found.complete and found.shards:
        if not module.check_mode:
            speed = read_speed(found, home, params["measure"])
            if params["warm"]:
                warm(module, found)
        share = cached_share(found)
    return {
        "path": path,
        "complete": found.complete,
        "problems": found.problems,
        "shards": sorted(found.shards),
        "total_mib": found.total_bytes >> 20,
        "read_mib_s": speed,
        "cached_share": share,
        "fetched": fetched,
    }


def warm(module: AnsibleModule, found: Found) -> None:
    """Read the weights into the page cache, as far as memory allows."""
    memory = facts.memory()
    room = min(one for one in (memory["available_mib"], memory["limit_mib"], 1 << 40) if one is not None)
    budget = (room << 20) * 4 // 5
    _read, there = page_cache.warm([os.path.join(found.root, name) for name in sorted(found.shards)], budget)
    if there < found.total_bytes:
        module.warn(
            f"{found.path}: {there >> 20} of {found.total_bytes >> 20} MiB are in the page cache, more would not fit "
            f"into the {room} MiB of available memory"
        )


def _help(wanted: dict) -> str:
    given = wanted["rsync_from"] or wanted["repo"]
    if given:
        return f"{given} has nothing better: look at the files there, and at what is declared of them (sha256)"
    return "Copy it again, or name where it comes from (repo, rsync_from)"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "models": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "path", "required": True},
                    "tokenizer": {"type": "bool", "default": True},
                    "sha256": {"type": "dict", "default": {}},
                    "repo": {"type": "str", "default": ""},
                    "revision": {"type": "str", "default": ""},
                    "rsync_from": {"type": "str", "default": ""},
                },
            },
            "dummy": {"type": "bool", "default": False},
            "measure": {"type": "bool", "default": True},
            "warm": {"type": "bool", "default": False},
            "policy": {"type": "str", "choices": ["require", "warn", "report"], "default": "require"},
            "env_path": {"type": "path", "default": ""},
            "token": {"type": "str", "default": "", "no_log": True},
            "home": {"type": "path", "default": "~/.local/state/groundstate"},
            "timeout_s": {"type": "int", "default": 7200},
        },
        supports_check_mode=True,
    )
    made: list = []
    try:
        for wanted in module.params["models"]:
            if wanted["repo"] and wanted["rsync_from"]:
                raise ValueError(f"{wanted['path']}: give repo or rsync_from, not both")
            made.append(one_model(module, wanted))
    except (model_fetch.FetchError, ValueError, OSError) as error:
        module.fail_json(msg=str(error), models=made)
    result = {"changed": any(one["fetched"] for one in made), "models": made}
    # In check mode, what would be fetched is not there yet.
    lacking = [
        (wanted, one)
        for wanted, one in zip(module.params["models"], made)
        if one["problems"] and not (module.check_mode and one["fetched"])
    ]
    problems = [f"{one['path']} is not complete: {'; '.join(one['problems'])}" for _wanted, one in lacking]
    if problems and module.params["policy"] == "require":
        helps = sorted({_help(wanted) for wanted, _one in lacking})
        module.fail_json(msg="\n".join([*problems, *helps]), **result)
    if module.params["policy"] == "warn":
        for text in problems:
            module.warn(text)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
