#!/usr/bin/python
# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: tiny_model
short_description: A tiny Llama with random weights, for tests of everything around a model
version_added: 0.1.0
author: Groundstate contributors (@groundstate)
description:
  - Writes a model folder (configuration, byte-level BPE tokenizer with a chat template, safetensors) that real engines
    load, shard and serve. The text that it generates is noise.
  - The same parameters give the same bytes on every host; nothing is downloaded.
options:
  path:
    description: The folder. One that exists and was not made by this module is refused.
    type: path
    required: true
  state:
    description: Whether it is there.
    type: str
    choices: [present, absent]
    default: present
  seed:
    description: What the weights are made from.
    type: int
    default: 0
  layers:
    description: Number of layers, 1 to 64.
    type: int
    default: 2
  hidden:
    description: Width of the model, a multiple of 64. It has a head for every 32, and half as many key-value heads.
    type: int
    default: 128
  vocabulary:
    description: Size of the vocabulary, a multiple of 64 from 320 to 2048.
    type: int
    default: 1024
attributes:
  check_mode:
    support: full
    description: Says what would be written.
  diff_mode:
    support: full
    description: Shows the parameters before and after.
"""

EXAMPLES = r"""
- name: Make a model for a smoke test
  groundstate.llm.tiny_model:
    path: /srv/groundstate/models/tiny
    seed: 1
"""

RETURN = r"""
path:
  description: The folder.
  type: str
  returned: always
hash:
  description: Identity of the model, taken of its parameters.
  type: str
  returned: when state is present
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import files, model_folder
from ..module_utils.tiny_llama import Shape, model_files


def main() -> None:
    numbers = {"seed": 0, "layers": 2, "hidden": 128, "vocabulary": 1024}
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            **{name: {"type": "int", "default": default} for name, default in numbers.items()},
        },
        supports_check_mode=True,
    )
    path = module.params["path"].rstrip("/")
    shape = Shape(**{name: module.params[name] for name in numbers})
    try:
        shape.check()
        known = model_folder.manifest(path)
        if module.params["state"] == "absent":
            if known is not None and not module.check_mode:
                model_folder.remove(path)
            module.exit_json(changed=known is not None, path=path)
        current = known is not None and known.get("hash") == shape.hash() and model_folder.intact(path, known)
        if not current and not module.check_mode:
            model_folder.replace(path, model_files(shape), {"hash": shape.hash(), "shape": asdict(shape)})
    except (ValueError, OSError) as error:
        module.fail_json(msg=f"tiny_model: {error}")
    result = {"changed": not current, "path": path, "hash": shape.hash()}
    if module._diff and not current:
        before = files.canonical_json(known.get("shape")) + "\n" if known else ""
        result["diff"] = {
            "before": before,
            "after": files.canonical_json(asdict(shape)) + "\n",
            "before_header": path,
            "after_header": path,
        }
    module.exit_json(**result)


if __name__ == "__main__":
    main()
